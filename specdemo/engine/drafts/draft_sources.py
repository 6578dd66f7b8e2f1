"""What proposes draft tokens: a source for an engine, which opens a drafter for each request."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..constraint import Mask
from ..cost_measurement import learn_costs, learn_step
from ..forwards import Forward, Model, Reply
from ..policy import MAX_DRAFT, Policy
from ..prefixes import PrefixCache
from ..rounds import Proposal, Source
from ..sampling import Sampling

Reading = Generator[Forward, Reply, None]
Step = Generator[Forward, Reply, tuple[Proposal | None, float]]


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What drafters know of a request."""

    prompt: tuple[int, ...]
    max_tokens: int  # of prompt and answer
    sampling: Sampling
    policy: Policy
    prediction: tuple[int, ...] = ()  # which the answer may repeat
    candidates: bool = False  # wanted where a draft token is rejected


class TokenDrafter:
    """Proposes the tokens of one request's drafts. It runs no model itself: like decoding, its
    methods are generators that ask for forwards."""

    name: Source
    depth = MAX_DRAFT  # tokens of a draft at most
    free = False  # takes no forwards
    binding = False  # proposals are drawn from a distribution and verified whatever they are

    def __init__(self, source: DraftSource, request: DraftRequest):
        self.source, self.request, self.policy = source, request, request.policy

    def close(self, text: list[int]) -> None:
        """The request has ended; the target has read the tokens `text`."""

    def read_prompt(self, tokens: tuple[int, ...], end: int, states: np.ndarray) -> Reading:
        """Read the target's `states` of those prompt `tokens` that end at position `end`."""
        yield from ()

    def reach(self, text: list[int]) -> int:
        """After how many tokens of `text` a later request can go on drafting."""
        return len(text)

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        """Begin a draft after `context`. `states`: as in `AdaptiveDrafter.propose`."""

    def step(self, context: list[int], drafted: list[int], mask: Mask = None) -> Step:
        """Propose the token after `context` and `drafted` that the `mask` allows, if any; gives it
        with the seconds that took."""
        raise NotImplementedError

    def proposal(self, token: int, confidence: float) -> Proposal:
        """Propose `token`: as likely to be accepted as earlier ones of this confidence."""
        acceptance = self.policy.accepted(self.name)(confidence)
        return Proposal(token, self.name, confidence, acceptance)

    def cost(self, drafted: list[int]) -> float:
        """Seconds of the next step, with the drafted tokens that it must read first."""
        return 0.0

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        """Seconds that the next step takes longer because of text that was not read."""
        return 0.0


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


@dataclass(eq=False)
class DraftSource:
    """A kind of drafters with the model or head that they share."""

    kind: type[TokenDrafter]
    runner: Any = None  # of their forwards: a Model or Head
    prefixes: PrefixCache | None = None  # of a runner with a KV cache
    context_limit: int = 0  # tokens that the runner reads at most; 0: any number
    translation: Callable[[], Translation] | None = None  # a request's, to another vocabulary
    drafters: tuple[str, ...] = ("auto", "model")  # values of the setting `drafter` that use it

    @property
    def decoder(self) -> Model | None:
        """The runner if it has a KV cache."""
        return self.prefixes.model if self.prefixes else None

    def open(self, request: DraftRequest) -> TokenDrafter:
        return self.kind(self, request)

    def longest(self, tokens: int) -> int:
        """The most tokens of the runner that a text of `tokens` target tokens may take. Another
        vocabulary may need twice as many; a longer text is not read."""
        if self.translation is None or self.prefixes is None:
            return tokens
        return min(2 * tokens, self.prefixes.capacity * self.prefixes.model.block_size // 2)

    def blocks(self, prompt: int, tokens: int) -> dict[PrefixCache, int]:
        """The most blocks of caches that a request of `tokens` tokens can hold, `prompt` of them in
        its prompt."""
        if self.prefixes is None:
            return {}
        most = self.prefixes.max_blocks(self.longest(prompt), self.longest(tokens))
        return {self.prefixes: most}

    def measure(self, target: Model) -> Generator[None]:
        """Measure the costs of the runner, in turn with forwards of the `target`."""
        if self.prefixes:
            yield from learn_costs(self.runner, target, rows=1)
        elif self.runner:
            yield from learn_step(self.runner, target)
