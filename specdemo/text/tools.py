"""The forms in which models write calls of tools; reads them in answers, which `grammar.py`
restricts to a form."""

import json
from dataclasses import dataclass
from typing import NamedTuple

from specdemo.text.tokenizer import Tokenizer, certain


class FunctionCall(NamedTuple):
    """A call of a tool; `arguments` are the JSON text of an object."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes a call: `head`, the tool's name, `middle`, the arguments as JSON, `tail`.
    `separator` is between calls; None: only one call. With a `list_marker`, calls are a JSON list
    after it. `end` may follow the last call. `first`: no other text precedes a call."""

    head: str
    middle: str
    tail: str
    separator: str | None = None
    list_marker: str = ""
    end: str = ""
    first: bool = False

    @property
    def leads(self) -> tuple[str, ...]:
        """The texts that may begin calls. SentencePiece puts a space after a marker."""
        if not self.list_marker:
            return (self.head,)
        return tuple(f"{self.list_marker}{space}[{self.head}" for space in ("", " "))

    @property
    def text(self) -> str:
        """The text of a call without name and arguments."""
        return self.leads[0] + self.middle + self.tail + self.end


_DECODER = json.JSONDecoder()
_OBJECT = '{"name": "', '", "arguments": ', "}", ", "
# Some models end a line before they end an answer; without that they would begin another call.
HERMES = CallForm('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n", end="\n")
LLAMA = CallForm('{"name": "', '", "parameters": ', "}", first=True)
MISTRAL = CallForm(*_OBJECT, "[TOOL_CALLS]")
MISTRAL_ARGS = CallForm("[TOOL_CALLS]", "[ARGS]", "", "")
GRANITE = CallForm(*_OBJECT, "<|tool_call|>")
PHI = CallForm(*_OBJECT, "<|tool_call|>", "<|/tool_call|>")
PHI_TOOLS = "message['tools']"  # a template of Phi-4-mini, which reads them in the system message


def call_form(jinja: str) -> CallForm | None:
    """The form of calls in a chat template; None if there is none, or another one."""
    if "[TOOL_CALLS]" in jinja:
        return MISTRAL_ARGS if "[ARGS]" in jinja else MISTRAL
    if "<tool_call>" in jinja:
        others = "<function=", "<arg_key>"  # parameters as XML
        return None if any(text in jinja for text in others) else HERMES
    if PHI_TOOLS in jinja:
        return PHI
    if "<|tool_call|>" in jinja:
        return GRANITE
    return LLAMA if '"parameters": ' in jinja and "<|start_header_id|>" in jinja else None


@dataclass(frozen=True, slots=True)
class Tools:
    """The `functions` that an answer may call, OpenAI's definitions as a JSON list. With `required`
    the answer is calls only; with `several` it may have more than one."""

    functions: str
    required: bool = False
    several: bool = True
    form: CallForm = HERMES

    def markers(self, tokenizer: Tokenizer) -> dict[int, str]:
        """The special tokens that mark calls, with their texts."""
        added = tokenizer.added.items()
        special = {id: text for text, id in added if id in tokenizer.special_ids}
        return {id: text for id, text in special.items() if text in self.form.text}


class CallReader:
    """Splits an answer that comes in pieces into content and calls of `tools`; all is content
    without tools."""

    def __init__(self, tools: Tools | None):
        self._tools, self._form = tools, tools.form if tools else HERMES
        functions = json.loads(tools.functions) if tools else ()
        self._openings = {tool["name"] + self._form.middle: tool["name"] for tool in functions}
        self._unread = ""
        self._has_content = self._after_call = False

    def read(self, text: str, last: bool = False) -> tuple[str, tuple[FunctionCall, ...]]:
        """The content that is certain after `text`, and the calls that it completes. With `last` a
        call that is incomplete is content."""
        if self._tools is None:
            return text, ()
        form, content = self._form, ""
        calls: list[FunctionCall] = []
        self._unread += text
        while True:
            leads = form.leads
            if self._after_call:  # what stands between calls is no content
                between = (form.separator or "") + ("]" if form.list_marker else "")
                self._unread = self._unread.lstrip(between).removeprefix(form.end)
                if not last and self._unread and form.end.startswith(self._unread):
                    return content, tuple(calls)
                leads += (form.head,)
            end, begins = certain(self._unread, leads)
            if form.first and (self._has_content or end) or last and not begins:
                end, begins = len(self._unread), False
            content += self._take(end)
            if not begins:
                return content, tuple(calls)
            lead = next(lead for lead in leads if self._unread.startswith(lead))
            call, length = self._call(self._unread[len(lead) :])
            if call:
                self._unread, self._after_call = self._unread[len(lead) + length :], True
                calls.append(call)
            elif length or last:
                content += self._take(len(lead) if length else len(self._unread))
            else:
                return content, tuple(calls)

    def _take(self, size: int) -> str:
        taken, self._unread = self._unread[:size], self._unread[size:]
        if taken:
            self._has_content, self._after_call = True, False
        return taken

    def _call(self, text: str) -> tuple[FunctionCall | None, int]:
        """The call that begins `text`, which starts at its name, and its length. Without a call,
        0 if more text may complete it, else not 0."""
        opening = next(filter(text.startswith, self._openings), None)
        if opening is None:
            return None, not any(opening.startswith(text) for opening in self._openings)
        try:
            _, end = _DECODER.raw_decode(text, len(opening))
        except (ValueError, RecursionError):
            return None, 0
        call = FunctionCall(self._openings[opening], text[len(opening) : end])
        if text.startswith(self._form.tail, end):
            return call, end + len(self._form.tail)
        return None, not self._form.tail.startswith(text[end:])
