"""The sources of draft tokens: a draft model or head, and n-gram lookup in the text so far.

Drafters run no model themselves: like decoding, they are generators that ask for forwards.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np

from .cache import Sequence
from .constraint import Allowed, Mask, forced, wait
from .cost_model import LARGEST
from .lookup import Lookup
from .messages import DEPTH, Draft, Forward, HeadStep, Logits, Proposal, Reply, Run, prefill_chunks
from .policy import LEAST_SURVIVAL, MAX_DRAFT, READING_SHARE, Policy
from .rounds import Source
from .sampling import DRAFT, Distribution, Sampling, choose, distribution, draw

SHARPER = 1.2
"""Divides the temperature at which a head draws. What a head knows less than the target flattens
its distribution, and with the same noise the target's own choice is rather the likelier token. At
temperatures 0.4, 0.7 and 1 the embedded head's first token was accepted in 0.535, 0.531 and 0.513
of 0.534, 0.523 and 0.504 (prose); with the maximal coupling as often as before."""


class LogitsDrafter:
    """Base of draft models and draft heads: makes a Proposal from their logits.

    `head_tokens` (int64 [V']) maps the columns of a trimmed head to token ids; None if they are
    equal. The source proposes only the first `depth` tokens of a draft.
    """

    name: Source = "model"
    depth = MAX_DRAFT

    def __init__(self, policy: Policy, sampling: Sampling, head_tokens: np.ndarray | None):
        self.policy = policy
        self.sampling = sampling
        self.head_tokens = head_tokens
        # The maximal coupling is exact only if no draft token is dropped because of its value.
        self.binding = not sampling.greedy and sampling.coupling == "maximal"

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        """Begin a draft. `states`: as in `AdaptiveDrafter.propose`."""

    def cost(self, drafted: list[int]) -> float:
        """Seconds of the next step, with the drafted tokens that it must read first."""
        return self.policy.draft.forward(1)

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        """Seconds that the next step takes longer because of text that was not read."""
        return 0.0

    def choose(self, logits: Logits, position: int, mask: Mask = None) -> Proposal | None:
        """A token that the `mask` allows; None if the source knows none of these."""
        sampling, ids = self.sampling, self.head_tokens
        if mask is not None:
            mask = mask[: logits.rows.shape[1]] if ids is None else mask[ids]
            if not mask.any():
                return None
            logits = logits.allowed(0, [mask])
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


class HeadDrafter(LogitsDrafter):
    """Proposes with a draft head. The head reads the target's hidden state that gave the last
    verified token, that token, and the draft tokens after it."""

    name: Source = "head"
    depth = DEPTH

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        self._hidden: Any = None if states is None else states[-1]
        self._read = 0
        self._state: np.ndarray | None = None

    def step(
        self, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Generator[Forward, Reply, tuple[Proposal | None, float]]:
        """Propose the token after `context` and `drafted` that the `mask` allows, if any; gives it
        with the seconds that took."""
        seconds = 0.0
        for token in [context[-1], *drafted][self._read :]:
            run = HeadStep(self._hidden, self._state, (token,))
            reply = yield Forward("draft", run)
            states = reply.logits.states(1)
            self._state = None if states is None else states[0]
            seconds += reply.seconds
        self._read = len(drafted) + 1
        return self.choose(reply.logits, len(context) + len(drafted), mask), seconds

    def cost(self, drafted: list[int]) -> float:
        return (len(drafted) + 1 - self._read) * self.policy.draft.forward(1)


class ModelDrafter(LogitsDrafter):
    """Proposes with a second, smaller model.

    `sequence` may hold any text; the prefix that it shares with the context is kept.
    """

    def __init__(self, sequence: Sequence, policy: Policy, sampling: Sampling):
        super().__init__(policy, sampling, None)
        self.sequence = sequence

    def step(
        self, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Generator[Forward, Reply, tuple[Proposal | None, float]]:
        """Propose the token after `context` and `drafted` that the `mask` allows, if any; gives it
        with the seconds that took."""
        pending = self._unread(context, drafted)
        seconds = 0.0
        for chunk, rows in prefill_chunks(pending, 1):
            reply = yield Forward("draft", Run(self.sequence, chunk, rows, len(pending) <= LARGEST))
            seconds += reply.seconds
        return self.choose(reply.logits, len(context) + len(drafted), mask), seconds

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        forward = self.policy.draft.forward
        return forward(len(self._unread(context, drafted))) - forward(1)

    def _unread(self, context: list[int], drafted: list[int]) -> list[int]:
        """The tokens of `context` and `drafted` to run next: at least the last one. Cuts the
        sequence to the text before them."""
        text, held = [*context, *drafted], self.sequence.tokens
        same = min(len(held), len(text) - 1)
        while held[:same] != text[:same]:
            same -= 1
        self.sequence.truncate(same)
        return text[same:]


class AdaptiveDrafter:
    """Proposes, token by token, the token most likely to be accepted: from `lookup`, which costs
    nothing, or from the draft model (or head) where it is expected to save more time than it takes.
    Either may be None. With a constraint no token is proposed that it does not allow; one that it
    forces is proposed as it is (source "grammar"), and accepted with certainty.

    Acceptance rates count every proposal up to the first difference between draft and answer, even
    one that was not verified.
    """

    def __init__(
        self,
        lookup: Lookup | None,
        policy: Policy,
        model: ModelDrafter | HeadDrafter | None = None,
        allowed: Allowed | None = None,
    ):
        self.lookup = lookup
        self.policy = policy
        self.model = model
        self.allowed = allowed
        self._read = 0
        self._asked: list[tuple[int, list[Proposal]]] = []

    def propose(
        self, context: list[int], limit: int, states: np.ndarray | None = None
    ) -> Generator[Any, Reply, Draft]:
        """Draft at most `limit` tokens after `context`, or none if none pays. Between calls the
        context only grows. `states` (float32 [tokens, H]) are the target's, of the tokens that its
        last forward added to the context; the last one's logits gave the context's last token."""
        policy = self.policy
        policy.begin_round(len(context), limit)
        if self.model is not None:
            self.model.start(context, states)
        limit = min(limit, policy.fixed or policy.limit)
        self._learn(context)
        proposals: list[Proposal] = []
        drafted: list[int] = []
        survival, seconds = 1.0, 0.0
        bound = 0
        while len(drafted) < limit:
            if policy.fixed is None and survival < LEAST_SURVIVAL:
                break
            mask = None
            if self.allowed is not None:
                if self.allowed.slow:
                    yield from wait(self.allowed.begin(drafted))
                mask = self.allowed.masks(drafted)[-1]
                if mask is None:
                    break
                if (token := forced(mask)) is not None:
                    proposals.append(Proposal(token, "grammar", 1.0, 1.0))
                    drafted.append(token)
                    self._asked.append((token, []))
                    continue
            best = self._guess(drafted, mask)
            asked = [] if best is None else [best]
            free = 0.0 if best is None else best.acceptance
            if self.model and self._model_pays(context, drafted, survival, free):
                own, spent = yield from self.model.step(context, drafted, mask)
                seconds += spent
                asked += [own] if own else []
                if self.model.binding:
                    best, bound = own, len(drafted) + 1
                elif own and (best is None or own.acceptance >= best.acceptance):
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
        self, context: list[int], drafted: list[int], survival: float, free: float
    ) -> bool:
        """Whether to ask the draft model for the next token. Its step must save time over the
        proposal of n-gram lookup, accepted with chance `free` (0: none). What it must read first
        may take a small share of the rest of the answer, which may turn out short."""
        policy, model = self.policy, self.model
        if model is None or len(drafted) >= model.depth:
            return False
        expected = policy.accepted(model.name).total.upper_bound
        if policy.fixed is not None:
            return expected > free
        step = model.cost(drafted)
        if free:
            saved = survival * (expected - free) * policy.pace - step
        else:
            saved = policy.gain(len(drafted), survival, expected, step)
        rest = policy.remaining * policy.pace
        return saved > 0 and model.catch_up(context, drafted) <= READING_SHARE * rest

    def _learn(self, context: list[int]) -> None:
        """Read the tokens added to the text, and count which proposals were right."""
        added = context[self._read :]
        for (drafted, asked), token in zip(self._asked, added, strict=False):
            for one in asked:
                self.policy.accepted(one.source).record(one.confidence, one.token == token)
            if drafted != token:
                break
        self._asked.clear()
        if self.lookup is not None:
            self.lookup.read(added)
        self._read = len(context)

    def _guess(self, drafted: list[int], mask: Mask) -> Proposal | None:
        """The proposal of n-gram lookup for the token after the text and `drafted`, or None."""
        guess = None if self.lookup is None else self.lookup.guess(drafted, mask)
        if guess is None:
            return None
        chance = self.policy.accepted("lookup")(guess.confidence)
        return Proposal(guess.token, "lookup", guess.confidence, chance)


def make_drafter(
    name: str,
    policy: Policy,
    sampling: Sampling,
    *,
    head_tokens: np.ndarray | None = None,
    sequence: Sequence | None = None,
    allowed: Allowed | None = None,
) -> AdaptiveDrafter | None:
    """The drafter `name` of the settings, None for "none". It uses a draft head with these
    `head_tokens`, or a draft model that reads `sequence`, or neither, and only `allowed` tokens."""
    if name == "none":
        return None
    model: ModelDrafter | HeadDrafter | None = None
    if head_tokens is not None and name != "lookup":
        sharper = replace(sampling, temperature=sampling.temperature / SHARPER)
        model = HeadDrafter(policy, sharper, head_tokens)
    elif sequence is not None and name != "lookup":
        model = ModelDrafter(sequence, policy, sampling)
    lookup = None if name == "model" else Lookup()
    return AdaptiveDrafter(lookup, policy, model, allowed)
