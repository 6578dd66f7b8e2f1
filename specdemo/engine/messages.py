"""What travels between the parts of the engine: runs of tokens, logits, drafts, and the rounds that
decoding yields. No model runs here, so code that only exchanges these needs no OpenVINO."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

from .cache import BlockPool, KVSequence
from .constraint import Mask, forced
from .cost_model import CostModel
from .sampling import Distribution

PREFILL_CHUNK = 63
"""Tokens of a prefill forward; other requests wait for one at most. With a token that is left over
it is as large as the largest forward whose rounding is measured (`profile.MERGED_TOKENS`)."""

DEPTH = 5  # tokens that a head drafts at most; heads are trained for chains of this length

MAX_CANDIDATES, MIN_CANDIDATE = 5, 0.01
"""Of a draft model's tokens at a rejection so many are kept, with at least this probability."""

Kind = Literal["first", "correction", "bonus", "plain"]
Source = Literal["model", "head", "eagle3", "lookup", "prediction", "grammar", "ngrams"]
"""What proposed a draft token; "ngrams" (a table) occurs in runs of earlier versions only."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural log-probabilities of a token and of the `top` tokens (id, log-probability), likeliest
    first. They are the model's own: before penalties, biases, temperature, filters and masks."""

    token: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class DraftToken:
    """A draft token: accepted, rejected, or not reached."""

    id: int
    draft_probability: float | None
    target_probability: float | None  # None if not reached: the target saw another prefix
    accepted: bool
    source: Source = "model"
    text: str = ""

    @property
    def kind(self) -> Literal["accepted", "forced"]:
        """Kind of an accepted token: "forced" if a constraint allowed no other."""
        return "forced" if self.source == "grammar" else "accepted"


@dataclass(slots=True)
class EmittedToken:
    """The token that the target adds at the end of a round: the `first` after the prompt, a
    `correction` of a rejected draft token, a `bonus` after a fully accepted draft, or `plain` if
    nothing was drafted. `margin`: its logit minus the next best, None if it was sampled."""

    id: int
    kind: Kind
    target_probability: float | None = None
    text: str = ""
    margin: float | None = None


@dataclass(slots=True)
class Round:
    """One draft-and-verify step. `candidates` are the draft model's likeliest tokens in the place
    of the rejected one, likeliest first, if the request asked for them and the draft model has the
    target's vocabulary."""

    drafted: tuple[DraftToken, ...]
    emitted: EmittedToken | None  # None: the answer ended inside the accepted draft tokens
    draft_seconds: float
    verify_seconds: float
    shown_at: float  # seconds since the start of the run
    logprobs: tuple[Logprobs, ...] = ()  # of `tokens`, if the request asked for them
    candidates: tuple[DraftToken, ...] = ()
    text: str = field(default="", compare=False)  # certain: without what later tokens may change

    @property
    def accepted(self) -> int:
        return sum(token.accepted for token in self.drafted)

    @property
    def tokens(self) -> tuple[DraftToken | EmittedToken, ...]:
        """The tokens that this round added to the answer, in order."""
        accepted = tuple(token for token in self.drafted if token.accepted)
        return accepted if self.emitted is None else (*accepted, self.emitted)


class Taps(NamedTuple):
    """The states of a target model that a draft head reads, side by side. An EAGLE-3 head reads the
    residual stream that enters `layers` (the number of layers stands for what leaves the last one).
    A head made here reads the input of the output matrix, and the stream at `fractions` of its
    additions."""

    layers: tuple[int, ...] = ()
    fractions: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a decoder is compiled. Logits cover only `token_ids`, ascending (None: all)."""

    device: str = "CPU"
    properties: tuple[tuple[str, str], ...] = ()  # go to the plugin as they are
    hidden: Taps | None = None  # states that a draft head reads
    token_ids: np.ndarray | None = field(default=None, compare=False)  # int64 [V]


@dataclass(frozen=True, slots=True)
class Run:
    """One sequence's part of a forward: append `tokens`, return logits for the last `rows` of them.

    `stepwise` makes each token a sub-sequence of its own, which is faster for few tokens.

    An EAGLE-3 head reads for each token the target's `states` (float32 [tokens, S]), or `chained`
    (float32 [tokens, H]), its own of the token before. A draft head reads one token a run, always
    with the target's `states` that gave the last verified token, and after the first one with
    `chained`; it has no cache, so `sequence` stays empty."""

    sequence: KVSequence
    tokens: tuple[int, ...] | list[int]
    rows: int
    stepwise: bool = False
    states: np.ndarray | None = None
    chained: np.ndarray | None = None


class Logits(NamedTuple):
    """The logits of a forward."""

    rows: np.ndarray  # float32 [n, vocabulary]
    log_sum: np.ndarray  # float32 [n], the log-sum-exp of each row
    state: np.ndarray | None = None  # float32 [tokens, H]: for a draft head, or its own next

    def best(self, index: int) -> int:
        """The argmax of row `index`. OpenVINO's TopK takes two hundred times as long as numpy."""
        return int(self.rows[index].argmax())

    def margin(self, index: int) -> float:
        row, best = self.rows[index], self.best(index)
        second = max(row[:best].max(initial=-np.inf), row[best + 1 :].max(initial=-np.inf))
        return float(row[best] - second)

    def logprobs(self, index: int, token: int, count: int) -> Logprobs:
        """The log-probabilities of row `index`: of `token`, and of the `count` likeliest tokens."""
        row, log_sum = self.rows[index], float(self.log_sum[index])
        likeliest = np.argpartition(-row, min(count, len(row) - 1))[:count] if count else ()
        best = sorted((-float(row[id]), int(id)) for id in likeliest)
        top = tuple((id, -logit - log_sum) for logit, id in best)
        return Logprobs(float(row[token]) - log_sum, top)

    def probability(self, index: int, column: int) -> float:
        """Softmax of row `index` at `column`, temperature 1."""
        return math.exp(min(float(self.rows[index, column]) - float(self.log_sum[index]), 0.0))

    def likeliest(self) -> list[tuple[int, float]]:
        """The columns of the first row that are candidates, and their probabilities."""
        row, log_sum = self.rows[0], float(self.log_sum[0])
        columns = (row >= log_sum + math.log(MIN_CANDIDATE)).nonzero()[0]
        ranked = sorted(zip((-row[columns]).tolist(), columns.tolist(), strict=True))
        return [(column, math.exp(-x - log_sum)) for x, column in ranked[:MAX_CANDIDATES]]

    def part(self, begin: int, end: int) -> Logits:
        """Rows `begin` to `end`, as views, without states."""
        return Logits(self.rows[begin:end], self.log_sum[begin:end])

    def allowed(self, mask: Mask) -> Logits:
        """The only row, with -inf for tokens that the mask does not allow and those beyond it; one
        of the row's tokens must be allowed."""
        if mask is None:
            return self
        row = np.full_like(self.rows[0], -np.inf)
        width = min(len(mask), len(row))
        if (token := forced(mask[:width])) is not None:
            row[token] = 0.0
            return Logits(row[None], np.zeros(1, np.float32))
        np.copyto(row[:width], self.rows[0, :width], where=mask[:width])
        return one_row(row)

    def copy(self) -> Logits:
        """A copy, which stays valid after later forwards."""
        state = None if self.state is None else self.state.copy()
        return Logits(self.rows.copy(), self.log_sum.copy(), state)

    def last(self) -> Logits:
        """A copy of the last row with its state, which stays valid after later forwards."""
        state = None if self.state is None else self.state[-1:]
        return Logits(self.rows[-1:], self.log_sum[-1:], state).copy()

    def last_state(self) -> np.ndarray:
        """A copy of the last token's state, float32 [1, H], of a head's logits, which `last` would
        copy too."""
        assert self.state is not None, "a draft head gives its states"
        return np.array(self.state[-1:])

    def states(self, count: int) -> np.ndarray | None:
        """A copy of the states of the first `count` tokens, or None."""
        return None if self.state is None else self.state[:count].copy()


def one_row(row: np.ndarray) -> Logits:
    """A row of logits, float32 [vocabulary], with its log-sum-exp."""
    weights = np.exp(row - (top := row.max()))
    return Logits(row[None], np.full(1, top + np.log(weights.sum())))


class Runner(Protocol):
    """What runs forwards. `seconds` adds up their time, and `costs` learns it."""

    seconds: float
    costs: CostModel

    def forward(self, batch: list[Run]) -> list[Logits]: ...


class Head(Runner, Protocol):
    """A compiled draft head. Column j of its logits stands for token `token_ids[j]` (int64 [V'])
    and a row of the target's states has `states_width` values."""

    token_ids: np.ndarray
    states_width: int


class Translation(Protocol):
    """Maps the text of one request between the tokens of the target and those of a draft model with
    another vocabulary. The engine itself knows no text."""

    def read(self, context: list[int]) -> list[int] | None:
        """The draft model's tokens of the text of `context`, the target's tokens, which only grow.
        None where no draft can follow yet."""

    def translate(self, drafted: list[int], whole_words: bool) -> list[tuple[int, int]]:
        """The target's tokens that `drafted`, the draft model's, add to the context last read, and
        for each the number of draft tokens that begin in it. With `whole_words`, only those that no
        further draft token can change."""

    def ends(self, token: int) -> bool:
        """Whether no text follows this token of the draft model."""


class Model(Runner, Protocol):
    """A decoder with a KV cache: `paged.PagedModel`, which describes the methods,
    `torch_model.TorchModel`, or a test's toy. `min_tokens` may be raised: shorter forwards are
    padded. Forks of a `paged` one share cache blocks, and it can give states to a draft head.
    Column j of the logits stands for token `token_ids[j]` (int64 [V]), or for token j (None)."""

    settings: ModelSettings
    threads: int
    min_tokens: int
    paged: bool
    pool: BlockPool
    block_size: int
    vocabulary_size: int
    token_ids: np.ndarray | None

    @property
    def block_bytes(self) -> int: ...
    def new_sequence(self) -> KVSequence: ...
    def fork(self, source: KVSequence, length: int) -> KVSequence: ...
    def resize_cache(self, blocks: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prefilled prompt: token ids, logits of the next token (one row), seconds of the prefill."""

    tokens: tuple[int, ...]
    logits: Logits
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Forward:
    """Asks for a run on the `model` "target" or "draft", a draft model or a draft head. Its last
    tokens are draft tokens with these `chances` to be accepted, each if all before it are; some may
    be left out, and their rows. They took `spent` seconds."""

    model: str
    run: Run
    chances: tuple[float, ...] = ()
    spent: float = 0.0


@dataclass(slots=True)
class Timing:
    """The times of a request, in seconds; they change while it runs."""

    prefill: float = 0.0
    reused: int = 0  # tokens of the prompt that were in the prefix cache
    decoding: float = 0.0
    inference: float = 0.0  # of decoding, in forwards
    cpu: float = 0.0  # of decoding, of all threads
    waited: float = 0.0  # in which threads could run and had no processor


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a Forward."""

    logits: Logits  # valid until that model's next forward
    seconds: float
    shared: bool = False  # other requests have been active beside this one


class Proposal(NamedTuple):
    """A token that `source` proposes with a `confidence` in [0, 1]. `acceptance` is the chance that
    it is accepted if all tokens before it are. `probability` is the draft model's, None for
    n-grams. `distribution` is the one that the token was drawn from, if the coupling needs it.
    `kept`: if the request wants candidates, a copy of the draft's logits, and the token of each
    column (None: they are equal)."""

    token: int
    source: Source
    confidence: float
    acceptance: float = 0.0
    probability: float | None = None
    distribution: Distribution | None = None
    kept: tuple[Logits, np.ndarray | None] | None = None

    def candidates(self, q: Callable[[int], float]) -> tuple[DraftToken, ...]:
        """The draft's likeliest tokens, with the target's probability `q` of each."""
        if self.kept is None:
            return ()
        logits, ids = self.kept
        tokens = [(c if ids is None else int(ids[c]), p) for c, p in logits.likeliest()]
        return tuple(DraftToken(id, p, q(id), False, self.source) for id, p in tokens)


@dataclass(frozen=True, slots=True)
class Draft:
    """The draft tokens to verify."""

    proposals: tuple[Proposal, ...] = ()
    seconds: float = 0.0  # that a draft model spent on them

    @property
    def tokens(self) -> list[int]:
        return [proposal.token for proposal in self.proposals]

    @property
    def chances(self) -> tuple[float, ...]:
        """The chances of its tokens, none if all must be verified: the maximal coupling is exact
        only if no draft token is dropped because of its value."""
        if any(proposal.distribution is not None for proposal in self.proposals):
            return ()
        return tuple(proposal.acceptance for proposal in self.proposals)

    def first(self, count: int) -> Draft:
        return Draft(self.proposals[:count], self.seconds)


def next_chunk(tokens: list[int], size: int = PREFILL_CHUNK) -> tuple[list[int], int]:
    """The next `size` of the `tokens` to prefill, and how many rows of logits are wanted: one of
    the last chunk. No chunk has one token unless there is only one token in all."""
    return (tokens, 1) if len(tokens) <= size + 1 else (tokens[:size], 0)
