"""Splits the text of an answer that may call tools into content and calls, as it comes."""

import json
import uuid
from typing import Any

from specdemo.grammar import CALL, END_OF_CALL
from specdemo.serving.backend import certain


class CallReader:
    """Reads an answer of `grammar.Tools` piece by piece. `count` is the number of calls so far."""

    def __init__(self) -> None:
        self._unread, self.count, self._after_call = "", 0, False

    def read(self, text: str, last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """The content that is certain after `text`, and the calls that it completes, in the form of
        OpenAI's clients. With `last` a call that is incomplete is content."""
        content, calls = "", []
        self._unread += text
        while True:
            if self._after_call:  # white space between calls is no content
                self._unread = self._unread.lstrip()
            end, begins = certain(self._unread, (CALL,))
            end = len(self._unread) if last and not begins else end
            content, self._unread = content + self._unread[:end], self._unread[end:]
            self._after_call = self._after_call and not end
            call, ends, rest = self._unread.removeprefix(CALL).partition(END_OF_CALL)
            if not ends:
                break
            self._unread, self._after_call = rest, True
            calls.append(self._written(json.loads(call)))
        return content + (self._unread if last else ""), calls

    def _written(self, call: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        return {
            "index": self.count - 1,
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call["name"], "arguments": arguments},
        }
