"""One toy model without OpenVINO: its logits are a function of the tokens, so a mix-up of sequences
changes them. Also ways to run decodings on it: `drive` one at a time, `request` for the scheduler.
"""

import threading
import zlib
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

import numpy as np

from specdemo.engine.cache import BlockPool, KVSequence, RecurrentPool, RecurrentSequence
from specdemo.engine.constraint import AllowedTokens
from specdemo.engine.cost_model import CostModel
from specdemo.engine.decode import Decoding, Limits, decode, prefill
from specdemo.engine.drafts.draft_sources import DraftRequest, DraftSource
from specdemo.engine.drafts.drafter import AdaptiveDrafter
from specdemo.engine.drafts.eagle_drafter import EagleDrafter
from specdemo.engine.drafts.lookup import LOOKUPS
from specdemo.engine.drafts.model_drafters import HeadDrafter, ModelDrafter, TranslatedDrafter
from specdemo.engine.forwards import Logits, Prompt, Reply, Run
from specdemo.engine.policy import Policy
from specdemo.engine.prefixes import PrefixCache
from specdemo.engine.rounds import Draft, Proposal, Round
from specdemo.engine.sampling import Sampling

VOCABULARY = 3
"""Tokens of the smallest tables, where every execution can be enumerated."""

HASHED_VOCABULARY = 7
BLOCK = 4
GREEDY = Sampling()


class ToyModel:
    """Forwards over real sequences and a real block pool. A row of logits is looked up in `table`
    by the last token, or without a table made from all tokens and `seed`.

    The next forward overwrites the logits, as a real one does. `fault(batch)` may raise; a forward
    waits for `gate`.
    """

    paged = False
    token_ids: np.ndarray | None = None

    def __init__(self, table: np.ndarray | None = None, *, seed: int = 0, limit: int | None = None):
        self.table = table
        self.seed = seed
        self.block_size = BLOCK
        self.pool = BlockPool(limit or 4096)
        self.vocabulary_size = HASHED_VOCABULARY if table is None else table.shape[1]
        self.min_tokens = 1
        self.seconds = 0.0
        self.costs = CostModel()
        self.batches: list[list[int]] = []
        self.fault = None
        self.gate = threading.Event()
        self.gate.set()
        self._last: list[Logits] = []

    def new_sequence(self) -> KVSequence:
        return KVSequence(self.pool, BLOCK)

    def fork(self, source: KVSequence, length: int) -> KVSequence:
        made = self.new_sequence()
        made.tokens = source.tokens[:length]
        made.reserve(length)
        return made

    def forward(self, batch: list[Run]) -> list[Logits]:
        self.gate.wait(10)
        for old in self._last:
            old.rows[:] = np.nan
        if self.fault is not None:
            self.fault(batch)
        assert len({id(run.sequence) for run in batch}) == len(batch)
        for run in batch:
            length, blocks = len(run.sequence.tokens) + len(run.tokens), run.sequence.blocks
            blocks += run.sequence.pool.take(max(-(-length // BLOCK) - len(blocks), 0))
        self.batches.append([len(run.tokens) for run in batch])
        self._last = [self._run(run) for run in batch]
        return list(self._last)

    def row(self, tokens: list[int]) -> np.ndarray:
        """The logits after `tokens`, float32 [vocabulary]."""
        if self.table is not None:
            return self.table[tokens[-1]]
        rng = np.random.default_rng(zlib.crc32(bytes(tokens)) + self.seed)
        return rng.normal(size=HASHED_VOCABULARY).astype(np.float32)

    def _run(self, run: Run) -> Logits:
        tokens = run.sequence.tokens
        tokens.extend(run.tokens)
        ends = range(len(tokens) - run.rows + 1, len(tokens) + 1)
        rows = np.array([self.row(tokens[:end]) for end in ends], np.float32)
        states = np.array(run.tokens, np.float32)[:, None]
        return logits_of(rows.reshape(run.rows, self.vocabulary_size))._replace(state=states)


class RecurrentToyModel(ToyModel):
    """Also has a recurrent state, which is the text so far, and reads it as a real one does."""

    def __init__(self, table: np.ndarray):
        super().__init__(table)
        self.pool = RecurrentPool(4096, 1, BLOCK)
        self.states: dict[int, list[int]] = {}

    def new_sequence(self) -> RecurrentSequence:
        return RecurrentSequence(self.pool, BLOCK)

    def forward(self, batch: list[Run]) -> list[Logits]:
        for run in batch:
            sequence, begin = run.sequence, run.sequence.length
            assert not begin or self.states[sequence.states[begin]] == sequence.tokens
            sequence.reserve_states(len(run.tokens), run.stepwise)
            text = [*sequence.tokens, *run.tokens]
            for end in range(begin + 1, len(text) + 1):
                if end in sequence.states:
                    self.states[sequence.states[end]] = text[:end]
        return super().forward(batch)


class Language:
    """Allows a random set of tokens after each text, about every third time a single token; all
    after one of `stops`."""

    def __init__(
        self, seed: int, vocabulary: int = VOCABULARY, stops: frozenset[int] = frozenset()
    ):
        self.seed, self.vocabulary, self.stops = seed, vocabulary, stops
        self.tokens: list[int] = []

    def mask(self) -> np.ndarray | None:
        if self.stops & set(self.tokens):
            return None
        rng = np.random.default_rng(zlib.crc32(bytes(self.tokens)) + self.seed)
        mask = rng.random(self.vocabulary) < rng.choice([0.0, 0.5, 0.9])
        mask[rng.integers(self.vocabulary)] = True
        return mask

    def advance(self, token: int) -> None:
        mask = self.mask()
        assert mask is None or mask[token], "a token that is not allowed was drafted or chosen"
        self.tokens.append(token)

    def rollback(self, count: int) -> None:
        assert 0 <= count <= len(self.tokens)
        del self.tokens[len(self.tokens) - count :]


def random_table(
    rng: np.random.Generator, vocabulary: int = VOCABULARY, scale: float = 1.5
) -> np.ndarray:
    """float32 [vocabulary, vocabulary]: the logits after each last token."""
    return (rng.normal(size=(vocabulary, vocabulary)) * scale).astype(np.float32)


def adjusted(
    row: np.ndarray, sampling: Sampling, prompt, answer, language: Language | None = None
) -> np.ndarray:
    """The logits after penalties and biases, token by token as `Adjustment` defines them; -inf for
    tokens that the language does not allow after `answer`."""
    repetition, frequency, presence = np.float32(
        [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty]
    )
    logits = []
    for token, x in enumerate(row):
        if token in (*prompt, *answer):
            x = x / repetition if x > 0 else x * repetition
        if token in answer:
            x = x - (frequency * np.float32(answer.count(token)) + presence)
        logits.append(x + np.float32(dict(sampling.logit_bias).get(token, 0.0)))
    if language is not None:
        language.tokens = list(answer)
        logits = np.where(language.mask(), logits, -np.inf)
    return np.array(logits, np.float32)


def sequence(tokens: tuple[int, ...] = ()) -> KVSequence:
    """A sequence that holds `tokens`, with a block pool of its own."""
    made = KVSequence(BlockPool(4096), BLOCK)
    made.tokens = list(tokens)
    return made


def logits_of(rows: np.ndarray) -> Logits:
    """The logits of these rows, as a forward gives them."""
    top = rows.max(axis=-1)
    return Logits(rows, top + np.log(np.exp(rows - top[:, None]).sum(axis=-1)))


def decoding(
    table: np.ndarray,
    prompt: tuple[int, ...],
    limits: Limits,
    *,
    target: KVSequence | None = None,
    drafter=None,
    policy: Policy | None = None,
    sampling: Sampling = GREEDY,
    language: Language | None = None,
) -> Decoding:
    """`decode` after a prompt that was run on this table."""
    allowed = None if language is None else AllowedTokens(language)
    if drafter is not None:
        drafter.allowed = allowed
    return decode(
        Prompt(prompt, logits_of(table[[prompt[-1]]])._replace(state=np.zeros((1, 1)))),
        target=sequence(prompt) if target is None else target,
        drafter=drafter,
        policy=policy or Policy(),
        sampling=sampling,
        limits=limits,
        allowed=allowed,
    )


def drive(work, models: Mapping[str, ToyModel | np.ndarray]) -> tuple[list[Round], object]:
    """Run a generator that asks for forwards; gives its rounds and its result. A table stands for a
    model."""
    rounds: list[Round] = []
    reply = None
    while True:
        try:
            event = work.send(reply)
        except StopIteration as done:
            return rounds, done.value
        reply = None
        if isinstance(event, Round):
            rounds.append(event)
        elif isinstance(event, Future):
            event.result()
        else:
            model = models[event.model]
            model = ToyModel(model) if isinstance(model, np.ndarray) else model
            [logits] = model.forward([event.run])
            reply = Reply(logits, 0.001)


def answer_ids(rounds: list[Round]) -> tuple[int, ...]:
    return tuple(token.id for round_ in rounds for token in round_.tokens)


class ToyHead(ToyModel):
    """A draft head, with attention or without: knows the even tokens, the larger ones first."""

    def __init__(self, table: np.ndarray):
        super().__init__(table)
        self.token_ids = np.arange(0, len(table), 2)[::-1]

    def forward(self, batch: list[Run]) -> list[Logits]:
        logits = []
        for run in batch:
            if run.chained is None:
                assert len(run.states) == len(run.tokens), "a state of the target for each token"
            run.sequence.tokens.extend(run.tokens)
            rows = self.table[list(run.tokens)][len(run.tokens) - run.rows :, self.token_ids]
            states = np.zeros((len(run.tokens), 1), np.float32)
            logits.append(logits_of(rows)._replace(state=states))
        return logits


class Permuted:
    """A Translation of a vocabulary in which token t + 1 stands for the target's t."""

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary

    def read(self, context: list[int]) -> list[int]:
        return [(token + 1) % self.vocabulary for token in context]

    def translate(self, drafted: list[int], whole_words: bool) -> list[tuple[int, int]]:
        return [((token - 1) % self.vocabulary, 1) for token in drafted]

    def ends(self, token: int) -> bool:
        return False


def source(name: str, model: ToyModel | None = None) -> DraftSource:
    """A source of draft tokens by the name of its drafters, or "translated"."""
    if name in ("lookup", "prediction"):
        return LOOKUPS[name == "prediction"]
    if name == "head":
        return DraftSource(HeadDrafter, model)
    if name == "eagle3":
        return DraftSource(EagleDrafter, model, PrefixCache(model, chunk=1))
    if name == "translated":
        translation = partial(Permuted, model.vocabulary_size)
        return DraftSource(TranslatedDrafter, model, PrefixCache(model), translation=translation)
    return DraftSource(ModelDrafter, model, PrefixCache(model))


def drafter(
    name: str,
    policy: Policy,
    sampling: Sampling = GREEDY,
    prompt: tuple[int, ...] = (),
    prediction: tuple[int, ...] = (),
    model: ToyModel | None = None,
) -> AdaptiveDrafter | None:
    """The drafter of a source, or of the setting "auto" or "none", with this draft `model`."""
    names = {"none": (), "auto": ("prediction", "lookup", "model")}.get(name, (name,))
    asked = DraftRequest(prompt, 1000, sampling, policy, prediction, candidates=True)
    drafters = [source(each, model or ToyModel()).open(asked) for each in names]
    return AdaptiveDrafter(drafters, policy) if drafters else None


class ScriptDrafter:
    """Proposes `length` tokens made by `guess(context, position)`, without probabilities, up to the
    first one that is not allowed."""

    allowed: AllowedTokens | None = None

    def __init__(self, length: int, guess):
        self.length = length
        self.guess = guess

    def propose(self, context, limit, state=None):
        tokens: list[int] = []
        while len(tokens) < min(self.length, limit):
            token = self.guess(context, len(context) + len(tokens))
            mask = self.allowed.masks(tokens)[-1] if self.allowed else None
            if mask is not None and not mask[token]:
                break
            tokens.append(token)
        return drafted(*tokens)
        yield


def drafted(*tokens: int) -> Draft:
    return Draft(tuple(Proposal(token, "script", 1.0) for token in tokens))


def request(
    models: Mapping[str, ToyModel],
    prompt: tuple[int, ...],
    new_tokens: int,
    draft_tokens: int = 0,
    language: Language | None = None,
) -> Decoding:
    """A whole request, as a session makes it: prompt, answer, everything given back."""
    policy = Policy(fixed=draft_tokens)
    allowed = None if language is None else AllowedTokens(language)
    with models["target"].new_sequence() as target, models["draft"].new_sequence() as draft:
        known = yield from prefill(target, prompt)
        asked = DraftRequest(prompt, len(prompt) + new_tokens, GREEDY, policy)
        model = ModelDrafter(DraftSource(ModelDrafter, models["draft"]), asked)
        model.sequence = draft
        return (
            yield from decode(
                known,
                target=target,
                drafter=AdaptiveDrafter([model], policy, allowed) if draft_tokens else None,
                policy=policy,
                sampling=GREEDY,
                limits=Limits(new_tokens, 10_000, frozenset({0})),
                allowed=allowed,
            )
        )


def alone(seed: int, prompt: tuple[int, ...], new_tokens: int) -> tuple[int, ...]:
    """Greedy tokens of a target of this seed, computed without scheduler, cache or drafts."""
    model, tokens = ToyModel(seed=seed), list(prompt)
    while len(tokens) < len(prompt) + new_tokens:
        tokens.append(int(model.row(tokens).argmax()))
        if tokens[-1] == 0:
            break
    return tuple(tokens[len(prompt) :])


def blocks_for(prompt: int, new_tokens: int, draft_tokens: int = 0) -> int:
    return -(-(prompt + new_tokens + draft_tokens + 2) // BLOCK)
