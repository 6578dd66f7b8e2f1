"""JSON in pieces: of an answer with log-probabilities, which may have 250 MB, only one piece is in
memory as text."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

PIECE = 65_536  # characters

encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class Fragment:
    """A value that is JSON text already."""

    def __init__(self, text: str):
        self.text = text


def fragments(value: Any) -> Iterator[str]:
    """The JSON of a value, in which an iterator is a list that is made as it is written. Raises
    TypeError for what JSON has not."""
    if isinstance(value, Fragment):
        yield value.text
    elif isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield f"{', ' if number else ''}{encoded(key)}: "
            yield from fragments(item)
        yield "}"
    elif isinstance(value, Iterator):
        yield "["
        for number, item in enumerate(value):
            if number:
                yield ", "
            yield from fragments(item)
        yield "]"
    else:
        yield encoded(value)


def joined(texts: Iterable[str]) -> Iterator[bytes]:
    """Pieces of at least PIECE characters, but for the last."""
    piece: list[str] = []
    size = 0
    for text in texts:
        piece.append(text)
        size += len(text)
        if size >= PIECE:
            yield "".join(piece).encode()
            piece, size = [], 0
    yield "".join(piece).encode()
