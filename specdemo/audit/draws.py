"""The sampled part of the audit: draws of the first tokens of answers, by a chi-square test."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from specdemo.audit.comparison import Cell, Plan, Subject
from specdemo.audit.engines import AuditedEngine, Case, Outcomes, Tokens
from specdemo.errors import RequestFailed
from specdemo.runs.settings import Settings

PROMPT = ("Repeat these words twice, in the same order: red, green, blue, red, green, blue, red.",)
"""N-gram lookup finds draft tokens in it."""

TOP_K, MAX_TOP_K, OUTCOME_TOKENS = 4, 8, 2
DRAFT_TOKENS = 4  # draft length, fixed so that every draw speculates
PILOT_DRAWS = 8  # timed, not counted
MIN_EXPECTED = 5.0  # draws of an outcome, below which chi-square merges it with others
MAX_SECONDS = 900.0  # of a coupling's draws: a slow engine has fewer
MIN_DRAWS, MAX_DRAWS = 400, 20_000


def sampling_settings(settings: Settings) -> Settings:
    """The settings to sample with: room for a whole draft after the tested tokens."""
    length = settings.draft_tokens or DRAFT_TOKENS
    return replace(
        settings,
        temperature=settings.temperature or 1.0,
        top_k=settings.top_k or TOP_K,
        draft_tokens=length,
        max_new_tokens=OUTCOME_TOKENS + length,
    )


def sampling(subject: Subject, plan: Plan) -> Cell:
    """The first two tokens at top-k 4, against their exact probabilities or, where the engine does
    not tell them, against those of its autoregressive decoding. Every draw has its own seed."""
    engine, settings = subject.engine, sampling_settings(plan.settings)
    subject.answer(PROMPT, settings)  # loads what is loaded late
    began = perf_counter()
    list(draw(engine, settings, range(-PILOT_DRAWS, 0), True))
    seconds = (perf_counter() - began) / PILOT_DRAWS
    draws = max(min(plan.draws, int(MAX_SECONDS / seconds)), min(MIN_DRAWS, plan.draws))
    exact = engine.outcomes(PROMPT, settings, OUTCOME_TOKENS)
    tests: dict[str, tuple[float, float, float]] = {}
    failures = 0
    for number, coupling in enumerate(engine.couplings):
        seeds = range(number * draws, (number + 1) * draws)
        answers = Counter(draw(engine, replace(settings, coupling=coupling), seeds, True))
        failures += answers.pop((), 0)
        if not answers:
            raise RequestFailed("None of the draws succeeded.")
        others = [] if exact else [_baseline_draws(subject, settings, draws)]
        tests[coupling] = chi_square([answers, *others], exact)
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


def _baseline_draws(subject: Subject, settings: Settings, draws: int) -> Counter[Tokens]:
    """Autoregressive draws, whose seeds follow those of the speculative ones."""
    if "draws" not in subject.baselines:
        seeds = range(MAX_DRAWS, MAX_DRAWS + draws)
        answers = draw(subject.engine, settings, seeds, False)
        subject.baselines["draws"] = Counter(filter(None, answers))
    drawn: Counter[Tokens] = subject.baselines["draws"]
    return drawn


def draw(
    engine: AuditedEngine, settings: Settings, numbers: range, speculative: bool
) -> Iterator[Tokens]:
    """The beginnings of answers with the seeds of these `numbers`: half of them alone, half among
    others if the engine takes several. A failed draw is ()."""
    # The pilot's seeds end before those of the draws.
    seeds = [settings.seed + PILOT_DRAWS + number for number in numbers]
    cases = [(PROMPT, replace(settings, seed=seed)) for seed in seeds]
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


def chi_square(samples: Sequence[Counter[Tokens]], exact: Outcomes) -> tuple[float, float, float]:
    """The chi-square test of one sample against `exact` probabilities or, without them, of two
    samples of one unknown distribution: the p-value (0 if an outcome was drawn that is impossible),
    the total variation distance, and its mean for correct draws."""
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
    drawn = np.add.reduceat(counts[:, order], groups, axis=1)
    expected = totals * np.add.reduceat(shares[order], groups)
    statistic = float(((drawn - expected) ** 2 / expected).sum())
    return chi_square_tail(statistic, len(groups) - 1), distance, floor


def merged(expected: np.ndarray) -> list[int]:
    """Where groups of outcomes begin, given the draws `expected` of each in ascending order: rare
    ones are merged until MIN_EXPECTED draws of them are expected."""
    groups, total = [0], 0.0
    for index, mean in enumerate(expected):
        if total >= MIN_EXPECTED:
            groups.append(index)
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
