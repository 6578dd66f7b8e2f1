"""N-gram lookup (prompt lookup): draft tokens from the text so far, which cost nothing."""

from collections.abc import Sequence

from ..constraint import Mask
from ..rounds import Source
from .draft_sources import DraftRequest, DraftSource, Step, TokenDrafter

ORDERS = 4  # tokens of the longest context that is looked up


class NgramTable:
    """What followed each context of at most ORDERS tokens when it occurred last."""

    def __init__(self) -> None:
        self._followers: dict[tuple[int, ...], tuple[int, bool]] = {}
        self._length = 0

    def read(self, text: Sequence[int]) -> None:
        """Add the part of `text`, which only grows, that was not read."""
        for position in range(self._length, len(text)):
            token = text[position]
            for n in range(1, min(position, ORDERS) + 1):
                context = tuple(text[position - n : position])
                known = self._followers.get(context)
                self._followers[context] = token, known is not None and known[0] == token
        self._length = len(text)

    def find(self, text: Sequence[int], mask: Mask = None) -> tuple[int, int, bool] | None:
        """The token that the `mask` allows after the longest possible end of `text`, the length of
        that end, and whether the token followed it the time before too; None if none is known."""
        for n in range(min(len(text), ORDERS), 0, -1):
            token, twice = self._followers.get(tuple(text[-n:]), (-1, False))
            if token >= 0 and (mask is None or (token < len(mask) and mask[token])):
                return token, n, twice
        return None


class LookupDrafter(TokenDrafter):
    """Finds what followed the last tokens earlier in the text."""

    name: Source = "lookup"
    free = True

    def __init__(self, source: DraftSource, request: DraftRequest):
        super().__init__(source, request)
        self._table = NgramTable()

    def text(self, context: list[int]) -> Sequence[int]:
        """The text that is searched."""
        return context

    def step(self, context: list[int], drafted: list[int], mask: Mask = None) -> Step:
        yield from ()  # no forwards
        self._table.read(self.text(context))
        found = self._table.find([*context[-ORDERS:], *drafted], mask)
        if found is None:
            return None, 0.0
        token, length, twice = found
        confidence = (length - 0.75 + 0.5 * twice) / ORDERS  # in a band of `Acceptance` each
        return self.proposal(token, confidence), 0.0


class PredictionDrafter(LookupDrafter):
    """Finds what follows the last tokens in the request's prediction."""

    name = "prediction"

    def text(self, context: list[int]) -> Sequence[int]:
        return self.request.prediction


LOOKUPS = tuple(
    DraftSource(kind, drafters=("auto", "lookup")) for kind in (LookupDrafter, PredictionDrafter)
)
