"""The forms in which models write calls of tools; reads them in answers, which `grammar.py`
restricts to a form."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_letters
from typing import Any, NamedTuple

from specdemo.text.tokenizer import Tokenizer, certain


class FunctionCall(NamedTuple):
    """A call of a tool; `arguments` are the JSON text of an object."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes a call: head, the tool's name, middle, the arguments as JSON, tail."""

    head: str
    middle: str
    tail: str
    separator: str | None = None  # between calls; None: only one call
    list_marker: str = ""  # before a JSON list of calls
    end: str = ""  # may follow the last call
    first: bool = False  # no other text precedes a call

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


BARE = "{"
LOOSE_TAGS = "tool_call tools tool function_call response json JSON xml".split()
LOOSE_ENDS = {f"<{tag}>": f"</{tag}>" for tag in LOOSE_TAGS} | {"```": "```", BARE: ""}
"""What models put before and after a call that they write in another form than the template's, as
Qwen2.5-Coder does. llama.cpp reads these too."""

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
    """What an answer may call."""

    functions: str  # OpenAI's definitions as a JSON list
    required: bool = False  # the answer is calls only
    several: bool = True  # it may have more than one
    form: CallForm = HERMES
    listed: Sequence[dict[str, Any]] = field(default=(), compare=False)
    """The tools that the prompt lists: OpenAI's definitions, of those that it must not call too."""

    def markers(self, tokenizer: Tokenizer) -> dict[int, str]:
        """The special tokens that mark calls, with their texts."""
        added = tokenizer.added.items()
        special = {id: text for text, id in added if id in tokenizer.special_ids}
        return {id: text for id, text in special.items() if text in self.form.text}


class CallReader:
    """Splits an answer that comes in pieces into content and calls of `tools`; all is content
    without tools. Where calls are not required, those in loose forms are read too."""

    def __init__(self, tools: Tools | None):
        self._tools, self._form = tools, tools.form if tools else HERMES
        names = [tool["name"] for tool in json.loads(tools.functions)] if tools else []
        # What precedes the arguments of a call: without spaces, and as a pattern.
        keys = "arguments", "parameters"
        self._openings = [f'{{"name":"{name}","{key}":' for name in names for key in keys]
        self._openings += [name + MISTRAL_ARGS.middle for name in names]
        self._opening = re.compile(
            rf'\s*(\{{\s*"name"\s*:\s*")?({"|".join(map(re.escape, names))})'
            rf'(?(1)"\s*,\s*"({"|".join(keys)})"\s*:|{re.escape(MISTRAL_ARGS.middle)})\s*'
        )
        self._unread = ""
        self._has_content = self._has_words = False
        self._after_call = self._has_call = False

    def read(self, text: str, last: bool = False) -> tuple[str, tuple[FunctionCall, ...]]:
        """The content that is certain after `text`, and the calls that it completes. With `last` a
        call that is incomplete is content."""
        if self._tools is None:
            return text, ()
        form, content = self._form, ""
        calls: list[FunctionCall] = []
        self._unread += text
        while True:
            if self._after_call:  # what stands between calls is no content
                between = (form.separator or "") + ("]" if form.list_marker else "")
                self._unread = self._unread.lstrip(between).removeprefix(form.end)
                if not last and self._unread and form.end.startswith(self._unread):
                    return content, tuple(calls)
            leads = self._leads(self._tools)
            end, begins = certain(self._unread, [lead for lead in leads if lead != BARE])
            bare = self._unread.lstrip()
            if BARE in leads and bare.startswith(BARE):
                end, begins = len(self._unread) - len(bare), True
            if last and not begins:
                end = len(self._unread)
            content += self._take(end)
            if not begins:
                return content, tuple(calls)
            if end:
                continue  # with content before it, another lead may count
            lead = next(filter(self._unread.startswith, leads))
            call, length = self._call(lead, leads[lead], last)
            if call:
                self._unread = self._unread[length:]
                self._after_call = self._has_call = True
                calls.append(call)
            elif length or last:
                content += self._take(length or len(self._unread))
            else:
                return content, tuple(calls)

    def _take(self, size: int) -> str:
        taken, self._unread = self._unread[:size], self._unread[size:]
        if taken:
            self._has_content, self._after_call = True, False
            self._has_words = self._has_words or not taken.isspace()
        return taken

    def _leads(self, tools: Tools) -> dict[str, str]:
        """The texts before the braces of calls that may begin here, each with the one that ends the
        call. JSON alone is a call in a loose form only as the whole answer."""
        form = self._form
        own = () if form.first and self._has_content else form.leads
        own += (form.head,) if self._after_call and tools.several else ()
        leads = {lead.partition("{")[0].rstrip() or BARE: form.tail.lstrip("}\n") for lead in own}
        if not (tools.required or self._has_call and not tools.several):
            loose = LOOSE_ENDS.items()
            leads |= {lead: end for lead, end in loose if lead != BARE or not self._has_words}
        return leads

    def _call(self, lead: str, end: str, last: bool) -> tuple[FunctionCall | None, int]:
        """The call that begins the unread text with `lead`, and its length. Without a call, the
        length of the content there, 0 if more text may complete a call."""
        text = self._unread
        begin = 0 if lead == BARE else len(lead)
        if lead == "```":
            begin = len(text) - len(text[begin:].lstrip(ascii_letters))  # a language
        if not (opening := self._opening.match(text, begin)):
            begun = "".join(text[begin:].split())
            return None, 0 if any(o.startswith(begun) for o in self._openings) else len(lead)
        try:
            arguments, stop = _DECODER.raw_decode(text, opening.end())
        except (ValueError, RecursionError):
            return None, 0
        if not isinstance(arguments, dict):
            return None, len(lead)
        rest = text[stop:].lstrip()
        if opening[1]:
            if not rest.startswith("}"):
                return None, len(lead) if rest else 0
            rest = rest[1:].lstrip()
        if not rest.startswith(end):
            if not last and end.startswith(rest):
                return None, 0
            if rest:
                return None, len(lead)
        call = FunctionCall(opening[2], text[opening.end() : stop])
        return call, len(text) - len(rest.removeprefix(end))
