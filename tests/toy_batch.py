"""A model for the batcher without OpenVINO: logits are a function of all tokens before, so a mix-up changes them."""

from __future__ import annotations

import threading
import time
import zlib

import numpy as np

from specdemo.engine.decode import Decoding, Limits, Prompt, decode, prefill
from specdemo.engine.drafters import Draft, Forward
from specdemo.engine.policy import Lookahead
from specdemo.engine.model import BlockPool, Logits, Run, Sequence
from specdemo.engine.sampling import Sampling

VOCABULARY = 7
BLOCK = 4


class ToyModel:
    """Forwards over real sequences and a real pool of blocks. Logits are overwritten by the next forward, as real ones
    are. `fault(batch)` may raise; `gate` holds every forward until it is set."""

    def __init__(self, seed: int = 0, limit: int | None = None):
        self.seed = seed
        self.block_size = BLOCK
        self.pool = BlockPool(0, limit)
        self.seconds = 0.0
        self.batches: list[list[int]] = []
        self.fault = None
        self.gate = threading.Event()
        self.gate.set()
        self._last: list[Logits] = []

    def new_sequence(self, *, min_tokens: int = 1) -> Sequence:
        return Sequence(self.pool, BLOCK, min_tokens)

    def forward(self, batch: list[Run]) -> list[Logits]:
        self.gate.wait(10)
        for old in self._last:
            old.rows[:] = np.nan
            old.best[:] = -1
        if self.fault is not None:
            self.fault(batch)
        assert len({id(run.sequence) for run in batch}) == len(batch)
        for run in batch:
            self._reserve(run.sequence, len(run.sequence.tokens) + len(run.tokens))
        self.batches.append([len(run.tokens) for run in batch])
        self._last = []
        for run in batch:
            run.sequence.tokens.extend(run.tokens)
            tokens = run.sequence.tokens
            rows = [self.row(tokens[: len(tokens) - run.rows + at + 1]) for at in range(run.rows)]
            self._last.append(Logits.of(np.array(rows, np.float32).reshape(run.rows, VOCABULARY)))
        return list(self._last)

    def row(self, tokens: list[int]) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(bytes(tokens)) + self.seed).normal(size=VOCABULARY).astype(np.float32)

    def _reserve(self, sequence: Sequence, length: int) -> None:
        missing = -(-length // BLOCK) - len(sequence.blocks)
        if missing > 0:
            if len(self.pool.free) < missing:
                self.pool.grow(self.pool.grown_size(missing))
            sequence.blocks += [self.pool.take() for _ in range(missing)]


class ToyDrafter:
    """Drafts with a second model, greedily; a target of the same seed accepts everything, another little."""

    def __init__(self, model: ToyModel, length: int):
        self.sequence = model.new_sequence()
        self.length = length

    def propose(self, context, limit):
        held = self.sequence.tokens
        same = 0
        while same < min(len(held), len(context) - 1) and held[same] == context[same]:
            same += 1
        self.sequence.truncate(same)
        pending, tokens = context[same:], []
        while len(tokens) < min(self.length, limit):
            reply = yield Forward("draft", Run(self.sequence, pending, 1))
            tokens.append(int(reply.logits.best[0]))
            pending = [tokens[-1]]
        return Draft(tuple(tokens), "model", (0.5,) * len(tokens), (0.5,) * len(tokens))


def request(
    models: dict[str, ToyModel], prompt: tuple[int, ...], new_tokens: int, draft_tokens: int = 0, slow: float = 0.0
) -> Decoding:
    """A whole request, as a session makes it: prompt, answer, everything given back."""
    target = models["target"].new_sequence(min_tokens=2)
    drafter = ToyDrafter(models["draft"], draft_tokens) if draft_tokens else None
    try:
        known: Prompt = yield from prefill(target, prompt)
        limits = Limits(new_tokens, 10_000, frozenset({0}))
        decoding = decode(
            known, target=target, drafter=drafter, lookahead=Lookahead(), sampling=Sampling(), limits=limits
        )
        reply = None
        try:
            while True:
                event = decoding.send(reply)
                time.sleep(slow)
                reply = yield event
        except StopIteration as done:
            return done.value
        finally:
            decoding.close()
    finally:
        target.release()
        if drafter is not None:
            drafter.sequence.release()


def alone(seed: int, prompt: tuple[int, ...], new_tokens: int) -> tuple[int, ...]:
    """Greedy tokens that a target of this seed gives, computed without batcher, cache or drafts."""
    model, tokens = ToyModel(seed), list(prompt)
    while len(tokens) < len(prompt) + new_tokens:
        tokens.append(int(model.row(tokens).argmax()))
        if tokens[-1] == 0:
            break
    return tuple(tokens[len(prompt) :])


def blocks_for(prompt: int, new_tokens: int, draft_tokens: int = 0) -> int:
    return -(-(prompt + new_tokens + draft_tokens + 2) // BLOCK)
