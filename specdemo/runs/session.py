"""Answers with a loaded pair: turns texts into requests to the engine, and their rounds into
traces. The page, the command line, the servers and the benchmark use it."""

from collections.abc import Generator
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

from specdemo.engine import pair_files
from specdemo.engine.backends import kernels
from specdemo.engine.decode import Limits
from specdemo.engine.engine import Engine
from specdemo.engine.policy import Acceptance
from specdemo.engine.profile import Profile
from specdemo.engine.request import Answering, Request, answer
from specdemo.engine.rounds import Round
from specdemo.engine.sampling import Sampling
from specdemo.engine.scheduler import QUEUED, Activity
from specdemo.errors import BadInput, Closed, ModelError
from specdemo.machine import hardware, measured
from specdemo.machine.terminal import Meter, Progress, Report, watched
from specdemo.pairs import loading
from specdemo.pairs.loading import LoadedPair
from specdemo.pairs.registry import Pair
from specdemo.runs import race
from specdemo.runs.answer_run import AnswerRun
from specdemo.runs.question import Prompt, Question, SessionEvent, read_prompt
from specdemo.runs.trace import Trace
from specdemo.text.grammar import Grammars
from specdemo.text.templates import Chat
from specdemo.text.tokenizer import valid

ACTIVE_REQUESTS = 16  # requests that run at once by default


class Session(AbstractContextManager["Session"]):
    """Answers prompts with one pair, many at a time: requests share forwards (thread safe).

    Compiles the models, which takes seconds. `threads` bounds the processor threads of an inference
    (None: all that the plugin finds). `active` requests run at once and `waiting` more wait; those
    whose worst case does not fit into the KV cache wait too. That of the target takes at most
    `cache_mb` megabytes (None: the smaller of half the free memory and the most that all requests
    can need), but holds one full context at least; other caches hold as many tokens. What the first
    token does not need is compiled and measured in the `background` between requests, or before the
    first race. Raises ModelError for an unusable model.
    """

    def __init__(
        self,
        loaded: LoadedPair,
        *,
        threads: int | None = None,
        active: int = ACTIVE_REQUESTS,
        waiting: int = QUEUED,
        cache_mb: int | None = None,
        background: bool = True,
    ):
        self.loaded = loaded
        self._tokenizer = loaded.tokenizer
        if threads is None and hardware.processors() < hardware.visible_processors():
            threads = hardware.processors()  # OpenVINO does not know of a quota
        subject = measured.subject_of(loaded, threads)
        kernels.keep_code = measured.kept_code
        profile = measured.read("profile", subject, Profile) or loaded.typical_profile or Profile()
        try:
            self.engine = Engine(
                loaded,
                context_limit=loaded.context_limit,
                threads=threads,
                active=active,
                waiting=waiting,
                cache_mb=cache_mb,
                available_bytes=hardware.available_bytes,
                profile=profile,
                remember=partial(measured.write, "profile", subject),
                background=background,
            )
        except ModelError:
            loaded.check.require()  # raises DamagedModel if a damaged file is the reason
            raise
        self.context_limit = self.engine.context_limit
        target = self.engine.target("exact")
        self.info = replace(loaded.info, numerics_found=target.description)

    def target_properties(self, numerics: str) -> dict[str, str]:
        """The OpenVINO properties of the target model in these numerics, "exact" or "fast"."""
        return kernels.plugin_properties(self.engine.target(numerics).model.settings.properties)

    @cached_property
    def grammars(self) -> Grammars:
        """Compiles JSON schemas and tools for the target model. Raises the errors of Grammars."""
        return Grammars(self.loaded.tokenizer, self.loaded.stop_ids)

    @property
    def activity(self) -> Activity:
        """The scheduler's active and waiting requests, restarts, and background work."""
        return self.engine.scheduler.activity

    def prepare(self, numerics: str = "exact") -> None:
        """Wait until all that makes answers fast is compiled and measured."""
        for _ in self.engine.preparing(numerics):
            pass

    def close(self) -> None:
        """Cancel the running answers and release the models."""
        self.engine.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, question: Question) -> Generator[SessionEvent]:
        """Yields each Round as it is made, with `baseline` then the BaselineTokens, and last the
        Trace, with `repeat` again after each further race. A Waiting comes every second while the
        request waits, and every 0.2 s while models are compiled first. A run stopped during the
        answer has no baseline; in one stopped later `identical` is None. Raises BadInput for
        unusable input, before anything runs, Busy when too many requests wait, and Closed.
        Closing the iterator ends it."""
        first: dict[str, Any] = {"timed": question.baseline, "candidates": question.candidates}
        request = self._request(question, logprobs=question.logprobs, **first)
        return self._events(question, request)

    def _events(self, question: Question, request: Request) -> Generator[SessionEvent]:
        settings = question.settings
        if question.measured and (question.baseline or settings.drafter == "model"):
            yield from self.engine.preparing(settings.numerics, question.stop)
        target = self.engine.target(settings.numerics)
        # Each race begins with the acceptance rates of the first: what a run learns is faster.
        rates = deepcopy(dict(target.policy.acceptance)) if question.repeat else None
        run = self._start(question, request)
        yield from run.events()
        timing = run.handle.timing
        trace = Trace(
            instruction=valid(question.instruction) or self._tokenizer.decode(request.tokens),
            prompt_tokens=len(request.tokens),
            prompt_reused=timing.reused,
            pair=replace(self.info, numerics_found=target.description),
            settings=settings,
            prefill_seconds=timing.prefill,
            rounds=tuple(run.rounds),
            finish_reason=run.finish_reason,
            cpu_seconds=timing.cpu,
            joules=run.joules,
            outside_seconds=run.outside_seconds,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=hardware.describe(),
            share=run.share,
            shared_with=run.handle.max_others,
            compiling=run.compiling,
            calls=run.calls,
        )
        if not question.baseline or run.finish_reason == "cancelled":
            yield trace
            return

        def again(baseline: bool, rates: dict[str, Acceptance] | None = None) -> AnswerRun:
            """The question once more. Times count as if the prefill had taken as long as the first
            time, because the prompt is in the prefix cache now."""
            drafter = "none" if baseline else settings.drafter
            same = replace(question, settings=replace(settings, drafter=drafter))
            prefill = trace.prefill_seconds
            return self.submit(same, first=True, timed=True, rates=rates, prefill_seconds=prefill)

        def again_if_quiet(baseline: bool) -> AnswerRun | None:
            activity = self.activity
            if activity.active or activity.waiting or activity.preparing or question.loading():
                return None
            try:
                run = again(baseline, deepcopy(rates))
            except Closed:
                return None
            run.result()
            return run

        run = again(baseline=True)
        for event in run.events():
            yield race.baseline_token(event) if isinstance(event, Round) else event
        trace = race.with_run(trace, run, baseline=True)
        yield trace
        yield from race.repeated(trace, question.repeat, again_if_quiet)

    def submit(
        self, question: Question, work: Answering = answer, *, first: bool = False, **options: Any
    ) -> AnswerRun:
        """Start a request, with `first` before all that wait; `options` are its fields. Raises the
        errors of `ask`."""
        return self._start(question, self._request(question, **options), work, first)

    def _start(
        self, question: Question, request: Request, work: Answering = answer, first: bool = False
    ) -> AnswerRun:
        target = self.engine.target(question.settings.numerics)
        handle = self.engine.submit(request, target, work, stop=question.stop, first=first)
        return AnswerRun(question, request.tokens, handle, self._tokenizer)

    def _request(self, question: Question, **options: Any) -> Request:
        """The question as a request; `options` are its fields. Raises BadInput for what this pair
        cannot answer, DamagedModel for damaged files."""
        loaded, settings = self.loaded, question.settings
        loaded.check.require(0)
        if settings.drafter == "model" and not self.engine.drafts:
            raise BadInput(
                f"The pair {self.info.name} has no draft model (or a draft head, which needs a "
                "target with a paged KV cache); choose the drafter lookup or auto."
            )
        drafts = loaded.translation is not None and settings.drafter in ("auto", "model")
        if drafts and settings.coupling == "maximal" and settings.temperature:
            raise BadInput(
                f"The draft model of {self.info.name} has another vocabulary than the target; the "
                "maximal coupling cannot compare them: choose the shared coupling."
            )
        tokens = self._prompt_tokens(question.prompt)
        if len(tokens) >= self.context_limit:
            raise BadInput(
                f"The prompt is too long: {len(tokens)} tokens with its template; this model reads "
                f"fewer than {self.context_limit}.",
                code="context_length_exceeded",
            )
        size = self.engine.target("exact").model.vocabulary_size
        if (biased := max((token for token, _ in settings.logit_bias), default=-1)) >= size:
            message = f"logit_bias names token {biased}; this model's ids are below {size}."
            raise BadInput(message, "logit_bias")
        if settings.json_schema or question.tools:
            start = self.grammars.compiled(settings.json_schema, question.tools)
            options["constraint"] = start()
        if question.prediction:
            options["prediction"] = question.prediction[: self.context_limit]
        stop_ids = frozenset() if question.ignores_end else loaded.stop_ids
        return Request(
            tokens,
            Sampling(**{field.name: getattr(settings, field.name) for field in fields(Sampling)}),
            Limits(settings.max_new_tokens, self.context_limit, stop_ids),
            settings.drafter,
            settings.draft_tokens,
            **options,
        )

    def _prompt_tokens(self, prompt: Prompt) -> tuple[int, ...]:
        read = read_prompt(prompt)
        if isinstance(read, Chat):
            return tuple(self.loaded.template.render_chat(read, self._tokenizer))
        if not 0 <= min(read) <= max(read) < self._tokenizer.vocabulary_size:
            last = self._tokenizer.vocabulary_size - 1
            raise BadInput(f"The prompt's tokens must be from 0 to {last}.", "prompt")
        return read


def open_session(pair: Pair, report: Report, **capacity: Any) -> Session:
    """Fetch missing files of `pair`, and compile its models, in seconds to hours. `capacity` are
    arguments of Session. Raises SpecdemoError."""
    return compiled_session(loading.load_pair(pair, report), report, **capacity)


def compiled_session(loaded: LoadedPair, report: Report, **capacity: Any) -> Session:
    """A Session of `loaded`; `capacity` are its other arguments. Reports the compilation."""
    target, before = loaded.info.target, hardware.own_bytes()

    def show(progress: Progress) -> None:
        copied = progress.done == progress.total
        exact = Progress(f"Checking that answers of {target} are exact here")
        report(exact if copied else replace(progress, rate=0.0))

    # The compiled model is a copy of the weights, so the memory taken is the progress. It
    # grows too unevenly to tell the time left.
    weights = pair_files.weights_size(loaded.target)
    meter = Meter(show, f"Compiling {target} for this processor", weights)
    with watched(meter, lambda: max(hardware.own_bytes() - before, 0)):
        return Session(loaded, **capacity)
