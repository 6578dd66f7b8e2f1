"""The properties that the audit tests: an answer with draft tokens is compared with the same
engine's autoregressive decoding."""

import itertools
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from time import perf_counter
from typing import Any, Literal, NamedTuple

from specdemo.audit.chi_square import chi_square
from specdemo.audit.engines import AuditedEngine, Case, Conversation, NotOffered, Tokens
from specdemo.errors import BadInput, RequestFailed
from specdemo.runs.settings import Settings

WAYS = ("autoregressive", "speculative")
TOP_K, OUTCOME_TOKENS = 4, 2  # of a sampled answer: its candidates, and its tokens that are tested
DRAFT_TOKENS = 4  # draft length, fixed so that every draw speculates
ROUNDING = 0.1  # logits: smaller margins can change sign by the order of a sum


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, fixed before the run."""

    prompts: Sequence[str]
    settings: Settings
    draws: int  # of a cell at most; 0 leaves sampling out
    only: Sequence[str]  # names of the properties to test

    def greedy(self, limit: int | None = None, **changes: Any) -> list[Case]:
        """The first `limit` prompts with greedy settings and these `changes`."""
        settings = replace(self.settings, temperature=0.0, **changes)
        return [((prompt,), settings) for prompt in self.prompts[:limit]]

    @property
    def sampled(self) -> Settings:
        """The settings to sample with: room for a whole draft after the tested tokens."""
        length = self.settings.draft_tokens or DRAFT_TOKENS
        return replace(
            self.settings,
            temperature=self.settings.temperature or 1.0,
            top_k=self.settings.top_k or TOP_K,
            draft_tokens=length,
            max_new_tokens=OUTCOME_TOKENS + length,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one property."""

    result: Literal["pass", "fail", "not offered"]
    cases: int = 0
    failures: int = 0
    note: str = ""
    counterexample: dict[str, Any] | None = None  # the shortest
    p_value: float | None = None  # the smallest of those
    p_values: dict[str, float] | None = None  # by coupling
    draws: int | None = None  # per coupling
    tv_distance: float | None = None
    tv_noise_floor: float | None = None


def compared(cases: int, differences: Sequence[dict[str, Any]]) -> Cell:
    """The cell of so many cases, of which those with `differences` failed."""
    if not differences:
        return Cell("pass", cases)
    shortest = min(differences, key=lambda case: (case["position"], sum(map(len, case["prompt"]))))
    causes = Counter(case["cause"] for case in differences)
    note = "; ".join(f"{count} of {cases}: {cause}" for cause, count in causes.most_common())
    return Cell("fail", cases, len(differences), note, shortest)


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine under test."""

    engine: AuditedEngine
    baselines: dict[Any, Any] = field(default_factory=dict)  # shared by the engine's methods

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` gave for the first of the engine's methods: it is the same for all."""
        if key not in self.baselines:
            self.baselines[key] = make()
        return self.baselines[key]

    def baseline(self, conversation: Conversation, settings: Settings) -> Tokens:
        """Raises NotOffered where autoregressive decoding fails: then drafts are not the reason."""
        case = conversation, settings
        try:
            tokens: Tokens = self.once(case, lambda: (*self.engine.generate(*case, False),))
        except RequestFailed as error:
            raise NotOffered(f"Without drafts: {error}") from error
        return tokens

    def answer(self, conversation: Conversation, settings: Settings) -> Tokens:
        return (*self.engine.generate(conversation, settings, True),)

    def compare(self, cases: Sequence[Case], fault: Callable[[str], str] | None = None) -> Cell:
        """Speculative against autoregressive answers. `fault` says what is wrong with a text."""
        differences = []
        for case in cases:
            expected = self.baseline(*case)
            failed = {"prompt": case[0], "position": -1}
            try:
                answer = self.answer(*case)
            except RequestFailed as error:
                differences.append(failed | {"cause": str(error)})
                continue
            if answer != expected:
                difference = self.difference(case[0], expected, answer)
                if len(answer) > case[1].max_new_tokens:
                    difference["cause"] = "too many tokens"
                elif case[1].stop and answer[: len(expected)] == expected:
                    difference["cause"] = "runs on after a stop string"
                differences.append(difference)
            elif fault and (cause := fault(self.engine.text(answer))):
                differences.append(failed | {"position": len(answer), "cause": cause})
        return compared(len(cases), differences)

    def judge(
        self,
        cases: Sequence[Case],
        answers: Iterable[tuple[Tokens, Tokens]],
        cause: str,
        names: tuple[str, str] = WAYS,
    ) -> Cell:
        """The cell of two answers to each of the cases, which differ for this `cause`."""
        differences = [
            self.difference(case[0], first, second, names) | {"cause": cause}
            for case, (first, second) in zip(cases, answers, strict=True)
            if first != second
        ]
        return compared(len(cases), differences)

    def difference(
        self,
        conversation: Conversation,
        first: Tokens,
        second: Tokens,
        names: tuple[str, str] = WAYS,
    ) -> dict[str, Any]:
        """The first difference of two answers, by these names, with both logit margins if the
        engine tells them."""
        pairs = itertools.zip_longest(first, second)
        position, pair = next((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1])
        ended = None in pair
        margins = None if ended else self.engine.margins(conversation, first[:position], pair)
        if ended:
            cause = "one answer ends before the other"
        elif margins is None or not all(map(isfinite, margins)):
            margins, cause = None, "no margins"
        elif margins[0] * margins[1] <= 0 or min(map(abs, margins)) < ROUNDING:
            cause = "rounding"
        else:
            cause = "wrong rule"
        texts = [None if t is None else self.engine.text([t]) or f"token {t}" for t in pair]
        difference = {"prompt": conversation, "position": position, "margins": margins}
        return difference | {"cause": cause} | dict(zip(names, texts, strict=True))


SHORT_QUESTIONS = (
    "What is the capital of France?",
    "What is 2 + 2?",
    "Name one colour.",
    "Is water wet? Answer yes or no.",
    "Say hello.",
    "What is the opposite of hot?",
    "Who wrote Hamlet?",
    "Name three animals.",
)
SHORT_ANSWER_TOKENS = 120  # enough for answers to SHORT_QUESTIONS to end

FIELDS: dict[str, Any] = {
    "colour": {"enum": ["red", "green", "blue"]},
    "count": {"type": "integer", "minimum": 0, "maximum": 99},
    "sure": {"type": "boolean"},
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": FIELDS, "required": list(FIELDS)}
SCHEMA |= {"additionalProperties": False}

MAX_CASES = 20  # of the properties other than greedy
BATCH = 8  # requests that are active at once
SELF_DRAFTED = 10  # prompts that the target also drafts for itself
SEEDED_TOKENS = 24
CONTEXT_TOKENS = 24  # of the answer that fills the context

PROMPT = ("Repeat these words twice, in the same order: red, green, blue, red, green, blue, red.",)
"""N-gram lookup finds draft tokens in it."""

MAX_TOP_K = 8  # of --top-k
PILOT_DRAWS = 8  # timed, not counted
MAX_SECONDS = 900.0  # of a coupling's draws: a slow engine has fewer
MIN_DRAWS, MAX_DRAWS = 400, 20_000


def greedy(subject: Subject, plan: Plan) -> Cell:
    return subject.compare(plan.greedy())


def seed(subject: Subject, plan: Plan) -> Cell:
    settings = replace(plan.sampled, max_new_tokens=SEEDED_TOKENS)
    prompts = enumerate(plan.prompts[:MAX_CASES])
    return subject.compare([((prompt,), settings.later(number)) for number, prompt in prompts])


def repeat(subject: Subject, plan: Plan) -> Cell:
    """The same call twice, greedy and sampled with a seed."""
    sampled = plan.sampled
    cases = [(prompt, how) for prompt, greedy in plan.greedy(BATCH) for how in (greedy, sampled)]
    answers = [(subject.answer(*case), subject.answer(*case)) for case in cases]
    return subject.judge(cases, answers, "not repeatable")


def self_draft(subject: Subject, plan: Plan) -> Cell:
    """The target as its own draft model proposes what it chooses, and must accept all of it."""
    length = plan.settings.draft_tokens or DRAFT_TOKENS
    rounds = max((plan.settings.max_new_tokens - 1) // (length + 1), 1)
    cases = plan.greedy(
        SELF_DRAFTED,
        draft_tokens=length,
        # What is drafted beyond the end of an answer is not accepted, either.
        max_new_tokens=1 + rounds * (length + 1),
        ignore_eos=True,
    )
    drafted, accepted = subject.once("self", lambda: subject.engine.self_drafted(cases))
    if not drafted:
        raise NotOffered("The target as its own draft model drafted no token.")
    rejected = drafted - accepted
    note = f"{rejected} of {drafted} draft tokens rejected ({rejected / drafted:.1%})"
    example = {"prompt": (), "position": -1, "cause": note} if rejected else None
    return Cell("fail" if rejected else "pass", drafted, rejected, note, example)


def batch(subject: Subject, plan: Plan) -> Cell:
    """Speculative answers alone, and among seven others."""
    cases = (plan.greedy(BATCH) * BATCH)[:BATCH]
    alone = [subject.answer(*case) for case in cases]
    answers = zip(alone, subject.engine.generate_many(cases, True), strict=True)
    return subject.judge(cases, answers, "depends on other requests", ("alone", "among others"))


def end(subject: Subject, plan: Plan) -> Cell:
    """Questions asked again, below their answers: drafts hold the end token and what follows it."""
    settings = replace(plan.settings, temperature=0.0, max_new_tokens=SHORT_ANSWER_TOKENS)
    cases = []
    for question in SHORT_QUESTIONS:
        tokens = subject.baseline((question,), settings)
        if len(tokens) < SHORT_ANSWER_TOKENS:
            cases.append(((question, subject.engine.text(tokens), question), settings))
    if not cases:
        raise NotOffered(f"None of the answers ended within {SHORT_ANSWER_TOKENS} tokens.")
    return subject.compare(cases)


def stop(subject: Subject, plan: Plan) -> Cell:
    """Stop strings from the middle of answers."""
    cases = []
    for conversation, settings in plan.greedy(MAX_CASES):
        text = subject.engine.text(subject.baseline(conversation, settings))
        middle = text[len(text) // 2 :][:6]
        if middle.strip() and "\ufffd" not in middle:
            cases.append((conversation, replace(settings, stop=(middle,))))
    if not cases:
        raise NotOffered("No answer has a text that can be a stop string.")
    return subject.compare(cases)


def schema(subject: Subject, plan: Plan) -> Cell:
    def fault(text: str) -> str:
        try:
            return "" if set(json.loads(text)) == set(FIELDS) else "other keys"
        except ValueError:
            return f"not JSON: {text[:80]!r}"

    cases = plan.greedy(MAX_CASES, json_schema=json.dumps(SCHEMA), max_new_tokens=64)
    return subject.compare(cases, fault)


def penalties(subject: Subject, plan: Plan) -> Cell:
    values = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
    return subject.compare(plan.greedy(MAX_CASES, **values))


def context(subject: Subject, plan: Plan) -> Cell:
    """A prompt and an answer that fill the context to its last token."""
    limit, count = subject.engine.context_limit, subject.engine.prompt_tokens
    if limit is None:
        raise NotOffered("The engine does not tell its longest context.")
    words = list(itertools.islice(itertools.cycle(" ".join(plan.prompts).split()), limit))
    lengths, room = range(len(words) + 1), limit - CONTEXT_TOKENS
    longer = bisect_right(lengths, room, lo=2, key=lambda n: count((" ".join(words[:n]),)))
    prompt = (" ".join(words[: longer - 1]),)
    left = max(limit - count(prompt), 1)  # the shortest prompt may not fit
    settings = replace(plan.settings, temperature=0.0, max_new_tokens=left)
    return subject.compare([(prompt, settings)])


def sampling(subject: Subject, plan: Plan) -> Cell:
    """The first two tokens at top-k 4, against their exact probabilities or, where the engine does
    not tell them, against those of its autoregressive decoding. Every draw has its own seed."""
    engine, settings = subject.engine, plan.sampled
    subject.answer(PROMPT, settings)  # loads what is loaded late
    began = perf_counter()
    list(draw(engine, settings, range(-PILOT_DRAWS, 0), True))
    seconds = (perf_counter() - began) / PILOT_DRAWS
    draws = max(min(plan.draws, int(MAX_SECONDS / seconds)), min(MIN_DRAWS, plan.draws))
    exact = engine.outcomes(PROMPT, settings, OUTCOME_TOKENS)
    tests: dict[str, tuple[float, float, float]] = {}
    failures = 0
    others = range(MAX_DRAWS, MAX_DRAWS + draws)  # of seeds: after those of the speculative draws
    baseline = partial(draw, engine, settings, others, False)
    for number, coupling in enumerate(engine.couplings):
        seeds = range(number * draws, (number + 1) * draws)
        answers = Counter(draw(engine, replace(settings, coupling=coupling), seeds, True))
        failures += answers.pop((), 0)
        if not answers:
            raise RequestFailed("None of the draws succeeded.")
        samples = [answers]
        if not exact:
            samples.append(subject.once("draws", lambda: Counter(filter(None, baseline()))))
            if not samples[1]:
                raise NotOffered("Without drafts: none of the draws succeeded.")
        tests[coupling] = chi_square(samples, exact)
    cases = draws * len(tests)
    p_values = {coupling: p_value for coupling, (p_value, *_) in tests.items()}
    distance, floor = max(distances for _, *distances in tests.values())
    note = f"{failures} of {cases} draws failed" if failures else ""
    return Cell(
        "fail" if failures else "pass",
        cases,
        failures,
        note,
        {"prompt": PROMPT, "position": -1, "cause": note} if failures else None,
        min(p_values.values()),
        p_values,
        draws,
        distance,
        floor,
    )


def draw(
    engine: AuditedEngine, settings: Settings, numbers: range, speculative: bool
) -> Iterator[Tokens]:
    """The beginnings of answers with the seeds of these `numbers`: half of them alone, half among
    others if the engine takes several. A failed draw is ()."""
    # The pilot's seeds end before those of the draws.
    cases = [(PROMPT, settings.later(PILOT_DRAWS + number)) for number in numbers]
    alone = len(cases) // 2 if engine.parallel > 1 else len(cases)
    yield from (_beginning(engine, case, speculative) for case in cases[:alone])
    for begin in range(alone, len(cases), engine.parallel):
        batch = cases[begin : begin + engine.parallel]
        try:
            answers = engine.generate_many(batch, speculative)
        except RequestFailed:
            answers = [_beginning(engine, case, speculative) for case in batch]
        yield from (answer[:OUTCOME_TOKENS] for answer in answers)


def _beginning(engine: AuditedEngine, case: Case, speculative: bool) -> Tokens:
    try:
        return (*engine.generate(*case, speculative),)[:OUTCOME_TOKENS]
    except RequestFailed:
        return ()


class Property(NamedTuple):
    """A property that an audit tests."""

    title: str
    failure: str  # what it means for users that the test fails
    test: Callable[[Subject, Plan], Cell]


PROPERTIES = {
    "greedy": Property("greedy identity", "Drafts change answers that are not sampled.", greedy),
    "seed": Property("same seed", "Drafts change the sampled answer of a seed.", seed),
    "repeat": Property("repeatability", "A reported error may not recur.", repeat),
    "self": Property(
        "own draft", "The target drafts other tokens than it verifies: answers change.", self_draft
    ),
    "batch": Property("batch invariance", "Other requests change an answer.", batch),
    "sampling": Property(
        "sampled distribution",
        "Sampled answers have other frequencies than the model's, or the request fails.",
        sampling,
    ),
    "end": Property("end tokens in drafts", "Answers run on after their end, or lose it.", end),
    "stop": Property("stop strings", "Stop strings cut too much or too little.", stop),
    "schema": Property("JSON schema", "Drafts break or change an answer in JSON.", schema),
    "penalties": Property("penalties", "Drafts change the effect of penalties.", penalties),
    "context": Property("longest context", "Drafts fail where the context is full.", context),
}
"""In the order of the report's columns."""


def cell_of(name: str, subject: Subject, plan: Plan) -> Cell:
    """The cell of the property `name`."""
    if name not in ("greedy", "repeat") and name not in subject.engine.offers:
        return Cell("not offered")
    before = len(subject.engine.repeated)
    try:
        cell = PROPERTIES[name].test(subject, plan)
    except (NotOffered, BadInput) as error:
        cell = Cell("not offered", note=str(error))
    except RequestFailed as error:
        cell = Cell("fail", 1, 1, str(error), {"prompt": (), "position": -1, "cause": "error"})
    if again := subject.engine.repeated[before:]:
        calls = f"{len(again)} failed and succeeded when repeated: {again[0]}"
        cell = replace(cell, note="; ".join(filter(None, (cell.note, calls))))
    return cell
