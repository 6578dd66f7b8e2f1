"""The target's logits as they count after penalties, biases and masks, and the acceptance rule:
which draft tokens stand, and the token that the target adds after them.

p is the draft model's distribution and q the target's, as in Chen et al. (arXiv 2302.01318). Two
couplings of their draws keep the output distribution exactly q:

- `shared`: both draw with the *same* noise (an exponential race, also called the Gumbel-max trick),
  and a draft token is accepted when the target draws it too (Daliri et al., arXiv 2408.07978). Same
  seed, same output, with any drafter, any draft length, or none.
- `maximal`: algorithm 2 of Chen et al.: accept with probability min(1, q/p), else redraw from
  max(0, q - p). No rule accepts more. Its output for a seed depends on the draft tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .constraint import Mask
from .forwards import Logits, Row
from .rounds import Draft
from .sampling import ACCEPT, RESIDUAL, Distribution, Noise, Sampling, choose, distribution, draw


class Adjustment:
    """The penalties and biases of `sampling`, for a row of logits after `prompt` and an answer.
    They precede temperature and filters. A token's logit x becomes, in this order:

    - `repetition_penalty` r: x / r if x > 0, else x r, if the token occurs in the prompt or the
      answer (as in transformers and vLLM);
    - `frequency_penalty` f and `presence_penalty` p: x - f n - p, if it occurs n > 0 times in the
      answer (as in OpenAI's API and vLLM);
    - `logit_bias` b: x + b."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]):
        self._repetition = np.float32(sampling.repetition_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        self._prompt_length = len(prompt)
        self._prompt_tokens = np.unique(np.array(prompt, np.int64))
        self._biased = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._biases = np.array([bias for _, bias in sampling.logit_bias], np.float32)

    def __call__(
        self,
        logits: np.ndarray,
        context: Sequence[int],
        drafted: Sequence[int] = (),
        columns: np.ndarray | None = None,
    ) -> np.ndarray:
        """A changed copy of `logits`, float32 [V], of the token after `context` (prompt and answer)
        and `drafted`. `columns` (int64 [vocabulary]) gives the column of each token, -1 for none;
        without it they are equal."""
        adjusted = logits.copy()

        def columns_of(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """The columns of those tokens that have one, and the indices of these tokens."""
            known = (tokens < len(logits if columns is None else columns)).nonzero()[0]
            if columns is None:
                return tokens[known], known
            known = known[columns[tokens[known]] >= 0]
            return columns[tokens[known]], known

        answer = np.array([*context[self._prompt_length :], *drafted], np.int64)
        tokens, counts = np.unique(answer, return_counts=True)
        if self._repetition != 1:
            seen, _ = columns_of(np.union1d(self._prompt_tokens, tokens))
            x = adjusted[seen]
            adjusted[seen] = np.where(x > 0, x / self._repetition, x * self._repetition)
        if self._frequency or self._presence:
            written, known = columns_of(tokens)
            times = counts[known].astype(np.float32)
            adjusted[written] -= self._frequency * times + self._presence
        biased, known = columns_of(self._biased)
        adjusted[biased] += self._biases[known]
        return adjusted


def adjustment(sampling: Sampling, prompt: Sequence[int]) -> Adjustment | None:
    """The Adjustment of a request; None if `sampling` changes no logits."""
    penalties = sampling.frequency_penalty or sampling.presence_penalty
    if penalties or sampling.repetition_penalty != 1 or sampling.logit_bias:
        return Adjustment(sampling, prompt)
    return None


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The target's logits after a text, and after each token of a draft. `row` gives them after the
    adjustment of the text, with only allowed tokens."""

    logits: Logits
    context: Sequence[int]  # the text
    adjustment: Adjustment | None = None
    masks: list[Mask] | None = None  # for each row

    def row(self, drafted: Sequence[int]) -> Row:
        """The row after `drafted`."""
        index = len(drafted)
        row = self.logits.row(index)
        if self.adjustment is not None:
            row = Row.of(self.adjustment(row.logits, self.context, drafted))
        return row if self.masks is None else row.allowed(self.masks[index])


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification."""

    accepted: int  # draft tokens
    token: int  # added after them
    probabilities: tuple[float, ...]
    """The target's, of each accepted token and then of the rejected one, if any."""

    q: Callable[[int], float] = field(compare=False)
    """The target's probability of any token in the place of `token`, until the next forward."""

    margin: float | None = None
    """How far the logit of `token` exceeds the next best; None if it was sampled, or the only one
    allowed."""


def verify(rows: TargetRows, draft: Draft, sampling: Sampling) -> Verification:
    """Verify a draft. Greedy decoding and the shared coupling accept a draft token if it is the
    target's own choice."""
    if sampling.coupling == "maximal" and not sampling.greedy:
        return _verify_maximal(rows, draft, sampling)
    tokens = draft.tokens
    probabilities = []
    for index, drafted in enumerate((*tokens, None)):
        row = rows.row(tokens[:index])
        if sampling.greedy:
            token = row.best()
        else:
            known = float(row.logits.max()), row.log_sum
            token = choose(row.logits, sampling, len(rows.context) + index, known)
        if drafted is not None:
            probabilities.append(row.probability(drafted))
        if token != drafted:
            break
    margin = row.margin(token) if sampling.greedy else math.inf
    finite = margin if margin < math.inf else None
    return Verification(index, token, tuple(probabilities), row.probability, finite)


def _verify_maximal(rows: TargetRows, draft: Draft, sampling: Sampling) -> Verification:
    """Algorithm 2 of Chen et al."""
    tokens, seed = draft.tokens, sampling.seed
    probabilities = []
    for index, drafted in enumerate(tokens):
        position = len(rows.context) + index
        q = distribution(rows.row(tokens[:index]).logits, sampling)
        p = draft.proposals[index].distribution or Distribution(np.array([drafted]), np.ones(1))
        probabilities.append(q.probability(drafted))
        chance = min(1.0, probabilities[-1] / p.probability(drafted))
        if not accepts(chance, seed, position):
            token = draw(residual(p, q), seed, position, RESIDUAL)
            return Verification(index, token, tuple(probabilities), q.probability)
    q = distribution(rows.row(tokens).logits, sampling)
    token = draw(q, seed, len(rows.context) + len(tokens))
    return Verification(len(tokens), token, tuple(probabilities), q.probability)


def accepts(chance: float, seed: int, position: int) -> bool:
    """Whether a draft token with this acceptance probability is accepted at a position."""
    return Noise(seed, position, ACCEPT).uniform() < chance


def residual(p: Distribution, q: Distribution) -> Distribution:
    """max(0, q - p), normalised (Chen et al., equation 2). If p equals q up to rounding, nothing is
    left; the result is then q, which is right because a rejection has probability 0."""
    columns = np.minimum(np.searchsorted(p.ids, q.ids), len(p.ids) - 1)
    drafted = np.where(p.ids[columns] == q.ids, p.probabilities[columns], 0.0)
    left = np.maximum(q.probabilities - drafted, 0.0)
    mass = left.sum()
    if mass <= 0:
        return q
    keep = left > 0
    return Distribution(q.ids[keep], left[keep] / mass)
