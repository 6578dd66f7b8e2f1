"""A loaded pair, ready to answer: joins loaded models with the engine, and puts texts into the
trace.

Page, command line, servers and benchmark all answer through it. Does not fetch models and draws
nothing.
"""

from __future__ import annotations

import dataclasses
import platform
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import openvino as ov

from specdemo.engine import numerics
from specdemo.engine.decode import Decoding, Limits, certify, decode, prefill
from specdemo.engine.drafters import Forward, Reply, make_drafter
from specdemo.engine.guard import Guard
from specdemo.engine.model import PagedModel
from specdemo.engine.open import Model
from specdemo.engine.policy import MAX_DRAFT, Policy
from specdemo.engine.prefix_cache import KnownPrompt, PrefixCache
from specdemo.engine.rounds import Round
from specdemo.engine.sampling import Sampling
from specdemo.engine.scheduler import MERGED_TOKENS, Handle, Load, Scheduler, Sharing, Waiting
from specdemo.errors import BadInput, CacheFull, ModelError
from specdemo.models import machine
from specdemo.models.load import LoadedPair
from specdemo.settings import Settings
from specdemo.trace import Baseline, BaselineToken, Certificate, PairInfo, Trace

ACTIVE_REQUESTS = 16
"""Requests that run at once, unless told otherwise."""

OnWait = Callable[[Waiting], None]


@dataclass
class _Engine:
    """A target model in one setting of numerics, with what decoding on it has taught so far.

    `checked` is the most tokens that a certificate may run at once (0: no certificate in these
    numerics), `merged` the most that requests may run together (0: each by itself), `guard` the
    margin in logits of `engine.guard` (None: none is needed).
    """

    target: Model
    found: str
    prefixes: PrefixCache
    checked: int = 0
    merged: int = MERGED_TOKENS
    guard: float | None = None
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Blocks of a KV cache: `used` of at most `limit` (None: as many as it takes), `kept` of them
    for prompts that may be asked again and given up when others need them."""

    used: int
    kept: int
    limit: int | None


@dataclass
class _Measured:
    """What is noted of a run while it is made, in the thread that runs the models. Seconds."""

    prefill: float = 0.0
    reused: int = 0
    cpu: float = 0.0
    inference: float = 0.0
    certificate: Certificate | None = None
    answer: list[int] = field(default_factory=list)


class Session:
    """Answers instructions with one pair, many at a time: requests share forwards (thread safe;
    `engine.scheduler`).

    Compiles the models: takes seconds. `threads` bounds the processor threads of an inference, for
    several sessions on one machine (None: the plugin takes what it finds). `active` is how many
    requests run at once; further ones wait for their turn, as do those whose worst case does not
    fit into the KV cache. That is allocated now and for good: `cache_mb` megabytes for the target
    model, but one full context at least, and as many tokens for the draft model and for the target
    in other numerics; with None caches grow as needed. `exclusive` runs one request at a time, so
    that every figure is of a machine that was not shared. Raises ModelError when a model cannot be
    used.
    """

    def __init__(
        self,
        loaded: LoadedPair,
        *,
        threads: int | None = None,
        active: int = ACTIVE_REQUESTS,
        cache_mb: int | None = None,
        exclusive: bool = False,
    ):
        self._loaded = loaded
        self._lock = threading.Lock()
        self._core = ov.Core()
        if threads is not None:
            # Pinned threads of two processes would sit on the same cores.
            own = {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
            self._core.set_property("CPU", own)
        self._tokenizer = loaded.tokenizer
        self._opening = loaded.template.opening(loaded.tokenizer)
        self.context_limit = loaded.context_limit
        self.exclusive = exclusive
        self._cache_mb = cache_mb
        self._cache_tokens: int | None = None
        self._draft: Model | None = None
        self._draft_seconds = 0.0
        self._engines: dict[str, _Engine] = {}
        most_active = 1 if exclusive else active
        self._scheduler = Scheduler(most_active=most_active, make_room=self._make_room)
        exact = self._engine("exact")
        self.info: PairInfo = dataclasses.replace(loaded.info, numerics_found=exact.found)
        if loaded.draft_xml is not None:
            self._draft = numerics.fastest_model(
                loaded.draft_xml,
                loaded.draft_device,
                self._core,
                loaded.kv_cache,
                head_tokens=loaded.draft_head_tokens,
                vocabulary=exact.target.vocabulary_size,
            )
            self._draft_seconds = numerics.step_seconds(self._draft, exact.target, steps=5)
            self._fix_cache(self._draft)
            exact.prefixes.draft = self._draft
            exact.policy.costs.saw_draft(self._draft_seconds)

    def target_properties(self, name: str) -> dict[str, str]:
        """The OpenVINO properties that the target model runs with in these numerics, "exact" or
        "fast"."""
        return dict(self._engine(name).target.settings.properties)

    @property
    def load(self) -> Load:
        """How many requests are active and waiting, and what became of those before."""
        return self._scheduler.load

    def cache_blocks(self) -> dict[str, CacheUse]:
        """What the KV caches "target", "target fast" and "draft" hold."""
        engines = dict(self._engines)
        names = {"exact": "target", "fast": "target fast"}
        models = {names[name]: engine.target for name, engine in engines.items()}
        if self._draft is not None:
            models["draft"] = self._draft
        uses = {}
        for name, model in models.items():
            kept = set().union(*(one.prefixes.kept_blocks(model) for one in engines.values()))
            uses[name] = CacheUse(model.pool.used, len(kept), model.pool.limit)
        return uses

    def close(self) -> None:
        """Release the models; what is being answered is cancelled."""
        self._scheduler.close()
        with self._lock:
            for engine in self._engines.values():
                engine.prefixes.clear()
            self._engines.clear()
            self._draft = None

    # Answers

    def answer(
        self,
        instruction: str,
        settings: Settings,
        *,
        prompt: tuple[int, ...] | None = None,
        certify: bool = False,
        stop: threading.Event | None = None,
        on_wait: OnWait | None = None,
    ) -> Iterator[Round | Trace]:
        """Answer an instruction; yields each Round as it is made, and last the finished Trace.

        `prompt` are token ids to answer in place of the instruction in its template: a
        conversation, say. The trace then has the instruction as its title only. With `certify` a
        greedy answer is checked by one parallel pass over it (`engine.decode.certify`), which takes
        about as long as prefilling it. While the request waits for its turn, `on_wait` is told its
        place about once a second. Raises BadInput, before anything runs, for an instruction or a
        setting that cannot be used, and Busy when too many are waiting. Setting `stop` or closing
        the iterator ends it within one round.
        """
        tokens = self._prompt_tokens(instruction, settings, prompt)
        return self._answer(instruction, tokens, settings, certify, stop, on_wait)

    def race(
        self,
        instruction: str,
        settings: Settings,
        *,
        prompt: tuple[int, ...] | None = None,
        stop: threading.Event | None = None,
        on_wait: OnWait | None = None,
    ) -> Iterator[Round | BaselineToken | Trace]:
        """Answer as `answer` does, then decode the same prompt autoregressively; yields the rounds
        of the first, the tokens of the second, and last the Trace with `baseline` and `identical`
        set.

        Stopped during the answer, the trace has no baseline; stopped after it, `identical` is None.
        """
        tokens = self._prompt_tokens(instruction, settings, prompt)
        return self._race(instruction, tokens, settings, stop, on_wait)

    def baseline(
        self, trace: Trace, *, stop: threading.Event | None = None, on_wait: OnWait | None = None
    ) -> Iterator[BaselineToken | Trace]:
        """Decode a trace's instruction again with the target model alone, one token a forward, each
        its own choice; yields each token as it is made, and last the Trace with `baseline` and
        `identical` set.

        Times count as if the prompt had been prefilled anew: the measured seconds of the prefill
        are added, so that both runs start from the same line. It goes before the answers that wait
        for their turn.
        """
        tokens = self._prompt_tokens(trace.instruction, trace.settings, None)
        return self._baseline(trace, tokens, stop, on_wait)

    def _race(
        self, instruction, tokens, settings, stop, on_wait
    ) -> Iterator[Round | BaselineToken | Trace]:
        with closing(self._answer(instruction, tokens, settings, False, stop, on_wait)) as events:
            for event in events:
                if isinstance(event, Trace):
                    trace = event
                else:
                    yield event
        if trace.finish_reason == "cancelled":
            yield trace
            return
        with closing(self._baseline(trace, tokens, stop, on_wait)) as events:
            yield from events

    def _answer(
        self, instruction, tokens, settings, certified, stop, on_wait
    ) -> Iterator[Round | Trace]:
        engine = self._engine(settings.numerics)
        measured = _Measured()
        longest = len(tokens) + settings.max_new_tokens
        work = lambda sharing: self._answering(
            engine, tokens, settings, certified, measured, sharing
        )  # noqa: E731
        handle = self._submit(engine, work, longest, len(tokens), stop)
        rounds: list[Round] = []
        text = self._tokenizer.stream()
        with closing(handle.events(on_wait)) as events:
            for event in events:
                rounds.append(_with_texts(event, text, self._tokenizer))
                yield rounds[-1]
        decoding = rounds[-1].shown_at - rounds[0].shown_at if rounds else 0.0
        yield Trace(
            instruction=instruction,
            prompt_tokens=len(tokens),
            prompt_reused=measured.reused,
            pair=dataclasses.replace(self.info, numerics_found=engine.found),
            settings=settings,
            prefill_seconds=measured.prefill,
            rounds=tuple(rounds),
            finish_reason="cancelled" if handle.stopped else handle.result,
            cpu_seconds=measured.cpu,
            outside_seconds=max(decoding - measured.inference, 0.0),
            certificate=None if handle.stopped else measured.certificate,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine_name(self._core),
            shared_with=handle.sharing.most_others,
        )

    def _baseline(self, trace, tokens, stop, on_wait) -> Iterator[BaselineToken | Trace]:
        if not trace.rounds:
            yield trace
            return
        engine = self._engine(trace.settings.numerics)
        measured = _Measured()
        answer = trace.token_ids
        longest = (
            len(answer) if trace.finish_reason == "cancelled" else trace.settings.max_new_tokens
        )
        settings = dataclasses.replace(trace.settings, drafter="none", max_new_tokens=longest)
        work = lambda sharing: self._answering(  # noqa: E731
            engine, tokens, settings, False, measured, sharing, trace.prefill_seconds
        )
        handle = self._submit(engine, work, len(tokens) + longest, len(tokens), stop, first=True)
        shown: list[BaselineToken] = []
        text = self._tokenizer.stream()
        with closing(handle.events(on_wait)) as events:
            for event in events:
                token = event.emitted
                shown.append(
                    BaselineToken(token.id, event.shown_at, text.push(token.id), token.margin)
                )
                yield shown[-1]
        seconds, others = trace.prefill_seconds, handle.sharing.most_others
        baseline = Baseline(tuple(shown), seconds, measured.cpu, shared_with=others)
        identical = None if handle.stopped else tuple(token.id for token in shown) == answer
        yield dataclasses.replace(trace, baseline=baseline, identical=identical)

    # Requests, as the engine's thread runs them

    def _submit(
        self,
        engine: _Engine,
        start: Callable[[Sharing], Generator],
        tokens: int,
        prompt_tokens: int,
        stop: threading.Event | None,
        first: bool = False,
    ) -> Handle:
        """Hand a request to the scheduler that comes to hold `tokens` tokens at most."""
        tokens = min(tokens, self.context_limit)
        blocks = {
            model: _blocks(model, tokens, prompt_tokens) for model in self._models(engine).values()
        }

        def begin(sharing: Sharing) -> Generator:
            for model, count in blocks.items():
                model.make_free(count)
            return start(sharing)

        models = self._models(engine)
        try:
            return self._scheduler.submit(
                begin, models, blocks=blocks, stop=stop, first=first, merged_tokens=engine.merged
            )
        except CacheFull as error:
            limit = engine.target.pool.limit * engine.target.block_size
            raise BadInput(
                f"Prompt and answer may come to {tokens} tokens; this server's KV cache holds {limit} "
                "for all requests: ask for fewer tokens."
            ) from error

    def _answering(
        self,
        engine: _Engine,
        tokens: tuple[int, ...],
        settings: Settings,
        certified: bool,
        measured: _Measured,
        sharing: Sharing,
        prefill_seconds: float | None = None,
    ) -> Decoding:
        """The whole of a request: prompt, answer, certificate. Yields rounds; returns why it
        finished.

        Times count from the request's start, or with `prefill_seconds` as if the prompt had taken
        that long."""
        since = perf_counter()
        known, measured.reused = yield from self._prompt(engine, tokens)
        draft = None
        try:
            measured.prefill = known.prompt.seconds
            if prefill_seconds is not None:
                since = perf_counter() - prefill_seconds
            sampling = _sampling(settings)
            policy = engine.policy.for_request(settings.draft_tokens)
            if self._draft is not None and settings.drafter in ("auto", "model"):
                draft = engine.prefixes.start_draft(tokens)
            guarded = engine.guard is not None and (
                sampling.greedy or sampling.coupling == "shared"
            )
            with engine.target.fork(known.target, len(tokens)) as sequence:
                decoding = decode(
                    known.prompt,
                    target=sequence,
                    drafter=make_drafter(
                        settings.drafter,
                        policy,
                        sampling,
                        sequence=draft,
                        head_tokens=self._draft.head_tokens if self._draft else None,
                        window=self._loaded.draft_window,
                        table=self._loaded.phrases,
                    ),
                    policy=policy,
                    sampling=sampling,
                    limits=Limits(
                        settings.max_new_tokens, self.context_limit, self._loaded.stop_ids
                    ),
                    guard=Guard(engine.guard) if guarded else None,
                )
                reason = yield from self._timed(decoding, engine, since, measured, policy, sharing)
            if certified and engine.checked and sampling.greedy:
                answer = tuple(measured.answer)
                with engine.target.fork(known.target, len(tokens)) as sequence:
                    checking = certify(known.prompt, answer, sequence, engine.checked)
                    difference, seconds = yield from checking
                certificate = Certificate(difference is None, len(answer), difference, seconds)
                measured.certificate = certificate
            return reason
        finally:
            if draft is not None:
                engine.prefixes.keep_draft(known, draft)
            engine.prefixes.unpin(known)

    def _timed(
        self,
        decoding: Decoding,
        engine: _Engine,
        since: float,
        measured: _Measured,
        policy: Policy,
        sharing: Sharing,
    ) -> Decoding:
        """A decoding with the times of its rounds, counted from `since`; notes its tokens and what
        it took."""
        models = self._models(engine).values()
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
                    measured.inference = sum(model.seconds for model in models) - begun
                    measured.answer += [token.id for token in event.tokens]
                    reply = yield event.at(perf_counter() - since)
        except StopIteration as done:
            return done.value
        finally:
            decoding.close()
            measured.cpu = time.process_time() - cpu

    # Parts

    def _prompt_tokens(
        self, instruction: str, settings: Settings, prompt: tuple[int, ...] | None
    ) -> tuple[int, ...]:
        """The prompt's token ids. Raises BadInput for what this pair cannot answer."""
        if prompt == ():
            raise BadInput("The prompt is empty.")
        if prompt is None and not instruction.strip():
            raise BadInput("The instruction is empty; write a question or a task.")
        if settings.drafter == "model" and self._loaded.draft_xml is None:
            raise BadInput(
                f"The pair {self._loaded.info.name} has no draft model; choose the drafter lookup or auto."
            )
        tokens = prompt or tuple(self._loaded.template.render(instruction, self._tokenizer))
        if len(tokens) >= self.context_limit:
            what = "instruction" if prompt is None else "prompt"
            raise BadInput(
                f"The {what} is {len(tokens)} tokens long with its template; this model reads fewer than "
                f"{self.context_limit}: shorten it.",
                code="context_length_exceeded",
            )
        return tokens

    def _engine(self, name: str) -> _Engine:
        with self._lock:
            if name not in self._engines:
                try:
                    if self._engines:
                        _require_room(self._loaded.target_xml)
                    self._engines[name] = self._compile(name)
                except OSError as error:
                    file = self._loaded.target_xml.name
                    raise ModelError(
                        f"{file} cannot be read any more; fetch or export it again."
                    ) from error
            return self._engines[name]

    def _compile(self, name: str) -> _Engine:
        xml, device, kv_cache = self._loaded.target_xml, self._loaded.device, self._loaded.kv_cache
        if name == "exact":
            target, found = numerics.exact_model(xml, device, self._core, kv_cache)
            merged = min(found.tokens, MERGED_TOKENS)
            engine = _Engine(
                target,
                f"exact ({_how(target)}): {found}",
                PrefixCache(target, self._draft, self._opening),
                checked=found.tokens,
                merged=merged if found.merging and isinstance(target, PagedModel) else 0,
                guard=found.guard,
            )
            if found.tokens:
                engine.policy.limit = min(MAX_DRAFT, found.tokens - 1)
        else:
            target = numerics.fast_model(xml, device, self._core, kv_cache)
            prefixes = PrefixCache(target, self._draft, self._opening)
            engine = _Engine(target, f"fast ({_how(target)})", prefixes)
        costs = engine.policy.costs
        numerics.learn_costs(target, costs, unpadded=engine.guard is not None)
        if self._draft is not None:
            costs.saw_draft(self._draft_seconds)
        self._fix_cache(target)
        return engine

    def _models(self, engine: _Engine) -> dict[str, Model]:
        return {"target": engine.target, **({"draft": self._draft} if self._draft else {})}

    def _fix_cache(self, model: Model) -> None:
        if self._cache_mb is None:
            return
        if self._cache_tokens is None:
            fitting = self._cache_mb * 1_000_000 // model.block_bytes * model.block_size
            self._cache_tokens = max(fitting, self.context_limit + 2 * model.block_size)
        model.fix_cache(-(-self._cache_tokens // model.block_size))

    def _make_room(self, model: Model, blocks: int) -> None:
        caches = [engine.prefixes for engine in list(self._engines.values())]
        caches = [cache for cache in caches if model in (cache.target, cache.draft)]
        for cache in caches:
            others = sum(other.held(model) for other in caches if other is not cache)
            cache.make_room(model, max(blocks - others, 0))

    def _prompt(
        self, engine: _Engine, tokens: tuple[int, ...]
    ) -> Generator[Forward, Reply, tuple[KnownPrompt, int]]:
        """The prompt, run and in use (unpin it), and how many of its tokens the cache already
        held."""
        known = engine.prefixes.pin(tokens)
        if known is not None:
            return known, len(tokens)
        sequence = engine.prefixes.start(tokens)
        reused = sequence.length
        try:
            prompt = yield from prefill(sequence, tokens, engine.prefixes.opening_of(tokens))
        except BaseException:
            sequence.release()
            raise
        return engine.prefixes.add(prompt, sequence), reused


def machine_name(core: ov.Core | None = None) -> str:
    """The processor's name and architecture."""
    core = core or ov.Core()
    return f"{core.get_property('CPU', 'FULL_DEVICE_NAME').strip()}, {platform.machine()}"


def _blocks(model: Model, tokens: int, prompt_tokens: int) -> int:
    """Cache blocks that a request can come to hold: its prompt's, which is kept for others, and its
    own, which shares the prompt's whole blocks where blocks can be shared; the last forward may run
    a draft's length past the end."""
    size = model.block_size
    shared = prompt_tokens // size if isinstance(model, PagedModel) else 0
    return -(-prompt_tokens // size) + -(-(tokens + MAX_DRAFT + 1) // size) - shared


def _require_room(xml: Path) -> None:
    """Raise BadInput if the target model cannot be held once more, compiled for other numerics: a
    large one would get this process killed."""
    needed, free = xml.with_suffix(".bin").stat().st_size, machine.available_bytes()
    if needed > free:
        raise BadInput(
            f"The target compiled for other numerics takes {needed / 1e9:.1f} GB more and {free / 1e9:.1f} GB "
            "are free; keep to the numerics that were used first."
        )


def _how(model: Model) -> str:
    """What a model was compiled with, and the path it runs on where that is not the usual one."""
    properties = ", ".join(f"{key}={value}" for key, value in model.settings.properties)
    return "; ".join(filter(None, [properties or "the plugin's own choice", model.note]))


def _sampling(settings: Settings) -> Sampling:
    return Sampling(
        settings.temperature, settings.top_p, settings.top_k, settings.seed, settings.coupling
    )


def _with_texts(round_: Round, text, tokenizer) -> Round:
    """The round with every token's text: kept tokens as the stream shows them, rejected ones on
    their own."""
    drafted = tuple(
        dataclasses.replace(
            token, text=text.push(token.id) if token.accepted else tokenizer.decode([token.id])
        )
        for token in round_.drafted
    )
    emitted = round_.emitted and dataclasses.replace(
        round_.emitted, text=text.push(round_.emitted.id)
    )
    return dataclasses.replace(round_, drafted=drafted, emitted=emitted)
