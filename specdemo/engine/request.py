"""One request as the engine's thread runs it: prompt, answer, certificate, and what they took."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from .decode import Decoding, Limits, certify, decode, prefill
from .drafters import Forward, Reply, make_drafter
from .guard import Guard
from .handle import Sharing
from .model import PagedModel, Run
from .ngrams import NgramTable
from .open import Model
from .policy import Policy
from .prefix_cache import KnownPrompt, PrefixCache
from .profile import Invariance
from .sampling import Distribution, Sampling, distribution
from .scheduler import MERGED_TOKENS


@dataclass
class Target:
    """A target model in one setting of numerics, with what decoding on it has taught so far.

    `found` says in words what was measured, `invariance` (None in fast numerics) in figures.
    `measured` is the date of its cost table, empty until there is one. `steady` is the number of
    tokens of every forward of decoding while there is only one instance, where changing it costs
    time; 0 afterwards. `prepared` is set when everything is compiled and measured.
    """

    model: Model
    found: str
    prefixes: PrefixCache
    invariance: Invariance | None = None
    policy: Policy = field(default_factory=Policy)
    measured: str = ""
    steady: int = 0
    prepared: threading.Event = field(default_factory=threading.Event)

    @property
    def checked(self) -> int:
        """The most tokens that a certificate may run at once; 0: no certificate in these
        numerics."""
        return self.invariance.tokens if self.invariance else 0

    @property
    def merged(self) -> int:
        """The most tokens that requests may run together; 0: each by itself."""
        if self.invariance is None:
            return MERGED_TOKENS
        merging = self.invariance.merging and isinstance(self.model, PagedModel)
        return min(self.invariance.tokens, MERGED_TOKENS) if merging else 0

    @property
    def guard(self) -> float | None:
        """The margin in logits of `engine.guard`; None where none is needed."""
        return self.invariance.guard if self.invariance and not self.steady else None

    @property
    def models(self) -> dict[str, Model]:
        """The models that forwards name."""
        draft = self.prefixes.draft
        return {"target": self.model, **({} if draft is None else {"draft": draft})}


@dataclass
class Request:
    """What to decode, and afterwards what it took.

    `drafter` is a name as in `make_drafter`; `draft_tokens` a draft length or None to adapt;
    `window` and `table` are the draft model's and the n-gram table's. With `certified` a greedy
    answer is checked at the end: `difference` is then the first position where the check differs
    (None: nowhere), `certificate_seconds` the time it took. With `prefill_seconds` times count as
    if the prompt had taken that long.
    """

    tokens: tuple[int, ...]
    sampling: Sampling
    limits: Limits
    drafter: str
    draft_tokens: int | None = None
    window: int | None = None
    table: NgramTable | None = None
    certified: bool = False
    prefill_seconds: float | None = None

    prefill: float = 0.0
    reused: int = 0
    cpu: float = 0.0
    inference: float = 0.0
    answer: list[int] = field(default_factory=list)
    difference: int | None = None
    certificate_seconds: float | None = None

    def work(self, target: Target, sharing: Sharing, draft_model: Model | None = None) -> Decoding:
        """The generator that the scheduler runs, which may use this draft model. Yields rounds;
        returns why the answer finished."""
        since = perf_counter()
        prefixes, length = target.prefixes, len(self.tokens)
        known = yield from self._prompt(prefixes)
        draft = None
        try:
            self.prefill = known.prompt.seconds
            if self.prefill_seconds is not None:
                since = perf_counter() - self.prefill_seconds
            policy = target.policy.for_request(self.draft_tokens)
            if target.steady:
                policy.limit = min(policy.limit, target.steady - 1)
            head_tokens: np.ndarray | None = None
            if draft_model is not None and self.drafter in ("auto", "model"):
                draft = prefixes.start_draft(self.tokens)
                head_tokens = draft_model.head_tokens
            drafter = make_drafter(
                self.drafter,
                policy,
                self.sampling,
                sequence=draft,
                head_tokens=head_tokens,
                window=self.window,
                table=self.table,
            )
            # The classic rule's answer depends on the draft anyway; only its distribution counts.
            guarded = target.guard and (self.sampling.greedy or self.sampling.coupling == "shared")
            with target.model.fork(known.target, length) as sequence:
                decoding = decode(
                    known.prompt,
                    target=sequence,
                    drafter=drafter,
                    policy=policy,
                    sampling=self.sampling,
                    limits=self.limits,
                    guard=Guard(target.guard) if guarded else None,
                )
                reason = yield from self._timed(decoding, target, since, policy, sharing)
            if self.certified and target.checked and self.sampling.greedy:
                with target.model.fork(known.target, length) as sequence:
                    checking = certify(known.prompt, tuple(self.answer), sequence, target.checked)
                    self.difference, self.certificate_seconds = yield from checking
            return reason
        finally:
            if draft is not None:
                prefixes.keep_draft(known, draft)
            prefixes.unpin(known)

    def _prompt(self, prefixes: PrefixCache) -> Generator[Forward, Reply, KnownPrompt]:
        """The prompt, run and in use (unpin it)."""
        known = prefixes.pin(self.tokens)
        if known is not None:
            self.reused = len(self.tokens)
            return known
        sequence = prefixes.start(self.tokens)
        self.reused = sequence.length
        try:
            prompt = yield from prefill(sequence, self.tokens, prefixes.opening_of(self.tokens))
        except BaseException:
            sequence.release()
            raise
        return prefixes.add(prompt, sequence)

    def _timed(
        self, decoding: Decoding, target: Target, since: float, policy: Policy, sharing: Sharing
    ) -> Decoding:
        """The decoding, its rounds with their times, counted from `since`."""
        models = target.models.values()
        begun, cpu = sum(model.seconds for model in models), time.process_time()
        policy.others = sharing.rows
        reply = None
        try:
            while True:
                event = decoding.send(reply)
                if type(event) is Forward:
                    reply = yield event
                    policy.others = sharing.rows
                else:
                    self.inference = sum(model.seconds for model in models) - begun
                    self.answer += [token.id for token in event.tokens]
                    reply = yield event.at(perf_counter() - since)
        except StopIteration as done:
            return done.value
        finally:
            decoding.close()
            self.cpu = time.process_time() - cpu


@dataclass
class NextToken(Request):
    """Asks for the target model's distribution of the token after the prompt and `answer`."""

    def work(
        self, target: Target, sharing: Sharing, draft_model: Model | None = None
    ) -> Generator[Forward, Reply, Distribution]:
        known = yield from self._prompt(target.prefixes)
        try:
            logits = known.prompt.logits
            with target.model.fork(known.target, len(self.tokens)) as sequence:
                if self.answer:
                    run = Run(sequence, self.answer, 1, stepwise=True)
                    logits = (yield Forward("target", run)).logits
            return distribution(logits.rows[0], self.sampling)
        finally:
            target.prefixes.unpin(known)
