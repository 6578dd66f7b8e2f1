"""Turns conversations into token ids. No part of a user's text can become a special token."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from specdemo.convert.configuration import TokenizerConfig, read_json, read_text
from specdemo.convert.model_files import FURTHER_TEMPLATES
from specdemo.errors import BadInput, FetchError
from specdemo.text import sandbox
from specdemo.text.tokenizer import MARK, MARKER, Tokenizer, valid
from specdemo.text.tools import PHI_TOOLS, FunctionCall, Tools, call_form

_PLACEHOLDER = f"{MARK}{{}}{MARK}."
_ESCAPED_MARK = repr(MARK).strip("'")
STRETCH = 8  # tokens of a placeholder, which may stand for a text of one token
_PLAIN = re.compile(r"[\w ./:,-]*")  # no special token consists of these alone
_LEFT_OUT = "The model's chat template leaves out {} of this conversation."
_HARMONY = "<|start|>assistant", "<|channel|>final<|message|>"
"""What asks gpt-oss for an answer, and what begins the part of it that is meant for the user."""

_CUT = "\ud801 "  # ends a message that is continued; the space shows whether it is trimmed

# For models without turns: system text first, then the messages; several get their role's name.
_ONE_TEXT = (
    "{% set turns = messages | rejectattr('role', 'equalto', 'system') | list %}"
    "{% for message in messages if message.role == 'system' %}"
    "{{ message.content + '\n\n' }}{% endfor %}"
    "{% for message in turns %}"
    "{% if turns | length > 1 %}{{ message.role | capitalize + ': ' }}{% endif %}"
    "{{ message.content }}{{ '' if loop.last else '\n' }}"
    "{% endfor %}"
)


ArgumentReading = Literal["parsed", "text", "object"]
"""The arguments of an earlier call in the variables of a template: parsed if they are JSON, as the
text that they are, or an object always."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str  # "system", "user", "assistant" or "tool"
    content: str
    calls: tuple[FunctionCall, ...] = ()  # that an assistant makes
    call_id: str = ""  # of the call that a tool's turn answers
    name: str = ""  # of the tool
    more: str = "{}"  # other fields that a template may read, as JSON text


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation whose next message is wanted."""

    turns: Sequence[Message]
    continues: bool = False  # the answer continues the last message, the assistant's
    tools: Tools | None = None  # that the answer may call
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the template, JSON data

    @property
    def characters(self) -> int:
        """Of all texts that the model reads."""
        texts = [turn.content + turn.more for turn in self.turns]
        texts += [call.arguments for turn in self.turns for call in turn.calls]
        texts += [json.dumps(self.variables)]
        texts += [self.tools.functions] if self.tools else []
        return sum(map(len, texts))


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template."""

    name: str
    jinja: str  # of conversations
    tools_jinja: str = ""  # of those with tools, if it is another one
    bos: bool = False  # add the tokens that the tokenizer itself puts before a text
    tokens: dict[str, str] = field(default_factory=dict)  # special ones that it may name
    thinking: bool = False  # ask models that can to think before they answer

    def written(self, tools: Tools) -> Tools:
        """`tools` with calls in this model's form. Raises BadInput if that is not known."""
        if (form := call_form(self.tools_jinja or self.jinja)) is None:
            why = "This model's chat template has no form of tool calls that is known here"
            raise BadInput(f"{why}; leave out tools.", "tools", "unsupported_parameter")
        return replace(tools, form=form)

    def turn_markers(self) -> tuple[set[str], str]:
        """The texts in the form of special tokens with which turns begin and end, and the one that
        follows an assistant's message, if any."""
        turns = [Message(role, role) for role in ("user", "assistant", "user")]
        try:
            probe = self.text(Chat(turns), _Placeholders())
        except BadInput:  # it takes a single message
            probe = self.text(Chat(turns[:1]), _Placeholders())
        probe = probe[: probe.rfind(MARK)]  # what asks for an answer may begin with <think>
        _, _, after = probe.partition(_PLACEHOLDER.format(2))
        end = MARKER.match(after.lstrip())
        names = MARKER.findall(self.jinja + self.tools_jinja)
        named = {name for name in names if name[0] == "[" or name[1] in "|\uff5c"}
        # Pairs such as <think> and </think> enclose parts of a text, which are shown.
        tags = {name.replace("</", "<") for name in names if name.startswith("</")}
        named.update(n for n in MARKER.findall(probe) if n.replace("</", "<") not in tags)
        return named, end[0] if end else ""

    def render(self, instruction: str, tokenizer: Tokenizer) -> list[int]:
        """The prompt's token ids. Raises BadInput."""
        return self.render_chat(Chat([Message("user", instruction)]), tokenizer)

    def prefix(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The token ids with which every prompt begins."""
        pair = self.render("A", tokenizer), self.render("1", tokenizer)
        return tuple(os.path.commonprefix(pair))

    def render_chat(self, chat: Chat, tokenizer: Tokenizer) -> list[int]:
        """The token ids of transformers' `apply_chat_template`, but no text of a message or a tool
        becomes a special token. A chat that `continues` ends within its last message. Raises
        BadInput if the template refuses the conversation or drops a system or user message, or a
        tool."""
        text = partial(self.text, chat)
        has_calls = any(message.calls for message in chat.turns)
        reading = _reading(text) if has_calls else "parsed"

        def encoded(change: Callable[[str], str], stretch: int = 1) -> tuple[list[int], list[int]]:
            marked = text(change, reading)
            if change is not valid:  # a template that prints a list escapes the marks in it
                marked = marked.replace(_ESCAPED_MARK, MARK)
            return tokenizer.encode_marked(marked, bos=self.bos, stretch=stretch)

        _, expected = encoded(_Placeholders(), STRETCH)
        ids, special = encoded(valid)
        if special == expected:
            return ids
        # The texts spell special tokens, or the template compares them.
        guarded, expected = encoded(tokenizer.mark_starts)
        if special != expected:
            ids, special = encoded(tokenizer.mark_special)
        return ids if special == expected else guarded

    def text(
        self, chat: Chat, change: Callable[[str], str] = valid, reading: ArgumentReading = "parsed"
    ) -> str:
        """The text of a prompt, with `change` applied to all text of messages and tools. Raises
        BadInput like `render_chat`."""
        messages, tools = chat.turns, chat.tools.listed if chat.tools else ()
        if chat.continues and messages[-1].role != "assistant":
            why = "continue_final_message needs a conversation that ends with the assistant's text."
            raise BadInput(why, "messages")
        has_calls = any(message.calls for message in messages)
        jinja = self.tools_jinja if self.tools_jinja and (tools or has_calls) else self.jinja
        as_content = "tool_calls" not in jinja
        try:
            turns = [_turn(message, change, reading, as_content) for message in messages]
            final = turns[-1]["content"].strip()
            if chat.continues:
                turns[-1]["content"] += _CUT
            functions = _changed(list(tools), change)
            if tools and PHI_TOOLS in jinja:
                if turns[0]["role"] != "system":
                    turns.insert(0, {"role": "system", "content": ""})
                listed = [tool["function"] for tool in functions]
                turns[0]["tools"] = json.dumps(listed, ensure_ascii=False)
            variables = {
                "enable_thinking": self.thinking,
                **self.tokens,
                **_changed(dict(chat.variables), _unless_plain(change)),
                "messages": turns,
                "tools": functions or None,
                "documents": None,
                "add_generation_prompt": not chat.continues,
            }
        except (ValueError, TypeError, RecursionError) as error:
            why = f"The tools, their calls or chat_template_kwargs are not JSON data: {error}."
            raise BadInput(why, "messages") from error
        text = sandbox.render(jinja, variables)
        if isinstance(change, _Placeholders):
            change.require(variables, tools, text)
        if not chat.continues:
            asked, final = _HARMONY
            thinks = variables["enable_thinking"] or "reasoning_effort" in variables
            return text + final if text.endswith(asked) and final in jinja and not thinks else text
        text, cut, rest = text.rpartition(_CUT.strip())
        if not cut or final not in text:
            why = "The model's chat template changes the last message, which cannot be continued."
            raise BadInput(why, "messages")
        return text if rest.startswith(" ") else text.rstrip()


def _reading(text: Callable[[Callable[[str], str], ArgumentReading], str]) -> ArgumentReading:
    """How a template takes the arguments of calls: the first way that it neither refuses nor prints
    as Python does. `text` renders the conversation."""
    readings: tuple[ArgumentReading, ...] = ("parsed", "text", "object")
    for reading in readings:
        placeholders = _Placeholders()
        with suppress(BadInput):
            prompt = text(placeholders, reading)
            if not any(printed in prompt for printed in placeholders.printed):
                return reading
    return "parsed"


class _Placeholders:
    """Replaces each text by a numbered placeholder that can be found in the prompt."""

    def __init__(self) -> None:
        self._count = 0
        self.printed: list[str] = []  # arguments of calls as Python would print them

    def __call__(self, text: str) -> str:
        self._count += 1
        return text and _PLACEHOLDER.format(self._count)

    def require(
        self, variables: dict[str, Any], tools: Sequence[dict[str, Any]], prompt: str
    ) -> None:
        """Raise BadInput if a message or a tool of `variables` is not in `prompt`."""
        for number, message in enumerate(variables["messages"]):
            for call in message.get("tool_calls", ()):
                arguments = call["function"]["arguments"]
                if arguments and isinstance(arguments, dict):
                    self.printed.append(str(arguments))
            if message["role"] != "assistant" and message["content"] not in prompt:
                name = f"messages.{number} ({message['role']})"
                raise BadInput(_LEFT_OUT.format(name), "messages")
        for number, tool in enumerate(variables["tools"] or ()):
            if tool["function"]["name"] not in prompt:
                name = f"tools.{number} ({tools[number]['function']['name']})"
                raise BadInput(_LEFT_OUT.format(name), "tools")


def _turn(
    message: Message, change: Callable[[str], str], reading: ArgumentReading, as_content: bool
) -> dict[str, Any]:
    """A message as the variable of a template; calls are a part of its text if `as_content`."""
    plain = partial(_changed, change=_unless_plain(change))
    texts, calls = [message.content], message.calls
    if as_content:
        texts += [f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in calls]
        calls = ()
    content = change("\n".join(filter(None, texts)))
    more = _changed(json.loads(message.more), change)
    turn: dict[str, Any] = more | {"role": plain(message.role), "content": content}
    optional = {
        "tool_calls": [
            {
                "type": "function",
                "id": plain(call.id),
                "function": {
                    "name": change(call.name),
                    "arguments": _arguments(call.arguments, change, reading),
                },
            }
            for call in calls
        ],
        "tool_call_id": plain(message.call_id),
        "name": plain(message.name),
    }
    return turn | {name: value for name, value in optional.items() if value}


def _arguments(text: str, change: Callable[[str], str], reading: ArgumentReading) -> Any:
    """The arguments of a call, which may be malformed: a text that is no JSON."""
    if reading == "text":
        return change(text)
    try:
        value = _changed(json.loads(text), change)
    except (ValueError, RecursionError):
        value = change(text)
    return {"arguments": value} if reading == "object" and not isinstance(value, dict) else value


def _unless_plain(change: Callable[[str], str]) -> Callable[[str], str]:
    """`change`, but texts that cannot spell a special token stay, so that templates can compare
    them."""
    return lambda text: text if _PLAIN.fullmatch(text) else change(text)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """JSON data with `change` applied to its texts, except plain names of properties and types.
    Raises TypeError for other data."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_changed(item, change) for item in value]
    if isinstance(value, dict):
        names = _unless_plain(change)
        return {
            names(key): _changed(item, names if key == "type" else change)
            for key, item in value.items()
        }
    if value is None or isinstance(value, int | float):
        return value
    raise TypeError(f"it holds a {type(value).__name__}")


DOLLY = Template(
    "dolly",
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    f"the request.\n\n### Instruction:\n{_ONE_TEXT}{{{{ '\n\n### Response:\n' }}}}",
)
RAW = Template("raw", _ONE_TEXT, bos=True)


def chat_template(folder: Path) -> Template | None:
    """The chat template in `folder`, or None. Raises FetchError if a prompt does not contain a
    single user message exactly once."""
    path, jinja_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    tokens = TokenizerConfig.of(read_json(path), path).model_dump()
    sources = tokens.pop("chat_template")
    if jinja_file.is_file():
        sources["default"] = read_text(jinja_file)
    for further in (folder / FURTHER_TEMPLATES).glob("*.jinja"):
        sources[further.stem] = read_text(further)
    if not sources.get("default"):
        return None
    tokens = {name: token for name, token in tokens.items() if token}
    template = Template("chat", sources["default"], sources.get("tool_use", ""), tokens=tokens)
    try:
        text = template.text(Chat([Message("user", "A")]), _Placeholders())
    except BadInput as error:
        raise FetchError(f"The chat template in {folder} cannot be used: {error}") from error
    if text.count(_PLACEHOLDER.format(1)) != 1:
        raise FetchError(f"The chat template in {folder} does not contain a user's message once.")
    return template
