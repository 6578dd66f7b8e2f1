"""The sources of draft tokens that an engine has. Each opens a drafter for each request."""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from ..cache import BlockPool, KVSequence
from ..cost_measurement import learn_costs, learn_step
from ..messages import Head, Model, Runner, Translation
from ..prefixes import PrefixCache
from ..sampling import Sampling
from .drafter import DraftRequest, TokenDrafter
from .lookup import LookupDrafter
from .model_drafters import EagleDrafter, HeadDrafter, ModelDrafter, TranslatedDrafter

SHARPER = 1.2
"""Divides the temperature at which a head draws. A head knows less than the target, so its
distribution is flatter; with the same noise the target tends to choose the likelier token. First
tokens of the embedded head at temperatures 0.4, 0.7 and 1 (prose): accepted with it 0.535, 0.531,
0.513; without 0.534, 0.523, 0.504."""


class DraftSource:
    """Serves requests whose setting `drafter` is one of `drafters`. `runner` runs its forwards, if
    it needs any; `decoder` is the same if it has a KV cache."""

    drafters = ("auto", "model")
    runner: Runner | None = None
    decoder: Model | None = None

    def open(self, request: DraftRequest) -> TokenDrafter | None:
        """The drafter of a request, None if it can propose nothing."""
        raise NotImplementedError

    def close(self, drafter: Any, text: list[int]) -> None:
        """The request of this drafter has ended; the target has read the tokens `text`."""

    def blocks(self, prompt: int, tokens: int) -> dict[PrefixCache, int]:
        """The most blocks of caches that a request of `tokens` tokens can hold, `prompt` of them in
        its prompt."""
        return {}

    def measure(self, target: Model) -> Generator[None]:
        """Measure the costs of the runner, in turn with forwards of the `target`."""
        yield from ()


class LookupSource(DraftSource):
    """N-gram lookup in each request's text, or if `predicted` in its prediction."""

    drafters = ("auto", "lookup")

    def __init__(self, *, predicted: bool = False):
        self.predicted = predicted

    def open(self, request: DraftRequest) -> TokenDrafter | None:
        if self.predicted and not request.prediction:
            return None
        return LookupDrafter(request, predicted=self.predicted)


LOOKUPS = LookupSource(predicted=True), LookupSource()


class HeadSource(DraftSource):
    """A draft head without attention."""

    def __init__(self, head: Head):
        self.runner: Head = head

    def open(self, request: DraftRequest) -> TokenDrafter:
        temperature = request.sampling.temperature / SHARPER
        sharper = replace(request, sampling=replace(request.sampling, temperature=temperature))
        empty = KVSequence(BlockPool(0), 1)
        return HeadDrafter(sharper, self.runner.costs, empty, self.runner.token_ids)

    def measure(self, target: Model) -> Generator[None]:
        yield from learn_step(self.runner, target)


class ModelSource(DraftSource):
    """A draft model, which reads at most `context_limit` tokens (0: any number). All prompts begin
    with the `template_prefix`."""

    def __init__(self, model: Model, context_limit: int = 0, template_prefix: tuple[int, ...] = ()):
        self.decoder: Model = model
        self.runner: Model = model
        self.context_limit = context_limit
        self.prefixes = PrefixCache(model, template_prefix=template_prefix)

    def open(self, request: DraftRequest) -> TokenDrafter:
        sequence, _ = self.prefixes.find(request.prompt)
        ids, limit = self.decoder.token_ids, self.context_limit
        return ModelDrafter(request, self.runner.costs, sequence, ids, limit)

    def close(self, drafter: Any, text: list[int]) -> None:
        sequence = drafter.sequence
        sequence.truncate(drafter.reusable(text))
        # Also the prompt, which may be asked again.
        prompt = min(len(drafter.prompt), sequence.length)
        self.prefixes.keep(self.decoder.fork(sequence, prompt))
        self.prefixes.keep(sequence)

    def blocks(self, prompt: int, tokens: int) -> dict[PrefixCache, int]:
        return {self.prefixes: self.prefixes.max_blocks(prompt, tokens)}

    def measure(self, target: Model) -> Generator[None]:
        yield from learn_costs(self.runner, target, rows=1)


class EagleSource(ModelSource):
    """An EAGLE-3 head. It must have the rows of all tokens that the target reuses."""

    def __init__(self, model: Model):
        super().__init__(model)
        self.prefixes.chunk = 1

    def open(self, request: DraftRequest) -> TokenDrafter:
        sequence, _ = self.prefixes.find(request.prompt[1:])
        return EagleDrafter(request, self.runner.costs, sequence, self.decoder.token_ids)


class TranslatedSource(ModelSource):
    """A draft model with a vocabulary of its own. Each request gets a `translation`."""

    def __init__(
        self,
        model: Model,
        context_limit: int,
        template_prefix: tuple[int, ...],
        translation: Callable[[], Translation],
    ):
        prefix = translation().read(list(template_prefix)) or ()
        super().__init__(model, context_limit, tuple(prefix))
        self.translation = translation

    def open(self, request: DraftRequest) -> TokenDrafter:
        translation = self.translation()
        prompt = tuple(translation.read(list(request.prompt)) or [])
        longest = self._longest(request.max_tokens)
        sequence, _ = self.prefixes.find(prompt)
        return TranslatedDrafter(
            replace(request, prompt=prompt, sampling=Sampling()),
            self.runner.costs,
            sequence,
            self.decoder.token_ids,
            min(self.context_limit or longest, longest),
            translation=translation,
        )

    def blocks(self, prompt: int, tokens: int) -> dict[PrefixCache, int]:
        return super().blocks(self._longest(prompt), self._longest(tokens))

    def _longest(self, tokens: int) -> int:
        """The most draft tokens that a text of `tokens` target tokens may take. Another vocabulary
        may need twice as many; a longer text is not read."""
        return min(2 * tokens, self.prefixes.capacity * self.decoder.block_size // 2)
