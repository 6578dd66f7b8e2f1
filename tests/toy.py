"""Toy models for exact tests: logits are a table looked up by the last token, and a runner answers requests by it."""

from __future__ import annotations

import numpy as np

from specdemo.engine.decode import Decoding
from specdemo.engine.drafters import Draft, Reply
from specdemo.engine.model import BlockPool, Logits, Sequence
from specdemo.trace import Round

VOCABULARY = 3


def random_table(rng: np.random.Generator, vocabulary: int = VOCABULARY, scale: float = 1.5) -> np.ndarray:
    """float32 [vocabulary, vocabulary]: the logits after each last token."""
    return (rng.normal(size=(vocabulary, vocabulary)) * scale).astype(np.float32)


def sequence(tokens: tuple[int, ...] = ()) -> Sequence:
    empty = Sequence(BlockPool(0), 32, 1)
    empty.tokens = list(tokens)
    return empty


def logits_after(table: np.ndarray, tokens: list[int] | tuple[int, ...]) -> Logits:
    return Logits.of(table[list(tokens)])


def drive(decoding: Decoding, tables: dict[str, np.ndarray]) -> tuple[list[Round], str]:
    """Run a decoding on toy models; gives its rounds and finish reason."""
    rounds: list[Round] = []
    reply = None
    while True:
        try:
            event = decoding.send(reply)
        except StopIteration as done:
            return rounds, done.value
        reply = None
        if isinstance(event, Round):
            rounds.append(event)
        else:
            run = event.run
            run.sequence.tokens.extend(run.tokens)
            rows = run.tokens[len(run.tokens) - run.rows :]
            reply = Reply(logits_after(tables[event.model], rows), 0.001)


def answer_ids(rounds: list[Round]) -> tuple[int, ...]:
    return tuple(token.id for round_ in rounds for token in round_.tokens)


class ScriptDrafter:
    """Proposes `length` tokens made by `guess(context, position)`, as a drafter without probabilities."""

    def __init__(self, length: int, guess):
        self.length = length
        self.guess = guess

    def propose(self, context, limit):
        tokens = tuple(self.guess(context, len(context) + i) for i in range(min(self.length, limit)))
        return Draft(tokens, ("script",) * len(tokens), (0.5,) * len(tokens), (None,) * len(tokens))
        yield
