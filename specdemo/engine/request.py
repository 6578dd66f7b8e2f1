"""Requests, and what the engine does for them: an answer, the next token's distribution,
or a prompt's log-probabilities."""

import threading
import time
from collections.abc import Callable, Generator, Sequence
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
from .forwards import PREFILL_CHUNK, Forward, Model, Prompt, Reply, Run
from .policy import Acceptance, Policy
from .prefixes import PrefixCache
from .profile import Invariance, ModelProfile
from .rounds import Logprobs, Round, Timing
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


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a target model."""

    tokens: tuple[int, ...]  # the prompt
    sampling: Sampling
    limits: Limits
    drafter: str  # a value of the setting
    draft_tokens: int | None = None  # draft length; None: it adapts
    prefill_seconds: float | None = None  # times count as if the prefill had taken that long
    rates: dict[str, Acceptance] | None = None  # instead of the rates that requests share
    timed: bool = False  # nothing is prepared beside it
    constraint: Constraint | None = None  # of this request only
    logprobs: int | None = None  # rounds have those of so many likeliest tokens; None: none
    prediction: tuple[int, ...] = ()  # tokens that the answer may repeat
    candidates: bool = False  # rounds have them where a draft token is rejected


def answer(
    request: Request, timing: Timing, target: Target, sources: Sequence[DraftSource] = ()
) -> Work:
    """Decode with drafts of these `sources`; returns the finish reason."""
    started = perf_counter()
    policy = target.policy.for_request(request.draft_tokens, request.rates)
    allowed = None if request.constraint is None else AllowedTokens(request.constraint)
    limits, text = request.limits, list(request.tokens)
    tokens = min(len(text) + limits.max_new_tokens, limits.context_limit)
    known = request.sampling, policy, request.prediction, request.candidates
    draft_request = DraftRequest(request.tokens, tokens, *known)
    runners = [target.model, *(source.runner for source in sources if source.runner)]
    policy.answering.add(id(policy))
    with ExitStack() as ends:
        ends.callback(policy.answering.remove, id(policy))
        drafters: list[TokenDrafter] = []
        for source in sources:
            drafters.append(source.open(draft_request))
            ends.callback(drafters[-1].close, text)
        drafter = AdaptiveDrafter(drafters, policy, allowed) if drafters else None
        prompt, sequence = yield from prefilled(request, timing, target, drafter)
        ends.callback(_keep, target, sequence, drafters, text)
        if request.prefill_seconds is not None:
            started = perf_counter() - request.prefill_seconds
        begun, cpu = sum(runner.seconds for runner in runners), time.process_time()
        waited, decoding = waiting_times(), perf_counter()

        def elapsed() -> float:
            timing.inference = sum(runner.seconds for runner in runners) - begun
            return perf_counter() - started

        try:
            reason = yield from decode(
                prompt,
                target=sequence,
                drafter=drafter,
                policy=policy,
                sampling=request.sampling,
                limits=limits,
                allowed=allowed,
                logprobs=request.logprobs,
                elapsed=elapsed,
            )
            return reason
        finally:
            timing.cpu = time.process_time() - cpu
            timing.waited = (waiting_times() - waited).total() / 1e9
            timing.decoding = perf_counter() - decoding


def next_token(
    request: Request,
    timing: Timing,
    target: Target,
    sources: Sequence[DraftSource] = (),
    *,
    answer: Sequence[int] = (),
) -> Work:
    """Returns the target model's Distribution of the token after the prompt and `answer`."""
    prompt, sequence = yield from prefilled(request, timing, target)
    with sequence:
        logits = prompt.logits
        if answer:
            run = Run(sequence, list(answer), 1, stepwise=True)
            logits = (yield Forward("target", run)).logits
        allowed = None if request.constraint is None else AllowedTokens(request.constraint)
        masks = None if allowed is None else allowed.masks(list(answer))[-1:]
        context = [*request.tokens, *answer]
        adjust = adjustment(request.sampling, request.tokens)
        rows = TargetRows(logits, context, adjust, masks)
        return distribution(rows.row([]).logits, request.sampling)


def prompt_logprobs(
    request: Request, timing: Timing, target: Target, sources: Sequence[DraftSource] = ()
) -> Work:
    """Returns the Logprobs of each token of the prompt but the first, with so many of the likeliest
    tokens. They come from prefill forwards, which may round otherwise than those of an answer."""
    logprobs: list[Logprobs] = []
    size, count = PREFILL_CHUNK, request.logprobs or 0
    with target.model.new_sequence() as sequence:
        while following := request.tokens[sequence.length + 1 :][:size]:
            chunk = request.tokens[sequence.length :][: len(following)]
            reply = yield Forward("target", Run(sequence, chunk, len(chunk)))
            rows = enumerate(following)
            logprobs += [reply.logits.row(row).logprobs(token, count) for row, token in rows]
            size = target.fair_chunk(sequence.length) if reply.shared else size
    return logprobs


def prefilled(
    request: Request, timing: Timing, target: Target, drafter: AdaptiveDrafter | None = None
) -> Generator[Forward, Reply, tuple[Prompt, KVSequence]]:
    """The prefilled prompt, and a sequence that holds it, which the caller must release."""
    prefixes, started = target.prefixes, perf_counter()
    sequence, prompt = prefixes.find(request.tokens, target.invariance.decoded)
    timing.reused = sequence.length
    try:
        if prompt is None:
            prefix = prefixes.template_prefix_of(request.tokens)
            fair = target.fair_chunk
            prompt = yield from prefill(sequence, request.tokens, prefix, drafter, fair)
            prefixes.keep(prefixes.model.fork(sequence, sequence.length), prompt)
        else:
            prompt = replace(prompt, seconds=perf_counter() - started)
    except BaseException:
        sequence.release()
        raise
    timing.prefill = prompt.seconds
    return prompt, sequence


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


Answering = Callable[[Request, Timing, Target, Sequence[DraftSource]], Work]
"""`answer`, or another function that runs a request."""
