"""The drafters that read logits: of draft models and of draft heads."""

import math
from dataclasses import replace

import numpy as np

from ..acceptance import adjustment
from ..cache import BlockPool, KVSequence
from ..constraint import Mask
from ..cost_model import LARGEST, CostModel
from ..forwards import Forward, Logits, Row, Run, next_chunk
from ..policy import MAX_DRAFT
from ..prefixes import common
from ..rounds import Proposal, Source
from ..sampling import DRAFT, Distribution, Sampling, choose, distribution, draw
from .draft_sources import DraftRequest, DraftSource, Step, TokenDrafter

DEPTH = 5  # tokens that a head drafts at most; heads are trained for chains of this length

LOOKAHEAD = 4  # tokens of another vocabulary drafted until a word must have ended


class LogitsDrafter(TokenDrafter):
    """Makes a Proposal from logits. `sequence` is what the model or head has read; without a cache
    it stays empty."""

    first_read = 0  # token of a text that it reads

    def __init__(self, source: DraftSource, request: DraftRequest):
        super().__init__(source, request)
        self.costs: CostModel = source.runner.costs
        self.sampling = request.sampling
        self.sequence = KVSequence(BlockPool(0), 1)
        if source.prefixes:
            self.sequence, _ = source.prefixes.find(request.prompt[self.first_read :])
        self.adjustment = adjustment(self.sampling, request.prompt)
        token_ids = self.token_ids = source.runner.token_ids
        self._columns: np.ndarray | None = None
        if self.adjustment is not None and token_ids is not None:
            self._columns = np.full(token_ids.max(initial=0) + 1, -1)
            self._columns[token_ids] = np.arange(len(token_ids))
        self.binding = not self.sampling.greedy and self.sampling.coupling == "maximal"

    def reusable(self, text: list[int]) -> int:
        """How many tokens of the sequence are of the request's `text`, in the target's tokens."""
        return common(text, self.sequence.tokens)

    def close(self, text: list[int]) -> None:
        if cache := self.source.prefixes:
            self.sequence.truncate(self.reusable(text))
            # Also the prompt, which may be asked again.
            prompt = min(len(self.request.prompt), self.sequence.length)
            cache.keep(cache.model.fork(self.sequence, prompt))
            cache.keep(self.sequence)

    def cost(self, drafted: list[int]) -> float:
        return self.costs.forward(1)

    def choose(
        self, logits: Logits, context: list[int], drafted: list[int], mask: Mask = None
    ) -> Proposal | None:
        """The token after `context` and `drafted`; None if the `mask` allows none that it knows."""
        sampling, ids, row = self.sampling, self.token_ids, logits.row(0)
        position = len(context) + len(drafted)
        if self.adjustment is not None:
            row = Row.of(self.adjustment(row.logits, context, drafted, self._columns))
        if mask is not None:
            mask = mask[: len(row.logits)] if ids is None else mask[ids]
            if not mask.any():
                return None
            row = row.allowed(mask)
        source: Distribution | None = None
        if self.binding:
            source = distribution(row.logits, sampling)
            if ids is not None:
                tokens = ids[source.ids]
                order = tokens.argsort(kind="stable")  # mostly sorted
                source = Distribution(tokens[order], source.probabilities[order])
            token = draw(source, sampling.seed, position, DRAFT)
            probability = source.probability(token)
            row, ids = Row(np.log(source.probabilities), 0.0), source.ids
        else:
            column = row.best()
            if not sampling.greedy:
                known = float(row.logits[column]), row.log_sum
                column = choose(row.logits, sampling, position, known, ids)
            token = column if ids is None else int(ids[column])
            probability = row.probability(column)
        candidates = row.candidates(ids) if self.request.candidates else ()
        proposal = self.proposal(token, probability)._replace(probability=probability)
        return proposal._replace(distribution=source, candidates=candidates)


class HeadDrafter(LogitsDrafter):
    """Proposes with a draft head. The head reads the target's hidden state that gave the last
    verified token, that token, and the draft tokens after it."""

    name: Source = "head"
    depth = DEPTH
    longest_text_run = 1  # tokens

    def __init__(self, source: DraftSource, request: DraftRequest):
        super().__init__(source, request)
        self._states = np.zeros((0, 0), np.float32)  # of the text's tokens in a chain's first run
        self._runs = 0  # of a chain: one for the text, then one for each draft token

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        assert states is not None, "a target model for a head gives its states"
        longest = self.longest_text_run
        if not self._runs and len(states) < longest:
            states = np.array([*self._states, *states])
        self._states = states[-longest:]
        self._chained: np.ndarray | None = None
        self._runs = 0

    def run_of(self, text: list[int], drafted: list[int]) -> Run:
        """The run that gives the logits after `text` and `drafted`."""
        token = [*text, *drafted][-1]
        return Run(self.sequence, [token], 1, True, states=self._states, chained=self._chained)

    def step(self, context: list[int], drafted: list[int], mask: Mask = None) -> Step:
        seconds = 0.0
        while self._runs <= len(drafted):
            reply = yield Forward("draft", self.run_of(context, drafted[: self._runs]))
            self._chained = reply.logits.last_state()
            self._runs += 1
            seconds += reply.seconds
        return self.choose(reply.logits, context, drafted, mask), seconds


class ModelDrafter(LogitsDrafter):
    """Proposes with a second, smaller model. `sequence` may hold any text; the prefix that it
    shares with the context is kept. Nothing is proposed beyond the model's context."""

    name = "model"

    def __init__(self, source: DraftSource, request: DraftRequest):
        super().__init__(source, request)
        self.context_limit = source.context_limit

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        if self.context_limit:
            self.depth = min(MAX_DRAFT, self.context_limit + 1 - len(context))

    def step(self, context: list[int], drafted: list[int], mask: Mask = None) -> Step:
        pending = self._unread(context, drafted)
        few, seconds = len(pending) <= LARGEST, 0.0
        while pending:
            chunk, rows = next_chunk(pending)
            pending = pending[len(chunk) :]
            reply = yield Forward("draft", Run(self.sequence, chunk, rows, few))
            seconds += reply.seconds
        return self.choose(reply.logits, context, drafted, mask), seconds

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        unread = len(self._unread(context, drafted))
        return self.costs.forward(unread) - self.costs.forward(1)

    def _unread(self, context: list[int], drafted: list[int]) -> list[int]:
        """The tokens of `context` and `drafted` to run next: at least the last one. Cuts the
        sequence to text before them."""
        text, read = [*context, *drafted], self.sequence.tokens
        same = min(len(read), len(text) - 1)
        while read[:same] != text[:same]:
            same -= 1
        self.sequence.truncate(same)
        return text[self.sequence.length :]


class TranslatedDrafter(ModelDrafter):
    """Proposes with a draft model that has a vocabulary of its own: the target's tokens of the text
    that it drafts. It drafts its likeliest tokens also where the target samples, since noise by
    token id is not shared between vocabularies; so only a target's own choice can confirm them. The
    request's prompt is in the draft model's tokens, its sampling greedy."""

    def __init__(self, source: DraftSource, request: DraftRequest):
        assert source.translation
        self.translation = source.translation()
        prompt = tuple(self.translation.read(list(request.prompt)) or [])
        super().__init__(source, replace(request, prompt=prompt, sampling=Sampling()))
        longest = source.longest(request.max_tokens)
        self.context_limit = min(source.context_limit or longest, longest)
        self._known = self.sequence.length  # tokens of the context when it was last read
        self._steps, self._proposed = 2, 1  # forwards, and tokens that they gave; guesses at first

    def reusable(self, text: list[int]) -> int:
        return super().reusable(self.translation.read(text) or [])

    def start(self, context: list[int], states: np.ndarray | None) -> None:
        self._text: list[int] | None = None
        self._chain: list[int] = []
        self._chances: list[float] = []
        self._ready: list[tuple[int, int]] = []

    def step(self, context: list[int], drafted: list[int], mask: Mask = None) -> Step:
        if not self._chain:
            self._text, self._known = self.translation.read(context), len(context)
        seconds = 0.0
        for steps in range(LOOKAHEAD + 1):
            self._ready = self.translation.translate(self._chain, steps < LOOKAHEAD)
            tokens = [token for token, _ in self._ready]
            shared = min(len(tokens), len(drafted))
            if tokens[:shared] != drafted[:shared]:
                break  # another source's token, or a word that became another token
            if len(tokens) > len(drafted):
                self._proposed += 1
                return self._translated(len(drafted), mask), seconds
            if self._text is None or len(self._text) + len(self._chain) >= self.context_limit:
                break
            if self._chain and self.translation.ends(self._chain[-1]):
                break
            proposal, spent = yield from super().step(self._text, self._chain)
            seconds += spent
            self._steps += 1
            assert proposal is not None, "without a mask a draft model always proposes"
            self._chain.append(proposal.token)
            self._chances.append(proposal.confidence)
        return None, seconds

    def _translated(self, index: int, mask: Mask) -> Proposal | None:
        """Token `index` of the draft: as likely as the draft model's tokens that begin in it."""
        token, count = self._ready[index]
        if mask is not None and not (token < len(mask) and mask[token]):
            return None
        begin = sum(begun for _, begun in self._ready[:index])
        chance = math.prod(self._chances[begin : begin + count])
        return self.proposal(token, chance)._replace(probability=chance)

    def cost(self, drafted: list[int]) -> float:
        if len(self._ready) > len(drafted):
            return 0.0
        return self.costs.forward(1) * self._steps / self._proposed

    def catch_up(self, context: list[int], drafted: list[int]) -> float:
        forward, waiting = self.costs.forward, max(len(context) - self._known, 1)
        return 0.0 if self._chain else forward(waiting) - forward(1)
