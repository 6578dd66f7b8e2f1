"""Conversations as OpenAI's clients write them, and as they are put into a template."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from specdemo.errors import BadInput
from specdemo.options import shown, wrong_parameter
from specdemo.text.templates import Chat, Message
from specdemo.text.tools import FunctionCall, Tools


class Strict(BaseModel):
    """Reports few errors: each takes ten times as long as a value. Lists end at their first one."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > 100:
            raise ValueError(f"it has {len(value)} fields")
        return value


class TextPart(Strict, extra="ignore"):
    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(max_length=1000, fail_fast=True)]


def content_text(content: Content | None) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in content or ())


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


def _json_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value or "{}"


class CalledFunction(Strict, extra="ignore"):
    name: str
    arguments: Annotated[str, BeforeValidator(_json_text)] = "{}"  # as the model wrote it


class ToolCall(Strict, extra="ignore"):
    id: str = ""
    function: CalledFunction


REASONING = "reasoning_content", "reasoning", "thinking"
"""Names of what an assistant thought before it answered: each template reads one of them."""


class ChatMessage(Strict, extra="allow"):
    """A message. Fields that are not declared are the template's to read."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=100)] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def turn(self) -> Message:
        """The message in the form that a chat template takes."""
        calls = [FunctionCall(**dict(call.function), id=call.id) for call in self.tool_calls or ()]
        role = "system" if self.role == "developer" else self.role
        name = self.name if role == "tool" else ""  # others' names would change their text
        text, extra = content_text(self.content), self.model_extra or {}
        more = {name: value for name, value in extra.items() if value not in (None, "", [], {})}
        if thought := next((more[name] for name in REASONING if name in more), None):
            more = dict.fromkeys(REASONING, thought) | more
        try:
            fields = json.dumps(more)
        except (TypeError, ValueError, RecursionError) as error:
            names = ", ".join(more)
            raise BadInput(
                f"messages: {names:.100} cannot be passed on: {error}.", "messages"
            ) from None
        return Message(role, text, tuple(calls), self.tool_call_id or "", name or "", fields)


class Function(Strict):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


ToolList = Annotated[list[Tool], Field(max_length=128)]
ToolChoice = Literal["none", "auto", "required"] | Tool


def callable_tools(
    tools: Sequence[Tool] | None, choice: ToolChoice | None, several: bool = True
) -> Tools | None:
    """Those of `tools` that an answer may call by `choice`. Raises BadInput if it must call one
    that is not there."""
    must = choice not in (None, "auto")
    if choice == "none" or not (tools or must):
        return None
    named = choice.function.name if isinstance(choice, Tool) else ""
    functions = [tool.function for tool in tools or () if named in ("", tool.function.name)]
    if not functions:
        message = f"tool_choice names {named}, which is none of the tools"
        if not tools:
            message = f"tool_choice is {named or choice}, and there are no tools; give some"
        raise BadInput(f"{message}.", "tool_choice")
    texts = json.dumps([function.model_dump(exclude_none=True) for function in functions])
    listed = [tool.model_dump(exclude_none=True) for tool in tools or ()]
    return Tools(texts, must, several and not named, listed=listed)


def answerable(chat: Chat) -> Chat:
    """`chat`. Raises BadInput if there is no message, if a user's is empty, and if the last one is
    the assistant's unless the answer continues it."""
    if not chat.turns:
        raise BadInput("There are no messages; write a user's message.", "messages")
    if chat.turns[-1].role == "assistant" and not chat.continues:
        message = "The last message is the assistant's; end with a user's message, or let it be"
        raise BadInput(f"{message} continued with continue_final_message.", "messages")
    called: set[str] = set()
    for number, turn in enumerate(chat.turns):
        called.update(call.id for call in turn.calls)
        if turn.call_id and turn.call_id not in called and "" not in called:
            message = f"messages.{number}: there is no call {turn.call_id[:60]!r} before it."
            raise BadInput(message, "messages")
    if not all(turn.content.strip() for turn in chat.turns if turn.role == "user"):
        raise BadInput("A user message is empty; write a question or a task.", "messages")
    return chat


def read_messages(messages: Sequence[Message | Mapping[str, Any]]) -> list[Message]:
    """The turns of a conversation. Raises BadInput for an unreadable message."""
    turns = []
    for number, message in enumerate(messages):
        if isinstance(message, Message):
            if not isinstance(message.content, str):
                reason = f"content is {message.content!r:.40}; it must be text."
                raise BadInput(f"messages.{number}: {reason}", "messages")
        else:
            try:
                message = ChatMessage.model_validate(dict(message)).turn()
            except ValidationError as error:
                reason = wrong_parameter(error.errors(), message, words=shown)
                raise BadInput(f"messages.{number}: {reason}", "messages") from None
        turns.append(message)
    return turns
