"""What a benchmark decides: whether to use drafts here, with which settings, and for how many users
at once."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from threading import Event
from time import perf_counter
from typing import Any

from specdemo.bench.costs import WhatIf, what_if
from specdemo.machine.terminal import counted
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.display import SOURCES
from specdemo.runs.judge import MIN_RACES, PairedRuns, Verdict, judge, starved, times
from specdemo.runs.question import Question, SessionEvent, trace_of
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace, combined, over, summarize

WAYS = ("autoregressive", "speculative")
USERS = 2, 4, 8
MOST_TURNS = 2 * MIN_RACES  # measurements of each number of users, those not counted included
USER_TOKENS = 64  # of the longest answer
DECISIVE_PROMPTS = 16  # with 16 the interval leaves out the three fastest and slowest ones
SHOWN = (
    "draft_tokens drafter temperature top_p top_k min_p presence_penalty frequency_penalty "
    "repetition_penalty numerics coupling json_schema"
).split()
FREQUENT = 0.05  # share of the accepted draft tokens, of a source that the decision names

Row = dict[str, Any]
"""A row of a table, as in the JSON."""
Ask = Callable[[Question], Iterator[SessionEvent]]
"""As Session.ask."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to use drafts here."""

    use: bool | None  # None: undecided
    headline: str  # says so in a line
    sentence: str  # gives the reasons
    command: str  # has the settings
    python: str
    verdict: Verdict  # on one user, with a pair of runs for each prompt
    users: list[Row]  # by their number at once, the first one of the prompts
    pays_for: int  # up to so many of them the interval of the speed-up is above 1
    estimates: WhatIf | None  # for other acceptance rates, draft lengths and numbers of users


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
    begin = {True: "Use drafts here", False: "Do not use drafts here", None: "Undecided"}[use]
    length = "automatic" if settings.draft_tokens is None else settings.draft_tokens
    facts = [*_speed_facts(verdict, summary), f"answers {answers}"]
    sentences = [f"{begin} ({drafts_of(traces)}, draft length {length}): {', '.join(facts)}."]
    if verdict.uncounted:
        sentences.append(f"{verdict.uncounted} not counted: {verdict.why}.")
    pays_for = 0
    if use:
        known = takewhile(lambda row: round(row["interval"][0], 2) > 1 and row["speedup"], users)
        pays_for = max((row["users"] for row in known), default=1)
        sentences.append(_users_sentence(users, pays_for))
    if use is None:
        sentences.append(_next_step(verdict))
    if use is False:
        settings = replace(settings, drafter="none", draft_tokens=None)
    headline = "No, because answers differ"
    if not different:
        headline = _headline(use, verdict, summary, pays_for)
    measured = {1: (summary["speedup"], over(1, summary["autoregressive_tokens_per_s"]) or 0.0)}
    for row in users[1:]:
        if row["speedup"]:
            seconds = row["users"] / row["autoregressive_tokens_per_s"]
            measured[row["users"]] = row["speedup"], seconds
    return Decision(
        use,
        headline,
        " ".join(sentences),
        *as_code(choice, settings),
        verdict,
        users,
        pays_for,
        what_if(traces, measured),
    )


def _headline(use: bool | None, verdict: Verdict, summary: Row, pays_for: int) -> str:
    if use:
        users = f"up to {pays_for} users" if pays_for > 1 else "for one user"
        worst = times(summary["worst_prompt_speedup"])
        return f"Yes: {times(summary['speedup'])}, {users}, no prompt below {worst}"
    if use is None:
        low, high = verdict.interval
        return f"Undecided: {low:.2f}x to {high:.2f}x" if verdict.races else "Undecided"
    tokens = summary["tokens_per_round"]
    cost = tokens / verdict.speedup
    return f"No, because a round gives {tokens:.2f} tokens in the time of {cost:.2f} without drafts"


def _speed_facts(verdict: Verdict, summary: Row) -> list[str]:
    """What was measured of one user, in words."""
    if not verdict.races:
        return []
    (low, high), speedups = verdict.interval, summary["speedup_by_task"]
    faster = sum(round(speedup or 0.0, 2) > 1 for speedup in speedups.values())
    sure = f"{100 * verdict.sure:.0f} % confidence, {counted(verdict.races, verdict.unit)}"
    return [
        f"{summary['speedup']:.2f}x in all",
        f"the median {verdict.unit} {low:.2f}x to {high:.2f}x ({sure})",
        f"the worst {summary['worst_prompt_speedup'] or 0.0:.2f}x",
        f"faster on {faster} of {len(speedups)} tasks",
    ]


def _users_sentence(users: Sequence[Row], pays_for: int) -> str:
    """For how many users at once drafts pay, and what the next number of them costs."""
    more = next((row for row in users if row["users"] > pays_for), None)
    words = f"They pay for {f'up to {pays_for} users at once' if pays_for > 1 else 'one user'}"
    if more is None:
        return f"{words}; more were not measured."
    if more["speedup"] is None:
        count = f"{more['measurements']} of {MIN_RACES} measurements"
        return f"{words}; {more['users']} are unknown ({count})."
    return f"{words}; with {more['users']} it is {{:.2f}}x to {{:.2f}}x.".format(*more["interval"])


def _next_step(verdict: Verdict) -> str:
    """What to do where nothing is decided."""
    if not verdict.races + verdict.uncounted:
        return "Nothing to compare: no answer has a second token."
    if verdict.uncounted > verdict.races:
        return "Run it again when other programs leave this machine alone."
    if verdict.races < DECISIVE_PROMPTS:
        number = DECISIVE_PROMPTS
        return f"Run {number} prompts to decide: `specdemo bench --limit {number}`."
    return "The difference is too small for this number of prompts."


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
    ask: Ask,
    instructions: Sequence[str],
    settings: Settings,
    seconds: float,
    rows: list[Row],
    stop: Event | None = None,
) -> Iterator[str]:
    """Adds to `rows` one for each of USERS. Asks as many questions at once, with drafts and without
    in turn, until MIN_RACES measurements count, in at most about `seconds`, the fewest users first,
    or until `stop`. Yields the name of each measurement before it."""
    stop = stop or Event()
    settings = replace(settings, max_new_tokens=min(settings.max_new_tokens, USER_TOKENS))
    ways = [replace(settings, drafter="none"), settings]
    questions = [instructions[number % len(instructions)] for number in range(max(USERS))]
    until = perf_counter() + seconds
    short = replace(settings, max_new_tokens=1)
    _together(ask, questions, short, stop)  # keeps all prompts' texts
    for users in USERS:
        measured: list[PairedRuns] = []
        while len(measured) < MOST_TURNS and perf_counter() < until:
            if sum(not speeds.why for speeds in measured) == MIN_RACES:
                break
            turn = len(measured)
            yield f"{users} users at once, {turn + 1}"
            prompts = [questions[(turn * users + user) % len(questions)] for user in range(users)]
            order = ways[:: 1 if turn % 2 else -1]  # a drift of the machine's speed favours none
            runs = {way.drafter: _together(ask, prompts, way, stop) for way in order}
            (slow, busy), (fast, too) = runs["none"], runs[settings.drafter]
            if stop.is_set() or not slow:  # no answer has a second token
                return
            measured.append(PairedRuns(fast / slow, busy or too, slow, fast))
        rows.append(users_row(users, measured))


def users_row(users: int, measured: Sequence[PairedRuns]) -> Row:
    """The row of so many users at once: the measurement of median speed-up, of those that count;
    None where fewer than MIN_RACES do."""
    verdict = judge(measured)
    counted = sorted((each for each in measured if not each.why), key=lambda each: each.speedup)
    known = verdict.races >= MIN_RACES
    middle = counted[(len(counted) - 1) // 2] if known else None
    return {
        "users": users,
        **{f"{way}_tokens_per_s": middle and getattr(middle, way) for way in WAYS},
        "speedup": middle and middle.speedup,
        "interval": verdict.interval,
        "sure": verdict.sure,
        "measurements": verdict.races,
    }


def _together(
    ask: Ask, instructions: Sequence[str], settings: Settings, stop: Event
) -> tuple[float, str]:
    """Tokens/s of all answers to questions asked at once, while they are decoded, and why they do
    not count."""
    questions = [Question(instruction, settings, stop=stop) for instruction in instructions]
    with ThreadPoolExecutor(len(questions)) as pool:
        traces = list(pool.map(lambda question: trace_of(ask(question)), questions))
    rate = combined(map(summarize, traces)).tokens_per_second
    beside = max(trace.shared_with for trace in traces) >= len(questions)
    why = "other requests ran beside it" if beside else starved(min(t.share for t in traces))
    return len(questions) * rate, why
