"""Prompt templates: an instruction or a conversation becomes the token ids of a prompt. What a user
writes stays text: no part of it can become a special token."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specdemo.convert.configuration import TokenizerConfig
from specdemo.convert.ir import read_json, read_text
from specdemo.errors import BadInput, FetchError
from specdemo.text import sandbox
from specdemo.text.renderer import JSON_TEXT
from specdemo.text.tokenizer import Tokenizer

_MARK = "\ue000{}\ue001"  # private-use characters stand for a message while a template renders

# For models without turns: system text first, then the messages; several get their role's name.
_ONE_TEXT = (
    "{% set turns = messages | rejectattr('role', 'equalto', 'system') | list %}"
    "{% for one in messages if one.role == 'system' %}{{ one.content + '\n\n' }}{% endfor %}"
    "{% for one in turns %}"
    "{% if turns | length > 1 %}{{ one.role | capitalize + ': ' }}{% endif %}"
    "{{ one.content }}{{ '' if loop.last else '\n' }}"
    "{% endfor %}"
)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `role` is "system", "user", "assistant" or "tool". `calls` are an
    assistant's calls of tools: names, and arguments as JSON text."""

    role: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """The text around an instruction or a conversation, in Jinja. `bos`: add the tokens that the
    tokenizer itself puts before a text, such as `<s>`. `tokens`: the texts of the special tokens
    that the template may name. `thinking`: ask models that can think before they answer to do so.
    """

    name: str
    jinja: str
    bos: bool = False
    tokens: dict[str, str] = field(default_factory=dict)
    thinking: bool = False

    def render(self, instruction: str, tokenizer: Tokenizer) -> list[int]:
        """The prompt's token ids. Raises BadInput."""
        return self.render_chat([Message("user", instruction)], tokenizer)

    def prefix(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The token ids with which every prompt begins."""
        pair = self.render("A", tokenizer), self.render("1", tokenizer)
        return tuple(os.path.commonprefix(pair))

    def render_chat(
        self, messages: Sequence[Message], tokenizer: Tokenizer, tools: Sequence[dict] = ()
    ) -> list[int]:
        """The token ids of a conversation that the model is to continue, with `tools` that it may
        call (OpenAI's definitions). Raises BadInput.

        If a message spells a special token such as `<|im_end|>`, by itself or together with the
        text beside it, this is encoded as ordinary characters."""

        def special(ids: list[int]) -> list[int]:
            return [id for id in ids if id in tokenizer.special_ids]

        parts = self.parts(messages, tools)
        whole = tokenizer.encode("".join(parts), bos=self.bos)
        if special(whole) == special(tokenizer.encode("".join(parts[::2]), bos=self.bos)):
            return whole
        ids = special(tokenizer.encode("", bos=self.bos))
        for at, part in enumerate(parts):
            ids += tokenizer.encode(part, special=at % 2 == 0)
        return ids

    def parts(self, messages: Sequence[Message], tools: Sequence[dict] = ()) -> list[str]:
        """The prompt of a conversation: the template's own text alternates with that of messages
        and tools. Raises BadInput if the template refuses the conversation or drops a system or
        user message, or a tool."""
        texts: list[str] = []
        needed: list[str] = []

        def mark(text: str, name: str = "") -> str:
            texts.append(text)
            needed.append(name)
            return _MARK.format(len(texts) - 1)

        def turn(message: Message) -> dict:
            name = "" if message.role == "assistant" else f"the {message.role} message"
            content = "" if message.calls and not message.content else mark(message.content, name)
            turned = {"role": message.role, "content": content}
            calls = [
                {"name": one, "arguments": {JSON_TEXT: mark(text)}} for one, text in message.calls
            ]
            if calls:
                turned["tool_calls"] = [{"type": "function", "function": call} for call in calls]
            return turned

        given = {"messages": [turn(message) for message in messages], "add_generation_prompt": True}
        listed = [mark(json.dumps(tool, ensure_ascii=False), "a tool") for tool in tools]
        given["tools"] = [{JSON_TEXT: one} for one in listed] or None
        given |= {"documents": None, "enable_thinking": self.thinking}
        text = sandbox.render(self.jinja, given | self.tokens)
        pieces = re.split(_MARK.format("([0-9]+)"), text)  # own text and indices alternate
        for at, name in enumerate(needed):
            if name and str(at) not in pieces[1::2]:
                why = f"The model's chat template leaves out {name} of this conversation."
                raise BadInput(why, "tools" if name == "a tool" else "messages")
        pieces[1::2] = [texts[int(at)] for at in pieces[1::2]]
        return pieces


DOLLY = Template(
    "dolly",
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    f"the request.\n\n### Instruction:\n{_ONE_TEXT}{{{{ '\n\n### Response:\n' }}}}",
)
RAW = Template("raw", _ONE_TEXT, bos=True)


def chat_template(folder: Path) -> Template | None:
    """The chat template in `folder`, or None. Raises FetchError if a prompt does not contain a
    single user message exactly once."""
    path, own_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    tokens = TokenizerConfig.of(read_json(path), path).model_dump()
    source = tokens.pop("chat_template")
    if own_file.is_file():
        source = read_text(own_file)
    if not source:
        return None
    template = Template("chat", source, tokens=tokens)
    try:
        once = len(template.parts([Message("user", "")])) == 3
    except BadInput as error:
        raise FetchError(f"The chat template in {folder} cannot be used: {error}") from error
    if not once:
        raise FetchError(f"The chat template in {folder} does not contain a user's message once.")
    return template
