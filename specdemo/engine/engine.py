"""The models of a pair, compiled, and the scheduler that answers requests with them. Token ids
only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov

from . import numerics
from .errors import BadInput, CacheFull, ModelError
from .handle import Handle, Load, Sharing
from .model import PagedModel
from .open import Model
from .policy import MAX_DRAFT
from .prefix_cache import PrefixCache
from .request import Request, Target
from .scheduler import MERGED_TOKENS, QUEUED, Scheduler


@dataclass(frozen=True, slots=True)
class PairFiles:
    """What an engine compiles: IR files, OpenVINO devices, the KV cache's precision, the token ids
    that a trimmed draft head keeps, and the tokens that most prompts begin with."""

    target: Path
    draft: Path | None = None
    device: str = "CPU"
    draft_device: str = "CPU"
    kv_cache: str = "auto"
    draft_head_tokens: np.ndarray | None = None
    opening: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Blocks of a KV cache: `used` of at most `limit` (None: as many as it takes), `kept` of them
    for prompts that may be asked again and given up when others need them."""

    used: int
    kept: int
    limit: int | None


class Engine:
    """Compiles the models, which takes seconds; arguments as in `Session`. `context_limit` is in
    tokens; `available_bytes` says how much memory is free. Raises ModelError when a model cannot be
    used."""

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
        self._lock = threading.Lock()
        self._targets: dict[str, Target] = {}
        self._draft: Model | None = None
        self._draft_seconds = 0.0
        self._scheduler = Scheduler(most_active=active, queued=waiting, make_room=self._make_room)
        exact = self.target("exact")
        if files.draft is not None:
            self._draft = numerics.fastest_model(
                files.draft,
                files.draft_device,
                self.core,
                files.kv_cache,
                head_tokens=files.draft_head_tokens,
                vocabulary=exact.model.vocabulary_size,
            )
            self._draft_seconds = numerics.step_seconds(self._draft, exact.model, steps=5)
            self._fix_cache(self._draft)
            exact.prefixes.draft = self._draft
            exact.policy.costs.saw_draft(self._draft_seconds)

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
            return self._targets[numerics_name]

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
            for model, count in blocks.items():
                model.make_free(count)
            return request.work(target, sharing)

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
        with self._lock:
            for target in self._targets.values():
                target.prefixes.clear()
            self._targets.clear()
            self._draft = None

    def _compile(self, name: str) -> Target:
        files = self._files
        if name == "exact":
            model, found = numerics.exact_model(
                files.target, files.device, self.core, files.kv_cache
            )
            merged = min(found.tokens, MERGED_TOKENS)
            target = Target(
                model,
                f"exact ({_how(model)}): {found}",
                PrefixCache(model, self._draft, files.opening),
                checked=found.tokens,
                merged=merged if found.merging and isinstance(model, PagedModel) else 0,
                guard=found.guard,
            )
            if found.tokens:
                target.policy.limit = min(MAX_DRAFT, found.tokens - 1)
        else:
            model = numerics.fast_model(files.target, files.device, self.core, files.kv_cache)
            prefixes = PrefixCache(model, self._draft, files.opening)
            target = Target(model, f"fast ({_how(model)})", prefixes)
        costs = target.policy.costs
        numerics.learn_costs(model, costs, unpadded=target.guard is not None)
        if self._draft is not None:
            costs.saw_draft(self._draft_seconds)
        self._fix_cache(model)
        return target

    def _require_room(self) -> None:
        """Raise BadInput if the target model cannot be held once more, compiled for other numerics:
        a large one would get this process killed."""
        needed = self._files.target.with_suffix(".bin").stat().st_size
        free = self._available_bytes()
        if needed > free:
            raise BadInput(
                f"The target model compiled for other numerics takes {needed / 1e9:.1f} GB more "
                f"and {free / 1e9:.1f} GB are free; keep to the numerics that were used first."
            )

    def _fix_cache(self, model: Model) -> None:
        if self._cache_mb is None:
            return
        if self._cache_tokens is None:
            fitting = self._cache_mb * 1_000_000 // model.block_bytes * model.block_size
            self._cache_tokens = max(fitting, self._context_limit + 2 * model.block_size)
        model.fix_cache(-(-self._cache_tokens // model.block_size))

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
