"""The properties that the audit tests, each a function of an engine: an answer with draft tokens
is compared with the same engine's autoregressive decoding."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

import numpy as np

from specdemo.bench.engines import (
    AuditedEngine,
    Conversation,
    NotOffered,
    Outcomes,
    Request,
    Tokens,
)
from specdemo.bench.prompts import BenchPrompt
from specdemo.errors import BadInput, RequestFailed
from specdemo.runs.settings import Settings

INSTRUCTION = (
    "Repeat these words twice, in the same order: red, green, blue, red, green, blue, red."
)
"""The prompt of the sampled part; n-gram lookup finds draft tokens in it."""

SHORT = (
    "What is the capital of France?",
    "What is 2 + 2?",
    "Name one colour.",
    "Is water wet? Answer yes or no.",
    "Say hello.",
    "What is the opposite of hot?",
    "Who wrote Hamlet?",
    "Name three animals.",
)
"""Questions with answers that end soon."""

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "colour": {"enum": ["red", "green", "blue"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "sure": {"type": "boolean"},
        },
        "required": ["colour", "count", "sure"],
        "additionalProperties": False,
    }
)

TOP_K, MAX_TOP_K, OUTCOME_TOKENS = 4, 8, 2
DRAFT_TOKENS = 4  # draft length, fixed so that every draw speculates
FEW, TOGETHER = 20, 8  # answers of the properties other than greedy; requests at once
SEEDED_TOKENS = 24
CONTEXT_TOKENS = 24  # of the answer that fills the context
LONG_TOKENS = 120  # enough for answers to SHORT to end
MIN_EXPECTED = 5.0  # draws of an outcome, below which chi-square merges it with others
DRAW_SECONDS = 900.0  # a cell of a slow engine has fewer draws
MIN_DRAWS, MOST_DRAWS = 400, 20_000
ROUNDING = 0.1  # logits: smaller margins can change sign by the order of a sum
Result = Literal["pass", "fail", "not offered"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, fixed before the run. `draws` is the most draws of a cell; 0 leaves sampling
    out. `only` names the properties to test."""

    prompts: Sequence[BenchPrompt]
    settings: Settings
    draws: int
    only: Sequence[str]

    @property
    def conversations(self) -> list[Conversation]:
        return [(prompt.instruction,) for prompt in self.prompts]

    def greedily(self, most: int | None = None, **changes: Any) -> list[Request]:
        """The conversations, at `most` so many, with greedy settings and these `changes`."""
        settings = replace(self.settings, temperature=0.0, **changes)
        return [(conversation, settings) for conversation in self.conversations[:most]]


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one property. `counterexample` is the smallest; a sampled cell fails where
    Holm's correction over all cells rejects one of its `p_values` (by coupling), of which `p_value`
    is the smallest. `draws` are those of each."""

    result: Result
    cases: int = 0
    failures: int = 0
    note: str = ""
    counterexample: dict[str, Any] | None = None
    p_value: float | None = None
    p_values: dict[str, float] | None = None
    draws: int | None = None
    tv_distance: float | None = None
    tv_noise_floor: float | None = None


def cell_of(name: str, engine: AuditedEngine, plan: Plan, baselines: dict[Any, Any]) -> Cell:
    """The cell of the property `name`. `baselines` keeps the autoregressive answers of an engine,
    which all of its methods share."""
    if name not in ("greedy", "repeat") and name not in engine.offers:
        return Cell("not offered")
    subject = Subject(engine, baselines)
    try:
        return PROPERTIES[name][1](subject, plan)
    except (NotOffered, BadInput) as error:
        return Cell("not offered", note=str(error))
    except RequestFailed as error:
        return Cell("fail", 1, 1, str(error), {"prompt": (), "position": -1, "cause": "error"})


class Subject:
    """An engine under test, with the autoregressive answers that it gave already."""

    def __init__(self, engine: AuditedEngine, baselines: dict[Any, Any]):
        self.engine, self._baselines = engine, baselines

    def baseline(self, conversation: Conversation, settings: Settings) -> Tokens:
        """Raises NotOffered where autoregressive decoding fails: then drafts are not the reason."""
        request = conversation, settings
        if request not in self._baselines:
            try:
                self._baselines[request] = (*self.engine.generate(*request, False),)
            except RequestFailed as error:
                raise NotOffered(f"Without drafts: {error}") from error
        tokens: Tokens = self._baselines[request]
        return tokens

    def answer(self, conversation: Conversation, settings: Settings) -> Tokens:
        return (*self.engine.generate(conversation, settings, True),)

    def baseline_draws(self, settings: Settings, draws: int) -> Counter[Tokens]:
        """Autoregressive draws, whose seeds follow those of the speculative ones."""
        numbers = range(MOST_DRAWS, MOST_DRAWS + draws)
        if "draws" not in self._baselines:
            self._baselines["draws"] = Counter(draw(self.engine, settings, numbers, False))
            self._baselines["draws"].pop((), None)
        drawn: Counter[Tokens] = self._baselines["draws"]
        return drawn

    def compare(
        self, requests: Sequence[Request], wrong: Callable[[str], str] | None = None
    ) -> Cell:
        """Speculative against autoregressive answers. `wrong` says what is wrong with a text."""
        differences = []
        for conversation, settings in requests:
            ours = self.baseline(conversation, settings)
            failed = {"prompt": conversation, "position": -1}
            try:
                theirs = self.answer(conversation, settings)
            except NotOffered:
                raise
            except RequestFailed as error:
                differences.append(failed | {"cause": str(error)})
                continue
            if ours != theirs:
                differences.append(self.difference(conversation, ours, theirs))
            elif wrong and (problem := wrong(self.engine.text(theirs))):
                differences.append(failed | {"position": len(ours), "cause": problem})
        return judged(len(requests), differences)

    def difference(
        self,
        conversation: Conversation,
        first: Tokens,
        second: Tokens,
        names: tuple[str, str] = ("autoregressive", "speculative"),
    ) -> dict[str, Any]:
        """The first difference of two answers, by these names, with both logit margins if the
        engine tells them."""
        pairs = itertools.zip_longest(first, second)
        position, pair = next((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1])
        known = [token for token in pair if token is not None]
        margins, cause = None, "one answer ends before the other"
        if len(known) == 2:
            margins = self.engine.margins(conversation, first[:position], (*known,))
            if margins is None:
                cause = "no margins"
            elif margins[0] * margins[1] <= 0 or min(map(abs, margins)) < ROUNDING:
                cause = "rounding"
            else:
                cause = "wrong rule"
        texts = [
            None if token is None else self.engine.text([token]) or f"token {token}"
            for token in pair
        ]
        difference = {"prompt": conversation, "position": position, "margins": margins}
        return difference | {"cause": cause} | dict(zip(names, texts, strict=True))


def judged(cases: int, differences: Sequence[dict[str, Any]]) -> Cell:
    """The cell of so many cases of which those `differences` failed."""
    if not differences:
        return Cell("pass", cases)
    smallest = min(differences, key=lambda case: (case["position"], sum(map(len, case["prompt"]))))
    causes = Counter(case["cause"] for case in differences)
    note = "; ".join(f"{count} of {cases}: {cause}" for cause, count in causes.most_common())
    return Cell("fail", cases, len(differences), note, smallest)


def greedy(subject: Subject, plan: Plan) -> Cell:
    return subject.compare(plan.greedily())


def seed(subject: Subject, plan: Plan) -> Cell:
    settings = replace(sampled(plan), max_new_tokens=SEEDED_TOKENS)
    return subject.compare(
        [
            (conversation, replace(settings, seed=settings.seed + number))
            for number, conversation in enumerate(plan.conversations[:FEW])
        ]
    )


def repeat(subject: Subject, plan: Plan) -> Cell:
    """The same call twice, greedy and sampled with a seed."""
    ways = [replace(plan.settings, temperature=0.0), sampled(plan)]
    requests = list(itertools.product(plan.conversations[:TOGETHER], ways))
    differences = []
    for conversation, settings in requests:
        first, second = (subject.answer(conversation, settings) for _ in range(2))
        if first != second:
            difference = subject.difference(conversation, first, second)
            differences.append(difference | {"cause": "not repeatable"})
    return judged(len(requests), differences)


def batch(subject: Subject, plan: Plan) -> Cell:
    """Speculative answers alone, and among seven others."""
    requests = (plan.greedily(TOGETHER) * TOGETHER)[:TOGETHER]
    alone = [subject.answer(*request) for request in requests]
    together = subject.engine.generate_many(requests, True)
    differences = []
    for (conversation, _), first, second in zip(requests, alone, together, strict=True):
        if first != second:
            names = "alone", "among others"
            difference = subject.difference(conversation, first, second, names)
            differences.append(difference | {"cause": "depends on other requests"})
    return judged(len(requests), differences)


def end(subject: Subject, plan: Plan) -> Cell:
    """Questions asked again, below their answers: drafts hold the end token and what follows it."""
    settings = replace(plan.settings, temperature=0.0, max_new_tokens=LONG_TOKENS)
    requests = []
    for question in SHORT:
        tokens = subject.baseline((question,), settings)
        if len(tokens) < LONG_TOKENS:
            answer = subject.engine.text(tokens)
            requests.append(((question, answer, question), settings))
    if not requests:
        raise NotOffered(f"None of the answers ended within {LONG_TOKENS} tokens.")
    return subject.compare(requests)


def stop(subject: Subject, plan: Plan) -> Cell:
    """Stop strings from the middle of answers."""
    requests = []
    for conversation, settings in plan.greedily(FEW):
        text = subject.engine.text(subject.baseline(conversation, settings))
        middle = text[len(text) // 2 :][:6]
        if middle.strip() and "\ufffd" not in middle:
            requests.append((conversation, replace(settings, stop=(middle,))))
    if not requests:
        raise NotOffered("No answer has a text that can be a stop string.")
    return subject.compare(requests)


def schema(subject: Subject, plan: Plan) -> Cell:
    def wrong(text: str) -> str:
        try:
            return "" if set(json.loads(text)) == {"colour", "count", "sure"} else "other keys"
        except ValueError:
            return f"not JSON: {text[:80]!r}"

    return subject.compare(plan.greedily(FEW, json_schema=SCHEMA, max_new_tokens=64), wrong)


def penalties(subject: Subject, plan: Plan) -> Cell:
    values = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
    return subject.compare(plan.greedily(FEW, **values))


def context(subject: Subject, plan: Plan) -> Cell:
    """A prompt and an answer that fill the context to its last token."""
    limit, count = subject.engine.context_limit, subject.engine.prompt_tokens
    if limit is None:
        raise NotOffered("The engine does not tell its longest context.")
    text = " ".join(prompt.instruction for prompt in plan.prompts)
    words = list(itertools.islice(itertools.cycle(text.split()), limit))
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        fits = count((" ".join(words[:middle]),)) <= limit - CONTEXT_TOKENS
        low, high = (middle, high) if fits else (low, middle - 1)
    prompt = (" ".join(words[:low]),)
    settings = replace(plan.settings, temperature=0.0, max_new_tokens=limit - count(prompt))
    return subject.compare([(prompt, settings)])


def sampling(subject: Subject, plan: Plan) -> Cell:
    """The first two tokens at top-k 4, against their exact probabilities or, where the engine does
    not tell them, against those of its autoregressive decoding. Every draw has its own seed."""
    engine, settings = subject.engine, sampled(plan)
    prompt = (INSTRUCTION,)
    subject.answer(prompt, settings)  # loads what is loaded late
    since = perf_counter()
    list(draw(engine, settings, range(-TOGETHER, 0), True))  # a pilot, which does not count
    seconds = (perf_counter() - since) / TOGETHER
    draws = max(min(plan.draws, int(DRAW_SECONDS / seconds)), min(MIN_DRAWS, plan.draws))
    exact = engine.outcomes(prompt, settings, OUTCOME_TOKENS)
    tests: dict[str, tuple[float, float, float]] = {}
    failures = 0
    for number, coupling in enumerate(engine.couplings):
        seeds = range(number * draws, (number + 1) * draws)
        answers = Counter(draw(engine, replace(settings, coupling=coupling), seeds, True))
        failures += answers.pop((), 0)
        if not answers:
            raise RequestFailed("None of the draws succeeded.")
        others = [] if exact else [subject.baseline_draws(settings, draws)]
        tests[coupling] = chi_square([answers, *others], exact)
    cases = draws * len(tests)
    p_values = {coupling: p_value for coupling, (p_value, *_) in tests.items()}
    distance, floor = max(distances for _, *distances in tests.values())
    note = f"{failures} of {cases} draws failed" if failures else ""
    result: Result = "fail" if failures else "pass"
    example = {"prompt": prompt, "position": -1, "cause": note} if failures else None
    least = min(p_values.values())
    return Cell(result, cases, failures, note, example, least, p_values, draws, distance, floor)


def sampled(plan: Plan) -> Settings:
    """The settings to sample with: room for a whole draft after the tested tokens."""
    settings = plan.settings
    length = settings.draft_tokens or DRAFT_TOKENS
    return replace(
        settings,
        temperature=settings.temperature or 1.0,
        top_k=settings.top_k or TOP_K,
        draft_tokens=length,
        max_new_tokens=OUTCOME_TOKENS + length,
    )


def draw(
    engine: AuditedEngine, settings: Settings, numbers: range, speculative: bool
) -> Iterator[Tokens]:
    """The beginnings of answers with the seeds of these `numbers`: half of them alone, half among
    others if the engine takes several. A failed draw is ()."""
    # The pilot's seeds end before those of the draws.
    seeds = [settings.seed + TOGETHER + number for number in numbers]
    requests = [((INSTRUCTION,), replace(settings, seed=seed)) for seed in seeds]
    alone = len(requests) // 2 if engine.parallel > 1 else len(requests)
    answers: Iterable[Tokens] = (
        drawn(engine, request, speculative) for request in requests[:alone]
    )
    yield from answers
    for begin in range(alone, len(requests), engine.parallel):
        batch = requests[begin : begin + engine.parallel]
        try:
            answers = engine.generate_many(batch, speculative)
        except NotOffered:
            raise
        except RequestFailed:
            answers = (drawn(engine, request, speculative) for request in batch)
        yield from (answer[:OUTCOME_TOKENS] for answer in answers)


def drawn(engine: AuditedEngine, request: Request, speculative: bool) -> Tokens:
    try:
        return (*engine.generate(*request, speculative),)[:OUTCOME_TOKENS]
    except NotOffered:
        raise
    except RequestFailed:
        return ()


def chi_square(samples: Sequence[Counter[Tokens]], exact: Outcomes) -> tuple[float, float, float]:
    """The chi-square test of one sample against `exact` probabilities or, without them, of two
    samples of one unknown distribution: the p-value (0 if an outcome was drawn that is impossible),
    the total variation distance, and its mean for right draws."""
    outcomes = list(dict.fromkeys(itertools.chain(exact, *samples)))
    counts = np.array([[sample[outcome] for outcome in outcomes] for sample in samples], float)
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts.sum(axis=0) / totals.sum()
    reference = counts[-1] / totals[-1]
    if exact:
        reference = shares = np.array([exact.get(outcome, 0.0) for outcome in outcomes])
    distance = 0.5 * float(abs(counts[0] / totals[0] - reference).sum())
    variances = shares * (1 - shares) * (1 / totals).sum()
    floor = 0.5 * float(np.sqrt(2 * variances / math.pi).sum())
    if counts[0][shares == 0].any():
        return 0.0, distance, floor
    order = np.argsort(shares)
    groups = merged(totals.min() * shares[order])
    seen = np.add.reduceat(counts[:, order], groups, axis=1)
    expected = totals * np.add.reduceat(shares[order], groups)
    statistic = float(((seen - expected) ** 2 / expected).sum())
    return chi_square_tail(statistic, len(groups) - 1), distance, floor


def merged(expected: np.ndarray) -> list[int]:
    """Where groups of outcomes begin, given the draws `expected` of each in ascending order: rare
    ones are merged until MIN_EXPECTED draws of them are expected."""
    groups, total = [0], 0.0
    for place, mean in enumerate(expected):
        if total >= MIN_EXPECTED:
            groups.append(place)
            total = 0.0
        total += mean
    return groups[:-1] if total < MIN_EXPECTED and len(groups) > 1 else groups


def chi_square_tail(statistic: float, freedom: int) -> float:
    """The probability that chi-square with `freedom` degrees is at least `statistic`: the
    regularized incomplete gamma function Q(freedom / 2, statistic / 2), by its recurrence."""
    half = statistic / 2
    if freedom < 1 or half <= 0:
        return 1.0
    shape, tail = (0.5, math.erfc(math.sqrt(half))) if freedom % 2 else (1.0, math.exp(-half))
    while shape < freedom / 2:
        tail += math.exp(shape * math.log(half) - half - math.lgamma(shape + 1))
        shape += 1
    return min(tail, 1.0)


Property = Callable[[Subject, Plan], Cell]
PROPERTIES: dict[str, tuple[str, Property]] = {
    "greedy": ("greedy identity", greedy),
    "seed": ("same seed", seed),
    "repeat": ("repeatability", repeat),
    "batch": ("batch invariance", batch),
    "sampling": ("sampled distribution", sampling),
    "end": ("end tokens in drafts", end),
    "stop": ("stop strings", stop),
    "schema": ("JSON schema", schema),
    "penalties": ("penalties", penalties),
    "context": ("longest context", context),
}
"""The title and the test of each property, in the order of the report's columns."""
