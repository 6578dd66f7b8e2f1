"""The sources of draft tokens: a draft model or head, and n-gram lookup in the text so far.

Drafters run no model themselves: like decoding, they are generators that ask for forwards.
"""

import math
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np

from .adjustment import Adjustment
from .cache import Sequence
from .constraint import Allowed, Mask, forced, wait
from .cost_model import LARGEST
from .lookup import Lookup
from .messages import (
    DEPTH,
    PREFILL_CHUNK,
    Draft,
    Forward,
    HeadStep,
    Logits,
    Proposal,
    Reply,
    Run,
    Translation,
    next_chunk,
    one_row,
)
from .policy import MAX_DRAFT, READING_SHARE, Policy, RoundPlan
from .prefixes import common
from .rounds import Source
from .sampling import DRAFT, Distribution, Sampling, choose, distribution, draw

LOOKAHEAD = 4  # tokens of another vocabulary drafted until a word must have ended

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

    def __init__(
        self,
        policy: Policy,
        sampling: Sampling,
        head_tokens: np.ndarray | None = None,
        adjustment: Adjustment | None = None,
    ):
        self.policy = policy
        self.sampling = sampling
        self.head_tokens = head_tokens
        self.adjustment = adjustment
        self._columns: np.ndarray | None = None
        if adjustment is not None and head_tokens is not None:
            self._columns = np.full(head_tokens.max(initial=0) + 1, -1)
            self._columns[head_tokens] = np.arange(len(head_tokens))
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

    def choose(
        self, logits: Logits, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Proposal | None:
        """The token after `context` and `drafted`, one that the `mask` allows; None if the source
        knows none of these."""
        sampling, ids = self.sampling, self.head_tokens
        position = len(context) + len(drafted)
        if self.adjustment is not None:
            logits = one_row(self.adjustment(logits.rows[0], context, drafted, self._columns))
        if mask is not None:
            mask = mask[: logits.rows.shape[1]] if ids is None else mask[ids]
            if not mask.any():
                return None
            logits = logits.allowed(0, mask)
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
            self._state = reply.logits.last_state()
            seconds += reply.seconds
        self._read = len(drafted) + 1
        return self.choose(reply.logits, context, drafted, mask), seconds

    def cost(self, drafted: list[int]) -> float:
        return (len(drafted) + 1 - self._read) * self.policy.draft.forward(1)


class EagleDrafter(LogitsDrafter):
    """Proposes with an EAGLE-3 head. Each row of `sequence` pairs the target's states of a token of
    the text with the token after it. The rows of a chain come from the head's own states; once the
    target has verified a draft, they are dropped and written anew from its states.

    Rows may begin anywhere in the text, since a shift of all positions changes nothing."""

    name: Source = "eagle3"
    depth = DEPTH

    def __init__(
        self,
        sequence: Sequence,
        policy: Policy,
        sampling: Sampling,
        head_tokens: np.ndarray,
        adjustment: Adjustment | None = None,
    ):
        super().__init__(policy, sampling, head_tokens, adjustment)
        self.sequence = sequence
        self._first = 0  # position in the text of the first row
        self._rows = sequence.length  # without those of a chain
        self._states = np.zeros((0, 0), np.float32)  # of the text's tokens that have no row yet

    def reads_prompt(self, tokens: int, most: int) -> bool:
        """Whether reading a prompt of `tokens` tokens is expected to pay for an answer of at most
        `most` tokens."""
        plan = self.policy.plan(tokens, most)
        if plan.fixed is not None:
            return True
        expected, forward = self.policy.accepted(self.name).total.upper_bound, self.policy.draft
        pays = plan.gain(0, 1.0, expected, forward.forward(1)) > 0
        return pays and forward.forward(tokens) <= READING_SHARE * plan.remaining * plan.pace

    def read_prompt(
        self, tokens: tuple[int, ...], end: int, states: np.ndarray
    ) -> Generator[Forward, Reply, None]:
        """Write the rows of those prompt `tokens` before position `end` that have `states` and a
        token after them."""
        begin = self._continue(end - len(states))
        following = tokens[begin + 1 : end + 1]
        if following:
            added = states[len(states) - (end - begin) :][: len(following)]
            yield Forward("draft", Run(self.sequence, following, 0, states=added))
            self._rows = self.sequence.length

    def of_prompt(self, tokens: tuple[int, ...]) -> int:
        """How many rows of the sequence a later request with this prompt can use."""
        rows = tuple(self.sequence.tokens[: self._rows])
        return 0 if self._first else common(tokens[1:], rows)

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        assert states is not None, "a target model for a head gives its states"
        self.sequence.truncate(self._rows)
        waiting = [*self._states, *states][-PREFILL_CHUNK:]
        self._states = np.array(waiting)
        self._continue(len(context) - 1 - len(waiting))
        self._read = 0

    def _continue(self, position: int) -> int:
        """The position in the text of the next row, which is to be `position` or later: without the
        rows between, the sequence begins anew."""
        if self._first + self._rows < position:
            self.sequence.truncate(0)
            self._first, self._rows = position, 0
        return self._first + self._rows

    def step(
        self, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Generator[Forward, Reply, tuple[Proposal | None, float]]:
        """Propose the token after `context` and `drafted` that the `mask` allows, if any; gives it
        with the seconds that took."""
        seconds = 0.0
        waiting = len(self._states)
        if waiting:
            run = Run(self.sequence, context[-waiting:], 1, waiting <= LARGEST, states=self._states)
            reply = yield Forward("draft", run)
            seconds += reply.seconds
            self._states, self._rows = self._states[:0], self.sequence.length
            self._chained = reply.logits.last_state()[None]
        for token in drafted[self._read :]:
            run = Run(self.sequence, [token], 1, True, chained=self._chained)
            reply = yield Forward("draft", run)
            seconds += reply.seconds
            self._chained = reply.logits.last_state()[None]
        self._read = len(drafted)
        return self.choose(reply.logits, context, drafted, mask), seconds

    def cost(self, drafted: list[int]) -> float:
        forward, waiting = self.policy.draft.forward, min(len(self._states), LARGEST)
        chain = (len(drafted) - self._read) * forward(1)
        return chain + forward(waiting) if waiting else chain

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        forward, waiting = self.policy.draft.forward, len(self._states)
        return forward(waiting) - forward(LARGEST) if waiting > LARGEST else 0.0


class ModelDrafter(LogitsDrafter):
    """Proposes with a second, smaller model.

    `sequence` may hold any text; the prefix that it shares with the context is kept. The model
    reads at most `reach` tokens (0: any number) and proposes nothing beyond.
    """

    def __init__(
        self,
        sequence: Sequence,
        policy: Policy,
        sampling: Sampling,
        adjustment: Adjustment | None = None,
        reach: int = 0,
    ):
        super().__init__(policy, sampling, None, adjustment)
        self.sequence = sequence
        self.reach = reach

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        if self.reach:
            self.depth = min(MAX_DRAFT, self.reach + 1 - len(context))

    def step(
        self, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Generator[Forward, Reply, tuple[Proposal | None, float]]:
        """Propose the token after `context` and `drafted` that the `mask` allows, if any; gives it
        with the seconds that took."""
        pending = self._unread(context, drafted)
        few, seconds = len(pending) <= LARGEST, 0.0
        while pending:
            chunk, rows = next_chunk(pending)
            pending = pending[len(chunk) :]
            reply = yield Forward("draft", Run(self.sequence, chunk, rows, few))
            seconds += reply.seconds
        return self.choose(reply.logits, context, drafted, mask), seconds

    def of_prompt(self, tokens: tuple[int, ...]) -> int:
        """How many tokens of the sequence a later request with this prompt can use."""
        return common(tokens, tuple(self.sequence.tokens))

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        forward = self.policy.draft.forward
        return forward(len(self._unread(context, drafted))) - forward(1)

    def _unread(self, context: list[int], drafted: list[int]) -> list[int]:
        """The tokens of `context` and `drafted` to run next: at least the last one. Cuts the
        sequence to the text before them."""
        text, read = [*context, *drafted], self.sequence.tokens
        same = min(len(read), len(text) - 1)
        while read[:same] != text[:same]:
            same -= 1
        self.sequence.truncate(same)
        return text[same:]


class TranslatedDrafter(ModelDrafter):
    """Proposes with a draft model that has a vocabulary of its own: the target's tokens of the text
    that it drafts. It drafts its likeliest tokens also where the target samples, since noise by
    token id is not shared between vocabularies; so only a target's own choice can confirm them."""

    def __init__(
        self,
        sequence: Sequence,
        policy: Policy,
        sampling: Sampling,
        translation: Translation,
        prompt: list[int],
        reach: int,
    ):
        super().__init__(sequence, policy, replace(sampling, temperature=0.0), None, reach)
        self.translation = translation
        self._prompt = tuple(prompt)
        self._known = sequence.length  # tokens of the context when it was last read
        self._steps, self._proposed = 2, 1  # forwards, and tokens that they gave; guesses at first

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        self._text: list[int] | None = None
        self._chain: list[int] = []
        self._chances: list[float] = []
        self._ready: list[tuple[int, int]] = []

    def step(
        self, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Generator[Forward, Reply, tuple[Proposal | None, float]]:
        """Propose the token after `context` and `drafted` that the `mask` allows, if any; gives it
        with the seconds that took."""
        if not self._chain:
            self._text, self._known = self.translation.read(context), len(context)
        seconds = 0.0
        for steps in range(LOOKAHEAD + 1):
            self._ready = self.translation.translate(self._chain, steps < LOOKAHEAD)
            tokens = [token for token, _ in self._ready]
            shared = min(len(tokens), len(drafted))
            if tokens[:shared] != drafted[:shared]:
                break  # another source's token, or a word that became another token
            if len(tokens) > len(drafted):
                self._proposed += 1
                return self._translated(len(drafted), mask), seconds
            if self._text is None or len(self._text) + len(self._chain) >= self.reach:
                break
            if self._chain and self.translation.ends(self._chain[-1]):
                break
            own, spent = yield from super().step(self._text, self._chain)
            seconds += spent
            self._steps += 1
            assert own is not None, "without a mask a draft model always proposes"
            self._chain.append(own.token)
            self._chances.append(own.confidence)
        return None, seconds

    def _translated(self, index: int, mask: Mask) -> Proposal | None:
        """Token `index` of the draft: as likely as the draft model's tokens that begin in it."""
        token, count = self._ready[index]
        if mask is not None and not (token < len(mask) and mask[token]):
            return None
        begin = sum(begun for _, begun in self._ready[:index])
        return self.proposal(token, math.prod(self._chances[begin : begin + count]))

    def of_prompt(self, tokens: tuple[int, ...]) -> int:
        return common(self._prompt, tuple(self.sequence.tokens))

    def cost(self, drafted: list[int]) -> float:
        if len(self._ready) > len(drafted):
            return 0.0
        return self.policy.draft.forward(1) * self._steps / self._proposed

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        forward, waiting = self.policy.draft.forward, max(len(context) - self._known, 1)
        return 0.0 if self._chain else forward(waiting) - forward(1)


class AdaptiveDrafter:
    """Proposes, token by token, the token most likely to be accepted: from `lookups` (by source),
    which cost nothing, or from the draft model (or head) where it is expected to save more time
    than it takes. With a constraint no token is proposed that it does not allow; one that it forces
    is proposed as it is (source "grammar"), and accepted with certainty.

    Acceptance rates count every proposal up to the first difference between draft and answer, even
    one that was not verified.
    """

    def __init__(
        self,
        lookups: dict[Source, Lookup],
        policy: Policy,
        model: ModelDrafter | EagleDrafter | HeadDrafter | None = None,
        allowed: Allowed | None = None,
    ):
        self.lookups = lookups
        self.policy = policy
        self.model = model
        self.allowed = allowed
        self._read = 0
        self._proposed: list[tuple[int | None, list[Proposal]]] = []
        """The last draft, whether verified or not: each token, and what the sources proposed."""

    def propose(
        self, context: list[int], limit: int, states: np.ndarray | None = None
    ) -> Generator[Any, Reply, Draft]:
        """Draft at most `limit` tokens after `context`, or none if none pays. Between calls the
        context only grows. `states` (float32 [tokens, H]) are the target's, of the tokens that its
        last forward added to the context; the last one's logits gave the context's last token."""
        self._learn(context)
        plan = self.policy.plan(len(context), limit)
        limit = min(limit, plan.fixed or plan.limit)
        if self.model is not None:
            self.model.start(context, states)
        draft: list[Proposal] = []
        survival, seconds = 1.0, 0.0
        drawn = 0  # tokens up to the last one that the maximal coupling has to verify
        while len(draft) < limit and plan.worth_reaching(survival):
            drafted = [proposal.token for proposal in draft]
            mask = yield from self._mask(drafted)
            if self.allowed is not None and mask is None:
                break  # the constraint's language has ended
            token = None if mask is None else forced(mask)
            if token is not None:
                draft.append(Proposal(token, "grammar", 1.0, 1.0))
                self._proposed.append((token, []))
                continue
            sources = self._looked_up(drafted, mask)
            best = max(sources, key=_acceptance, default=None)
            if self.model and self._model_pays(plan, context, drafted, survival, best):
                own, spent = yield from self.model.step(context, drafted, mask)
                seconds += spent
                sources += [own] if own else []
                if self.model.binding:
                    best, drawn = own, len(draft) + 1
                elif own and (best is None or own.acceptance >= best.acceptance):
                    best = own
            self._proposed.append((best and best.token, sources))
            if best is None:
                break
            draft.append(best)
            survival *= best.acceptance
        length = plan.best_length([proposal.acceptance for proposal in draft], seconds)
        return Draft(tuple(draft[: max(length, drawn)]), seconds)

    def _mask(self, drafted: list[int]) -> Generator[Any, None, Mask]:
        """The tokens allowed after `drafted`. Slow ones are computed beside the engine's thread."""
        if self.allowed is None:
            return None
        if self.allowed.slow:
            yield from wait(self.allowed.begin(drafted))
        return self.allowed.masks(drafted)[-1]

    def _looked_up(self, drafted: list[int], mask: Mask) -> list[Proposal]:
        """The proposals of n-gram lookup for the token after the text and `drafted`."""
        proposals = []
        for source, lookup in self.lookups.items():
            if (guess := lookup.guess(drafted, mask)) is not None:
                chance = self.policy.accepted(source)(guess.confidence)
                proposals.append(Proposal(guess.token, source, guess.confidence, chance))
        return proposals

    def _model_pays(
        self,
        plan: RoundPlan,
        context: list[int],
        drafted: list[int],
        survival: float,
        looked_up: Proposal | None,
    ) -> bool:
        """Whether to ask the draft model for the next token. Its step must save time over the
        proposal of n-gram lookup, if any. What it must read first may take a small share of the
        rest of the answer, which may turn out short."""
        model = self.model
        if model is None or len(drafted) >= model.depth:
            return False
        free = 0.0 if looked_up is None else looked_up.acceptance
        expected = self.policy.accepted(model.name).total.upper_bound
        if plan.fixed is not None:
            return expected > free
        step = model.cost(drafted)
        if free:
            saved = survival * (expected - free) * plan.pace - step
        else:
            saved = plan.gain(len(drafted), survival, expected, step)
        rest = plan.remaining * plan.pace
        return saved > 0 and model.catch_up(context, drafted) <= READING_SHARE * rest

    def _learn(self, context: list[int]) -> None:
        """Read the tokens added to the text, and count which proposals were right."""
        added = context[self._read :]
        for (drafted, sources), token in zip(self._proposed, added, strict=False):
            for proposal in sources:
                rates = self.policy.accepted(proposal.source)
                rates.record(proposal.confidence, proposal.token == token)
            if drafted != token:
                break
        self._proposed.clear()
        for lookup in self.lookups.values():
            lookup.read(added)
        self._read = len(context)


def _acceptance(proposal: Proposal) -> float:
    return proposal.acceptance


def make_drafter(
    name: str,
    policy: Policy,
    sampling: Sampling,
    *,
    head_tokens: np.ndarray | None = None,
    sequence: Sequence | None = None,
    reach: int = 0,
    allowed: Allowed | None = None,
    adjustment: Adjustment | None = None,
    prediction: tuple[int, ...] = (),
    translation: Translation | None = None,
    prompt: list[int] | None = None,
) -> AdaptiveDrafter | None:
    """The drafter `name` of the settings, None for "none". It uses a draft head with these
    `head_tokens`, an EAGLE-3 head if it reads `sequence`, or a draft model that reads `sequence` up
    to `reach` tokens, or neither, and only `allowed` tokens; and `prediction`, tokens that the
    answer is expected to have. A draft model with another vocabulary needs a `translation` and the
    `prompt` in its own tokens."""
    if name == "none":
        return None
    model: ModelDrafter | EagleDrafter | HeadDrafter | None = None
    if head_tokens is not None and sequence is not None:
        model = EagleDrafter(sequence, policy, sampling, head_tokens, adjustment)
    elif head_tokens is not None and name != "lookup":
        sharper = replace(sampling, temperature=sampling.temperature / SHARPER)
        model = HeadDrafter(policy, sharper, head_tokens, adjustment)
    elif sequence is not None and translation is not None:
        model = TranslatedDrafter(sequence, policy, sampling, translation, prompt or [], reach)
    elif sequence is not None and name != "lookup":
        model = ModelDrafter(sequence, policy, sampling, adjustment, reach)
    lookups: dict[Source, Lookup] = {} if name == "model" else {"lookup": Lookup()}
    if prediction and name != "model":
        lookups["prediction"] = Lookup(prediction)
    return AdaptiveDrafter(lookups, policy, model, allowed)
