"""A loaded pair, ready to answer: joins what the zoo loaded with the engine, and puts texts into the trace.

Does not fetch models and draws nothing; the page, the command line and the benchmark all answer through it.
"""

from __future__ import annotations

import dataclasses
import platform
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter

import openvino as ov

from specdemo.engine import numerics
from specdemo.engine.decode import (
    Finished,
    Limits,
    Prompt,
    certify,
    decode,
    follow,
    perform,
    prefill,
    run,
)
from specdemo.engine.drafters import AutoDrafter, Drafter, Lookup, ModelDrafter, Phrases
from specdemo.engine.lookahead import MAX_DRAFT, Lookahead
from specdemo.engine.model import PREFILL_CHUNK, ModelSettings, PagedModel, Sequence
from specdemo.engine.sampling import Sampling
from specdemo.engine.trace import (
    Baseline,
    BaselineToken,
    Certificate,
    NearTie,
    PairInfo,
    Round,
    Settings,
    Trace,
)
from specdemo.zoo.load import LoadedPair

MAX_NEW_TOKENS = 4096
WARM_UP_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)


class RequestError(ValueError):
    """A request that cannot be answered; the message is one sentence for the user."""


@dataclass
class _PromptCache:
    """The last prompt that was run and the cache blocks that hold it."""

    prompt: Prompt
    sequence: Sequence


@dataclass
class _Engine:
    """A target in one setting of numerics, with what decoding on it has taught so far.

    `min_tokens` is the least number of tokens of an answer's forwards, `chunk` the most a certificate may run at once
    (0: no certificate in these numerics).
    """

    target: PagedModel
    min_tokens: int
    chunk: int
    found: str
    lookahead: Lookahead = field(default_factory=Lookahead)
    cached: _PromptCache | None = None


class Session:
    """Answers instructions with one pair, one request at a time (thread safe; requests wait for each other).

    Compiles the models: takes seconds. `threads` bounds the processor threads of an inference, for several sessions
    on one machine (None: the plugin takes what it finds). Raises ModelError when a model cannot be used.
    """

    def __init__(self, loaded: LoadedPair, *, threads: int | None = None):
        self._loaded = loaded
        self._lock = threading.Lock()
        self._core = ov.Core()
        if threads is not None:
            # Pinned threads of two processes would sit on the same cores.
            self._core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False})
        self._tokenizer = loaded.tokenizer
        self.context_limit = loaded.context_limit
        self._draft: PagedModel | None = None
        self._draft_sequence: Sequence | None = None
        self._draft_seconds = 0.0
        self._engines: dict[str, _Engine] = {}
        exact = self._engine("exact")
        self.info: PairInfo = dataclasses.replace(loaded.info, numerics_found=exact.found)
        if loaded.draft_xml is not None:
            self._draft = numerics.fastest_model(
                loaded.draft_xml,
                loaded.draft_device,
                self._core,
                head_tokens=loaded.draft_head_tokens,
                vocabulary=exact.target.vocabulary_size,
            )
            self._draft_sequence = self._draft.new_sequence()
            self._draft_seconds = numerics.step_seconds(self._draft)
            exact.lookahead.costs.saw_draft(self._draft_seconds)

    def target_properties(self, name: str) -> dict[str, str]:
        """The OpenVINO properties that the target runs with in these numerics, "exact" or "fast"."""
        with self._lock:
            return dict(self._engine(name).target.settings.properties)

    def close(self) -> None:
        """Release the models; waits for a request that is being answered."""
        with self._lock:
            self._engines.clear()
            self._draft = self._draft_sequence = None

    # Answers

    def answer(
        self,
        instruction: str,
        settings: Settings,
        *,
        stop: threading.Event | None = None,
        prompt: tuple[int, ...] | None = None,
    ) -> Iterator[Round | Trace]:
        """Answer an instruction; yields each Round as it is made, and last the finished Trace.

        `prompt` are token ids to answer in place of the instruction in its template: a conversation, say. The trace
        then has the instruction as its title only, and `baseline` cannot repeat it. Raises RequestError, before
        anything runs, for an instruction or a setting that cannot be used. Setting `stop` or closing the iterator ends
        it within one forward.
        """
        tokens = self._check(instruction, settings, prompt)
        return self._answer(instruction, tokens, settings, stop)

    def _answer(
        self, instruction: str, tokens: tuple[int, ...], settings: Settings, stop: threading.Event | None
    ) -> Iterator[Round | Trace]:
        with self._lock:
            engine = self._engine(settings.numerics)
            since = perf_counter()
            cached, reused = self._prompt(engine, tokens, stop)
            if cached is None:
                yield self._trace(instruction, tokens, reused, settings, engine, [], "cancelled", 0.0, 0.0, None, 0.0)
                return
            sampling = _sampling(settings)
            lookahead = self._lookahead(engine, settings)
            sequence = engine.target.fork(cached.sequence, len(tokens))
            rounds: list[Round] = []
            reason = "cancelled"
            inference = 0.0
            text = self._tokenizer.stream()
            try:
                decoding = decode(
                    cached.prompt,
                    target=sequence,
                    drafter=self._drafter(settings, lookahead, sampling),
                    lookahead=lookahead,
                    sampling=sampling,
                    limits=Limits(settings.max_new_tokens, self.context_limit, self._loaded.stop_ids),
                )
                begun, cpu = self._inference_seconds(engine), time.process_time()
                for event in run(decoding, self._models(engine), stop=stop, since=since):
                    if isinstance(event, Finished):
                        reason = event.reason
                        break
                    rounds.append(_with_texts(event, text, self._tokenizer))
                    inference = self._inference_seconds(engine) - begun
                    yield rounds[-1]
                cpu = time.process_time() - cpu
                certificate = None
                if rounds and reason != "cancelled":
                    certificate = self._certificate(engine, cached, rounds, sampling, stop)
                yield self._trace(
                    instruction, tokens, reused, settings, engine, rounds, reason, cached.prompt.seconds, cpu,
                    certificate, inference,
                )  # fmt: skip
            finally:
                sequence.release()

    def baseline(self, trace: Trace, *, stop: threading.Event | None = None) -> Iterator[BaselineToken | Trace]:
        """Decode a trace's prompt again with the target alone, one token a forward; yields each token as it is made,
        and last the Trace with `baseline` and `identical` set.

        Times count as if the prompt had been prefilled anew: the measured seconds of the prefill are added, so that
        both runs start from the same line. A certified answer is followed (see `engine.decode.follow`); any other is
        decoded freely and compared.
        """
        tokens = self._check(trace.instruction, trace.settings)
        return self._baseline(trace, tokens, stop)

    def _baseline(
        self, trace: Trace, tokens: tuple[int, ...], stop: threading.Event | None
    ) -> Iterator[BaselineToken | Trace]:
        with self._lock:
            engine = self._engine(trace.settings.numerics)
            cached, _ = self._prompt(engine, tokens, stop)
            if cached is None or not trace.rounds:
                yield trace
                return
            sampling = _sampling(trace.settings)
            certified = trace.certificate is not None and trace.certificate.certified
            sequence = engine.target.fork(cached.sequence, len(tokens), min_tokens=1)
            answer = trace.token_ids
            limits = Limits(len(answer), self.context_limit, self._loaded.stop_ids)
            decoding = (
                follow(cached.prompt, answer, sequence, sampling)
                if certified
                else decode(
                    cached.prompt,
                    target=sequence,
                    drafter=None,
                    lookahead=Lookahead(),
                    sampling=sampling,
                    limits=limits,
                )
            )
            shown: list[BaselineToken] = []
            stopped = True
            ties: list[NearTie] = []
            text = self._tokenizer.stream()
            cpu = time.process_time()
            try:
                since = perf_counter() - trace.prefill_seconds
                for event in run(decoding, self._models(engine), stop=stop, since=since):
                    if isinstance(event, Finished):
                        stopped = event.reason == "cancelled"
                        break
                    [token] = event.tokens
                    for tie in event.drafted:
                        ties.append(NearTie(len(shown), tie.draft_probability or 0.0))
                    shown.append(BaselineToken(token.id, event.shown_at, text.push(token.id)))
                    yield shown[-1]
            finally:
                sequence.release()
            baseline = Baseline(tuple(shown), trace.prefill_seconds, time.process_time() - cpu, tuple(ties))
            same = tuple(token.id for token in shown) == answer
            yield dataclasses.replace(trace, baseline=baseline, identical=None if stopped else same)

    # Parts

    def _check(self, instruction: str, settings: Settings, prompt: tuple[int, ...] | None = None) -> tuple[int, ...]:
        if prompt == ():
            raise RequestError("The prompt is empty.")
        if prompt is None and not instruction.strip():
            raise RequestError("The instruction is empty; write a question or a task.")
        if not 1 <= settings.max_new_tokens <= MAX_NEW_TOKENS:
            raise RequestError(f"max new tokens is {settings.max_new_tokens}; it must be from 1 to {MAX_NEW_TOKENS}.")
        if settings.draft_tokens is not None and not 1 <= settings.draft_tokens <= MAX_DRAFT:
            raise RequestError(f"draft tokens is {settings.draft_tokens}; it must be auto or from 1 to {MAX_DRAFT}.")
        if not 0 <= settings.temperature <= 5:
            raise RequestError(f"temperature is {settings.temperature}; it must be from 0 (greedy) to 5.")
        if not 0 < settings.top_p <= 1:
            raise RequestError(f"top-p is {settings.top_p}; it must be above 0 and at most 1.")
        if settings.top_k < 0:
            raise RequestError(f"top-k is {settings.top_k}; it must be 0 (off) or more.")
        for name, value, choices in (
            ("drafter", settings.drafter, ("auto", "model", "lookup", "none")),
            ("numerics", settings.numerics, ("exact", "fast")),
            ("coupling", settings.coupling, ("shared", "maximal")),
        ):
            if value not in choices:
                raise RequestError(f"{name} is {value!r}; it must be one of {', '.join(choices)}.")
        if settings.drafter == "model" and self._loaded.draft_xml is None:
            raise RequestError(
                f"The pair {self._loaded.info.name} has no draft model; choose the drafter lookup or auto."
            )
        tokens = prompt or tuple(self._loaded.template.render(instruction, self._tokenizer))
        if len(tokens) >= self.context_limit:
            raise RequestError(
                f"The {'instruction' if prompt is None else 'prompt'} is {len(tokens)} tokens long with its template; "
                f"this model reads fewer than {self.context_limit}: shorten it."
            )
        return tokens

    def _engine(self, name: str) -> _Engine:
        if name not in self._engines:
            self._engines[name] = self._compile(name)
        return self._engines[name]

    def _compile(self, name: str) -> _Engine:
        xml, device = self._loaded.target_xml, self._loaded.device
        if name == "exact":
            target, found = numerics.exact_model(xml, device, self._core)
            properties = ", ".join(f"{key}={value}" for key, value in target.settings.properties)
            engine = _Engine(target, 2, found.tokens, f"exact ({properties}): {found}")
            if found.tokens:
                engine.lookahead.limit = min(MAX_DRAFT, found.tokens - 1)
        else:
            engine = _Engine(
                PagedModel(xml, ModelSettings(device), core=self._core), 1, 0, "fast: the plugin's own choice"
            )
        for size, seconds in numerics.measure_costs(engine.target, WARM_UP_SIZES, min_tokens=engine.min_tokens):
            engine.lookahead.costs.saw_verify(size, seconds)
        if self._draft is not None:
            engine.lookahead.costs.saw_draft(self._draft_seconds)
        return engine

    def _models(self, engine: _Engine) -> dict[str, PagedModel]:
        return {"target": engine.target, **({"draft": self._draft} if self._draft else {})}

    def _inference_seconds(self, engine: _Engine) -> float:
        return engine.target.seconds + (self._draft.seconds if self._draft else 0.0)

    def _prompt(
        self, engine: _Engine, tokens: tuple[int, ...], stop: threading.Event | None
    ) -> tuple[_PromptCache | None, int]:
        """The prompt, run (None when stopped), and how many of its tokens the cache already held.

        Reuse is whole chunks of the prefill or the whole prompt, nothing between: a prompt's logits are then the same
        bits whatever was asked before.
        """
        old = engine.cached
        if old is not None and old.prompt.tokens == tokens:
            return old, len(tokens)
        reused = 0
        if old is not None:
            limit = min(len(tokens) - 1, len(old.prompt.tokens))
            while reused + PREFILL_CHUNK <= limit and (
                tokens[reused : reused + PREFILL_CHUNK] == old.prompt.tokens[reused : reused + PREFILL_CHUNK]
            ):
                reused += PREFILL_CHUNK
        sequence = (
            engine.target.fork(old.sequence, reused)
            if reused
            else engine.target.new_sequence(min_tokens=engine.min_tokens)
        )
        if old is not None:
            old.sequence.release()
            engine.cached = None
        prompt = None
        try:
            prompt = perform(prefill(sequence, tokens), self._models(engine), stop=stop)
        finally:
            if prompt is None:
                sequence.release()
        if prompt is None:
            return None, reused
        engine.cached = _PromptCache(prompt, sequence)
        return engine.cached, reused

    def _lookahead(self, engine: _Engine, settings: Settings) -> Lookahead:
        """A run's lookahead: costs and calibration are the engine's, and go on learning from run to run."""
        shared = engine.lookahead
        return Lookahead(
            fixed=settings.draft_tokens, limit=shared.limit, costs=shared.costs, calibration=shared.calibration
        )

    def _drafter(self, settings: Settings, lookahead: Lookahead, sampling: Sampling) -> Drafter | None:
        if settings.drafter == "none":
            return None
        lookup = Lookup(lookahead)
        if settings.drafter == "lookup":
            return AutoDrafter([lookup], lookahead)
        model = None
        if self._draft is not None:
            model = ModelDrafter(self._draft_sequence, lookahead, sampling, head_tokens=self._draft.head_tokens)
        if settings.drafter == "model":
            return model
        phrases = self._loaded.phrases
        guessers = [lookup] if phrases is None else [lookup, Phrases(phrases, lookahead)]
        return AutoDrafter(guessers, lookahead, model)

    def _certificate(
        self,
        engine: _Engine,
        cached: _PromptCache,
        rounds: list[Round],
        sampling: Sampling,
        stop: threading.Event | None,
    ) -> Certificate | None:
        if not engine.chunk or (not sampling.greedy and sampling.coupling == "maximal"):
            return None
        answer = tuple(token.id for round_ in rounds for token in round_.tokens)
        with engine.target.fork(cached.sequence, len(cached.prompt.tokens)) as sequence:
            checked = perform(
                certify(cached.prompt, answer, sequence, sampling, engine.chunk), self._models(engine), stop=stop
            )
        if checked is None:
            return None
        difference, seconds = checked
        return Certificate(difference is None, len(answer), difference, seconds)

    def _trace(
        self, instruction: str, tokens: tuple[int, ...], reused: int, settings: Settings, engine: _Engine,
        rounds: list[Round], reason: str, prefill_seconds: float, cpu: float, certificate: Certificate | None,
        inference: float,
    ) -> Trace:  # fmt: skip
        decoding = rounds[-1].shown_at - rounds[0].shown_at if rounds else 0.0
        return Trace(
            instruction=instruction,
            prompt_tokens=len(tokens),
            prompt_reused=reused,
            pair=dataclasses.replace(self.info, numerics_found=engine.found),
            settings=settings,
            prefill_seconds=prefill_seconds,
            rounds=tuple(rounds),
            finish_reason=reason,
            cpu_seconds=cpu,
            outside_seconds=max(decoding - inference, 0.0),
            certificate=certificate,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine_name(self._core),
        )


def machine_name(core: ov.Core | None = None) -> str:
    """The processor's name and how many threads OpenVINO uses on it."""
    core = core or ov.Core()
    return f"{core.get_property('CPU', 'FULL_DEVICE_NAME').strip()}, {platform.machine()}"


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
