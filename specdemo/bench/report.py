"""Runs a benchmark. Its report is data, as in JSON, and tables."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

from specdemo.audit.engines import NotOffered, Peer
from specdemo.bench.decision import WAYS, Decision, Row, decide, measure_users, users_row
from specdemo.bench.prompts import WARM_UP, BenchPrompt
from specdemo.errors import BadInput, RequestFailed
from specdemo.machine.hardware import measured_share
from specdemo.machine.terminal import Progress, Report, Table, silent
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.judge import MIN_RACES, PairedRuns, judge, starved
from specdemo.runs.question import Question, trace_of
from specdemo.runs.report_page import ReportHeader
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import (
    Summary,
    Trace,
    acceptance_by_position,
    as_json,
    combined,
    describe_difference,
    over,
    summarize,
)

ATTEMPTS = 3  # at a race or a peer's answer that other programs starve
PROMPTS_SHARE, FEW_PROMPTS_SHARE = 0.5, 0.7
"""Shares of the seconds of a quick benchmark after which no further prompt is run: with enough
prompts for a verdict, and with fewer."""

PILOT_PROMPTS = 3  # answered by every variant of a peer; the fastest then answers all prompts
WARM_UP_TOKENS = 48  # enough for the adaptive draft length to have seen some rounds

SHORT = 0.25
"""Share of the median answer's tokens below which an answer has no vote in the decision: a few
rounds decide nothing by themselves. It counts in all figures."""

PAPER = {40: 19.87 / 13.61, 100: 44.25 / 26.97}
"""Speed-ups by new tokens, of seconds in arXiv 2311.04951: dolly-v2-12b with the draft dolly-v2-3b,
K = 5, on its authors' machine. Ratios compare with those of other machines, seconds do not."""

PAPER_PROMPT = BenchPrompt("fission", "paper", "Explain the difference between fission and fusion")


@dataclass(frozen=True, slots=True)
class Details:
    """What explains the figures."""

    differences: dict[str, str]  # by prompt, in words
    skipped: dict[str, str]  # why a prompt or a peer was left out
    repeats: int
    total: Summary
    positions: list[tuple[int, int]]  # (accepted, examined) of each draft token of a round
    created: str
    seconds: float


@dataclass(kw_only=True)
class BenchReport(ReportHeader):
    """A whole benchmark."""

    rows: list[Row]  # of prompts
    summary: Row  # of them all (`summary_of`)
    decision: Decision
    peers: dict[str, Row]  # by engine and method
    details: Details

    @property
    def tokens_per_s(self) -> dict[str, float | None]:
        """Of every engine and method, ours first."""
        ours = {f"specdemo/{way}": self.summary[f"{way}_tokens_per_s"] for way in WAYS}
        return ours | {name: row["tokens_per_s"] for name, row in self.peers.items()}


@dataclass(kw_only=True)
class LengthsReport(BenchReport):
    """Of several answer lengths, with a row for each."""

    lengths: list[Row]


@dataclass
class RacedPrompt:
    """The races of one prompt with these settings."""

    prompt: BenchPrompt
    settings: Settings
    traces: list[Trace] = field(default_factory=list)

    @property
    def figures(self) -> Summary:
        """Those of the race of median speed-up, of the races that count, of all if none does."""
        counted = [trace for trace in self.traces if not trace.why] or self.traces
        races = sorted(map(summarize, counted), key=lambda race: race.speedup or 0.0)
        return races[(len(races) - 1) // 2]

    @property
    def pairs(self) -> list[PairedRuns]:
        """The race of each turn."""
        return [pair for trace in self.traces for pair in trace.pairs[:1]]

    @property
    def pair(self) -> PairedRuns:
        """The races as one, which counts if one of them does."""
        why = "" if any(not trace.why for trace in self.traces) else self.traces[0].why
        figures = self.figures
        rates = figures.baseline_tokens_per_second, figures.tokens_per_second
        return PairedRuns(figures.speedup or 1.0, why, *rates)

    def race(self, session: Session, attempts: int) -> None:
        """Add a race, the first of `attempts` that counts, else the last. Raises BadInput."""
        question = Question(self.prompt.instruction, self.settings, baseline=True)
        for _ in range(attempts):
            trace = trace_of(session.ask(question))
            if not trace.why:
                break
        self.traces.append(trace)

    @property
    def identical(self) -> bool:
        return all(trace.identical for trace in self.traces)

    @property
    def row(self) -> Row:
        figures = self.figures
        return {
            "id": self.prompt.id,
            "task": self.prompt.task,
            "tokens": len(self.traces[0].token_ids),
            "autoregressive_s": figures.baseline_decode_seconds,
            "speculative_s": figures.decode_seconds,
            "speedup": figures.speedup,
            "acceptance_rate": figures.acceptance_rate,
            "tokens_per_round": figures.tokens_per_round,
            "identical": self.identical,
            "counted": not self.pair.why,
        }


def bench(
    session: Session,
    prompts: Sequence[BenchPrompt],
    settings: Settings,
    *,
    lengths: Sequence[int] = (),
    repeats: int = 1,
    peers: Sequence[Peer] = (),
    choice: ModelChoice | None = None,
    users: bool = True,
    seconds: float | None = None,
    report: Report = silent,
) -> BenchReport:
    """Run `prompts`, `repeats` times each. Reports each step, counted in prompts. With several
    `lengths` (in place of the settings' longest answer, tokens) a prompt has a row for each. The
    decision names the models as `choice` does, and with `users` has the curve of several users at
    once. `seconds` limit the whole run, but at least half of them are for what follows the warm-up.
    """
    began = perf_counter()
    limits = tuple(dict.fromkeys(lengths)) or (settings.max_new_tokens,)
    limited = [replace(settings, max_new_tokens=limit) for limit in limits]
    work = [RacedPrompt(prompt, each) for prompt in prompts for each in limited]
    answers, total = PeerAnswers(peers), 1 + len(work)
    report(Progress("warming up", 0, total))
    short = replace(settings, max_new_tokens=min(settings.max_new_tokens, WARM_UP_TOKENS))
    list(session.ask(Question(WARM_UP, short, baseline=True)))
    for variant in answers.ask(WARM_UP, short):
        report(Progress(variant, 0, total))
    answers.forget()
    ready = perf_counter()
    left = max(seconds - (ready - began), seconds / 2) if seconds else None
    raced = _race(session, work, repeats, answers, left, report)
    votes, curve = with_vote(raced), list[Row]()
    verdict = judge((item.pair for item in votes), "prompt")
    if len(raced) == 1:
        verdict = judge(raced[0].pairs)
    if users and votes and settings.drafter != "none":
        instructions = [item.prompt.instruction for item in raced]
        spent = perf_counter() - ready
        rest = left - spent if left else inf
        curve.append(users_row(1, [item.pair for item in votes]))
        for step in measure_users(session.ask, instructions, settings, rest, curve):
            report(Progress(step, total, total))
    traces = [(item, trace) for item in raced for trace in item.traces]
    pair = traces[-1][1].pair if traces else session.info
    summary = summary_of(raced)
    result = BenchReport(
        pair=pair,
        settings=settings,
        rows=[item.row for item in raced],
        summary=summary,
        decision=decide(
            verdict,
            [trace for _, trace in traces],
            summary,
            curve,
            choice or ModelChoice(pair.name),
            settings,
        ),
        peers=answers.rows(raced),
        details=Details(
            differences={
                item.prompt.id: describe_difference(trace)
                for item, trace in reversed(traces)
                if not trace.identical
            },
            skipped=answers.skipped,
            repeats=repeats,
            total=combined(item.figures for item in counting(raced)),
            positions=acceptance_by_position(trace for _, trace in traces),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=perf_counter() - began,
        ),
    )
    if len(limits) == 1:
        return result
    for row, item in zip(result.rows, raced, strict=True):
        row["max_new_tokens"] = item.settings.max_new_tokens
    return LengthsReport(**vars(result), lengths=by_length(raced))


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    ids: tuple[int, ...]
    seconds: float  # from the first token to the last
    why: str  # it does not count; "": it does


def answer_of(peer: Peer, instruction: str, settings: Settings, attempts: int) -> PeerAnswer:
    """The first of `attempts` answers that counts, else the last. Raises RequestFailed."""
    for _ in range(attempts):
        work = partial(peer.answers, [(instruction,)], settings)
        [(ids, seconds)], share = measured_share(work)
        if not (why := starved(share)):
            break
    # Prompt lookup of transformers exceeds the limit.
    return PeerAnswer(ids[: settings.max_new_tokens], seconds, why)


class PeerAnswers:
    """The answers of peers to the prompts so far. One that fails is left out, and named in
    `skipped` with the reason."""

    def __init__(self, peers: Sequence[Peer]):
        self.skipped: dict[str, str] = {}
        self._answers: dict[Peer, list[PeerAnswer]] = {peer: [] for peer in peers}

    def ask(self, instruction: str, settings: Settings, attempts: int = 1) -> Iterator[str]:
        """Add each peer's answer. Yields the name of each variant before it answers."""
        for peer in list(self._answers):
            variant = f"{peer.title} ({peer.variant})"
            yield variant
            try:
                self._answers[peer].append(answer_of(peer, instruction, settings, attempts))
            except (RequestFailed, NotOffered) as error:
                del self._answers[peer]
                self.skipped[variant] = str(error)
            if peer.repeated:
                self.skipped[f"{variant}, a call"] = f"It was repeated: {peer.repeated[0]}"

    def forget(self) -> None:
        self._answers = {peer: [] for peer in self._answers}

    def keep_fastest(self) -> None:
        """Leave out all but the fastest variant of each name, and those without an answer."""
        slowest_first = sorted(self._answers, key=lambda peer: self._tokens_per_s(peer) or 0.0)
        best = {peer.title: peer for peer in slowest_first if self._answers[peer]}
        fastest = [peer for peer in self._answers if best.get(peer.title) is peer]
        self._answers = {peer: self._answers[peer] for peer in fastest}

    def rows(self, raced: Sequence[RacedPrompt]) -> dict[str, Row]:
        """By name; `identical` to our answers. Sampled ones are not compared: two engines draw
        different random numbers."""
        self.keep_fastest()
        sampled = any(item.settings.temperature for item in raced)
        ours = [item.traces[-1].token_ids for item in raced]
        rows = {}
        for peer, answers in self._answers.items():
            ids = [answer.ids for answer in answers]
            whys = [answer.why for answer in answers if answer.why]
            if whys:
                those = f"{peer.title}, speed of {len(whys)} of {len(answers)} answers"
                self.skipped[those] = whys[0]
            rows[peer.title] = {
                "tokens_per_s": self._tokens_per_s(peer),
                "settings": peer.facts,
                "identical": None if sampled else ids == ours[: len(ids)],
            }
        return rows

    def _tokens_per_s(self, peer: Peer) -> float | None:
        """Decoding tokens per second, of the answers that count: the first token of an answer comes
        from prefill."""
        counted = [answer for answer in self._answers[peer] if not answer.why]
        tokens = sum(max(len(answer.ids) - 1, 0) for answer in counted)
        return over(tokens, sum(answer.seconds for answer in counted))


def _race(
    session: Session,
    work: Sequence[RacedPrompt],
    repeats: int,
    answers: PeerAnswers,
    seconds: float | None,
    report: Report,
) -> list[RacedPrompt]:
    """Race the prompts and ask the peers. Returns those that could be run within `seconds`."""
    raced: list[RacedPrompt] = []
    attempts = 1 if seconds else ATTEMPTS
    ready, total = perf_counter(), 1 + len(work)
    for done, item in enumerate(work, start=1):
        name = item.prompt.id
        share = PROMPTS_SHARE if len(raced) >= MIN_RACES else FEW_PROMPTS_SHARE
        if raced and seconds and perf_counter() - ready > share * seconds:
            break
        report(Progress(f"{item.prompt.task}: {name}", done, total))
        try:
            for _ in range(repeats):
                item.race(session, attempts)
        except BadInput as error:
            answers.skipped[name] = str(error)
            continue
        raced.append(item)
        for variant in answers.ask(item.prompt.instruction, item.settings, attempts):
            report(Progress(f"{variant}: {name}", done, total))
        if len(raced) == PILOT_PROMPTS:
            answers.keep_fastest()
    return raced


def counting(raced: Sequence[RacedPrompt]) -> Sequence[RacedPrompt]:
    """The prompts that count, all if none does."""
    return [item for item in raced if not item.pair.why] or raced


def with_vote(raced: Sequence[RacedPrompt]) -> list[RacedPrompt]:
    """The prompts that decide: those whose answers are long enough to compare."""
    compared = [item for item in raced if item.figures.speedup]
    lengths = [len(item.traces[0].token_ids) for item in compared]
    enough = SHORT * median(lengths) if lengths else 0
    return [item for item, tokens in zip(compared, lengths, strict=True) if tokens >= enough]


def summary_of(raced: Sequence[RacedPrompt]) -> Row:
    """Ratios of totals, never means of rates. What is per token has the keys of WAYS. Seconds of
    prompts that do not count are left out, if others do."""
    counted = counting(raced)
    figures = [item.figures for item in counted]
    total = combined(figures)
    tasks: dict[str, list[Summary]] = {}
    for item, summary in zip(counted, figures, strict=True):
        tasks.setdefault(item.prompt.task, []).append(summary)
    speedups = [summary.speedup for summary in figures if summary.speedup]
    return {
        "speedup": total.speedup,
        "speedup_by_task": {task: combined(each).speedup for task, each in tasks.items()},
        "worst_prompt_speedup": min(speedups, default=None),
        "autoregressive_tokens_per_s": total.baseline_tokens_per_second,
        "speculative_tokens_per_s": over(total.decoded, total.decode_seconds),
        "acceptance_rate": total.acceptance_rate,
        "tokens_per_round": over(total.decoded, total.decode_rounds),
        "identical": all(item.identical for item in raced) if raced else None,
        "prompts": len(raced),
        "outside_inference_fraction": over(total.outside_seconds, total.decode_seconds),
        "cpu_seconds_per_token": _per_token(total, total.baseline_cpu_seconds, total.cpu_seconds),
        "joules_per_token": _per_token(total, total.baseline_joules, total.joules),
    }


def _per_token(total: Summary, *quantities: float | None) -> dict[str, float | None]:
    """Each of the two `quantities`, by way, over the tokens of its way."""
    decoded = total.baseline_decoded, total.decoded
    return dict(zip(WAYS, map(over, quantities, decoded), strict=True))


def by_length(raced: Sequence[RacedPrompt]) -> list[Row]:
    """For each longest answer, of the prompts that count: mean seconds of decoding, ratio of
    totals."""
    rows = []
    for limit in dict.fromkeys(item.settings.max_new_tokens for item in raced):
        same = [item for item in raced if item.settings.max_new_tokens == limit]
        counted = counting(same)
        total, count = combined(item.figures for item in counted), len(counted)
        rows.append(
            {
                "max_new_tokens": limit,
                "answers": count,
                "tokens": sum(len(item.traces[0].token_ids) for item in counted) / count,
                "autoregressive_s": over(total.baseline_decode_seconds, count),
                "speculative_s": total.decode_seconds / count,
                "speedup": total.speedup,
                "identical": all(item.identical for item in same),
            }
        )
    return rows


def tables(report: BenchReport) -> dict[str, Table]:
    """A report's tables by title, the most important one first, without empty ones."""
    details, summary = report.details, report.summary
    figures = dict(summary)
    cpu, joules = figures.pop("cpu_seconds_per_token"), figures.pop("joules_per_token")
    by_task = figures.pop("speedup_by_task")
    # First how good our baseline is: a weak one flatters the speed-up.
    counted = any(row["counted"] for row in report.rows)
    ours = summary["autoregressive_tokens_per_s"] if counted else None
    doubt = "" if counted else ", though no prompt counts"
    users = report.decision.users
    ratios = {
        f"autoregressive, relative to {name}": ratio
        for name, peer in report.peers.items()
        if name.endswith("/autoregressive") and (ratio := over(ours, peer["tokens_per_s"]))
    }
    shown = {name.replace("_", " "): value for name, value in (ratios | figures).items()}
    no_peer: Row = {"settings": {}, "identical": None}
    engines = [
        {"": name, "tokens_per_s": rate, **report.peers.get(name, no_peer)}
        for name, rate in report.tokens_per_s.items()
        if report.peers
    ]
    facts = {"machine": report.machine}
    facts |= {name: _listed(getattr(report, name)) for name in ("pair", "settings", "versions")}
    facts |= {name: getattr(details, name) for name in ("repeats", "created", "seconds")}
    rows: dict[str, Table] = {
        f"Summary{doubt}": _column("is", shown),
        "Answer lengths": [{**row, "": ""} for row in getattr(report, "lengths", ())],
        "Users at once": [
            row | {"interval": row["speedup"] and "{:.2f}x to {:.2f}x".format(*row["interval"])}
            for row in users
            if any(row["measurements"] for row in users)
        ],
        f"Speed-up by task{doubt}": _column("speedup", by_task),
        "Time of a token": _column("milliseconds", token_milliseconds(report)),
        "What else it saves": [
            {
                "": way,
                "processor seconds a token": cpu[way],
                "joules a token": "not readable here" if joules[way] is None else joules[way],
            }
            for way in WAYS
        ],
        "Other engines on the same files": [
            row | {"settings": _listed(row["settings"])} for row in engines
        ],
        "How this was measured": _column("is", facts),
        "Prompts": [{**row, "": details.differences.get(row["id"], "")} for row in report.rows],
        "Left out": _column("because", details.skipped),
    }
    return {title: table for title, table in rows.items() if table}


def _column(title: str, values: Mapping[str, Any]) -> Table:
    return [{"": name, title: value} for name, value in values.items()]


def token_milliseconds(report: BenchReport) -> dict[str, float | None]:
    """Milliseconds per token: of both WAYS, and of the parts of speculative decoding."""
    summary, total = report.summary, report.details.total
    return {
        "autoregressive decoding": over(1e3, summary["autoregressive_tokens_per_s"]),
        "speculative decoding": over(1e3, summary["speculative_tokens_per_s"]),
        "drafting": over(1e3 * total.draft_seconds, total.decoded),
        "verifying": over(1e3 * total.verify_seconds, total.decoded),
        "outside inference": over(1e3 * total.outside_seconds, total.decoded),
    }


def _listed(value: Any) -> str:
    values = json.loads(as_json(value))
    return ", ".join(f"{key}={value}" for key, value in values.items() if value is not None)
