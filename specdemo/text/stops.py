"""Stop strings: texts that end an answer and are no part of it."""

from collections.abc import Sequence


def certain(text: str, strings: Sequence[str]) -> tuple[int, bool]:
    """Length of the prefix of a text that cannot be part of a stop string, and whether a stop
    string follows it."""
    places = [place for string in strings if (place := text.find(string)) >= 0]
    if places:
        return min(places), True
    starts = (
        size
        for string in strings
        for size in range(1, min(len(string), len(text) + 1))
        if text.endswith(string[:size])
    )
    return len(text) - max(starts, default=0), False


class StopStrings:
    """Cuts a text that arrives in pieces before the first of `strings`, if any are `wanted`.
    Afterwards `found`."""

    def __init__(self, strings: Sequence[str]):
        self._strings, self._uncertain, self.found = strings, "", False
        self.wanted = bool(strings)

    def push(self, piece: str) -> str:
        """Add a piece; returns the text that is certain now. Nothing follows a stop string."""
        if self.found:
            return ""
        text = self._uncertain + piece
        end, self.found = certain(text, self._strings)
        self._uncertain = "" if self.found else text[end:]
        return text[:end]

    def rest(self) -> str:
        """The text that was not certain, once no more pieces come."""
        return self._uncertain
