"""Compiles the models of a pair, and answers requests with them through a scheduler."""

import logging
import weakref
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock, Timer

import openvino as ov

from . import cost_measurement
from .backends import numerics
from .backends.draft_head import DraftHead
from .backends.eagle_head import EagleHead
from .backends.kernels import in_kernels
from .backends.paged import open_model
from .drafts.draft_sources import DraftSource, TokenDrafter
from .drafts.eagle_drafter import EagleDrafter, MtpDrafter
from .drafts.lookup import LOOKUPS
from .drafts.model_drafters import HeadDrafter, ModelDrafter, TranslatedDrafter
from .faults import BadInput, Closed
from .forwards import PREFILL_CHUNK, Model, ModelSettings, Runner
from .pair_files import PairFiles, weights_size
from .policy import Acceptance, Policy
from .prefixes import PrefixCache
from .profile import Profile, Properties
from .request import Answering, Request, Target, answer
from .rounds import Timing
from .scheduler import QUEUED, Handle, Scheduler, Waiting

log = logging.getLogger(__name__)

REMEASURE_SECONDS = 60.0
"""After a measurement that failed or that other work disturbed, until it is repeated in a quiet
moment."""

MIN_CONTEXT = 2048
"""Tokens to which a context is not limited however little memory is free."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Blocks of a KV cache."""

    used: int
    kept: int  # of the used ones, by kept texts
    limit: int


class Engine:
    """Compiles a pair; arguments as in `Session`. What was not measured before is measured between
    requests if `background` is set, or when `preparing` is called. `profile` holds earlier
    measurements of this pair on this machine; `remember` gets the later ones. `drafts`: there is a
    draft model, or a draft head that the target model can feed. `context_limit` is lowered to what
    the KV cache can hold in the free memory. Raises ModelError."""

    def __init__(
        self,
        files: PairFiles,
        *,
        context_limit: int,
        threads: int | None = None,
        active: int = 16,
        waiting: int = QUEUED,
        cache_mb: int | None = None,
        available_bytes: Callable[[], int],
        profile: Profile | None = None,
        remember: Callable[[Profile], None] = lambda profile: None,
        background: bool = True,
    ):
        self.core = ov.Core()
        if threads is not None:
            # Pinned threads of two processes would run on the same cores.
            unpinned = {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
            self.core.set_property("CPU", unpinned)
        self._files = files
        self.context_limit = context_limit
        self._available_bytes = available_bytes
        self._cache_mb = cache_mb
        self._cache_tokens = 0
        self._active = active
        self._remember = remember
        self._known = profile or Profile()
        self._lock = Lock()
        self._targets: dict[str, Target] = {}
        self._caches: dict[str, PrefixCache] = {}
        self.draft: DraftSource | None = None
        self._timers: dict[str, Timer] = {}
        exact = self._targets["exact"] = self._compile("exact")
        self._head = files.head if exact.model.paged else None
        self.drafts = self._head is not None or files.draft is not None
        if self.drafts:
            self._open_draft(exact)
        self.scheduler = Scheduler(max_active=active, queued=waiting, background=background)
        # Also before the interpreter ends, which a thread inside a model would abort.
        weakref.finalize(self, self.scheduler.close)
        self.scheduler.run_in_background(self._preparation(exact, REMEASURE_SECONDS))

    def cache_blocks(self) -> dict[str, CacheUse]:
        """The use of each KV cache: "target", "target fast" and "draft"."""
        return {
            name: CacheUse(cache.model.pool.used, len(cache.blocks()), cache.model.pool.limit)
            for name, cache in dict(self._caches).items()
        }

    def target(self, name: str) -> Target:
        """The target model with "exact" or "fast" numerics, compiled at the first call. Raises
        ModelError, BadInput if a second one would not fit into memory, Closed."""
        with self._lock:
            if not self._targets:
                raise Closed
            if name not in self._targets:
                needed, free = weights_size(self._files.target), self._available_bytes()
                if needed > free:  # the system would kill this process
                    raise BadInput(
                        f"The target model in other numerics takes {needed / 1e9:.1f} GB more, and "
                        f"{free / 1e9:.1f} GB are free; keep to the numerics used first."
                    )
                target = self._targets[name] = self._compile(name)
                self.scheduler.run_in_background(self._preparation(target, REMEASURE_SECONDS))
            return self._targets[name]

    def preparing(self, name: str = "exact", stop: Event | None = None) -> Iterator[Waiting]:
        """Measure what was not measured before. Yields a Waiting every 0.2 s until it is done or
        `stop` is set."""
        done = self.target(name).prepared
        self.scheduler.hurry(done)
        while self._targets and not done.wait(0.2) and not (stop and stop.is_set()):
            yield Waiting(0, None)

    @property
    def profile(self) -> Profile:
        targets = {name: target.profile for name, target in list(self._targets.items())}
        policy = self._targets["exact"].policy
        rates = {source: rates.counts for source, rates in dict(policy.acceptance).items()}
        draft, measured = self.draft, self._known.draft
        if draft is not None and draft.runner.costs.lasting[0]:
            costs, attention = draft.runner.costs.lasting
            measured = replace(measured, costs=costs, attention=attention)
        if draft is not None and draft.decoder is not None:
            measured = replace(measured, properties=draft.decoder.settings.properties)
        return Profile(self._known.targets | targets, measured, rates)

    @property
    def draft_step(self) -> float:
        """Expected seconds of a draft token; 0 without a draft model or head, or before it ran."""
        return 0.0 if self.draft is None else self.draft.runner.costs.forward(1)

    def submit(
        self,
        request: Request,
        target: Target,
        work: Answering = answer,
        *,
        stop: Event | None = None,
        first: bool = False,
    ) -> Handle:
        """Hand the `work` of a request to the scheduler, with `first` before all that wait. Raises
        Busy, Closed, or BadInput if the KV cache can never hold it."""
        prompt = len(request.tokens)
        tokens = min(prompt + request.limits.max_new_tokens, self.context_limit)
        models: dict[str, Runner] = {"target": target.model}
        blocks = {target.prefixes: target.prefixes.max_blocks(prompt, tokens)}
        known = LOOKUPS if (draft := self.draft) is None else (*LOOKUPS, draft)
        sources = [source for source in known if request.drafter in source.drafters]
        for source in sources:
            models |= {"draft": source.runner} if source.runner else {}
            blocks |= source.blocks(prompt, tokens)
        if any(count > cache.capacity for cache, count in blocks.items()):
            limit = target.prefixes.capacity * target.model.block_size
            raise BadInput(
                f"Prompt and answer may come to {tokens} tokens; this server's KV cache holds "
                f"{limit} for all requests: ask for fewer tokens."
            )
        timing, merged = Timing(), target.invariance.merged_tokens
        running = work(request, timing, target, sources)
        handle = Handle(
            running, models, blocks, merged, stop or Event(), request.timed, timing=timing
        )
        return self.scheduler.submit(handle, first=first)

    def close(self) -> None:
        """Cancel all requests, give the profile to `remember`, and release the models."""
        self.scheduler.close()
        for timer in self._timers.values():
            timer.cancel()
        if self._targets:
            self._remember(self.profile)
        with self._lock:
            self._targets.clear()
            self._caches.clear()
            self.draft = None

    def _compile(self, name: str) -> Target:
        files, known = self._files, self._known.targets.get(name)
        model, invariance = numerics.open_target(files, self.core, name == "exact", known)
        set_aside = self._fix_cache(model)
        # Prefill reads a chunk and one token more as one chunk.
        prefixes = PrefixCache(model, PREFILL_CHUNK, files.template_prefix, set_aside, unread=2)
        self._caches["target" if name == "exact" else "target fast"] = prefixes
        rates = {source: Acceptance(counts) for source, counts in self._known.acceptance.items()}
        policy = Policy(limit=invariance.draft_limit, costs=model.costs, acceptance=rates)
        target = Target(name, model, prefixes, invariance, policy)
        if known is not None and known.costs:
            model.costs.learn(known.costs, known.attention, lasting=True)
            target.measured = known.measured
        return target

    def _open_draft(self, target: Target) -> None:
        files = self._files
        source = self._head or files.draft
        assert source is not None, "asked for only if there are drafts"
        known, properties = self._known.draft, target.model.settings.properties
        if self._head is not None and not files.head_layers:
            head = DraftHead(self._head, self.core, in_kernels(properties))
            draft = DraftSource(HeadDrafter, head)
        else:
            # Exactness does not matter, but IR steps faster with f32 activations than with bf16.
            device = "CPU" if self._head else files.draft_device
            chosen = source, device, files.kv_cache, isinstance(source, Path), self.core
            tried = [known.properties] if known.properties else numerics.candidates(*chosen)
            ids = files.draft_token_ids
            if ids is not None and files.translation is None:
                ids = ids[ids < target.model.vocabulary_size]

            def open_with(properties: Properties) -> Model:
                settings = ModelSettings(device, properties, token_ids=ids)
                if self._head is not None and isinstance(files.target, Path):
                    return EagleHead(self._head, files.target, settings, self.core)
                return open_model(source, settings, self.core)

            model = numerics.open_first(open_with, tried)
            cache = self._caches["draft"] = PrefixCache(model, set_aside=self._fix_cache(model))
            kind: type[TokenDrafter] = ModelDrafter
            cache.template_prefix, translation = files.template_prefix, files.translation
            if self._head is not None:
                joins = isinstance(model, EagleHead) and model.joins
                kind = EagleDrafter if joins else MtpDrafter
                cache.template_prefix, cache.chunk = (), 1  # all rows that the target reuses
            elif translation is not None:
                kind = TranslatedDrafter
                cache.template_prefix = tuple(translation().read([*files.template_prefix]) or ())
            draft = DraftSource(kind, model, cache, files.draft_context, translation)
        if costs := known.costs:
            draft.runner.costs.learn(costs, known.attention, lasting=True)
        self.draft = draft

    def _preparation(self, target: Target, pause: float) -> Generator[None]:
        """Measure what is not known, one step for each yield. What failed, and costs that other
        work has disturbed, are measured again after `pause` seconds, then after twice as long, and
        so on."""
        model, draft = target.model, self.draft
        runners = model, *((draft.runner,) if draft else ())
        try:
            if not target.invariance.complete:
                yield
                for invariance in numerics.measure_invariance(model, target.invariance):
                    target.invariance, target.policy.limit = invariance, invariance.draft_limit
                    yield
            if not model.costs.lasting[0]:
                decoder = None if draft is None else draft.decoder
                yield from cost_measurement.learn_costs(model, decoder)
                target.measured = datetime.now(UTC).date().isoformat()
            if draft is not None and not draft.runner.costs.lasting[0]:
                yield from draft.measure(model)
            self._remember(self.profile)
        except Exception as error:
            log.error("A measurement failed and is repeated later.", exc_info=error)
        finally:
            target.prepared.set()
        if not all(runner.costs.lasting[0] for runner in runners):
            again = self._preparation(target, 2 * pause)
            timer = Timer(pause, self.scheduler.run_in_background, [again])
            timer.daemon = True
            timer.start()
            self._timers[target.name] = timer

    def _fix_cache(self, model: Model) -> int:
        """Bound the cache of a model and give the blocks that it sets aside for measurements. All
        models get the bound of the first one, in tokens: half of the free memory, since the draft's
        cache may take as much, and no more than all requests can need, but what one can need."""
        size, states = model.block_size, model.pool.state_blocks
        measured = cost_measurement.MEASURED_TOKENS
        set_aside = -(-measured // size) + 1 + states(measured)
        if not self._cache_tokens:
            files = self._files
            draft = files.draft or files.head
            cached = files.draft or files.head_layers  # other heads have no KV cache
            free = self._available_bytes() - (weights_size(draft) if draft else 0)

            def fitting(memory: int) -> int:
                """Tokens of requests for which there are blocks in so many bytes of memory."""
                return (memory // model.block_bytes - set_aside) * size

            bound = half = free // 2
            if self._cache_mb is not None:
                bound = min(self._cache_mb * 1_000_000, half if cached else free)
            room = fitting(max(bound, half)) - (2 + states(0)) * size
            # The states along a prompt may take as much memory as its keys and values.
            self._limit_context(room // 2 if states(0) else room, free, model)
        context = self.context_limit + (2 + states(self.context_limit)) * size
        if not self._cache_tokens:
            self._cache_tokens = wanted = fitting(bound)
            if self._cache_mb is None:
                self._cache_tokens = min(wanted, (self._active + 1) * context)
        model.resize_cache(-(-max(self._cache_tokens, context) // size) + set_aside)
        return set_aside

    def _limit_context(self, tokens: int, free: int, model: Model) -> None:
        """Lower the context to `tokens`, but not below MIN_CONTEXT, and say so."""
        tokens = max(tokens, MIN_CONTEXT)
        if tokens < self.context_limit:
            needed = self.context_limit * model.block_bytes / model.block_size
            log.warning(
                f"A context of {self.context_limit:,} tokens takes {needed / 1e9:.1f} GB of KV "
                f"cache, and {max(free, 0) / 1e9:.1f} GB of memory are free: prompts and answers "
                f"are limited to {tokens:,} tokens together."
            )
            self.context_limit = tokens
