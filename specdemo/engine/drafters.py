"""Chooses among the sources of draft tokens, token by token: n-gram lookup in the text so far, and
a draft model or head.

Drafters run no model themselves: like decoding, they are generators that ask for forwards.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np

from .adjustment import Adjustment
from .cache import KVSequence
from .constraint import Allowed, Mask, forced, wait
from .head_drafters import EagleDrafter, HeadDrafter
from .logits_drafter import LogitsDrafter
from .lookup import Lookup
from .messages import Draft, Proposal, Reply, Translation
from .model_drafters import ModelDrafter, TranslatedDrafter
from .policy import READING_SHARE, Policy, RoundPlan
from .rounds import Source
from .sampling import Sampling

SHARPER = 1.2
"""Divides the temperature at which a head draws. A head knows less than the target, so its
distribution is flatter; with the same noise the target tends to choose the likelier token. First
tokens of the embedded head at temperatures 0.4, 0.7 and 1 (prose): accepted with it 0.535, 0.531,
0.513; without 0.534, 0.523, 0.504."""


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
        model: LogitsDrafter | None = None,
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
    sequence: KVSequence | None = None,
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
    model: LogitsDrafter | None = None
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
