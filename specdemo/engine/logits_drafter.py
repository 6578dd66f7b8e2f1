"""The base of the drafters that read logits: of draft models and of draft heads."""

from collections.abc import Generator

import numpy as np

from .adjustment import Adjustment
from .constraint import Mask
from .messages import Forward, Logits, Proposal, Reply, one_row
from .policy import MAX_DRAFT, Policy
from .rounds import Source
from .sampling import DRAFT, Distribution, Sampling, choose, distribution, draw


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

    def step(
        self, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Generator[Forward, Reply, tuple[Proposal | None, float]]:
        """Propose the token after `context` and `drafted` that the `mask` allows, if any; gives it
        with the seconds that took."""
        raise NotImplementedError

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
