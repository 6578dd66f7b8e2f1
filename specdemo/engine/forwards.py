"""Forwards: what decoding asks of a model, and the logits that it is sent. No model runs here, so
code that only exchanges these needs no OpenVINO."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from .cache import BlockPool, KVSequence
from .constraint import Mask, forced
from .cost_model import CostModel
from .rounds import Logprobs

PREFILL_CHUNK = 63
"""Tokens of a prefill forward; other requests wait for one at most. With a token that is left over
it is as large as the largest forward whose rounding is measured (`profile.MERGED_TOKENS`)."""

MAX_CANDIDATES, MIN_CANDIDATE = 5, 0.01
"""A row has at most so many candidates, with at least this probability."""


@dataclass(frozen=True, slots=True)
class Run:
    """One sequence's part of a forward.

    An EAGLE-3 head reads either `states` or `chained` for each token. A draft head reads one token
    a run, with the `states` that gave the last verified token, and after the first one with
    `chained` too."""

    sequence: KVSequence  # a draft head has no cache, so it stays empty
    tokens: tuple[int, ...] | list[int]  # to append
    rows: int  # of logits to return: those of the last tokens
    stepwise: bool = False  # each token is a sub-sequence of its own: faster for few tokens
    states: np.ndarray | None = None  # float32 [tokens, S]: the target's, for a head
    chained: np.ndarray | None = None  # float32 [tokens, H]: the head's own of the token before


class Row(NamedTuple):
    """The logits of one token."""

    logits: np.ndarray  # float32 [vocabulary]
    log_sum: float  # their log-sum-exp

    @classmethod
    def of(cls, logits: np.ndarray) -> Row:
        weights = np.exp(logits - (top := logits.max()))
        return cls(logits, float(top + np.log(weights.sum())))

    def best(self) -> int:
        """The argmax. OpenVINO's TopK takes two hundred times as long as numpy."""
        return int(self.logits.argmax())

    def margin(self, best: int) -> float:
        """How far the logit of the `best` column exceeds the next one."""
        row = self.logits
        second = max(row[:best].max(initial=-np.inf), row[best + 1 :].max(initial=-np.inf))
        return float(row[best] - second)

    def probability(self, column: int) -> float:
        """Softmax at `column`, temperature 1."""
        return math.exp(min(float(self.logits[column]) - self.log_sum, 0.0))

    def logprobs(self, token: int, count: int) -> Logprobs:
        """The log-probabilities of `token` and of the `count` likeliest tokens."""
        row = self.logits
        likeliest = np.argpartition(-row, min(count, len(row) - 1))[:count] if count else ()
        best = sorted((-float(row[id]), int(id)) for id in likeliest)
        top = tuple((id, -logit - self.log_sum) for logit, id in best)
        return Logprobs(float(row[token]) - self.log_sum, top)

    def candidates(self, ids: np.ndarray | None) -> tuple[tuple[int, float], ...]:
        """The candidates and their probabilities, likeliest first. `ids` are the tokens of the
        columns (None: they are equal)."""
        columns = (self.logits >= self.log_sum + math.log(MIN_CANDIDATE)).nonzero()[0]
        ranked = sorted(zip((-self.logits[columns]).tolist(), columns.tolist(), strict=True))
        return tuple(
            (column if ids is None else int(ids[column]), math.exp(-x - self.log_sum))
            for x, column in ranked[:MAX_CANDIDATES]
        )

    def allowed(self, mask: Mask) -> Row:
        """With -inf for tokens that the mask does not allow and those beyond it. One token of the
        row must be allowed."""
        if mask is None:
            return self
        row = np.full_like(self.logits, -np.inf)
        width = min(len(mask), len(row))
        if (token := forced(mask[:width])) is not None:
            row[token] = 0.0
            return Row(row, 0.0)
        np.copyto(row[:width], self.logits[:width], where=mask[:width])
        return Row.of(row)


class Logits(NamedTuple):
    """The logits of a forward."""

    rows: np.ndarray  # float32 [n, vocabulary]
    log_sum: np.ndarray  # float32 [n], the log-sum-exp of each row
    state: np.ndarray | None = None  # float32 [tokens, H]: for a draft head, or its own next

    def row(self, index: int) -> Row:
        return Row(self.rows[index], float(self.log_sum[index]))

    def copy(self) -> Logits:
        """A copy, which stays valid after later forwards."""
        state = None if self.state is None else self.state.copy()
        return Logits(self.rows.copy(), self.log_sum.copy(), state)

    def last(self) -> Logits:
        """A copy of the last row with its state, which stays valid after later forwards."""
        state = None if self.state is None else self.state[-1:]
        return Logits(self.rows[-1:], self.log_sum[-1:], state).copy()

    def last_state(self) -> np.ndarray:
        """A copy of the last token's state, float32 [1, H], of a head's logits."""
        assert self.state is not None, "a draft head gives its states"
        return np.array(self.state[-1:])

    def states(self, count: int) -> np.ndarray | None:
        """A copy of the states of the first `count` tokens, or None."""
        return None if self.state is None else self.state[:count].copy()


@dataclass(frozen=True, slots=True)
class Forward:
    """Asks for a run. Its last tokens are draft tokens; some may be left out, with their rows."""

    model: str  # "target" or "draft": a draft model or a draft head
    run: Run
    chances: tuple[float, ...] = ()  # of each draft token, to be accepted if all before it are
    spent: float = 0.0  # seconds of drafting


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a Forward."""

    logits: Logits  # valid until that model's next forward
    seconds: float
    shared: bool = False  # other requests have been active beside this one
    own: float = 0.0  # seconds of the request's own code since its last forward of the target model


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prefilled prompt."""

    tokens: tuple[int, ...]
    logits: Logits  # of the next token: one row
    seconds: float = 0.0  # of the prefill


def next_chunk(tokens: list[int], size: int = PREFILL_CHUNK) -> tuple[list[int], int]:
    """The next `size` of the `tokens` to prefill, and how many rows of logits are wanted: one of
    the last chunk. No chunk has one token unless there is only one token in all."""
    return (tokens, 1) if len(tokens) <= size + 1 else (tokens[:size], 0)


class Taps(NamedTuple):
    """The states of a target model that a draft head reads, side by side."""

    layers: tuple[int, ...] = ()
    """For an EAGLE-3 head: the residual stream that enters these layers (the number of layers
    stands for what leaves the last one, one more for that after the last norm)."""

    fractions: tuple[float, ...] = ()
    """For a head made here, after the input of the output matrix: the stream at these fractions of
    its additions."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a decoder is compiled."""

    device: str = "CPU"
    properties: tuple[tuple[str, str], ...] = ()  # go to the plugin as they are
    hidden: Taps | None = None  # states that a draft head reads
    token_ids: np.ndarray | None = field(default=None, compare=False)
    """The tokens that logits cover, int64 [V], ascending; None: all."""


class Runner(Protocol):
    """What runs forwards."""

    seconds: float  # of all forwards
    costs: CostModel  # learns their seconds

    def forward(self, batch: list[Run]) -> list[Logits]: ...


class Head(Runner, Protocol):
    """A compiled draft head."""

    token_ids: np.ndarray  # of the columns of its logits, int64 [V']
    states_width: int  # of a row of the target's states


class Model(Runner, Protocol):
    """A decoder with a KV cache: `paged.PagedModel`, which describes the methods,
    `torch_model.TorchModel`, or a test's toy."""

    settings: ModelSettings
    threads: int
    min_tokens: int  # may be raised: shorter forwards are padded
    paged: bool  # forks share cache blocks, and it can give states to a draft head
    pool: BlockPool
    block_size: int
    vocabulary_size: int
    token_ids: np.ndarray | None  # of the columns of its logits, int64 [V]; None: they are equal

    @property
    def block_bytes(self) -> int: ...
    def new_sequence(self) -> KVSequence: ...
    def fork(self, source: KVSequence, length: int) -> KVSequence: ...
    def resize_cache(self, blocks: int) -> None: ...
