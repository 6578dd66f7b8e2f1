"""Chooses among the sources of draft tokens, token by token."""

from collections import defaultdict
from collections.abc import Generator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from ..constraint import AllowedTokens, Mask, forced, wait
from ..forwards import PREFILL_CHUNK, Forward, Reply
from ..policy import Policy, RoundPlan
from ..rounds import Draft, Proposal
from .draft_sources import Reading, TokenDrafter

MIN_SURVIVAL = 0.15  # no further token is drafted when the chance to reach it is below this
EXPLORE_ROUNDS = 256
"""A source that no round has asked for so long is asked for one token, whatever a step seems to
cost: a cost that was measured beside other work would otherwise stay for ever. Of 256 forwards this
is one draft step."""


class AdaptiveDrafter:
    """Proposes, token by token, the token most likely to be accepted: from free `drafters`, or from
    others where they are expected to save more time than they take. Of equally likely ones the last
    drafter's is taken. With a constraint no token is proposed that it does not allow; one that it
    forces is proposed as it is (source "grammar"), and accepted with certainty.

    Acceptance rates count every proposal up to the first difference between draft and answer, even
    one that was not verified.
    """

    def __init__(
        self, drafters: Sequence[TokenDrafter], policy: Policy, allowed: AllowedTokens | None = None
    ):
        self.drafters = sorted(drafters, key=attrgetter("free"), reverse=True)
        self.policy = policy
        self.allowed = allowed
        self._length = 0
        self._missed: dict[str, float] = defaultdict(float)
        """Seconds that each source would have saved if it had always read the text."""

        self._proposed: list[tuple[int | None, list[Proposal]]] = []
        """The last draft, whether verified or not: each token, and what the sources proposed."""

    def read_prompt(self, tokens: tuple[int, ...], end: int, states: np.ndarray) -> Reading:
        for drafter in self.drafters:
            yield from drafter.read_prompt(tokens, end, states)

    def propose(
        self, context: list[int], limit: int, states: np.ndarray | None = None
    ) -> Generator[Any, Reply, Draft]:
        """Draft at most `limit` tokens after `context`, or none if none pays; the scheduler leaves
        out those that are not worth their rows. Between calls the context only grows. `states`
        (float32 [tokens, H]) are the target's, of the tokens that its last forward added to the
        context; the last one's logits gave the context's last token."""
        self._record_proposals(context)
        for drafter in self.drafters:
            drafter.start(context, states)
        if self.policy.paused(asks=False):
            return Draft()
        plan = self.policy.plan(len(context), limit)
        if not plan.worth_drafting:
            return Draft()
        limit = min(limit, plan.fixed or plan.limit)
        draft: list[Proposal] = []
        survival, seconds = 1.0, 0.0
        while len(draft) < limit and (plan.fixed is not None or survival >= MIN_SURVIVAL):
            drafted = [proposal.token for proposal in draft]
            mask = yield from self._mask(drafted)
            if self.allowed is not None and mask is None:
                break  # the constraint's language has ended
            best, proposals, spent = yield from self._best(plan, context, drafted, survival, mask)
            seconds += spent
            self._proposed.append((best and best.token, proposals))
            if best is None:
                break
            draft.append(best)
            survival *= best.acceptance
        return Draft(tuple(draft), seconds, bool(draft or seconds) or self.policy.requests > 1)

    def _mask(self, drafted: list[int]) -> Generator[Any, None, Mask]:
        """The tokens allowed after `drafted`. Slow ones are computed beside the engine's thread."""
        if self.allowed is None:
            return None
        if self.allowed.slow:
            yield from wait(self.allowed.begin(drafted))
        return self.allowed.masks(drafted)[-1]

    def _best(
        self, plan: RoundPlan, context: list[int], drafted: list[int], survival: float, mask: Mask
    ) -> Generator[Forward, Reply, tuple[Proposal | None, list[Proposal], float]]:
        """The proposal to draft next, if any; all proposals, and the seconds that they took."""
        best: Proposal | None = None
        proposals: list[Proposal] = []
        seconds = 0.0
        if mask is not None and (token := forced(mask)) is not None:
            return Proposal(token, "grammar", 1.0, 1.0), proposals, seconds
        for drafter in self.drafters:
            if drafter.free or self._pays(drafter, plan, context, drafted, survival, best):
                self.policy.accepted(drafter.name).unasked = 0.0
                proposal, spent = yield from drafter.step(context, drafted, mask)
                seconds += spent
                if proposal is not None:
                    proposals.append(proposal)
                    if best is None or proposal.acceptance >= best.acceptance:
                        best = proposal
                if drafter.binding:
                    best = proposal
        return best, proposals, seconds

    def _pays(
        self,
        drafter: TokenDrafter,
        plan: RoundPlan,
        context: list[int],
        drafted: list[int],
        survival: float,
        best: Proposal | None,
    ) -> bool:
        """Whether a step is expected to save time over the `best` proposal so far. A drafter reads
        a text, to rent or to buy, once it would have saved as much as that takes: an answer may
        turn out short."""
        if len(drafted) >= drafter.depth or self.policy.paused(asks=True):
            return False
        free = 0.0 if best is None else best.acceptance
        rates = self.policy.accepted(drafter.name)
        expected = rates.total.upper_bound
        if plan.fixed is not None:
            return expected > free
        reading = drafter.catch_up(context, drafted)
        if rates.unasked >= EXPLORE_ROUNDS and not drafted:
            return not reading or len(context) <= PREFILL_CHUNK
        step = drafter.cost(drafted)
        saved = plan.gain(len(drafted), survival, expected, step)
        if free:
            saved = min(saved, survival * (expected - free) * plan.pace - step)
        if saved <= 0:
            return False
        missed = plan.pace * saved / (saved + plan.rows[1] or 1.0)  # seconds a token
        if not drafted:
            self._missed[drafter.name] += missed
        return reading <= min(self._missed[drafter.name], missed * plan.tokens_left)

    def _record_proposals(self, context: list[int]) -> None:
        """Count which proposals the tokens added to the text confirm."""
        added = context[self._length :]
        for (drafted, proposals), token in zip(self._proposed, added, strict=False):
            for proposal in proposals:
                rates = self.policy.accepted(proposal.source)
                rates.record(proposal.confidence, proposal.token == token)
            if drafted != token:
                break
        self._proposed.clear()
        self._length = len(context)
