"""How often one target model chooses the tokens of another, of which it is a smaller version."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from specdemo.bench.prompts import BenchPrompt
from specdemo.engine.drafters import Forward, Reply
from specdemo.engine.model import Run
from specdemo.engine.request import Request, Target
from specdemo.models.load import LoadedPair, require_same_vocabulary
from specdemo.session import Session
from specdemo.settings import Settings

TOGETHER = 16
"""Tokens that are read in one forward."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over the greedy answers of the reference: places, places where the other chooses the same
    token after the same text, and answers in which it does so everywhere."""

    prompts: int
    tokens: int
    agreed: int
    identical: int

    @property
    def share(self) -> float:
        return self.agreed / self.tokens


class Choices(Request):
    """Asks the target model for its greedy choice at every place of `answer`."""

    def work(self, target: Target, draft: object = None) -> Generator[Forward, Reply, list[int]]:
        prompt, sequence = yield from self._prompt(target.prefixes)
        chosen = [int(prompt.logits.rows[0].argmax())]
        read = self.answer[:-1]
        with sequence:
            for begin in range(0, len(read), TOGETHER):
                tokens = read[begin : begin + TOGETHER]
                reply = yield Forward("target", Run(sequence, tokens, len(tokens), stepwise=True))
                chosen += reply.logits.rows[: len(tokens)].argmax(axis=1).tolist()
        return chosen


def agreement(
    reference: LoadedPair, other: LoadedPair, prompts: Sequence[BenchPrompt], settings: Settings
) -> Agreement:
    """Let `reference` answer, and ask `other` along its answers; one after the other, so that one
    of them is in memory. Raises BadInput where their tokens mean different strings."""
    names = reference.info.target, other.info.target
    require_same_vocabulary(reference.tokenizer, other.tokenizer, *names)
    settings = replace(settings, temperature=0.0, drafter="auto")
    answers = []
    with Session(reference) as session:
        for prompt in prompts:
            *_, trace = session.answer(prompt.instruction, settings)
            answers.append(trace.token_ids)
    same = []
    with Session(other) as session:
        for prompt, answer in zip(prompts, answers, strict=True):
            chosen = session.result_of(Choices, prompt.instruction, settings, answer)
            same.append([one == two for one, two in zip(chosen, answer, strict=True)])
    return Agreement(len(same), sum(map(len, same)), sum(map(sum, same)), sum(map(all, same)))
