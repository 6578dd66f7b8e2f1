"""Prompt templates: an instruction becomes the token ids a model was trained to answer.

Whatever a user writes stays text: no part of an instruction can become a special token.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdemo.zoo.errors import ZooError
from specdemo.zoo.tokenizer import Tokenizer

_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_DOLLY = "Below is an instruction that describes a task. Write a response that appropriately completes the request."
_MARK = "\ue000instruction\ue001"  # private-use characters stand in for the instruction while a chat template renders


@dataclass(frozen=True)
class Template:
    """The text around an instruction. `bos` adds what the tokenizer itself puts before a text (`<s>` and the like)."""

    name: str
    before: str = ""
    after: str = ""
    bos: bool = False

    def render(self, instruction: str, tokenizer: Tokenizer) -> list[int]:
        """The prompt's token ids.

        Where the instruction spells a special token such as `<|im_end|>`, alone or together with the template's text
        beside it, that is encoded as the plain characters it is.
        """
        whole = tokenizer.encode(self.before + instruction + self.after, bos=self.bos)
        wanted = self._special(tokenizer.encode(self.before + self.after, bos=self.bos), tokenizer)
        if self._special(whole, tokenizer) == wanted:
            return whole
        return self._piecewise(instruction, tokenizer)

    @staticmethod
    def _special(ids: list[int], tokenizer: Tokenizer) -> list[int]:
        return [id for id in ids if id in tokenizer.special_ids]

    def _piecewise(self, instruction: str, tokenizer: Tokenizer) -> list[int]:
        """Special tokens only where the template's own text has them; all text between two of them encoded together."""
        strings = {tokenizer.token_string(id): id for id in tokenizer.special_ids}
        pattern = "|".join(re.escape(one) for one in sorted(strings, key=len, reverse=True) if one)
        before = re.split(f"({pattern})", self.before) if pattern else [self.before]
        after = re.split(f"({pattern})", self.after) if pattern else [self.after]
        # re.split with one group: text and special strings alternate, text first and last.
        pieces = [*before[:-1], before[-1] + instruction + after[0], *after[1:]]
        ids = self._special(tokenizer.encode("", bos=self.bos), tokenizer)
        for position, piece in enumerate(pieces):
            ids += [strings[piece]] if position % 2 else tokenizer.encode(piece, special=False)
        return ids


CHATML = Template(
    "chatml",
    before=f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n",
    after="<|im_end|>\n<|im_start|>assistant\n",
)
DOLLY = Template("dolly", before=f"{_DOLLY}\n\n### Instruction:\n", after="\n\n### Response:\n")
PLAIN = Template("plain", bos=True)

NAMED = {template.name: template for template in (CHATML, DOLLY, PLAIN)}


def chat_template(folder: Path) -> Template | None:
    """The chat template that the tokenizer in `folder` has, or None.

    Raises ZooError where it has one that does not render a single user message with the message's own text.
    """
    config = _read_json(folder / "tokenizer_config.json")
    source = config.get("chat_template")
    if isinstance(source, list):  # several named templates
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        source = own_file.read_text(encoding="utf-8")
    if not isinstance(source, str) or not source.strip():
        return None
    try:
        before, mark, after = _render(source, config).partition(_MARK)
    except Exception as error:  # whatever a stranger's template raises
        raise ZooError(f"The chat template in {folder} does not render ({error}).") from error
    if not mark or _MARK in after:
        raise ZooError(f"The chat template in {folder} does not put the user's message into the prompt once, as it is.")
    return Template("chat", before=before, after=after)


def _render(source: str, config: dict[str, Any]) -> str:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _today
    tokens = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return environment.from_string(source).render(
        messages=[{"role": "user", "content": _MARK}], add_generation_prompt=True, tools=None, documents=None, **tokens
    )


def _raise(message: str) -> None:
    raise ValueError(message)


def _today(form: str) -> str:
    import datetime

    return datetime.datetime.now().strftime(form)


def _token_text(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


