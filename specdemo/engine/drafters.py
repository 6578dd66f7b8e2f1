"""Who proposes tokens: a draft model, a lookup in the text so far, a table of phrases, or whichever promises the most.

Drafters run no model themselves: like decoding, they are generators that ask for forwards.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .lookahead import Lookahead
from .model import Logits, Run, Sequence, prefill_chunks
from .sampling import DRAFT, TOKEN, Distribution, Sampling, distribution, draw

LONGEST_MATCH = 7
"""Tokens; a longer match says no more than this one."""

FEW = 4
"""Tokens that a draft model reads in the time of one."""

LONGEST_PHRASE = 4
"""Tokens of context that a phrase table looks at, and guesses at most."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A request: run this on the `target` or the `draft` model."""

    model: str
    run: Run


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a Forward: its logits, valid until that model's next forward. `tokens` are those that the forward
    ran in all, padding and other requests' included; 0 where nobody counted."""

    logits: Logits
    seconds: float
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens. `confidences` ([0, 1], for the calibration) and `probabilities` (the draft model's, or None
    for a drafter that has none) go with the tokens; `distributions` only where the coupling needs them."""

    tokens: tuple[int, ...] = ()
    source: str = ""
    confidences: tuple[float, ...] = ()
    probabilities: tuple[float | None, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    seconds: float = 0.0


class Drafter(Protocol):
    """Proposes a continuation of `context`, which only ever grows from call to call."""

    def propose(self, context: list[int], limit: int) -> Generator[Forward, Reply, Draft]:
        """At most `limit` tokens; the empty Draft when nothing is worth it."""
        ...


class ModelDrafter:
    """Drafts with a second, smaller model.

    `head_tokens` maps the columns of a trimmed head to token ids: that is also how ids that the target lacks are
    masked out and the rest renormalised. The sequence may hold any text; what it shares with the context is kept.
    Of a text that it falls more than `window` tokens behind, the draft model reads the last `window` tokens only
    (None: all): a small draft predicts no better for what it read long ago, and reading costs time.
    """

    def __init__(
        self,
        sequence: Sequence,
        lookahead: Lookahead,
        sampling: Sampling,
        head_tokens: np.ndarray | None = None,
        window: int | None = None,
    ):
        self.sequence = sequence
        self.lookahead = lookahead
        self.sampling = sampling
        self.head_tokens = head_tokens
        self.window = window
        self._skipped = 0
        self._agreed = 0

    def expected(self) -> tuple[list[float], float]:
        """Acceptance to hope for from each further token, and seconds to draft one."""
        rate = self.lookahead.calibrated("model").hopeful
        return [rate] * self.lookahead.limit, self.lookahead.costs.draft_step

    def propose(self, context: list[int], limit: int) -> Generator[Forward, Reply, Draft]:
        self._rewind(context)
        behind = len(context) - self._skipped - self.sequence.length
        if skips := self.window is not None and behind > self.window:
            behind = self.window
        length = self._wanted(limit, behind)
        if not length:
            return Draft()
        if skips:
            self.sequence.truncate(0)
            self._skipped = len(context) - behind
        pending = context[-behind:]
        lookahead, calibration = self.lookahead, self.lookahead.calibrated("model")
        tokens: list[int] = []
        confidences: list[float] = []
        probabilities: list[float] = []
        distributions: list[Distribution] = []
        acceptances: list[float] = []
        survival, seconds = 1.0, 0.0
        while True:
            for chunk, rows in prefill_chunks(pending, 1):
                reply = yield Forward("draft", Run(self.sequence, chunk, rows))
                seconds += reply.seconds
            if len(pending) == 1:
                lookahead.costs.saw_draft(reply.seconds)
            elif len(pending) > FEW:
                lookahead.costs.saw_reading(len(pending), seconds)
            token, probability, source = self._choose(reply.logits, len(context) + len(tokens))
            tokens.append(token)
            confidences.append(probability)
            probabilities.append(probability)
            if source is not None:
                distributions.append(source)
            acceptances.append(calibration(probability))
            survival *= acceptances[-1]
            if len(tokens) >= length or not lookahead.worth_drafting(
                drafted=len(tokens),
                survival=survival,
                expected=calibration.overall,
                step=lookahead.costs.draft_step,
            ):
                break
            pending = [token]
        keep, _ = lookahead.best_draft(acceptances)
        keep = max(keep, 1)
        return Draft(
            tuple(tokens[:keep]),
            "model",
            tuple(confidences[:keep]),
            tuple(probabilities[:keep]),
            tuple(distributions[:keep]),
            seconds,
        )

    def _wanted(self, remaining: int, behind: int) -> int:
        """The most tokens to draft now: 0 when none pays, unless it is time to look whether that is still so.

        `behind` is how many tokens the draft model has to read first. What it saves has to pay for that within the
        `remaining` tokens of the answer.
        """
        limit = min(remaining, self.lookahead.limit)
        if limit <= 0:
            return 0
        best, saved = self.lookahead.best_draft(*self.expected())
        if self.lookahead.fixed is not None:
            return min(limit, best)
        costs = self.lookahead.costs
        reading = costs.reading(behind) if behind > FEW else 0.0
        if saved * remaining / 2 > reading:
            return limit
        probe = costs.draft_step + reading + self.lookahead.verify(2) - self.lookahead.verify(1)
        return 1 if self.lookahead.probe_due(probe) else 0

    def _rewind(self, context: list[int]) -> None:
        """Keep of the sequence what it shares with the context, all but the last token of it at most.

        Only what was appended since the last call can differ, so only that is compared.
        """
        held = self.sequence.tokens
        same = min(self._agreed, len(held))
        most = min(len(held), len(context) - 1 - self._skipped)
        while same < most and held[same] == context[self._skipped + same]:
            same += 1
        self.sequence.truncate(min(same, most))
        self._agreed = len(context) - self._skipped

    def _choose(self, logits: Logits, position: int) -> tuple[int, float, Distribution | None]:
        if self.sampling.greedy:
            column = int(logits.best[0])
            token = column if self.head_tokens is None else int(self.head_tokens[column])
            return token, logits.probability(0, column), None
        source = distribution(logits.rows[0], self.sampling)
        if self.head_tokens is not None:
            source = Distribution(self.head_tokens[source.ids], source.probabilities)
        maximal = self.sampling.coupling == "maximal"
        token = draw(source, self.sampling.seed, position, DRAFT if maximal else TOKEN)
        return token, source.probability(token), source if maximal else None


class Guesser(Protocol):
    """Names a continuation of `context` at no cost to speak of, and says how confident it is in each token.

    `name` is its calibration's, and the source that its tokens have in the trace.
    """

    name: str

    def guess(self, context: list[int], limit: int) -> tuple[list[int], list[float]]:
        """Up to `limit` (tokens, confidences in [0, 1]); empty when it has nothing to say."""
        ...


class Lookup:
    """Prompt lookup: what followed the last occurrence of the longest repeated ending of the text so far.

    Every token costs the same few dictionary entries, however long the text. How good its guesses are is counted
    for each match length on every token, whether the guess was put to the target or not, since that is free.
    """

    name = "lookup"

    def __init__(self, lookahead: Lookahead):
        self.calibration = lookahead.calibrated(self.name)
        self._tokens: list[int] = []
        self._last_end: list[dict[tuple[int, ...], int]] = [{} for _ in range(LONGEST_MATCH + 1)]
        self._match = (0, 0)

    def guess(self, context: list[int], limit: int) -> tuple[list[int], list[float]]:
        self._read(context)
        size, start = self._match
        if not size:
            return [], []
        text = self._tokens
        tokens: list[int] = []
        for at in range(start, start + limit):
            # Past the end of the text the match repeats itself.
            tokens.append(text[at] if at < len(text) else tokens[at - len(text)])
        return tokens, [_match_confidence(size + i) for i in range(len(tokens))]

    def _read(self, context: list[int]) -> None:
        text = self._tokens
        for token in context[len(text) :]:
            size, start = self._match
            if size:
                self.calibration.saw(_match_confidence(size), text[start] == token)
            text.append(token)
            end = len(text)
            self._match = (0, 0)
            for n in range(1, min(LONGEST_MATCH, end) + 1):
                ending = tuple(text[end - n :])
                before = self._last_end[n].get(ending)
                if before is not None:
                    self._match = (n, before)
                self._last_end[n][ending] = end


class PhraseTable(Protocol):
    """Usual continuations: (token, probability) after a context, None where it knows none."""

    def guess(self, context: list[int]) -> tuple[int, float] | None: ...


class Phrases:
    """What the target usually says after a few tokens, from a table made of its own text; counted like Lookup."""

    name = "phrases"

    def __init__(self, table: PhraseTable, lookahead: Lookahead):
        self.table = table
        self.calibration = lookahead.calibrated(self.name)
        self._said: tuple[int, int, float] | None = None

    def guess(self, context: list[int], limit: int) -> tuple[list[int], list[float]]:
        if self._said is not None:
            position, token, confidence = self._said
            if position < len(context):
                self.calibration.saw(confidence, context[position] == token)
        ending = context[-LONGEST_PHRASE:]
        tokens: list[int] = []
        confidences: list[float] = []
        while len(tokens) < min(limit, LONGEST_PHRASE):
            found = self.table.guess(ending)
            if found is None:
                break
            tokens.append(found[0])
            confidences.append(found[1])
            ending = [*ending[1:], found[0]]
        self._said = (len(context), tokens[0], confidences[0]) if tokens else None
        return tokens, confidences


class AutoDrafter:
    """Whoever promises to save the most time: one of the guessers, which cost nothing, or the draft model.

    Without a model, the best of the guessers.
    """

    def __init__(self, guessers: list[Guesser], lookahead: Lookahead, model: ModelDrafter | None = None):
        self.guessers = guessers
        self.lookahead = lookahead
        self.model = model

    def propose(self, context: list[int], limit: int) -> Generator[Forward, Reply, Draft]:
        best, most = Draft(), -1.0
        for guesser in self.guessers:
            tokens, confidences = guesser.guess(context, min(limit, self.lookahead.limit))
            calibration = self.lookahead.calibrated(guesser.name)
            length, saved = self.lookahead.best_draft([calibration(confidence) for confidence in confidences])
            if length and saved > most:
                most = saved
                best = Draft(tuple(tokens[:length]), guesser.name, tuple(confidences[:length]), (None,) * length)
        if self.model is None or most > self.lookahead.best_draft(*self.model.expected())[1]:
            return best
        draft = yield from self.model.propose(context, limit)
        return draft if draft.tokens else best


def _match_confidence(size: int) -> float:
    return min(size, LONGEST_MATCH) / (LONGEST_MATCH + 1)
