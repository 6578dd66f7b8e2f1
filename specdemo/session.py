"""A loaded pair, ready to answer: joins what the models loaded with the engine, and puts texts into the trace.

Answers many at once (docs/visitors.md). Does not fetch models and draws nothing; the page, the command line and the
benchmark all answer through it.
"""

from __future__ import annotations

import dataclasses
import platform
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import openvino as ov

from specdemo.engine import numerics
from specdemo.engine.batch import MERGED_TOKENS, Batcher, Load, Share, Waiting
from specdemo.engine.decode import Decoding, Limits, certify, decode, follow, prefill
from specdemo.engine.drafters import AutoDrafter, Drafter, Forward, Lookup, ModelDrafter, Phrases, Reply
from specdemo.engine.policy import MAX_DRAFT, Lookahead
from specdemo.engine.model import PagedModel, Sequence
from specdemo.engine.open import Model
from specdemo.engine.prompt_cache import KnownPrompt, PromptCache
from specdemo.engine.sampling import Sampling
from specdemo.trace import (
    Baseline,
    BaselineToken,
    Certificate,
    PairInfo,
    Round,
    Settings,
    Trace,
)
from specdemo.errors import BadInput, Busy, CacheFull, ModelError, RequestFailed
from specdemo.models import machine
from specdemo.models.load import LoadedPair

MAX_NEW_TOKENS = 4096
VISITORS = 16
"""Requests that run at once, unless told otherwise."""

_ONE_BY_ONE = "requests that share a forward would not get the same bits, so each has its own"


@dataclass
class _Engine:
    """A target in one setting of numerics, with what decoding on it has taught so far.

    `min_tokens` is the least number of tokens of an answer's forwards, `chunk` the most a certificate may run at once
    (0: no certificate in these numerics), `merged` the most that requests may run together (0: each by itself), `guard`
    the margin in logits that lets a token run by itself (None: none does).
    """

    target: Model
    min_tokens: int
    chunk: int
    merged: int
    found: str
    prompts: PromptCache
    guard: float | None = None
    lookahead: Lookahead = field(default_factory=Lookahead)


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Blocks of a KV cache: `used` of at most `limit` (None: as many as it takes), `kept` of them for prompts that may
    be asked again and given up when others need them."""

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


class Session:
    """Answers instructions with one pair, many at a time: requests share forwards (thread safe; `engine.batch`).

    Compiles the models: takes seconds. `threads` bounds the processor threads of an inference, for several sessions
    on one machine (None: the plugin takes what it finds). `visitors` is how many requests run at once; further ones
    wait for their turn, as do those whose worst case does not fit into the KV cache. That is allocated now and for
    good: `cache_mb` megabytes for the target, but one full context at least, and as many tokens for the draft and for
    the target in other numerics; with None caches grow as needed. `exclusive` runs one request at a time, so that
    every figure is of a machine that was not shared. Raises ModelError when a model cannot be used.
    """

    def __init__(
        self,
        loaded: LoadedPair,
        *,
        threads: int | None = None,
        visitors: int = VISITORS,
        cache_mb: int | None = None,
        exclusive: bool = False,
    ):
        self._loaded = loaded
        self._lock = threading.Lock()
        self._core = ov.Core()
        if threads is not None:
            # Pinned threads of two processes would sit on the same cores.
            self._core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False})
        self._tokenizer = loaded.tokenizer
        self._opening = loaded.template.opening(loaded.tokenizer)
        self.context_limit = loaded.context_limit
        self.exclusive = exclusive
        self._cache_mb = cache_mb
        self._cache_tokens: int | None = None
        self._draft: Model | None = None
        self._draft_seconds = 0.0
        self._engines: dict[str, _Engine] = {}
        self._batcher = Batcher(most_active=1 if exclusive else visitors, make_room=self._make_room)
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
            exact.prompts.draft = self._draft
            exact.lookahead.costs.saw_draft(self._draft_seconds)

    def target_properties(self, name: str) -> dict[str, str]:
        """The OpenVINO properties that the target runs with in these numerics, "exact" or "fast"."""
        return dict(self._engine(name).target.settings.properties)

    @property
    def load(self) -> Load:
        """How many requests are at work and waiting, and what became of those before."""
        return self._batcher.load

    def cache_blocks(self) -> dict[str, CacheUse]:
        """What the KV caches "target", "target fast" and "draft" hold."""
        engines = dict(self._engines)
        names = {"exact": "target", "fast": "target fast"}
        models = {names[name]: engine.target for name, engine in engines.items()}
        if self._draft is not None:
            models["draft"] = self._draft
        caches = [engine.prompts for engine in engines.values()]
        return {
            name: CacheUse(
                model.pool.used, len(set().union(*(cache.kept_blocks(model) for cache in caches))), model.pool.limit
            )
            for name, model in models.items()
        }

    def close(self) -> None:
        """Release the models; what is being answered is cancelled."""
        self._batcher.close()
        with self._lock:
            for engine in self._engines.values():
                engine.prompts.clear()
            self._engines.clear()
            self._draft = None

    # Answers

    def answer(
        self,
        instruction: str,
        settings: Settings,
        *,
        stop: threading.Event | None = None,
        prompt: tuple[int, ...] | None = None,
        certify: bool = True,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> Iterator[Round | Trace]:
        """Answer an instruction; yields each Round as it is made, and last the finished Trace.

        `prompt` are token ids to answer in place of the instruction in its template: a conversation, say. The trace
        then has the instruction as its title only, and `baseline` cannot repeat it. `certify` False leaves the
        certificate out, which costs about as much as prefilling the answer would. While the request waits for its
        turn, `on_wait` is told its place about once a second. Raises BadInput, before anything runs, for an
        instruction or a setting that cannot be used, and when too many are waiting. Setting `stop` or closing the
        iterator ends it within one round.
        """
        tokens = self._check(instruction, settings, prompt)
        return self._answer(instruction, tokens, settings, stop, certify, on_wait)

    def _answer(
        self,
        instruction: str,
        tokens: tuple[int, ...],
        settings: Settings,
        stop: threading.Event | None,
        certify: bool,
        on_wait: Callable[[Waiting], None] | None,
    ) -> Iterator[Round | Trace]:
        engine = self._engine(settings.numerics)
        measured = _Measured()
        ticket = self._submit(
            engine,
            lambda share: self._answering(engine, tokens, settings, certify, measured, share),
            len(tokens) + settings.max_new_tokens,
            len(tokens),
            stop,
        )
        rounds: list[Round] = []
        text = self._tokenizer.stream()
        try:
            for event in ticket.events(on_wait):
                rounds.append(_with_texts(event, text, self._tokenizer))
                yield rounds[-1]
        finally:
            ticket.close()
        decoding = rounds[-1].shown_at - rounds[0].shown_at if rounds else 0.0
        yield Trace(
            instruction=instruction,
            prompt_tokens=len(tokens),
            prompt_reused=measured.reused,
            pair=dataclasses.replace(self.info, numerics_found=engine.found),
            settings=settings,
            prefill_seconds=measured.prefill,
            rounds=tuple(rounds),
            finish_reason="cancelled" if ticket.stopped else ticket.result,
            cpu_seconds=measured.cpu,
            outside_seconds=max(decoding - measured.inference, 0.0),
            certificate=None if ticket.stopped else measured.certificate,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine_name(self._core),
            shared_with=ticket.share.most_others,
        )

    def baseline(
        self,
        trace: Trace,
        *,
        stop: threading.Event | None = None,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> Iterator[BaselineToken | Trace]:
        """Decode a trace's prompt again with the target alone, one token a forward; yields each token as it is made,
        and last the Trace with `baseline` and `identical` set.

        Times count as if the prompt had been prefilled anew: the measured seconds of the prefill are added, so that
        both runs start from the same line. A certified answer is followed (see `engine.decode.follow`); any other is
        decoded freely and compared. It goes before the answers that wait for their turn.
        """
        tokens = self._check(trace.instruction, trace.settings)
        return self._baseline(trace, tokens, stop, on_wait)

    def _baseline(
        self,
        trace: Trace,
        tokens: tuple[int, ...],
        stop: threading.Event | None,
        on_wait: Callable[[Waiting], None] | None,
    ) -> Iterator[BaselineToken | Trace]:
        if not trace.rounds:
            yield trace
            return
        engine = self._engine(trace.settings.numerics)
        measured = _Measured()
        answer = trace.token_ids
        ticket = self._submit(
            engine,
            lambda share: self._repeating(engine, tokens, trace, measured, share),
            len(tokens) + len(answer),
            len(tokens),
            stop,
            first=True,
        )
        shown: list[BaselineToken] = []
        ties: list[NearTie] = []
        text = self._tokenizer.stream()
        try:
            for event in ticket.events(on_wait):
                [token] = event.tokens
                for tie in event.drafted:
                    ties.append(NearTie(len(shown), tie.draft_probability or 0.0))
                shown.append(BaselineToken(token.id, event.shown_at, text.push(token.id)))
                yield shown[-1]
        finally:
            ticket.close()
        baseline = Baseline(
            tuple(shown), trace.prefill_seconds, measured.cpu, tuple(ties), shared_with=ticket.share.most_others
        )
        same = tuple(token.id for token in shown) == answer
        yield dataclasses.replace(trace, baseline=baseline, identical=None if ticket.stopped else same)

    # Requests, as the engine's thread runs them

    def _submit(
        self,
        engine: _Engine,
        start: Callable[[Share], Generator],
        tokens: int,
        prompt_tokens: int,
        stop: threading.Event | None,
        first: bool = False,
    ):
        """Hand a request to the batcher that comes to hold `tokens` tokens at most."""
        tokens = min(tokens, self.context_limit)
        blocks = {engine.target: _blocks(engine.target, tokens, prompt_tokens)}
        if self._draft is not None:
            blocks[self._draft] = _blocks(self._draft, tokens, prompt_tokens)

        def begin(share: Share) -> Generator:
            for model, count in blocks.items():
                model.make_free(count)
            return start(share)

        try:
            return self._batcher.submit(
                begin, self._models(engine), blocks=blocks, stop=stop, first=first, merged_tokens=engine.merged
            )
        except CacheFull as error:
            limit = engine.target.pool.limit * engine.target.block_size
            raise BadInput(
                f"Prompt and answer may come to {tokens} tokens; this server's KV cache holds {limit} for everybody: "
                "ask for fewer tokens."
            ) from error
        except (Busy, RequestFailed) as error:
            raise BadInput(str(error)) from error

    def _answering(
        self,
        engine: _Engine,
        tokens: tuple[int, ...],
        settings: Settings,
        certified: bool,
        measured: _Measured,
        share: Share,
    ) -> Decoding:
        """The whole of a request: prompt, answer, certificate. Yields rounds; returns why it finished."""
        since = perf_counter()
        known, measured.reused = yield from self._prompt(engine, tokens)
        draft = None
        try:
            measured.prefill = known.prompt.seconds
            sampling = _sampling(settings)
            lookahead = self._lookahead(engine, settings)
            if self._draft is not None and settings.drafter in ("auto", "model"):
                draft = engine.prompts.start_draft(tokens)
            limits = Limits(settings.max_new_tokens, self.context_limit, self._loaded.stop_ids)
            answer: list[int] = []
            with engine.target.fork(known.target, len(tokens)) as sequence:
                decoding = decode(
                    known.prompt,
                    target=sequence,
                    drafter=self._drafter(settings, lookahead, sampling, draft),
                    lookahead=lookahead,
                    sampling=sampling,
                    limits=limits,
                    guard=engine.guard,
                )
                reason = yield from self._timed(decoding, engine, since, measured, answer, lookahead, share)
            if certified and engine.chunk and (sampling.greedy or sampling.coupling == "shared"):
                with engine.target.fork(known.target, len(tokens)) as sequence:
                    difference, seconds = yield from certify(
                        known.prompt, tuple(answer), sequence, sampling, engine.chunk
                    )
                measured.certificate = Certificate(difference is None, len(answer), difference, seconds)
            return reason
        finally:
            if draft is not None:
                engine.prompts.keep_draft(known, draft)
            engine.prompts.unpin(known)

    def _repeating(
        self, engine: _Engine, tokens: tuple[int, ...], trace: Trace, measured: _Measured, share: Share
    ) -> Decoding:
        """The whole of a baseline."""
        known, _ = yield from self._prompt(engine, tokens)
        try:
            sampling = _sampling(trace.settings)
            answer = trace.token_ids
            lookahead = Lookahead()
            with engine.target.fork(known.target, len(tokens), min_tokens=1) as sequence:
                if trace.certificate is not None and trace.certificate.certified:
                    decoding = follow(known.prompt, answer, sequence, sampling)
                else:
                    limits = Limits(len(answer), self.context_limit, self._loaded.stop_ids)
                    decoding = decode(
                        known.prompt,
                        target=sequence,
                        drafter=None,
                        lookahead=lookahead,
                        sampling=sampling,
                        limits=limits,
                    )
                since = perf_counter() - trace.prefill_seconds
                return (yield from self._timed(decoding, engine, since, measured, [], lookahead, share))
        finally:
            engine.prompts.unpin(known)

    def _timed(
        self,
        decoding: Decoding,
        engine: _Engine,
        since: float,
        measured: _Measured,
        answer: list[int],
        lookahead: Lookahead,
        share: Share,
    ) -> Decoding:
        """A decoding with the times of its rounds, counted from `since`; its tokens are added to `answer`."""
        target, draft = engine.target, self._draft or engine.target
        begun, cpu = target.seconds + draft.seconds, time.process_time()
        halves = 1.0 if draft is not target else 0.5
        lookahead.others = share.rows
        reply = None
        try:
            while True:
                event = decoding.send(reply)
                if type(event) is Forward:
                    reply = yield event
                    lookahead.others = share.rows
                else:
                    measured.inference = (target.seconds + draft.seconds - begun) * halves
                    answer += [token.id for token in event.tokens]
                    reply = yield event.at(perf_counter() - since)
        except StopIteration as done:
            return done.value
        finally:
            decoding.close()
            measured.cpu = time.process_time() - cpu

    # Parts

    def _check(self, instruction: str, settings: Settings, prompt: tuple[int, ...] | None = None) -> tuple[int, ...]:
        if prompt == ():
            raise BadInput("The prompt is empty.")
        if prompt is None and not instruction.strip():
            raise BadInput("The instruction is empty; write a question or a task.")
        if not 1 <= settings.max_new_tokens <= MAX_NEW_TOKENS:
            raise BadInput(f"max new tokens is {settings.max_new_tokens}; it must be from 1 to {MAX_NEW_TOKENS}.")
        if settings.draft_tokens is not None and not 1 <= settings.draft_tokens <= MAX_DRAFT:
            raise BadInput(f"draft tokens is {settings.draft_tokens}; it must be auto or from 1 to {MAX_DRAFT}.")
        if not 0 <= settings.temperature <= 5:
            raise BadInput(f"temperature is {settings.temperature}; it must be from 0 (greedy) to 5.")
        if not 0 < settings.top_p <= 1:
            raise BadInput(f"top-p is {settings.top_p}; it must be above 0 and at most 1.")
        if settings.top_k < 0:
            raise BadInput(f"top-k is {settings.top_k}; it must be 0 (off) or more.")
        for name, value, choices in (
            ("drafter", settings.drafter, ("auto", "model", "lookup", "none")),
            ("numerics", settings.numerics, ("exact", "fast")),
            ("coupling", settings.coupling, ("shared", "maximal")),
        ):
            if value not in choices:
                raise BadInput(f"{name} is {value!r}; it must be one of {', '.join(choices)}.")
        if settings.drafter == "model" and self._loaded.draft_xml is None:
            raise BadInput(
                f"The pair {self._loaded.info.name} has no draft model; choose the drafter lookup or auto."
            )
        tokens = prompt or tuple(self._loaded.template.render(instruction, self._tokenizer))
        if len(tokens) >= self.context_limit:
            raise BadInput(
                f"The {'instruction' if prompt is None else 'prompt'} is {len(tokens)} tokens long with its template; "
                f"this model reads fewer than {self.context_limit}: shorten it."
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
                    raise ModelError(f"{file} cannot be read any more; fetch or export it again.") from error
            return self._engines[name]

    def _compile(self, name: str) -> _Engine:
        xml, device, kv_cache = self._loaded.target_xml, self._loaded.device, self._loaded.kv_cache
        if name == "exact":
            target, found = numerics.exact_model(xml, device, self._core, kv_cache)
            merged = min(found.tokens, MERGED_TOKENS)
            if not isinstance(target, PagedModel) or merged and not numerics.merging_is_exact(target, merged):
                merged = 0
            words = f"{found}; " + ("requests that share a forward get the same bits" if merged else _ONE_BY_ONE)
            prompts = PromptCache(target, self._draft, self._opening)
            how = f"exact ({_how(target)}): {words}"
            guard = found.guard if isinstance(target, PagedModel) else None
            engine = _Engine(target, 2, found.tokens, merged, how, prompts, guard=guard)
            if found.tokens:
                engine.policy.limit = min(MAX_DRAFT, found.tokens - 1)
        else:
            target = numerics.fast_model(xml, device, self._core, kv_cache)
            prompts = PromptCache(target, self._draft, self._opening)
            engine = _Engine(target, 1, 0, MERGED_TOKENS, f"fast ({_how(target)})", prompts)
        numerics.learn_costs(
            target, engine.policy.costs, min_tokens=engine.min_tokens, lone=engine.guard is not None
        )
        if self._draft is not None:
            engine.policy.costs.saw_draft(self._draft_seconds)
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
        caches = [engine.prompts for engine in list(self._engines.values())]
        caches = [cache for cache in caches if model in (cache.target, cache.draft)]
        for cache in caches:
            others = sum(other.held(model) for other in caches if other is not cache)
            cache.make_room(model, max(blocks - others, 0))

    def _prompt(self, engine: _Engine, tokens: tuple[int, ...]) -> Generator[Forward, Reply, tuple[KnownPrompt, int]]:
        """The prompt, run and in use (unpin it), and how many of its tokens the cache already held."""
        known = engine.prompts.pin(tokens)
        if known is not None:
            return known, len(tokens)
        sequence = engine.prompts.start(tokens, engine.min_tokens)
        reused = sequence.length
        try:
            prompt = yield from prefill(sequence, tokens, engine.prompts.opening_of(tokens))
        except BaseException:
            sequence.release()
            raise
        return engine.prompts.add(prompt, sequence), reused

    def _lookahead(self, engine: _Engine, settings: Settings) -> Lookahead:
        """A run's lookahead: costs and calibration are the engine's, and go on learning from run to run."""
        shared = engine.policy
        return Lookahead(
            fixed=settings.draft_tokens,
            limit=shared.limit,
            costs=shared.costs,
            calibration=shared.calibration,
            improvement=shared.improvement,
            least=1 if engine.guard is not None and _sampling(settings).guardable else engine.min_tokens,
        )

    def _drafter(
        self, settings: Settings, lookahead: Lookahead, sampling: Sampling, draft: Sequence | None
    ) -> Drafter | None:
        if settings.drafter == "none":
            return None
        lookup = Lookup()
        if settings.drafter == "lookup":
            return AutoDrafter([lookup], lookahead, sampling=sampling)
        model = None
        if draft is not None:
            model = ModelDrafter(
                draft, lookahead, sampling, head_tokens=self._draft.head_tokens, window=self._loaded.draft_window
            )
        if settings.drafter == "model":
            return model
        phrases = self._loaded.phrases
        guessers = [lookup] if phrases is None else [lookup, Phrases(phrases)]
        return AutoDrafter(guessers, lookahead, model, sampling)


def machine_name(core: ov.Core | None = None) -> str:
    """The processor's name and how many threads OpenVINO uses on it."""
    core = core or ov.Core()
    return f"{core.get_property('CPU', 'FULL_DEVICE_NAME').strip()}, {platform.machine()}"


def _blocks(model: Model, tokens: int, prompt_tokens: int) -> int:
    """Cache blocks that a request can come to hold: its prompt's, which is kept for others, and its own, which shares
    the prompt's whole blocks where blocks can be shared; the last forward may run a draft's length past the end."""
    size = model.block_size
    shared = prompt_tokens // size if isinstance(model, PagedModel) else 0
    return -(-prompt_tokens // size) + -(-(tokens + MAX_DRAFT + 1) // size) - shared


def _require_room(xml: Path) -> None:
    """Raise BadInput if the target cannot be held once more, compiled for other numerics: a large one would get
    this process killed."""
    needed, free = xml.with_suffix(".bin").stat().st_size, machine.available_bytes()
    if needed > free:
        raise BadInput(
            f"The target compiled for other numerics takes {needed / 1e9:.1f} GB more and {free / 1e9:.1f} GB are free; "
            "keep to the numerics that were used first."
        )


def _how(model: Model) -> str:
    """What a model was compiled with, and the path it runs on where that is not the usual one."""
    properties = ", ".join(f"{key}={value}" for key, value in model.settings.properties)
    return "; ".join(filter(None, [properties or "the plugin's own choice", model.note]))


def _sampling(settings: Settings) -> Sampling:
    return Sampling(settings.temperature, settings.top_p, settings.top_k, settings.seed, settings.coupling)


def _with_texts(round_: Round, text, tokenizer) -> Round:
    """The round with every token's text: kept tokens as the stream shows them, rejected ones on their own."""
    drafted = tuple(
        dataclasses.replace(token, text=text.push(token.id) if token.accepted else tokenizer.decode([token.id]))
        for token in round_.drafted
    )
    emitted = round_.emitted and dataclasses.replace(round_.emitted, text=text.push(round_.emitted.id))
    return dataclasses.replace(round_, drafted=drafted, emitted=emitted)
