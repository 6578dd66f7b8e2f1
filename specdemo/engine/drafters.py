"""What proposes draft tokens: a draft model, n-gram lookup in the text so far, a table of the
target's n-grams.

Drafters run no model themselves: like decoding, they are generators that ask for forwards.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .cache import Sequence
from .head import DEPTH, Head, HeadStep
from .model import Logits, Run, prefill_chunks
from .ngrams import Ngrams, NgramTable
from .policy import MAX_DRAFT, UNLIKELY, Policy
from .sampling import DRAFT, Distribution, Sampling, choose, distribution, draw

FEW, READ_TOGETHER = 4, 8
"""Tokens that a draft model reads in the time of one: of a draft, and of a longer text."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A request: run this on the `target` or the `draft` model, which may be a draft head."""

    model: str
    run: Run | HeadStep


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a Forward: its logits, valid until that model's next forward. `tokens` are
    those that the forward ran in all, padding and other requests' included. Of the requests that
    share a forward one is the `first`, whose policy learns its cost."""

    logits: Logits
    seconds: float
    tokens: int
    first: bool = True


class Proposal(NamedTuple):
    """A token that a source proposes, with a confidence in [0, 1]; `acceptance` is the chance that
    it is accepted if all before it are. `probability` is the draft model's, None for n-grams, and
    `distribution` what it was drawn from, where the coupling needs that."""

    token: int
    source: str
    confidence: float
    acceptance: float = 0.0
    probability: float | None = None
    distribution: Distribution | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """What is put to the target, and the `seconds` that a draft model spent on it."""

    proposals: tuple[Proposal, ...] = ()
    seconds: float = 0.0

    @property
    def tokens(self) -> list[int]:
        return [one.token for one in self.proposals]


class Drawing:
    """What draft models and draft heads share: a Proposal from their logits.

    `head_tokens` maps the columns of a trimmed head to token ids: that is also how ids that the
    target lacks are masked out and the rest renormalised. `depth` is the most tokens of one draft
    that it can propose in.
    """

    name = "model"
    depth = MAX_DRAFT

    def __init__(self, policy: Policy, sampling: Sampling, head_tokens: np.ndarray | None):
        self.policy = policy
        self.sampling = sampling
        self.head_tokens = head_tokens
        # The classic acceptance rule gives the target's distribution only if no draft token is
        # dropped for its value.
        self.binding = not sampling.greedy and sampling.coupling == "maximal"

    def start(self, context: list[int], state: np.ndarray | None) -> None:
        """A draft begins."""

    def cost(self, drafted: list[int]) -> float:
        """Seconds of the next step, with what has to be read of `drafted` before."""
        return self.policy.costs.draft_step

    def catching_up(self, context: list[int], drafted: list[int]) -> float:
        """Seconds of reading the text once, before the next step."""
        return 0.0

    def choose(self, logits: Logits, position: int) -> Proposal:
        sampling, ids = self.sampling, self.head_tokens
        if self.binding:
            source = distribution(logits.rows[0], sampling)
            if ids is not None:
                tokens = ids[source.ids]
                order = tokens.argsort()
                source = Distribution(tokens[order], source.probabilities[order])
            token = draw(source, sampling.seed, position, DRAFT)
            return self.proposal(token, source.probability(token), source)
        column = logits.best(0)
        if not sampling.greedy:
            known = float(logits.rows[0, column]), float(logits.log_sum[0])
            column, _ = choose(logits.rows[0], sampling, position, known, ids, reach=0.0)
        token = column if ids is None else int(ids[column])
        return self.proposal(token, logits.probability(0, column))

    def proposal(
        self, token: int, probability: float, source: Distribution | None = None
    ) -> Proposal:
        acceptance = self.policy.accepted(self.name)(probability)
        return Proposal(token, self.name, probability, acceptance, probability, source)


class DraftHead(Drawing):
    """Proposes the tokens of a draft head, which reads the target's hidden state of the last
    verified token and the tokens since."""

    name = "head"
    depth = DEPTH

    def start(self, context: list[int], state: np.ndarray | None) -> None:
        self._hidden, self._state, self._read = state, None, 0

    def step(
        self, context: list[int], drafted: list[int]
    ) -> Generator[Forward, Reply, tuple[Proposal, float]]:
        """Propose the token after `context` and `drafted`; gives it with the seconds that took."""
        seconds = 0.0
        for token in [context[-1], *drafted][self._read :]:
            run = HeadStep(self._hidden, self._state, (token,))
            reply = yield Forward("draft", run)
            self.policy.costs.saw_draft(reply.seconds)
            self._state = reply.logits.state_of(0)
            seconds += reply.seconds
        self._read = len(drafted) + 1
        return self.choose(reply.logits, len(context) + len(drafted)), seconds

    def cost(self, drafted: list[int]) -> float:
        return (len(drafted) + 1 - self._read) * self.policy.costs.draft_step


class DraftModel(Drawing):
    """Proposes the tokens of a second, smaller model.

    The sequence may hold any text; what it shares with the context is kept.
    """

    def __init__(self, sequence: Sequence, policy: Policy, sampling: Sampling):
        super().__init__(policy, sampling, None)
        self.sequence = sequence
        self._agreed = 0

    def step(
        self, context: list[int], drafted: list[int]
    ) -> Generator[Forward, Reply, tuple[Proposal, float]]:
        """Propose the token after `context` and `drafted`; gives it with the seconds that took."""
        start = self._rewind(context, drafted)
        pending = [*context[start:], *drafted[max(start - len(context), 0) :]]
        seconds = 0.0
        for chunk, rows in prefill_chunks(pending, 1):
            reply = yield Forward("draft", Run(self.sequence, chunk, rows, len(pending) <= FEW))
            seconds += reply.seconds
        if len(pending) <= FEW:
            self.policy.costs.saw_draft(seconds)
        return self.choose(reply.logits, len(context) + len(drafted)), seconds

    def catching_up(self, context: list[int], drafted: list[int]) -> float:
        behind = len(context) + len(drafted) - self._rewind(context, drafted)
        return behind * self.policy.costs.draft_step / READ_TOGETHER if behind > FEW else 0.0

    def _rewind(self, context: list[int], drafted: list[int]) -> int:
        """Keep of the sequence what it shares with context and drafted tokens, all but the last of
        them at most; gives how many of those tokens need not be read. Compares only what was
        appended to the context since the last call."""
        held = self.sequence.tokens
        text = [*context[self._agreed :], *drafted]
        same = min(self._agreed, len(held))
        most = min(len(held), len(context) + len(drafted) - 1)
        while same < most and held[same] == text[same - self._agreed]:
            same += 1
        self.sequence.truncate(min(same, most))
        self._agreed = min(same, len(context))
        return self.sequence.length


class AdaptiveDrafter:
    """Proposes, token by token, what is likeliest to be accepted: of `ngrams`, which cost nothing,
    or of the draft model (or head) where it is expected to save more than its time. Either may be
    None.

    What is proposed is counted wherever it was asked for, as far as the answer went along with the
    draft, whether it was put to the target or not.
    """

    def __init__(
        self,
        ngrams: Ngrams | None,
        policy: Policy,
        model: DraftModel | DraftHead | None = None,
    ):
        self.ngrams = ngrams
        self.policy = policy
        self.model = model
        self._read = 0
        self._asked: list[tuple[int, list[Proposal]]] = []

    def propose(
        self, context: list[int], limit: int, state: np.ndarray | None = None
    ) -> Generator[Forward, Reply, Draft]:
        """A continuation of `context`, which only ever grows, of at most `limit` tokens; none
        where nothing is worth it. `state` is that of the row of logits that gave its last token."""
        policy = self.policy
        policy.begin_round()
        if self.model is not None:
            self.model.start(context, state)
        remaining, limit = limit, min(limit, policy.fixed or policy.limit)
        self._learn(context)
        proposals: list[Proposal] = []
        drafted: list[int] = []
        survival, seconds = 1.0, 0.0
        bound = 0
        while len(drafted) < limit:
            if policy.fixed is None and survival < UNLIKELY:
                break
            best = self._guess(drafted)
            asked = [] if best is None else [best]
            free = 0.0 if best is None else best.acceptance
            if self.model and self._model_pays(context, drafted, survival, free, remaining):
                own, spent = yield from self.model.step(context, drafted)
                seconds += spent
                asked.append(own)
                if self.model.binding:
                    best, bound = own, len(drafted) + 1
                elif best is None or own.acceptance >= best.acceptance:
                    best = own
            self._asked.append((-1 if best is None else best.token, asked))
            if best is None:
                break
            proposals.append(best)
            drafted.append(best.token)
            survival *= best.acceptance
        length = policy.best_length([one.acceptance for one in proposals], seconds)
        return Draft(tuple(proposals[: max(length, bound)]), seconds)

    def _model_pays(
        self,
        context: list[int],
        drafted: list[int],
        survival: float,
        free: float,
        remaining: int,
    ) -> bool:
        """Whether to ask the draft model for the next token: where what it adds to the acceptance
        of the `free` guess (without one: drafting on with it) is expected to save more than its
        step takes and, within the `remaining` tokens of the answer, the time of catching up."""
        policy, model = self.policy, self.model
        if len(drafted) >= model.depth:
            return False
        expected = policy.accepted(model.name).total.hopeful
        if policy.fixed is not None:
            return expected > free
        step = model.cost(drafted)
        if free:
            saved = survival * (expected - free) * policy.pace - step
        else:
            saved = policy.gain(len(drafted), survival, expected, step)
        if saved <= 0 and drafted:
            return False
        reading = model.catching_up(context, drafted)
        if saved > 0 and saved * remaining / 2 > reading:
            return True
        return not drafted and policy.probe_due(step + reading)

    def _learn(self, context: list[int]) -> None:
        """Read what was added to the text, and count which of it was proposed."""
        added = context[self._read :]
        for (drafted, asked), token in zip(self._asked, added, strict=False):
            for one in asked:
                self.policy.accepted(one.source).saw(one.confidence, one.token == token)
            if drafted != token:
                break
        self._asked.clear()
        if self.ngrams is not None:
            self.ngrams.read(added)
        self._read = len(context)

    def _guess(self, drafted: list[int]) -> Proposal | None:
        """What the n-grams propose after the text and `drafted`."""
        guess = None if self.ngrams is None else self.ngrams.guess(drafted)
        if guess is None:
            return None
        return Proposal(*guess, self.policy.accepted(guess.source)(guess.confidence))


def make_drafter(
    name: str,
    policy: Policy,
    sampling: Sampling,
    *,
    head: Head | None = None,
    sequence: Sequence | None = None,
    table: NgramTable | None = None,
) -> AdaptiveDrafter | None:
    """The drafter of this `name` (as in settings): with a draft head, or a draft model whose
    sequence is `sequence`, or neither."""
    if name == "none":
        return None
    model = None
    if head is not None and name != "lookup":
        model = DraftHead(policy, sampling, head.head_tokens)
    elif sequence is not None and name != "lookup":
        model = DraftModel(sequence, policy, sampling)
    ngrams = None if name == "model" else Ngrams(table if name == "auto" else None)
    return AdaptiveDrafter(ngrams, policy, model)
