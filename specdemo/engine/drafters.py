"""Who proposes tokens: a draft model, a lookup in the text so far, a table of phrases, or whoever promises the most for
each token.

Drafters run no model themselves: like decoding, they are generators that ask for forwards.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from .cache import Sequence
from .model import Logits, Run, prefill_chunks
from .policy import Policy
from .sampling import DRAFT, TOKEN, Distribution, Sampling, distribution, draw, favoured, point_mass

LONGEST_MATCH = 7
"""Tokens; a longer match says no more than this one."""

LONGEST_DOUBTED = 3
"""Tokens; a match up to so long is judged by what followed when it occurred before as well."""

EARLIER = 4
"""Occurrences that are looked at for that."""

FEW = 4
"""Tokens that a draft model reads in the time of one."""

GREEDY = Sampling()

LONGEST_PHRASE = 4
"""Tokens of context that a phrase table looks at."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A request: run this on the `target` or the `draft` model."""

    model: str
    run: Run


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a Forward: its logits, valid until that model's next forward. `tokens` are those that the forward
    ran in all, padding and other requests' included. Of the requests that share a forward one is the `first`, whose
    policy learns its cost."""

    logits: Logits
    seconds: float
    tokens: int
    first: bool = True


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, and of each: who proposed it (`sources`), how confident that one was ([0, 1], `confidences`), and
    the draft model's probability of it (None for what no model drew). `distributions` are those that the tokens were
    drawn from, only where the coupling needs them. `seconds` is the draft model's time."""

    tokens: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    confidences: tuple[float, ...] = ()
    probabilities: tuple[float | None, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    seconds: float = 0.0


class Drafter(Protocol):
    """Proposes a continuation of `context`, which only ever grows from call to call."""

    def propose(self, context: list[int], limit: int) -> Generator[Forward, Reply, Draft]:
        """At most `limit` tokens; the empty Draft when nothing is worth it."""
        ...


class Proposal(NamedTuple):
    """One token of a draft in the making; `expected` is the chance that it is accepted if all before it are."""

    token: int
    source: str
    confidence: float
    expected: float
    probability: float | None = None
    distribution: Distribution | None = None


class Asked(NamedTuple):
    """What was said about one token: the one that was drafted, and everybody's (name, confidence, token)."""

    drafted: int
    said: list[tuple[str, float, int]]


def _count(asked: list[Asked], came: list[int], policy: Policy) -> None:
    """Count who was right about the tokens that came, as far as they went along with the draft, and forget what was
    asked."""
    for (drafted, said), token in zip(asked, came, strict=False):
        for name, confidence, guessed in said:
            policy.calibrated(name).saw(confidence, guessed == token)
        if drafted != token:
            break
    asked.clear()


def _draft(proposals: list[Proposal], seconds: float) -> Draft:
    # Where one token's distribution matters, so do the others': what nobody drew stands for itself.
    drawn = any(one.distribution is not None for one in proposals)
    return Draft(
        tuple(one.token for one in proposals),
        tuple(one.source for one in proposals),
        tuple(one.confidence for one in proposals),
        tuple(one.probability for one in proposals),
        tuple(one.distribution or point_mass(one.token) for one in proposals) if drawn else (),
        seconds,
    )


class ModelDrafter:
    """Drafts with a second, smaller model.

    `head_tokens` maps the columns of a trimmed head to token ids: that is also how ids that the target lacks are
    masked out and the rest renormalised. The sequence may hold any text; what it shares with the context is kept.
    Of a text that it falls more than `window` tokens behind, the draft model reads the last `window` tokens only
    (None: all): a small draft predicts no better for what it read long ago, and reading costs time.
    """

    name = "model"

    def __init__(
        self,
        sequence: Sequence,
        policy: Policy,
        sampling: Sampling,
        head_tokens: np.ndarray | None = None,
        window: int | None = None,
    ):
        self.sequence = sequence
        self.policy = policy
        self.calibration = policy.calibrated(self.name)
        self.sampling = sampling
        self.head_tokens = head_tokens
        self.window = window
        self._skipped = 0
        self._agreed = 0
        self._asked: list[Asked] = []
        self._read = 0

    @property
    def binding(self) -> bool:
        """Whether a token that was drawn has to be proposed: the classic acceptance rule gives the target's distribution
        only if no draft is dropped for what it turned out to be."""
        return not self.sampling.greedy and self.sampling.coupling == "maximal"

    def propose(self, context: list[int], limit: int) -> Generator[Forward, Reply, Draft]:
        policy = self.policy
        _count(self._asked, context[self._read :], policy)
        self._read = len(context)
        remaining, limit = limit, min(limit, policy.limit)
        if limit <= 0 or not self._wanted(context, limit, remaining):
            return Draft()
        proposals: list[Proposal] = []
        survival, seconds = 1.0, 0.0
        while True:
            proposal, spent = yield from self.step(context, [one.token for one in proposals])
            proposals.append(proposal)
            self._asked.append(Asked(proposal.token, [(self.name, proposal.confidence, proposal.token)]))
            seconds += spent
            survival *= proposal.expected
            if len(proposals) >= limit or not policy.worth_drafting(
                drafted=len(proposals),
                survival=survival,
                expected=self.calibration.overall,
                step=policy.costs.draft_step,
            ):
                break
        if not self.binding:
            keep, _ = policy.best_draft([one.expected for one in proposals])
            del proposals[max(keep, 1) :]
        return _draft(proposals, seconds)

    def step(self, context: list[int], drafted: list[int]) -> Generator[Forward, Reply, tuple[Proposal, float]]:
        """Propose the token after `context` and `drafted`; gives it with the seconds that took."""
        start = self._rewind(context, drafted)
        if self.window is not None and len(context) - start > self.window:
            self.sequence.truncate(0)
            start = self._skipped = len(context) - self.window
        pending = [*context[start:], *drafted[max(start - len(context), 0) :]]
        seconds = 0.0
        for chunk, rows in prefill_chunks(pending, 1):
            reply = yield Forward("draft", Run(self.sequence, chunk, rows, stepwise=len(pending) <= FEW))
            seconds += reply.seconds
        if len(pending) == 1:
            self.policy.costs.saw_draft(seconds)
        elif len(pending) > FEW:
            self.policy.costs.saw_reading(len(pending), seconds)
        return self._choose(reply.logits, len(context) + len(drafted)), seconds

    def cost(self, context: list[int], drafted: list[int]) -> tuple[float, float]:
        """Seconds that the step after `context` and `drafted` will take: of drafting, and of catching up before it."""
        behind = len(context) - self._rewind(context, drafted)
        if self.window is not None:
            behind = min(behind, self.window)
        behind += len(drafted)
        costs = self.policy.costs
        return costs.draft_step, costs.reading(behind) if behind > FEW else 0.0

    def _wanted(self, context: list[int], limit: int, remaining: int) -> bool:
        """Whether drafting up to `limit` tokens pays, or it is time to look whether that is still so. What it saves has
        to pay for catching up within the `remaining` tokens of the answer."""
        if self.policy.fixed is not None:
            return True
        step, reading = self.cost(context, [])
        _, saved = self.policy.best_draft([self.calibration.hopeful] * limit, step)
        return saved * remaining / 2 > reading or self.policy.probe_due(
            step + reading + self.policy.verify(2) - self.policy.verify(1)
        )

    def _rewind(self, context: list[int], drafted: list[int]) -> int:
        """Keep of the sequence what it shares with context and drafted tokens, all but the last of them at most; gives
        how many of those tokens need not be read.

        Only what was appended to the context since the last call can differ, so only that is compared.
        """
        held = self.sequence.tokens
        known = len(context) - self._skipped
        same = min(self._agreed, len(held))
        most = min(len(held), known + len(drafted) - 1)
        while same < most and held[same] == (context[self._skipped + same] if same < known else drafted[same - known]):
            same += 1
        self.sequence.truncate(min(same, most))
        self._agreed = known
        return self._skipped + self.sequence.length

    def _choose(self, logits: Logits, position: int) -> Proposal:
        if self.sampling.greedy:
            column = int(logits.best[0])
            token = column if self.head_tokens is None else int(self.head_tokens[column])
            probability, source = logits.probability(0, column), None
        else:
            source = distribution(logits.rows[0], self.sampling)
            if self.head_tokens is not None:
                source = Distribution(self.head_tokens[source.ids], source.probabilities)
            token = draw(source, self.sampling.seed, position, DRAFT if self.binding else TOKEN)
            probability = source.probability(token)
        expected = self.calibration(probability)
        return Proposal(token, self.name, probability, expected, probability, source if self.binding else None)


class Guesser(Protocol):
    """Names the next token at no cost to speak of, and says how confident it is.

    `name` is its calibration's, and the source that its tokens have in the trace.
    """

    name: str

    def read(self, tokens: list[int]) -> None:
        """The text has grown by `tokens`."""
        ...

    def guess(self, drafted: list[int]) -> tuple[int, float] | None:
        """The token after the text and `drafted`, with a confidence in [0, 1]; None when it has nothing to say. Called
        with drafts that grow from empty, one token at a time."""
        ...


class Lookup:
    """Prompt lookup: what followed the last occurrence of the longest repeated ending of the text so far.

    Every token costs the same few dictionary entries, however long the text. Drafted tokens are looked up like those
    of the text; past the end of it, a match repeats itself.

    The longer a match, the more it says. Of a short one the times before count too: what always came after it will most
    likely come again, and where something else has, the guess is hardly worth verifying.
    """

    name = "lookup"

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._last_end: list[dict[tuple[int, ...], int]] = [{} for _ in range(LONGEST_MATCH + 1)]
        self._earlier: list[dict[int, int]] = [{} for _ in range(LONGEST_DOUBTED + 1)]
        """By length, of an ending's occurrence: where the one before it ended."""
        self._match = self._cursor = (0, 0)

    def read(self, tokens: list[int]) -> None:
        if len(tokens) > LONGEST_MATCH:
            self._index(tokens[:-1])
            tokens = tokens[-1:]
        for token in tokens:
            self._append(token)

    def _index(self, tokens: list[int]) -> None:
        """Enter many tokens at once, as those of a prompt: what matches before the last of them is of no interest."""
        begin = len(self._tokens)
        self._tokens += tokens
        for n, last_end in enumerate(self._last_end[1:], start=1):
            first = max(begin + 1 - n, 0)
            text = self._tokens[first:]
            endings = zip(*(text[skipped:] for skipped in range(n)), strict=False)
            ends = range(first + n, len(self._tokens) + 1)
            if n > LONGEST_DOUBTED:
                last_end.update(zip(endings, ends, strict=True))
                continue
            for ending, end in zip(endings, ends, strict=True):
                self._enter(n, ending, end)
        self._match = (0, 0)

    def _enter(self, n: int, ending: tuple[int, ...], end: int) -> None:
        if n <= LONGEST_DOUBTED and (before := self._last_end[n].get(ending)) is not None:
            self._earlier[n][end] = before
        self._last_end[n][ending] = end

    def _append(self, token: int) -> None:
        text = self._tokens
        size, at = self._match
        text.append(token)
        ending = tuple(text[-LONGEST_MATCH:])
        if 0 < size < LONGEST_MATCH and text[at] == token:
            # What occurred before goes on as it did then: nothing longer matches, and nothing later as long.
            self._match = (size + 1, at + 1)
        else:
            self._match = self._longest(ending)
        end = len(text)
        for n in range(1, len(ending) + 1):
            self._enter(n, ending[-n:], end)

    def guess(self, drafted: list[int]) -> tuple[int, float] | None:
        if not drafted:
            self._cursor = self._match
        elif self._cursor[0] and self._at(self._cursor[1], drafted) == drafted[-1]:
            self._cursor = (self._cursor[0] + 1, self._cursor[1] + 1)
        else:
            self._cursor = self._find(drafted)
        size, at = self._cursor
        if not size:
            return None
        token = self._at(at, drafted)
        return token, (self._trust(size, at, token) + 0.5) / (LONGEST_MATCH + 1)

    def _trust(self, size: int, at: int, token: int) -> int:
        """How much a match says, 0 to LONGEST_MATCH: what one of that length would. Measured on answers to Spec-Bench
        prompts, each earlier time that said the same is worth about two tokens of match, and one that did not takes as
        much away."""
        trust = min(size, LONGEST_MATCH)
        if size > LONGEST_DOUBTED:
            return trust
        earlier = self._earlier[size]
        for occurrence in range(EARLIER):
            at = earlier.get(at)
            if at is None:
                break
            if self._tokens[at] != token:
                return max(trust - 2, 0)
            if occurrence < 2:
                trust += 2
        return min(trust, LONGEST_MATCH)

    def _at(self, at: int, drafted: list[int]) -> int:
        return self._tokens[at] if at < len(self._tokens) else drafted[at - len(self._tokens)]

    def _find(self, drafted: list[int]) -> tuple[int, int]:
        """The longest ending of text and draft that occurs in the text: its size and where it ends; (0, 0) for none."""
        return self._longest((*self._tokens[-LONGEST_MATCH:], *drafted)[-LONGEST_MATCH:])

    def _longest(self, ending: tuple[int, ...]) -> tuple[int, int]:
        match = (0, 0)
        for n in range(1, len(ending) + 1):
            before = self._last_end[n].get(ending[-n:])
            if before is None:
                break  # nor does anything longer occur
            match = (n, before)
        return match


class PhraseTable(Protocol):
    """Usual continuations: (token, probability) after a context, None where it knows none."""

    def guess(self, context: list[int]) -> tuple[int, float] | None: ...


class Phrases:
    """What the target usually says after a few tokens, from a table made of its own text."""

    name = "phrases"

    def __init__(self, table: PhraseTable):
        self.table = table
        self._ending: list[int] = []

    def read(self, tokens: list[int]) -> None:
        self._ending = [*self._ending, *tokens][-LONGEST_PHRASE:]

    def guess(self, drafted: list[int]) -> tuple[int, float] | None:
        return self.table.guess([*self._ending, *drafted][-LONGEST_PHRASE:])


class AutoDrafter:
    """Token by token whoever promises the most: one of the guessers, which cost nothing, or the draft model where what it
    knows better than they is worth its time. Without a model, the best of the guessers.

    How good the guessers are is counted wherever they were asked, whether the guess was put to the target or not, as far
    as the answer went along with the draft: that is free. (On all tokens they would look better than they are: a round
    begins where the last one went wrong.)

    Where the target's draws share their noise with us, we know of every guess how that noise treats it, and reckon with it
    (`sampling.favoured`).
    """

    def __init__(
        self,
        guessers: list[Guesser],
        policy: Policy,
        model: ModelDrafter | None = None,
        sampling: Sampling = GREEDY,
    ):
        self.guessers = [(guesser, policy.calibrated(guesser.name)) for guesser in guessers]
        self.policy = policy
        self.model = model
        self.sampling = sampling
        self._noise_shared = not sampling.greedy and sampling.coupling == "shared"
        self._read = 0
        self._asked: list[Asked] = []

    def propose(self, context: list[int], limit: int) -> Generator[Forward, Reply, Draft]:
        policy = self.policy
        adaptive = policy.fixed is None
        remaining, limit = limit, min(limit, policy.limit if adaptive else policy.fixed)
        self._learn(context)
        proposals: list[Proposal] = []
        drafted: list[int] = []
        survival, seconds = 1.0, 0.0
        bound = 0
        pace = policy.pace
        while len(drafted) < limit and (not adaptive or policy.pays(len(drafted), survival * pace)):
            best, said = self._guess(drafted)
            if self.model is not None and self._model_pays(context, drafted, survival * pace, best, remaining):
                own, spent = yield from self.model.step(context, drafted)
                seconds += spent
                said.append((own.source, own.confidence, own.token))
                free = best.expected if best is not None else 0.0
                policy.improvement.saw(free, max(own.expected - free, 0.0))
                if self.model.binding:
                    best, bound = own, len(drafted) + 1
                elif best is None or own.expected >= best.expected:
                    best = own
            self._asked.append(Asked(-1 if best is None else best.token, said))
            if best is None:
                break
            proposals.append(best)
            drafted.append(best.token)
            survival *= best.expected
        length, _ = policy.best_draft([one.expected for one in proposals])
        return _draft(proposals[: max(length, bound)], seconds)

    def _model_pays(
        self, context: list[int], drafted: list[int], worth: float, best: Proposal | None, remaining: int
    ) -> bool:
        """Whether to ask the draft model for the next token, given the best guess for it and the seconds that it is
        `worth` if it is right."""
        policy, model = self.policy, self.model
        free = best.expected if best is not None else 0.0
        if policy.fixed is not None:
            return model.calibration.overall > free
        improvement, draft_step = policy.improvement(free), policy.costs.draft_step
        if worth * improvement <= draft_step and (drafted or not policy.affords_probe(draft_step)):
            return False  # as nearly always where guesses are good: what follows could not change it
        hope = min(free + improvement, 1.0)
        row = policy.row(len(drafted) + 1)
        saved = worth * hope - row - draft_step - max(worth * free - row, 0.0)
        if saved <= 0 and drafted:
            return False
        step, reading = model.cost(context, drafted)
        if saved > 0 and saved * remaining / 2 > reading:
            return True
        return not drafted and policy.probe_due(step + reading)

    def _learn(self, context: list[int]) -> None:
        """Read what was added to the text, and count which of it was guessed."""
        added = context[self._read :]
        _count(self._asked, added, self.policy)
        for guesser, _ in self.guessers:
            guesser.read(added)
        self._read = len(context)

    def _guess(self, drafted: list[int]) -> tuple[Proposal | None, list[tuple[str, float, int]]]:
        """The guess that is likeliest to be right, and all that were made."""
        best: Proposal | None = None
        said: list[tuple[str, float, int]] = []
        for guesser, calibration in self.guessers:
            guess = guesser.guess(drafted)
            if guess is None:
                continue
            token, confidence = guess
            said.append((guesser.name, confidence, token))
            expected = calibration(confidence)
            if self._noise_shared:
                expected = favoured(expected, self.sampling.seed, self._read + len(drafted), token)
            if best is None or expected > best.expected:
                best = Proposal(token, guesser.name, confidence, expected)
        return best, said


def make_drafter(
    name: str,
    policy: Policy,
    sampling: Sampling,
    *,
    sequence: Sequence | None = None,
    head_tokens: np.ndarray | None = None,
    window: int | None = None,
    table: PhraseTable | None = None,
) -> Drafter | None:
    """The drafter of this `name` (as in settings); `sequence` is the draft model's, None for no model."""
    if name == "none":
        return None
    if name == "lookup":
        return AutoDrafter([Lookup()], policy, sampling=sampling)
    model = None
    if sequence is not None:
        model = ModelDrafter(sequence, policy, sampling, head_tokens=head_tokens, window=window)
    if name == "model":
        return model
    guessers = [Lookup()] if table is None else [Lookup(), Phrases(table)]
    return AutoDrafter(guessers, policy, model, sampling)
