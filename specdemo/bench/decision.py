"""What a benchmark decides: whether to use drafts here, with which settings, and for how many users
at once."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import product, takewhile
from statistics import median
from time import perf_counter
from typing import Any

from specdemo.pairs.registry import ModelChoice
from specdemo.runs.judge import PairedRuns, Verdict, judge, starved
from specdemo.runs.question import Question, trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import SOURCES, Trace, combined, summarize

USERS = 1, 2, 4, 8
TURNS = 6  # measurements of each number of users, with drafts and without
USER_TOKENS = 64  # of the longest answer
SHOWN = "draft_tokens drafter temperature top_p top_k min_p numerics coupling".split()
RATES = "autoregressive_tokens_per_s", "speculative_tokens_per_s"
FREQUENT = 0.05  # share of the accepted draft tokens, of a source that the decision names

Row = dict[str, Any]
"""A row of a table, as in the JSON."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`use` drafts here, or not; None if undecided. `sentence` gives the reasons, `command` and
    `python` the settings. `verdict` is on one user, with a pair of runs for each prompt. `users`
    has a row for each number of users at once; for up to `pays_for` of them the interval of the
    speed-up is above 1 (None: not measured)."""

    use: bool | None
    sentence: str
    command: str
    python: str
    verdict: Verdict
    users: list[Row]
    pays_for: int | None


def decide(
    verdict: Verdict,
    traces: Sequence[Trace],
    summary: Row,
    users: list[Row],
    choice: ModelChoice,
    settings: Settings,
) -> Decision:
    """The decision after these races, with the `summary` of a BenchReport."""
    free = bool(settings.temperature) and settings.coupling == "maximal"
    different = 0 if free else sum(not trace.identical for trace in traces)
    use = {"faster": True, "slower": False, "undecided": None}[verdict.result]
    answers = "of the same distribution" if free else "identical"
    if different:
        use, answers = False, f"different in {different} of {len(traces)} races"
    gain = f"{verdict.headline.removeprefix('Undecided: ')} ({verdict.detail})"
    if verdict.result != "undecided":
        (low, high), speedups = verdict.interval, summary["speedup_by_task"]
        faster = sum(round(speedup or 0.0, 2) > 1 for speedup in speedups.values())
        gain = (
            f"{low:.2f} to {high:.2f} times as fast ({verdict.sure:.0%} sure, {verdict.races} "
            f"{verdict.unit}s), faster on {faster} of {len(speedups)} tasks, never slower than "
            f"{summary['worst_prompt_speedup'] or 0.0:.2f}"
        )
    length = "automatic" if settings.draft_tokens is None else settings.draft_tokens
    sentence = f"{drafts_of(traces)}, length {length}: {gain}, answers {answers}."
    if verdict.uncounted and verdict.races:
        sentence += f" {verdict.uncounted} not counted: {verdict.why}."
    measured = [row for row in users if row["measurements"]]
    paid = takewhile(lambda row: round(row["interval"][0], 2) > 1, measured)
    pays_for = max((row["users"] for row in paid), default=0) if measured else None
    if measured:
        counts = f"measured {min(row['measurements'] for row in measured)} times at least"
        served = f"up to {pays_for} users at once" if pays_for != 1 else "one user at a time"
        served += ", more were not measured" if pays_for == measured[-1]["users"] else ""
        sentence += f" They pay for {served if pays_for else 'no number of users'} ({counts})."
    begin = {True: "Use drafts here", False: "Do not use drafts here", None: "Undecided"}[use]
    if use is False:
        settings = replace(settings, drafter="none", draft_tokens=None)
    code = as_code(choice, settings)
    return Decision(use, f"{begin}: {sentence}", *code, verdict, users, pays_for)


def drafts_of(traces: Iterable[Trace]) -> str:
    """The sources of the accepted draft tokens, the most frequent one first."""
    rounds = (round_ for trace in traces for round_ in trace.rounds)
    accepted = (token for round_ in rounds for token in round_.drafted[: round_.accepted])
    counts = Counter(SOURCES[token.source] for token in accepted)
    names = [name for name, n in counts.most_common() if n >= FREQUENT * counts.total()]
    return " with ".join(names) or "nothing accepted"


def as_code(choice: ModelChoice, settings: Settings) -> tuple[str, str]:
    """The models and settings that differ from the defaults, as a command and as Python."""
    models = _changed(choice, ModelChoice(), [field.name for field in fields(choice)])
    options = _changed(settings, Settings(), SHOWN)
    words = ["specdemo", "run", "INSTRUCTION"]
    for name, value in (models | options).items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    load = ", ".join(f"{name}={value!r}" for name, value in models.items())
    ask = ", ".join(["prompt", *(f"{name}={value!r}" for name, value in options.items())])
    return shlex.join(words), f"specdemo.load({load}).generate({ask})"


def _changed(options: object, defaults: object, names: Iterable[str]) -> dict[str, Any]:
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value != getattr(defaults, name)}


def measure_users(
    session: Session,
    instructions: Sequence[str],
    settings: Settings,
    seconds: float,
    report: Callable[[str], None],
) -> list[Row]:
    """A row for each of USERS. Asks as many questions at once, with drafts and without in turn, for
    about `seconds` in all."""
    settings = replace(settings, max_new_tokens=min(settings.max_new_tokens, USER_TOKENS))
    ways = [replace(settings, drafter="none"), settings]
    questions = [instructions[number % len(instructions)] for number in range(max(USERS))]
    until = perf_counter() + seconds
    _together(session, questions, replace(settings, max_new_tokens=1))  # keeps all prompts' texts
    rates: dict[int, list[list[float]]] = {users: [] for users in USERS}
    pairs: dict[int, list[PairedRuns]] = {users: [] for users in USERS}
    for turn, users in product(range(TURNS), USERS):
        if rates[1] and perf_counter() > until:
            break
        report(f"{users} users at once" if users > 1 else "one user")
        prompts = [questions[(turn * users + user) % len(questions)] for user in range(users)]
        order = ways[:: 1 if turn % 2 else -1]  # a drift of the machine's speed favours none
        runs = {way.drafter: _together(session, prompts, way) for way in order}
        (slow, fast), shares = zip(runs["none"], runs[settings.drafter], strict=True)
        rates[users].append([slow, fast])
        if slow:  # else no answer has a second token
            pairs[users].append(PairedRuns(fast / slow, starved(min(shares))))
    verdicts = {users: judge(each, "measurement") for users, each in pairs.items() if each}
    return [
        {
            "users": users,
            **dict(zip(RATES, map(median, zip(*rates[users], strict=True)), strict=True)),
            "speedup": verdict.speedup if verdict.races else None,
            "interval": verdict.interval,
            "sure": verdict.sure,
            "measurements": verdict.races,
        }
        for users, verdict in verdicts.items()
    ]


def _together(
    session: Session, instructions: Sequence[str], settings: Settings
) -> tuple[float, float]:
    """Tokens/s of all answers to questions asked at once, while they are decoded; the smallest
    share of processor time that one of them had."""
    questions = [Question(instruction, settings) for instruction in instructions]
    with ThreadPoolExecutor(len(questions)) as pool:
        traces = list(pool.map(lambda question: trace_of(session.ask(question)), questions))
    rate = combined(map(summarize, traces)).tokens_per_second
    return len(questions) * rate, min(trace.share for trace in traces)
