"""JSON of log-probabilities and of long lists. An answer may have 250 MB of it, of which one piece
is in memory as text: pydantic writes an iterator as a list."""

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

from pydantic_core import to_json

from specdemo.server.backend import ScoredToken

as_json = partial(to_json, inf_nan_mode="null")


def json_list(items: Iterable[Any]) -> Iterator[bytes]:
    """A list as JSON, each item by itself."""
    separator = b"["
    for item in items:
        yield separator + as_json(item)
        separator = b","
    yield b"]"


@lru_cache(10_000)
def text_and_bytes(content: bytes) -> tuple[str, list[int]]:
    return content.decode("utf-8", "replace"), [*content]


def chat_token(token: ScoredToken) -> dict[str, Any]:
    """A token of a chat with its likeliest ones."""
    contents = map(text_and_bytes, token.contents)
    chosen, *others = (
        {"token": text, "bytes": content, "logprob": logprob}
        for (text, content), logprob in zip(contents, token.logprobs, strict=True)
    )
    return {**chosen, "top_logprobs": others}


def text_of(content: bytes) -> str:
    """A token's text; of a part of a character its bytes, which tell such tokens apart."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def likeliest(token: ScoredToken) -> dict[str, float] | None:
    """The likeliest tokens of a completion and the chosen one; None for a prompt's first token."""
    if not token.logprobs:
        return None
    chosen, *others = zip(map(text_of, token.contents), token.logprobs, strict=True)
    return dict([chosen, *reversed(others)])
