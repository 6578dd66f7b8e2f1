"""Answers with a loaded pair: turns texts into requests to the engine, and their rounds into
traces. The page, the command line, the servers and the benchmark use it."""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from copy import deepcopy
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

from specdemo.engine import checkpoint
from specdemo.engine.decode import Limits
from specdemo.engine.engine import CacheUse, Engine
from specdemo.engine.policy import Acceptance, Policy
from specdemo.engine.profile import Profile
from specdemo.engine.request import Request, Target
from specdemo.engine.rounds import Round
from specdemo.engine.sampling import Sampling
from specdemo.engine.scheduler import QUEUED, Activity
from specdemo.errors import BadInput, Busy, ModelError
from specdemo.host import hardware, measured
from specdemo.host.progress import Meter, Progress, watched
from specdemo.pairs import loading
from specdemo.pairs.choice import ModelChoice
from specdemo.pairs.loading import LoadedPair
from specdemo.pairs.registry import Pair
from specdemo.runs.answering import Answering, Event, Question
from specdemo.runs.race import enough, on_show
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Baseline, BaselineToken, ForwardCosts, Trace
from specdemo.text.grammar import Grammars
from specdemo.text.tools import Tools

ACTIVE_REQUESTS = 16  # requests that run at once by default


class Session(Answering, AbstractContextManager[Any]):
    """Answers instructions with one pair, many at a time: requests share forwards (thread safe).

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
        self.context_limit = loaded.context_limit
        about = measured.about_files(loaded, threads)
        profile = measured.read("profile", about) or loaded.typical_profile or Profile()
        try:
            self._engine = Engine(
                loaded,
                context_limit=loaded.context_limit,
                threads=threads,
                active=active,
                waiting=waiting,
                cache_mb=cache_mb,
                available_bytes=hardware.available_bytes,
                profile=profile,
                remember=partial(measured.keep, "profile", about),
                background=background,
            )
        except ModelError:
            loaded.check.require()  # raises DamagedModel if a damaged file is the reason
            raise
        target = self._engine.target("exact")
        self.info = replace(loaded.info, numerics_found=target.found)

    def target_properties(self, numerics: str) -> dict[str, str]:
        """The OpenVINO properties of the target model in these numerics, "exact" or "fast"."""
        return dict(self._engine.target(numerics).model.settings.properties)

    @cached_property
    def grammars(self) -> Grammars:
        """Compiles JSON schemas and tools for the target model. Raises the errors of Grammars."""
        return Grammars(self.loaded.tokenizer, self.loaded.stop_ids)

    @property
    def activity(self) -> Activity:
        """The scheduler's active and waiting requests, restarts, and background work."""
        return self._engine.scheduler.activity

    def cache_blocks(self) -> dict[str, CacheUse]:
        """The use of the KV caches "target", "target fast" and "draft", in blocks."""
        return self._engine.cache_blocks()

    def prepare(self, numerics: str = "exact") -> None:
        """Wait until all that makes answers fast is compiled and measured."""
        for _ in self._engine.preparing(numerics):
            pass

    def close(self) -> None:
        """Cancel the running answers and release the models."""
        self._engine.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def result_of(
        self,
        kind: type[Request],
        instruction: str,
        settings: Settings,
        tokens: tuple[int, ...] = (),
        stop: threading.Event | None = None,
        **options: Any,
    ) -> Any:
        """The result of a request of class `kind` after the answer's `tokens`; `options` are those
        of `_request`."""
        request = self._request(instruction, settings, kind=kind, answer=list(tokens), **options)
        target = self._engine.target(settings.numerics)
        handle = self._engine.submit(request, target, stop=stop)
        list(handle.events())
        return handle.result

    def ask(self, question: Question) -> Generator[Event]:
        asked = question.instruction, question.settings, question.prompt, question.tools
        request = self._request(
            *asked,
            timed=question.baseline,
            logprobs=question.logprobs,
            prediction=question.prediction,
        )
        return self._answer(question, request)

    def _answer(self, question: Question, request: Request) -> Generator[Event]:
        settings, stop = question.settings, question.stop
        missing = question.measured or not self._engine.compiled(settings.numerics)
        if missing and (question.baseline or settings.drafter == "model"):
            yield from self._engine.preparing(settings.numerics, stop)  # a race: a quiet machine
        target = self._engine.target(settings.numerics)
        rates = deepcopy(dict(target.policy.acceptance)) if question.repeat else None
        loading = question.loading()
        handle = self._engine.submit(request, target, stop=stop)
        rounds: list[Round] = []
        with closing(handle.events()) as events:
            for event in self._with_texts(events):
                if isinstance(event, Round):
                    rounds.append(event)
                yield event
        decoding = rounds[-1].shown_at - rounds[0].shown_at if rounds else 0.0
        trace = Trace(
            instruction=question.instruction,
            prompt_tokens=len(request.tokens),
            prompt_reused=request.reused,
            pair=replace(self.info, numerics_found=target.found),
            settings=settings,
            prefill_seconds=request.prefill,
            rounds=tuple(rounds),
            finish_reason="cancelled" if handle.stopped else handle.result,
            cpu_seconds=request.cpu,
            outside_seconds=max(decoding - request.inference, 0.0),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=hardware.describe(),
            shared_with=handle.most_others,
            costs=_costs(target.policy, len(request.tokens), request.answer),
            compiling=handle.compiling or loading or question.loading(),
        )
        raced = question.baseline and not handle.stopped
        if raced:
            trace = yield from self.baseline(trace, stop, question.prompt)
            trace = replace(trace, compiling=trace.compiling or question.loading())
        yield trace
        if raced and question.repeat:
            yield from self._repeats(question, trace, target, rates)

    def baseline(
        self,
        trace: Trace,
        stop: threading.Event | None = None,
        prompt: tuple[int, ...] | None = None,
    ) -> Generator[Event, None, Trace]:
        """Decode a trace's instruction, or `prompt` as in Question, autoregressively, independently
        of its answer; yields each token, and returns the trace with `baseline` and `identical` set.
        Times count as if the prefill had taken the trace's `prefill_seconds`: the prompt is in the
        prefix cache now."""
        settings, prefill = replace(trace.settings, drafter="none"), trace.prefill_seconds
        request = self._request(
            trace.instruction, settings, prompt, prefill_seconds=prefill, timed=True
        )
        target = self._engine.target(settings.numerics)
        handle = self._engine.submit(request, target, stop=stop, first=True)
        shown: list[BaselineToken] = []
        with closing(handle.events()) as events:
            for event in self._with_texts(events):
                if isinstance(event, Round):
                    event = _baseline_token(event)
                    shown.append(event)
                yield event
        baseline = Baseline(tuple(shown), prefill, request.cpu, handle.most_others)
        same = tuple(token.id for token in shown) == trace.token_ids
        identical = None if handle.stopped else same
        compiling = trace.compiling or handle.compiling
        return replace(trace, baseline=baseline, identical=identical, compiling=compiling)

    def _with_texts(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events of a request, with texts: rejected tokens are decoded by themselves."""
        text, decode = self._tokenizer.stream(), self._tokenizer.decode
        for event in events:
            if isinstance(event, Round):
                for token in event.drafted:
                    token.text = text(token.id) if token.accepted else decode([token.id])
                if event.emitted:
                    event.emitted.text = text(event.emitted.id)
            yield event

    def _repeats(
        self,
        question: Question,
        trace: Trace,
        target: Target,
        rates: dict[str, Acceptance] | None,
    ) -> Iterator[Trace]:
        """Race again until it is `enough`, while nobody else asks and nothing is compiled. Yields
        the race on show, with one repeat more each time. The two ways take turns in running first,
        so a drift of the machine's speed favours neither. Speculative runs begin with the
        acceptance `rates` of the first: a question that was learnt would seem fast."""
        races = [trace]
        ways = [True, False]
        while not enough(trace, question.repeat):
            race = replace(races[0], watched=False, shared_with=0, compiling=question.loading())
            for autoregressive in ways:
                activity = self.activity
                if activity.active or activity.waiting or activity.preparing or question.loading():
                    return
                try:
                    run, same = self._run_again(race, autoregressive, target, question, rates)
                except Busy:  # the models were closed; the race stands without more repeats
                    return
                if run is None:
                    return
                race = run
                if not same:
                    yield replace(race, identical=False)
                    return
            costs = _costs(target.policy, trace.prompt_tokens, trace.token_ids)
            races.append(replace(race, compiling=race.compiling or question.loading()))
            trace = replace(on_show(races), costs=costs)
            yield trace
            ways.reverse()

    def _run_again(
        self,
        race: Trace,
        autoregressive: bool,
        target: Target,
        question: Question,
        rates: dict[str, Acceptance] | None,
    ) -> tuple[Trace | None, bool]:
        """`race` with one of its two runs replaced by another, None if that was stopped, and
        whether it gave the same tokens. Both runs count as if the prefill had taken as long as
        that of the first, because the prompt is in the prefix cache now."""
        settings, prefill = race.settings, race.prefill_seconds
        if autoregressive:
            settings = replace(settings, drafter="none")
        request = self._request(
            race.instruction,
            settings,
            question.prompt,
            prediction=question.prediction,
            rates=deepcopy(rates),
            prefill_seconds=prefill,
            timed=True,
        )
        handle = self._engine.submit(request, target, stop=question.stop, first=True)
        events = list(handle.events())  # texts are for later: they take time from the models
        rounds = tuple(event for event in self._with_texts(events) if isinstance(event, Round))
        if handle.stopped:
            return None, True
        same = tuple(request.answer) == race.token_ids
        race = replace(race, compiling=race.compiling or handle.compiling)
        if autoregressive:
            tokens = tuple(map(_baseline_token, rounds))
            baseline = Baseline(tokens, prefill, request.cpu, handle.most_others)
            return replace(race, baseline=baseline), same
        decoding = rounds[-1].shown_at - rounds[0].shown_at
        race = replace(
            race,
            rounds=rounds,
            cpu_seconds=request.cpu,
            outside_seconds=max(decoding - request.inference, 0.0),
            shared_with=handle.most_others,
        )
        return race, same

    def _request(
        self,
        instruction: str,
        settings: Settings,
        prompt: tuple[int, ...] | None = None,
        tools: Tools | None = None,
        kind: type[Request] = Request,
        prediction: str = "",
        **options: Any,
    ) -> Request:
        """Raises BadInput for what this pair cannot answer, DamagedModel for damaged files."""
        loaded = self.loaded
        loaded.check.require(0)
        if not prompt and (prompt == () or not instruction.strip()):
            raise BadInput("The prompt is empty; write a question or a task.")
        if settings.drafter == "model" and not self._engine.drafts:
            raise BadInput(
                f"The pair {self.info.name} has no draft model (or a draft head, which needs a "
                "target with a paged KV cache); choose the drafter lookup or auto."
            )
        tokens = prompt or tuple(loaded.template.render(instruction, self._tokenizer))
        if len(tokens) >= self.context_limit:
            raise BadInput(
                f"The prompt is {len(tokens)} tokens long with its template; this model reads "
                f"fewer than {self.context_limit}: shorten it.",
                code="context_length_exceeded",
            )
        biased = max((token for token, _ in settings.logit_bias), default=-1)
        if biased >= 0 and biased >= (size := self._engine.target("exact").model.vocabulary_size):
            message = f"logit_bias names token {biased}; this model's ids are below {size}."
            raise BadInput(message, "logit_bias")
        if settings.json_schema or tools:
            options["constraint"] = self.grammars.compiled(settings.json_schema, tools)()
        if prediction:
            predicted = self._tokenizer.encode(prediction, special=False)
            options["prediction"] = tuple(predicted[: self.context_limit])
        stop_ids = frozenset() if settings.ignore_eos else loaded.stop_ids
        return kind(
            tokens,
            Sampling(**{one.name: getattr(settings, one.name) for one in fields(Sampling)}),
            Limits(settings.max_new_tokens, self.context_limit, stop_ids),
            settings.drafter,
            settings.draft_tokens,
            **options,
        )


def _baseline_token(round_: Round) -> BaselineToken:
    [token] = round_.tokens
    margin = round_.emitted.margin if round_.emitted else None
    return BaselineToken(token.id, round_.shown_at, token.text, margin)


def _costs(policy: Policy, prompt: int, answer: Sequence[int]) -> ForwardCosts | None:
    """The cost model in the middle of an `answer` to `prompt` tokens; None if not measured."""
    context = prompt + len(answer) // 2
    _, *seconds = policy.costs.forwards(context=context)
    token = policy.costs.baseline(context)
    return ForwardCosts(tuple(seconds), policy.draft.forward(1), token) if token else None


def open_session(
    pair: Pair, choice: ModelChoice, report: Callable[[str], None], **capacity: Any
) -> Session:
    """Fetch missing files of `pair`, and compile its models, in seconds to hours. `report` gets
    lines on the progress; `capacity` are arguments of Session. Raises SpecdemoError."""
    loaded = loading.load_pair(pair, choice=choice, progress=lambda progress: report(progress.line))
    target, before = loaded.info.target, hardware.own_bytes()

    def compiling(progress: Progress) -> None:
        whole = progress.done == progress.total
        report(f"Checking that answers of {target} are exact here" if whole else progress.line)

    # The compiled model is a copy of the weights, so the memory taken says how far it is.
    weights = checkpoint.weights_size(loaded.target)
    meter = Meter(compiling, f"Compiling {target} for this processor", weights)
    with watched(meter, lambda: max(hardware.own_bytes() - before, 0)):
        return Session(loaded, **capacity)
