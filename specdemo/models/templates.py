"""Prompt templates: an instruction, or a conversation, becomes the token ids a model was trained to answer.

Whatever a user writes stays text: no part of an instruction can become a special token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdemo.models.errors import ZooError
from specdemo.models.tokenizer import Tokenizer

_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_DOLLY = "Below is an instruction that describes a task. Write a response that appropriately completes the request."
_MARK = "\ue000{}\ue001"  # private-use characters stand in for a message while a chat template renders

_CHATML_SOURCE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n" + _SYSTEM + "<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `role` is "system", "user" or "assistant"."""

    role: str
    content: str


class TemplateError(ValueError):
    """A conversation that a template cannot put into a prompt; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a prompt: the template's own text, whose special tokens are meant, or a `foreign` one, whose are not."""

    text: str
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class ChatSource:
    """A chat template in Jinja, and the texts of the tokens it may name (`bos_token` and so on)."""

    jinja: str
    tokens: tuple[tuple[str, str], ...] = ()

    def parts(self, messages: Sequence[Message]) -> list[Part]:
        """The prompt of a conversation. Raises TemplateError when the template refuses it or drops a message."""
        marked = [{"role": message.role, "content": _MARK.format(at)} for at, message in enumerate(messages)]
        try:
            text = _render(self.jinja, dict(self.tokens), marked)
        except Exception as error:  # whatever a stranger's template raises
            raise TemplateError(f"The model's chat template refuses this conversation: {error}") from error
        pieces = re.split(_MARK.format("([0-9]+)"), text)
        missing = {str(at) for at, one in enumerate(messages) if one.role != "assistant"} - set(pieces[1::2])
        if missing:
            role = messages[int(min(missing, key=int))].role
            raise TemplateError(f"The model's chat template leaves out the {role} message of this conversation.")
        return [
            Part(messages[int(piece)].content, foreign=True) if at % 2 else Part(piece)
            for at, piece in enumerate(pieces)
        ]


@dataclass(frozen=True)
class Template:
    """The text around an instruction. `bos` adds what the tokenizer itself puts before a text (`<s>` and the like);
    `chat` is how the model takes a conversation, None for one that was trained on single instructions or plain text."""

    name: str
    before: str = ""
    after: str = ""
    bos: bool = False
    chat: ChatSource | None = None

    def render(self, instruction: str, tokenizer: Tokenizer) -> list[int]:
        """The prompt's token ids. Nothing in the instruction becomes a special token (see `encode_parts`)."""
        parts = [Part(self.before), Part(instruction, foreign=True), Part(self.after)]
        return encode_parts(parts, tokenizer, bos=self.bos)

    def opening(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The token ids with which every prompt begins, whatever its instruction."""
        one, other = self.render("A", tokenizer), self.render("1", tokenizer)
        return tuple(one[: next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)])

    def render_chat(self, messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
        """The token ids of a conversation that the model is to continue.

        Without a chat template the conversation becomes one instruction: system text first, then the user's message, or
        where there are more, all of them in turn, each line led by "User:" or "Assistant:". Raises TemplateError.
        """
        if self.chat is not None:
            return encode_parts(self.chat.parts(messages), tokenizer)
        return self.render(as_instruction(messages), tokenizer)


def as_instruction(messages: Sequence[Message]) -> str:
    """A conversation as one instruction, for models that know no turns."""
    system = [message.content for message in messages if message.role == "system"]
    turns = [message for message in messages if message.role != "system"]
    if len(turns) > 1:
        spoken = [f"{turn.role.capitalize()}: {turn.content}" for turn in turns]
        return "\n\n".join([*system, "\n".join(spoken)])
    return "\n\n".join([*system, *(turn.content for turn in turns)])


def encode_parts(parts: Sequence[Part], tokenizer: Tokenizer, *, bos: bool = False) -> list[int]:
    """The token ids of a prompt made of parts.

    Where a foreign part spells a special token such as `<|im_end|>`, alone or together with the text beside it, that is
    encoded as the plain characters it is.
    """
    whole = tokenizer.encode("".join(part.text for part in parts), bos=bos)
    own = tokenizer.encode("".join(part.text for part in parts if not part.foreign), bos=bos)
    if _special(whole, tokenizer) == _special(own, tokenizer):
        return whole
    return _piecewise(parts, tokenizer, bos)


def _special(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    return [id for id in ids if id in tokenizer.special_ids]


def _piecewise(parts: Sequence[Part], tokenizer: Tokenizer, bos: bool) -> list[int]:
    """Special tokens only where the template's own text has them; all text between two of them encoded together."""
    strings = {tokenizer.token_string(id): id for id in tokenizer.special_ids}
    pattern = "|".join(re.escape(one) for one in sorted(strings, key=len, reverse=True) if one)
    ids = _special(tokenizer.encode("", bos=bos), tokenizer)
    text = ""
    for part in parts:
        # re.split with one group: text and special strings alternate, text first and last.
        pieces = [part.text] if part.foreign or not pattern else re.split(f"({pattern})", part.text)
        text += pieces[0]
        for special, following in zip(pieces[1::2], pieces[2::2], strict=True):
            ids += [*tokenizer.encode(text, special=False), strings[special]]
            text = following
    return ids + tokenizer.encode(text, special=False)


CHATML = Template(
    "chatml",
    before=f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n",
    after="<|im_end|>\n<|im_start|>assistant\n",
    chat=ChatSource(_CHATML_SOURCE),
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
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    chat = ChatSource(source, tuple((name, _token_text(config.get(name))) for name in names))
    mark = _MARK.format(0)
    try:
        before, found, after = _render(source, dict(chat.tokens), [{"role": "user", "content": mark}]).partition(mark)
    except Exception as error:  # whatever a stranger's template raises
        raise ZooError(f"The chat template in {folder} does not render ({error}).") from error
    if not found or mark in after:
        raise ZooError(f"The chat template in {folder} does not put the user's message into the prompt once, as it is.")
    return Template("chat", before=before, after=after, chat=chat)


def _render(source: str, tokens: dict[str, str], messages: list[dict[str, str]]) -> str:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _today
    return environment.from_string(source).render(
        messages=messages, add_generation_prompt=True, tools=None, documents=None, **tokens
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
