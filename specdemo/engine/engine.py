"""The models of a pair, compiled, and the scheduler that answers requests with them. Token ids
only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import openvino as ov

from . import numerics
from .checkpoint import Checkpoint
from .errors import BadInput, CacheFull, ModelError
from .handle import Handle, Load, Sharing
from .memory import release_file
from .model import PagedModel
from .open import Model
from .policy import MAX_DRAFT, Acceptance
from .prefix_cache import PrefixCache
from .profile import Profile, TargetProfile
from .request import Request, Target
from .scheduler import QUEUED, Scheduler

COMPILED_TOGETHER = 2
"""Instances: a compilation uses one thread for the most part."""

WAIT_STEP = 0.2
"""Seconds between two looks at whether a preparation has ended."""

OLD = timedelta(days=30)
"""Age from which a cost table is measured again."""

PASSED_SPEED = (0.5, 2.0)
"""Relative to the table: a machine whose speed left this range is measured again at the next
start."""


@dataclass(frozen=True, slots=True)
class PairFiles:
    """What an engine compiles: IR files or (on torch devices) checkpoints, devices, the KV cache's
    precision, the token ids that a trimmed draft head keeps, the tokens that most prompts begin
    with, and whether answers can begin before the draft model is there."""

    target: Path | Checkpoint
    draft: Path | Checkpoint | None = None
    device: str = "CPU"
    draft_device: str = "CPU"
    kv_cache: str = "auto"
    draft_head_tokens: np.ndarray | None = None
    opening: tuple[int, ...] = ()
    draft_later: bool = False


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Blocks of a KV cache: `used` of at most `limit`, `kept` of them for prompts that may be asked
    again and given up when others need them."""

    used: int
    kept: int
    limit: int


class Engine:
    """Compiles what the first token needs, which takes a second or more; arguments as in `Session`.

    `context_limit` is in tokens; `available_bytes` says how much memory is free; `profile` is what
    is known of this pair on this machine, and `remember` is told what is known later. The rest
    (fixed-shape instances, the draft model where it can come later, a cost table that is missing or
    old) is prepared step by step while there are no requests, with `background`, or else when
    `prepare` asks for it. Raises ModelError when a model cannot be used.
    """

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
            # Pinned threads of two processes would sit on the same cores.
            own = {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
            self.core.set_property("CPU", own)
        self._files = files
        self._context_limit = context_limit
        self._available_bytes = available_bytes
        self._cache_mb = cache_mb
        self._cache_tokens: int | None = None
        self._active = active
        self._remember = remember
        self._known = profile or Profile()
        self._background = False
        self._lock = threading.Lock()
        self._targets: dict[str, Target] = {}
        self._preparing: set[str] = set()
        self._draft: Model | None = None
        self._scheduler = Scheduler(most_active=active, queued=waiting, make_room=self._make_room)
        exact = self.target("exact")
        if files.draft is not None and not files.draft_later:
            self._open_draft(exact)
        self._release_files()
        self._background = background
        if background:
            self._prepare_later("exact")

    @property
    def load(self) -> Load:
        """How many requests are active and waiting, and what became of those before."""
        return self._scheduler.load

    def cache_blocks(self) -> dict[str, CacheUse]:
        """What the KV caches "target", "target fast" and "draft" hold."""
        targets = dict(self._targets)
        names = {"exact": "target", "fast": "target fast"}
        models = {names[name]: target.model for name, target in targets.items()}
        if self._draft is not None:
            models["draft"] = self._draft
        uses = {}
        for name, model in models.items():
            kept = set().union(*(one.prefixes.kept_blocks(model) for one in targets.values()))
            uses[name] = CacheUse(model.pool.used, len(kept), model.pool.limit)
        return uses

    def target(self, numerics_name: str) -> Target:
        """The target model in these numerics, "exact" or "fast", compiled when first asked for.
        Raises ModelError, and BadInput where it would not fit into memory a second time."""
        with self._lock:
            if numerics_name not in self._targets:
                try:
                    if self._targets:
                        self._require_room()
                    self._targets[numerics_name] = self._compile(numerics_name)
                except OSError as error:
                    raise ModelError(
                        f"{self._files.target.name} cannot be read; fetch or export it again."
                    ) from error
                if self._background:
                    self._prepare_later(numerics_name)
            return self._targets[numerics_name]

    def prepare(
        self, numerics_name: str = "exact", stop: threading.Event | None = None
    ) -> Iterator[None]:
        """Finish, beside what is being answered, what was left for later; yields while it takes."""
        target = self.target(numerics_name)
        with self._lock:
            self._prepare_later(numerics_name)
        with self._scheduler.hurry():
            while not target.prepared.wait(WAIT_STEP) and not (stop and stop.is_set()):
                yield

    @property
    def profile(self) -> Profile:
        """What is known of the pair now, for the next start."""
        exact, targets = self._targets["exact"], dict(self._known.targets)
        for name, target in list(self._targets.items()):
            costs = target.policy.costs
            low, high = PASSED_SPEED
            measured = target.measured if low < costs.level < high else ""
            targets[name] = TargetProfile(
                target.model.settings.properties,
                target.invariance,
                {} if costs.assumed else costs.seconds,
                costs.growth,
                measured,
            )
        return Profile(
            targets,
            self._known.draft_properties
            if self._draft is None
            else self._draft.settings.properties,
            exact.policy.costs.draft_step or self._known.draft_step,
            {source: rates.counts for source, rates in dict(exact.policy.acceptance).items()},
        )

    def submit(
        self,
        request: Request,
        target: Target,
        *,
        stop: threading.Event | None = None,
        first: bool = False,
    ) -> Handle:
        """Hand a request to the scheduler (`Scheduler.submit`); its events are Rounds. Raises
        BadInput for one that could never fit into the KV cache, Busy when too many wait."""
        prompt = len(request.tokens)
        tokens = min(prompt + request.limits.max_new_tokens, self._context_limit)
        models = target.models
        blocks = {model: _blocks(model, tokens, prompt) for model in models.values()}

        def begin(sharing: Sharing) -> Generator:
            return request.work(target, sharing, models.get("draft"))

        try:
            return self._scheduler.submit(
                begin, models, blocks=blocks, stop=stop, first=first, merged_tokens=target.merged
            )
        except CacheFull as error:
            limit = target.model.pool.limit * target.model.block_size
            raise BadInput(
                f"Prompt and answer may come to {tokens} tokens; this server's KV cache holds "
                f"{limit} for all requests: ask for fewer tokens."
            ) from error

    def close(self) -> None:
        """Release the models; what is being answered is cancelled."""
        self._scheduler.close()
        if self._targets:
            self._remember(self.profile)
        with self._lock:
            for target in self._targets.values():
                target.prefixes.clear()
            self._targets.clear()
            self._draft = None

    def _compile(self, name: str) -> Target:
        files, known = self._files, self._known.targets.get(name)
        where = files.target, files.device, self.core, files.kv_cache
        found = None
        if name == "exact":
            model, found = numerics.exact_model(*where, known)
        else:
            model = numerics.fast_model(*where)
        words = f"{name} ({_how(model)})" + (f": {found}" if found else "")
        prefixes = PrefixCache(model, self._draft, files.opening)
        target = Target(model, words, prefixes, found)
        if target.checked:
            target.policy.limit = min(MAX_DRAFT, target.checked - 1)
        self._fix_cache(model)
        policy = target.policy
        if known is not None and known.costs:
            policy.costs.learn(known.costs, known.growth)
            target.measured = known.measured
        for source, counts in self._known.acceptance.items():
            policy.acceptance[source] = Acceptance(counts)
        if model.settings.fixed_shapes and isinstance(model, PagedModel):
            target.steady = policy.costs.steady_size()
            model.least_tokens = max(model.least_tokens, target.steady)
        if self._known.draft_step:
            policy.costs.saw_draft(self._known.draft_step)
        return target

    def _open_draft(self, target: Target) -> None:
        """Compile the draft model, and give it to every target."""
        files = self._files
        draft = numerics.fastest_model(
            files.draft,
            files.draft_device,
            self.core,
            files.kv_cache,
            head_tokens=files.draft_head_tokens,
            vocabulary=target.model.vocabulary_size,
            known=self._known.draft_properties,
        )
        self._fix_cache(draft)
        step = self._known.draft_step or numerics.step_seconds(draft, target.model, steps=5)
        self._draft = draft
        for one in self._targets.values():
            one.policy.costs.saw_draft(step)
            one.prefixes.draft = draft

    def _prepare_later(self, name: str) -> None:
        """Hand the rest of a target's preparation to the scheduler, once. The caller holds the
        lock."""
        if name not in self._preparing:
            self._preparing.add(name)
            self._scheduler.run_in_background(self._preparation(self._targets[name]))

    def _preparation(self, target: Target) -> Generator[None]:
        model = target.model
        try:
            exact = target.checked > 0
            while model.compile_next(COMPILED_TOGETHER, exact=exact):
                target.steady = 0
                model.least_tokens = target.invariance.least_tokens if target.invariance else 1
                yield
            if self._files.draft is not None and self._draft is None:
                self._open_draft(target)
                yield
            while self._draft is not None and self._draft.compile_next(exact=False):
                yield
            old = (datetime.now(UTC) - OLD).date().isoformat()
            if target.measured < old:
                unpadded = target.guard is not None
                yield from numerics.learn_costs(model, target.policy.costs, unpadded=unpadded)
                target.measured = datetime.now(UTC).date().isoformat()
            self._release_files()
            self._remember(self.profile)
        finally:
            target.prepared.set()

    def _release_files(self) -> None:
        for xml in (self._files.target, self._files.draft):
            if isinstance(xml, Path):
                release_file(xml.with_suffix(".bin"))

    def _require_room(self) -> None:
        """Raise BadInput if the target model cannot be held once more, compiled for other numerics:
        a large one would get this process killed."""
        target = self._files.target
        in_torch = isinstance(target, Checkpoint)
        needed = target.size if in_torch else target.with_suffix(".bin").stat().st_size
        free = self._available_bytes()
        if needed > free:
            raise BadInput(
                f"The target model compiled for other numerics takes {needed / 1e9:.1f} GB more "
                f"and {free / 1e9:.1f} GB are free; keep to the numerics that were used first."
            )

    def _fix_cache(self, model: Model) -> None:
        if self._cache_tokens is None:
            least = self._context_limit + 2 * model.block_size
            if self._cache_mb is None:
                bound, most = self._available_bytes() // 2, (self._active + 1) * least
            else:
                bound, most = self._cache_mb * 1_000_000, None
            fitting = bound // model.block_bytes * model.block_size
            self._cache_tokens = max(least, fitting if most is None else min(fitting, most))
        model.resize_cache(-(-self._cache_tokens // model.block_size))

    def _make_room(self, model: Model, blocks: int) -> None:
        caches = [target.prefixes for target in list(self._targets.values())]
        caches = [cache for cache in caches if model in (cache.target, cache.draft)]
        for cache in caches:
            others = sum(other.held(model) for other in caches if other is not cache)
            cache.make_room(model, max(blocks - others, 0))


def _blocks(model: Model, tokens: int, prompt_tokens: int) -> int:
    """Cache blocks that a request can come to hold: its prompt's, which is kept for others, and its
    own, which shares the prompt's whole blocks where blocks can be shared; the last forward may run
    a draft's length past the end."""
    size = model.block_size
    shared = prompt_tokens // size if isinstance(model, PagedModel) else 0
    return -(-prompt_tokens // size) + -(-(tokens + MAX_DRAFT + 1) // size) - shared


def _how(model: Model) -> str:
    """What a model was compiled with, and the path it runs on where that is not the usual one."""
    properties = ", ".join(f"{key}={value}" for key, value in model.settings.properties)
    return "; ".join(filter(None, [properties or "the plugin's own choice", model.note]))
