"""One request as the engine's thread runs it: prompt, answer, and their times."""

import threading
import time
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from .acceptance import TargetRows
from .adjustment import adjustment
from .cache import KVSequence
from .constraint import Allowed, Constraint
from .decode import Decoding, Limits, decode, prefill
from .draft_head import DraftHead
from .drafters import AdaptiveDrafter, make_drafter
from .eagle_head import EagleHead
from .guard import Guard
from .head_drafters import EagleDrafter
from .messages import PREFILL_CHUNK, Forward, Model, Prompt, Reply, Run, Runner
from .model_drafters import ModelDrafter
from .policy import Acceptance, Policy
from .prefixes import PrefixCache
from .profile import Invariance, ModelProfile
from .rounds import Logprobs, Round
from .sampling import Sampling, distribution

Work = Generator[Forward | Round | Future[Any], Any, Any]  # Forwards expect a Reply


@dataclass
class Target:
    """A target model with the numerics `name`, and what decoding on it has taught so far.
    `measured` is the date of the cost table. `prepared` is set when the preparation has ended."""

    name: str
    model: Model
    prefixes: PrefixCache
    invariance: Invariance
    policy: Policy = field(default_factory=Policy)
    measured: str = ""
    prepared: threading.Event = field(default_factory=threading.Event)

    def fair_chunk(self, context: int) -> int:
        """The tokens of a prefill forward beside other requests: fewer than alone after a long
        context, where their number changes no bits."""
        if not self.invariance.chunks:
            return PREFILL_CHUNK
        return self.model.costs.fair_chunk(PREFILL_CHUNK // 3, context)

    @property
    def found(self) -> str:
        """The setting and its exactness, as text."""
        settings = self.model.settings
        how = ", ".join(map("=".join, settings.properties)) or "the plugin's own choice"
        return f"{self.name} on {settings.device} ({how}): {self.invariance}"

    @property
    def profile(self) -> ModelProfile:
        properties = self.model.settings.properties
        seconds, change, attention = self.model.costs.lasting
        measured = self.measured if seconds else ""
        return ModelProfile(properties, self.invariance, seconds, measured, attention, change)


@dataclass
class Request:
    """A request, and afterwards its answer and times (seconds). `drafter` is a name as in
    `make_drafter`, `draft_tokens` a draft length or None to adapt. With `prefill_seconds` times
    count as if the prefill had taken that long. `rates` replace the acceptance rates that requests
    share. Nothing is prepared beside a `timed` request. A `constraint` belongs to one request.
    Rounds have `logprobs` with so many of the likeliest tokens, unless it is None. `prediction`:
    tokens that the answer may repeat."""

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

    prefill: float = 0.0
    reused: int = 0
    cpu: float = 0.0
    inference: float = 0.0
    answer: list[int] = field(default_factory=list)

    def work(self, target: Target, draft: PrefixCache | DraftHead | None = None) -> Work:
        """Decode, with `draft` if the drafter uses it; returns the finish reason."""
        since = perf_counter()
        policy = target.policy.for_request(self.draft_tokens, self.rates)
        allowed = None if self.constraint is None else Allowed(self.constraint)
        drafter = self._drafter(policy, draft, allowed)
        model = None if drafter is None else drafter.model
        sequence = None
        try:
            prompt, sequence = yield from self._prompt(target, model)
            self.prefill = prompt.seconds
            if self.prefill_seconds is not None:
                since = perf_counter() - self.prefill_seconds
            decoding = decode(
                prompt,
                target=sequence,
                drafter=drafter,
                policy=policy,
                sampling=self.sampling,
                limits=self.limits,
                guard=Guard(target.invariance.guard) if target.invariance.guard else None,
                allowed=allowed,
                logprobs=self.logprobs,
            )
            return (yield from self._timed(decoding, models(target, draft), policy, since))
        finally:
            if sequence is not None:
                sequence.release()
            if isinstance(draft, PrefixCache) and isinstance(model, ModelDrafter | EagleDrafter):
                model.sequence.truncate(model.of_prompt(self.tokens))
                draft.keep(model.sequence)

    def _drafter(
        self, policy: Policy, draft: PrefixCache | DraftHead | None, allowed: Allowed | None
    ) -> AdaptiveDrafter | None:
        sequence, columns, reach, translation, prompt = None, None, 0, None, None
        if isinstance(draft, DraftHead):
            columns = draft.head_tokens
        elif draft is not None and self.drafter in ("auto", "model"):
            reach, tokens = draft.context, self.tokens
            if isinstance(draft.model, EagleHead):
                columns, tokens = draft.model.head_tokens, tokens[1:]
            if draft.translation is not None:
                translation = draft.translation()
                prompt = translation.read(list(tokens)) or []
                most = len(tokens) + self.limits.max_new_tokens
                longest = draft.longest(min(most, self.limits.context_limit))
                reach, tokens = min(reach or longest, longest), tuple(prompt)
            sequence, _ = draft.find(tokens)
        return make_drafter(
            self.drafter,
            policy,
            self.sampling,
            head_tokens=columns,
            sequence=sequence,
            reach=reach,
            allowed=allowed,
            adjustment=adjustment(self.sampling, self.tokens),
            prediction=self.prediction,
            translation=translation,
            prompt=prompt,
        )

    def _prompt(
        self, target: Target, model: object = None
    ) -> Generator[Forward, Reply, tuple[Prompt, KVSequence]]:
        """The prefilled prompt, and a sequence that holds it, which the caller must release. If the
        drafter's `model` is an EAGLE-3 head, it reads the prompt where that pays."""
        prefixes = target.prefixes
        sequence, prompt = prefixes.find(self.tokens)
        self.reused = sequence.length
        try:
            if prompt is None:
                prefix = prefixes.template_prefix_of(self.tokens)
                most, head = self.limits.max_new_tokens, None
                if isinstance(model, EagleDrafter) and model.reads_prompt(len(self.tokens), most):
                    head = model
                fair = target.fair_chunk
                prompt = yield from prefill(sequence, self.tokens, prefix, head, fair)
                prefixes.keep(prefixes.model.fork(sequence, sequence.length), prompt)
        except BaseException:
            sequence.release()
            raise
        return prompt, sequence

    def _timed(
        self, decoding: Decoding, named: Mapping[str, Runner], policy: Policy, since: float
    ) -> Decoding:
        """Run `decoding` and set `shown_at` of its rounds, in seconds from `since`."""
        begun, cpu = sum(model.seconds for model in named.values()), time.process_time()
        reply, shown = None, 0.0
        try:
            while True:
                event = decoding.send(reply)
                if isinstance(event, Round):
                    inference = sum(model.seconds for model in named.values()) - begun
                    event.shown_at = perf_counter() - since
                    if self.answer and not policy.others:
                        spent = event.shown_at - shown - (inference - self.inference)
                        policy.record_outside(spent, bool(event.drafted))
                    self.answer += [token.id for token in event.tokens]
                    self.inference, shown = inference, event.shown_at
                reply = yield event
        except StopIteration as done:
            reason: str = done.value
            return reason
        finally:
            decoding.close()
            self.cpu = time.process_time() - cpu


@dataclass
class NextToken(Request):
    """Gives the target model's distribution of the token after the prompt and `answer`."""

    def work(self, target: Target, draft: PrefixCache | DraftHead | None = None) -> Work:
        prompt, sequence = yield from self._prompt(target)
        with sequence:
            logits = prompt.logits
            if self.answer:
                run = Run(sequence, self.answer, 1, stepwise=True)
                logits = (yield Forward("target", run)).logits
            allowed = None if self.constraint is None else Allowed(self.constraint)
            masks = None if allowed is None else allowed.masks(self.answer)[-1:]
            context = [*self.tokens, *self.answer]
            adjust = adjustment(self.sampling, self.tokens)
            rows = TargetRows(logits, context, adjust, masks)
            return distribution(rows.row([]).rows[0], self.sampling)


@dataclass
class PromptLogprobs(Request):
    """Gives the Logprobs of each token of the prompt but the first, with so many of the likeliest
    tokens. They come from prefill forwards, which may round otherwise than those of an answer."""

    def work(self, target: Target, draft: PrefixCache | DraftHead | None = None) -> Work:
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


def models(target: Target, draft: PrefixCache | DraftHead | None) -> dict[str, Runner]:
    """The models by their names in Forwards: "target" and, with `draft`, "draft"."""
    named: dict[str, Runner] = {"target": target.model}
    if draft is not None:
        named["draft"] = draft.model if isinstance(draft, PrefixCache) else draft
    return named
