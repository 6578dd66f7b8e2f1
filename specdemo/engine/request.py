"""One request as the engine's thread runs it: prompt, answer, and their times."""

import threading
import time
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from .acceptance import TargetRows, adjustment
from .cache import KVSequence
from .constraint import AllowedTokens, Constraint
from .cost_measurement import waiting_times
from .decode import Limits, decode, prefill
from .drafts.draft_sources import DraftRequest, DraftSource, TokenDrafter
from .drafts.drafter import AdaptiveDrafter
from .messages import PREFILL_CHUNK, Forward, Logprobs, Model, Prompt, Reply, Round, Run
from .policy import Acceptance, Policy
from .prefixes import PrefixCache
from .profile import Invariance, ModelProfile
from .sampling import Sampling, distribution

Work = Generator[Forward | Round | Future[Any], Any, Any]  # Forwards expect a Reply


@dataclass
class Target:
    """A target model, and what decoding on it has taught so far."""

    name: str  # of the numerics
    model: Model
    prefixes: PrefixCache
    invariance: Invariance
    policy: Policy = field(default_factory=Policy)
    measured: str = ""  # date of the cost table
    prepared: threading.Event = field(default_factory=threading.Event)  # measurements have ended

    def fair_chunk(self, context: int) -> int:
        """The tokens of a prefill forward beside other requests: fewer than alone after a long
        context, where their number changes no bits."""
        if not self.invariance.chunks:
            return PREFILL_CHUNK
        return self.model.costs.fair_chunk(PREFILL_CHUNK // 3, context)

    @property
    def description(self) -> str:
        """The setting and its exactness, as text."""
        settings = self.model.settings
        how = ", ".join(map("=".join, settings.properties)) or "the plugin's own choice"
        return f"{self.name} on {settings.device} ({how}): {self.invariance}"

    @property
    def profile(self) -> ModelProfile:
        properties = self.model.settings.properties
        seconds, attention = self.model.costs.lasting
        measured = self.measured if seconds else ""
        return ModelProfile(properties, self.invariance, seconds, measured, attention)


@dataclass
class Request:
    """A request, and afterwards its answer's times (seconds). `drafter` is a value of the setting,
    `draft_tokens` a draft length or None to adapt. With `prefill_seconds` times count as if the
    prefill had taken that long. `rates` replace the acceptance rates that requests share. Nothing
    is prepared beside a `timed` request. A `constraint` belongs to one request. Rounds have
    `logprobs` with so many of the likeliest tokens, unless it is None, and `candidates` if that is
    set. `prediction`: tokens that the answer may repeat. `waited`: seconds in which threads of this
    process could run and others had the processors, those of this process among them."""

    tokens: tuple[int, ...]
    sampling: Sampling
    limits: Limits
    drafter: str
    draft_tokens: int | None = None
    prefill_seconds: float | None = None
    rates: dict[str, Acceptance] | None = None
    timed: bool = False
    constraint: Constraint | None = None
    logprobs: int | None = None
    prediction: tuple[int, ...] = ()
    candidates: bool = False
    answer: list[int] = field(default_factory=list)
    """Tokens of an answer, for requests that ask what follows them."""

    prefill: float = 0.0
    reused: int = 0
    cpu: float = 0.0
    waited: float = 0.0
    decoding: float = 0.0
    inference: float = 0.0

    def uses(self, source: DraftSource) -> bool:
        """Whether the request decodes with drafts of this source."""
        return self.drafter in source.drafters

    def work(self, target: Target, sources: Iterable[DraftSource] = ()) -> Work:
        """Decode with drafts of those `sources` that it uses; returns the finish reason."""
        started = perf_counter()
        policy = target.policy.for_request(self.draft_tokens, self.rates)
        allowed = None if self.constraint is None else AllowedTokens(self.constraint)
        tokens = min(len(self.tokens) + self.limits.max_new_tokens, self.limits.context_limit)
        known = self.sampling, policy, self.prediction, self.candidates
        request = DraftRequest(self.tokens, tokens, *known)
        text, sources = list(self.tokens), list(filter(self.uses, sources))
        runners = [target.model, *(source.runner for source in sources if source.runner)]
        policy.answering.add(id(policy))
        with ExitStack() as ends:
            ends.callback(policy.answering.remove, id(policy))
            drafters: list[TokenDrafter] = []
            for source in sources:
                if (opened := source.open(request)) is not None:
                    drafters.append(opened)
                    ends.callback(opened.close, source, text)
            drafter = AdaptiveDrafter(drafters, policy, allowed) if drafters else None
            prompt, sequence = yield from self._prompt(target, drafter)
            ends.callback(self._keep, target, sequence, drafters, text)
            self.prefill = prompt.seconds
            if self.prefill_seconds is not None:
                started = perf_counter() - self.prefill_seconds
            begun, cpu = sum(runner.seconds for runner in runners), time.process_time()
            waited, decoding = waiting_times(), perf_counter()

            def elapsed() -> float:
                self.inference = sum(runner.seconds for runner in runners) - begun
                return perf_counter() - started

            try:
                reason = yield from decode(
                    prompt,
                    target=sequence,
                    drafter=drafter,
                    policy=policy,
                    sampling=self.sampling,
                    limits=self.limits,
                    allowed=allowed,
                    logprobs=self.logprobs,
                    elapsed=elapsed,
                )
                return reason
            finally:
                self.cpu = time.process_time() - cpu
                self.waited = (waiting_times() - waited).total() / 1e9
                self.decoding = perf_counter() - decoding

    def _prompt(
        self, target: Target, drafter: AdaptiveDrafter | None = None
    ) -> Generator[Forward, Reply, tuple[Prompt, KVSequence]]:
        """The prefilled prompt, and a sequence that holds it, which the caller must release."""
        prefixes, started = target.prefixes, perf_counter()
        sequence, prompt = prefixes.find(self.tokens, target.invariance.decoded)
        self.reused = sequence.length
        try:
            if prompt is None:
                prefix = prefixes.template_prefix_of(self.tokens)
                fair = target.fair_chunk
                prompt = yield from prefill(sequence, self.tokens, prefix, drafter, fair)
                prefixes.keep(prefixes.model.fork(sequence, sequence.length), prompt)
            else:
                prompt = replace(prompt, seconds=perf_counter() - started)
        except BaseException:
            sequence.release()
            raise
        return prompt, sequence

    @staticmethod
    def _keep(
        target: Target, sequence: KVSequence, drafters: list[TokenDrafter], text: list[int]
    ) -> None:
        """Keep prompt and answer for requests that go on from them, if that changes no bits. `text`
        becomes their tokens."""
        text[:] = sequence.tokens
        if target.invariance.decoded:
            sequence.truncate(min((drafter.reach(text) for drafter in drafters), default=len(text)))
            target.prefixes.keep(sequence)
        else:
            sequence.release()


@dataclass
class NextToken(Request):
    """Gives the target model's distribution of the token after the prompt and `answer`."""

    def uses(self, source: DraftSource) -> bool:
        return False

    def work(self, target: Target, sources: Iterable[DraftSource] = ()) -> Work:
        prompt, sequence = yield from self._prompt(target)
        with sequence:
            logits = prompt.logits
            if self.answer:
                run = Run(sequence, self.answer, 1, stepwise=True)
                logits = (yield Forward("target", run)).logits
            allowed = None if self.constraint is None else AllowedTokens(self.constraint)
            masks = None if allowed is None else allowed.masks(self.answer)[-1:]
            context = [*self.tokens, *self.answer]
            adjust = adjustment(self.sampling, self.tokens)
            rows = TargetRows(logits, context, adjust, masks)
            return distribution(rows.row([]).rows[0], self.sampling)


@dataclass
class PromptLogprobs(Request):
    """Gives the Logprobs of each token of the prompt but the first, with so many of the likeliest
    tokens. They come from prefill forwards, which may round otherwise than those of an answer."""

    def uses(self, source: DraftSource) -> bool:
        return False

    def work(self, target: Target, sources: Iterable[DraftSource] = ()) -> Work:
        logprobs: list[Logprobs] = []
        size, count = PREFILL_CHUNK, self.logprobs or 0
        with target.model.new_sequence() as sequence:
            while following := self.tokens[sequence.length + 1 :][:size]:
                chunk = self.tokens[sequence.length :][: len(following)]
                reply = yield Forward("target", Run(sequence, chunk, len(chunk)))
                rows = enumerate(following)
                logprobs += [reply.logits.logprobs(row, token, count) for row, token in rows]
                size = target.fair_chunk(sequence.length) if reply.shared else size
        return logprobs
