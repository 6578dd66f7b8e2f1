"""What a benchmark decides: whether to use drafts here, with which settings, and for how many users
at once."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from time import perf_counter
from typing import Any

from specdemo.pairs.registry import ModelChoice
from specdemo.runs.judge import PairedRuns, Verdict, judge, starved
from specdemo.runs.question import Question, trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import SOURCES, Summary, Trace, combined, summarize

USERS = 1, 2, 4, 8
TURNS = 6  # measurements of each number of users, with drafts and without
USER_TOKENS = 64  # of the longest answer
FREQUENT = 0.05  # share of the accepted draft tokens, of a source that the decision names

Row = dict[str, Any]
"""A row of a table, as in the JSON."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`use` drafts here, or not; None if undecided. `sentence` gives the reasons, `command` and
    `python` the settings. `verdict` is on one user, with a pair of runs for each prompt. `users`
    has a row for each number of users at once; drafts pay for up to `pays_for` of them (None: not
    measured)."""

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
    choice: ModelChoice,
    settings: Settings,
    speedups: dict[str, float | None],
    worst: float | None,
    users: list[Row],
) -> Decision:
    """The decision after these races; `speedups` are by task, `worst` is that of a prompt."""
    free = bool(settings.temperature) and settings.coupling == "maximal"
    different = 0 if free else sum(not trace.identical for trace in traces)
    use = {"faster": True, "slower": False, "undecided": None}[verdict.result]
    pays = [row["users"] for row in users if row["speedup"] and round(row["speedup"], 2) > 1]
    lost = [row["users"] for row in users if row["speedup"] and row["users"] not in pays]
    pays_for = max([n for n in pays if not lost or n < min(lost)], default=0) if users else None
    answers = "of the same distribution" if free else "identical"
    if different:
        use, answers = False, f"different in {different} of {len(traces)} races"
    low, high = verdict.interval
    faster = sum(speedup is not None and round(speedup, 2) > 1 for speedup in speedups.values())
    length = "automatic" if settings.draft_tokens is None else settings.draft_tokens
    words = f"{drafts_of(traces)}, length {length}: "
    if verdict.result == "undecided":
        told = verdict.headline.removeprefix("Undecided: ")
        words += f"{told} ({verdict.detail}), answers {answers}."
    else:
        words += (
            f"{low:.2f} to {high:.2f} times as fast ({verdict.sure:.0%} sure, {verdict.races} "
            f"{verdict.unit}s), faster on {faster} of {len(speedups)} tasks, never slower than "
            f"{worst or 0.0:.2f}, answers {answers}."
        )
    if verdict.uncounted and verdict.races:
        words += f" {verdict.uncounted} not counted: {verdict.why}."
    if users:
        counts = f"measured {min(row['measurements'] for row in users)} times at least"
        many = f"up to {pays_for} users at once" if pays_for != 1 else "one user at a time"
        words += f" They pay for {many if pays_for else 'no number of users'} ({counts})."
    begin = {True: "Use drafts here", False: "Do not use drafts here", None: "Undecided"}[use]
    chosen = settings if use is not False else replace(settings, drafter="none", draft_tokens=None)
    command, python = as_code(choice, chosen)
    return Decision(use, f"{begin}: {words}", command, python, verdict, users, pays_for)


def drafts_of(traces: Iterable[Trace]) -> str:
    """The sources of the accepted draft tokens, the most frequent one first."""
    rounds = (round_ for trace in traces for round_ in trace.rounds)
    accepted = (token for round_ in rounds for token in round_.drafted[: round_.accepted])
    counts = Counter(SOURCES[token.source] for token in accepted)
    names = [name for name, n in counts.most_common() if n >= FREQUENT * counts.total()]
    return " with ".join(names) or "nothing accepted"


def as_code(choice: ModelChoice, settings: Settings) -> tuple[str, str]:
    """The models and settings that differ from the defaults, as a command and as Python."""
    models, options = (
        {
            field.name: value
            for field in fields(kind)
            if (value := getattr(kind, field.name)) != field.default and field.name not in skipped
        }
        for kind, skipped in ((choice, ()), (settings, ("max_new_tokens", "json_schema", "stop")))
    )
    words = ["specdemo", "run", "INSTRUCTION"]
    for name, value in (models | options).items():
        listed = value if isinstance(value, tuple) else (value,)
        for each in listed:
            text = ":".join(map(str, each)) if isinstance(each, tuple) else str(each)
            words += [f"--{name.replace('_', '-')}", *([] if each is True else [text])]
    loaded, asked = (
        "".join(f", {name}={value!r}" for name, value in each.items()) for each in (models, options)
    )
    return shlex.join(words), f"specdemo.load({loaded[2:]}).generate(prompt{asked})"


def measure_users(
    session: Session, instructions: Sequence[str], settings: Settings, seconds: float
) -> Iterator[str | list[Row]]:
    """Ask as many questions at once as there may be users, with drafts and without, in turn, for
    about so many `seconds`. Yields progress, and last a row for each of USERS."""
    settings = replace(settings, max_new_tokens=min(settings.max_new_tokens, USER_TOKENS))
    asked = [instructions[number % len(instructions)] for number in range(max(USERS))]
    until = perf_counter() + seconds
    _together(session, asked, replace(settings, max_new_tokens=1))  # all prompts are kept texts now
    runs: dict[int, list[tuple[Summary, Summary]]] = {users: [] for users in USERS}
    pairs: dict[int, list[PairedRuns]] = {users: [] for users in USERS}
    both = [replace(settings, drafter="none"), settings]
    for turn in range(TURNS):
        for users in USERS:
            if turn and perf_counter() > until:
                break
            yield f"{users} users at once" if users > 1 else "one user"
            order = both[:: 1 if turn % 2 else -1]  # a drift of the machine's speed favours none
            others = [asked[(turn * users + user) % len(asked)] for user in range(users)]
            made = {way.drafter: _together(session, others, way) for way in order}
            (slow, slow_share), (fast, share) = made["none"], made[settings.drafter]
            runs[users].append((slow, fast))
            speedup = fast.tokens_per_second / (slow.tokens_per_second or 1.0)
            pairs[users].append(PairedRuns(speedup, starved(min(share, slow_share))))
    yield [_row(users, runs[users], judge(pairs[users], "measurement")) for users in USERS]


def _together(
    session: Session, instructions: Sequence[str], settings: Settings
) -> tuple[Summary, float]:
    """The figures of the answers to all of these, asked at once, and the least of their shares."""
    questions = [Question(instruction, settings) for instruction in instructions]
    with ThreadPoolExecutor(len(questions)) as pool:
        traces = list(pool.map(lambda question: trace_of(session.ask(question)), questions))
    return combined(map(summarize, traces)), min(trace.share for trace in traces)


def _row(users: int, runs: Sequence[tuple[Summary, Summary]], verdict: Verdict) -> Row:
    """Tokens/s of all users together while they decode, and the median speed-up."""
    slow, fast = (users * combined(way).tokens_per_second for way in zip(*runs, strict=True))
    return {
        "users": users,
        "autoregressive_tokens_per_s": slow,
        "speculative_tokens_per_s": fast,
        "speedup": verdict.speedup if verdict.races else None,
        "interval": verdict.interval,
        "sure": verdict.sure,
        "measurements": verdict.races,
    }
