"""Penalties and biases: change the target's logits by the text so far. They are part of the target
distribution, in autoregressive decoding and in every verified row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .sampling import Sampling


class Adjustment:
    """What `sampling` does to a row of logits after `prompt` and an answer, before temperature and
    filters. A token's logit x becomes, in this order:

    - `repetition_penalty` r: x / r if x > 0, else x r, if the token occurs in the prompt or the
      answer (as in transformers and vLLM);
    - `frequency_penalty` f and `presence_penalty` p: x - f n - p, if it occurs n > 0 times in the
      answer (as in OpenAI's API and vLLM);
    - `logit_bias` b: x + b.

    `stretch`: two logits that differ by d differ by at most d times this afterwards."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]):
        self._repetition = np.float32(sampling.repetition_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        self._prompt_length = len(prompt)
        self._prompt_tokens = np.unique(np.array(prompt, np.int64))
        self._biased = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._biases = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        self.stretch = max(sampling.repetition_penalty, 1 / sampling.repetition_penalty)

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
