"""Runs a benchmark: every prompt with and without speculation, then peers and draft lengths, as one generator.

Draws and prints nothing; the page and the command line show what it yields.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from time import perf_counter
from typing import Protocol

from specdemo.bench import predict
from specdemo.bench.energy import Meter
from specdemo.bench.prompts import WARM_UP, BenchPrompt
from specdemo.bench.report import (
    Details,
    PeerRow,
    PositionCount,
    Report,
    Row,
    RowDetail,
    Skipped,
    SweepPoint,
    joules_per_token,
    peer_figures,
    spread_of,
    summarize_rows,
    variant_rates,
)
from specdemo.trace import Settings, Trace, acceptance_by_position, summarize
from specdemo.session import RequestError, Session
from specdemo.models.machine import describe

PILOT_PROMPTS = 4
BEHIND = 0.9
"""Variants of a peer slower than this share of its fastest one are dropped after the pilot prompts."""

SWEEP = (1, 2, 3, 4, 5, 6, 8, 12)
"""Draft lengths that the sweep tries besides the adaptive one."""

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `repeats` runs of each prompt (their medians make the row; every other one runs the baseline first);
    `sweep_prompts` of the prompts, over tasks, once more with every draft length of SWEEP."""

    settings: Settings = field(default_factory=Settings)
    repeats: int = 1
    sweep_prompts: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Progress: `done` of `total` pieces of work are finished, and `text` (may hold generated or user text) is next."""

    done: int
    total: int
    text: str


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What a peer gave for a prompt: its token ids, without the stop token; how many tokens it decoded after the first
    (a stop token is one of them), and in how many seconds."""

    tokens: tuple[int, ...]
    decoded: int
    seconds: float


class PeerError(RuntimeError):
    """A peer failed on a prompt; the message is one sentence."""


class Peer(Protocol):
    """Another engine on the same models. Among variants of one name the report takes the fastest, so a variant that has
    fallen behind after a few prompts is not run any further. `answer` raises PeerError when the peer fails."""

    name: str
    variant: str
    settings: dict[str, str]

    def answer(self, instruction: str, settings: Settings) -> PeerAnswer: ...


Event = Step | Row | PeerRow | Skipped | Report


def bench(
    session: Session,
    prompts: Sequence[BenchPrompt],
    plan: Plan = Plan(),
    *,
    peers: Sequence[Peer] = (),
    stop: threading.Event | None = None,
) -> Iterator[Event]:
    """Run `prompts` and yield, in order: a Step before each piece of work; a Row, or a Skipped, after each prompt;
    a PeerRow after each prompt of each peer; last, always, the Report.

    Setting `stop` ends within one forward of ours (or one answer of a peer), with a Report of the prompts finished
    until then. A prompt and its baseline, and then the peers, run one after another before the next prompt. Raises
    RequestError, before anything runs, for settings that cannot be used.
    """
    return _Bench(session, prompts, plan, peers, stop or threading.Event()).run()


@dataclass(frozen=True, slots=True)
class _Measured:
    """One prompt's traces, one for each repeat (all with baselines), and joules beside each where known."""

    prompt: BenchPrompt
    traces: tuple[Trace, ...]
    speculative_joules: tuple[float | None, ...]
    autoregressive_joules: tuple[float | None, ...]


class _Bench:
    def __init__(
        self,
        session: Session,
        prompts: Sequence[BenchPrompt],
        plan: Plan,
        peers: Sequence[Peer],
        stop: threading.Event,
    ):
        self.session = session
        self.prompts = tuple(prompts)
        self.plan = plan
        self.peers = self.all_peers = tuple(peers)
        self.stop = stop
        self.meter = getattr(session, "meter", Meter)()  # a session that runs elsewhere brings one that says so
        self.measured: list[_Measured] = []
        self.peer_rows: list[PeerRow] = []
        self.skipped: list[Skipped] = []
        self.sweep: dict[int | None, list[Trace]] = {}
        self.done = 0

    def run(self) -> Iterator[Event]:
        since = perf_counter()
        settings = self.plan.settings
        sweep_prompts = self.prompts[: self.plan.sweep_prompts]
        total = 1 + len(self.prompts) * (1 + len(self.all_peers)) + len(sweep_prompts)
        yield Step(0, total, "warming up")
        self._warm_up()
        self.done = 1
        for place, prompt in enumerate(self.prompts):
            self.done = 1 + place * (1 + len(self.all_peers))
            yield Step(self.done, total, f"{prompt.task}: {prompt.id}")
            try:
                measured = self._measure(prompt)
            except RequestError as error:
                self.skipped.append(Skipped(prompt.id, str(error)))
                yield self.skipped[-1]
                continue
            if measured is None:
                break
            self.measured.append(measured)
            self.done += 1
            yield _row(measured)
            yield from self._peers(measured, total)
        self.done = total - len(sweep_prompts)
        usable = {measured.prompt.id for measured in self.measured}
        for prompt in sweep_prompts:
            if self.stop.is_set() or prompt.id not in usable:
                continue
            yield Step(self.done, total, f"draft lengths on {prompt.task}: {prompt.id}")
            self._sweep(prompt, settings)
            self.done += 1
        yield self._report(perf_counter() - since)

    # Measuring

    def _warm_up(self) -> None:
        """Nothing of it is kept. Long enough for the adaptive lookahead to have seen some rounds."""
        settings = dataclasses.replace(self.plan.settings, max_new_tokens=min(self.plan.settings.max_new_tokens, 48))
        trace, _ = self._answer(WARM_UP, settings)
        if trace is not None:
            self._baseline(trace)
        for peer in self.peers:
            if not self.stop.is_set():
                self._ask(peer, WARM_UP, dataclasses.replace(settings, max_new_tokens=16))

    def _answer(self, instruction: str, settings: Settings) -> tuple[Trace | None, float | None]:
        """A finished trace with the joules of its decoding; None when stopped."""
        first = last = None
        for event in self.session.answer(instruction, settings, stop=self.stop):
            if isinstance(event, Trace):
                return (None if event.finish_reason == "cancelled" else event), _between(first, last)
            if self.meter.available:
                last = self.meter.joules()
                first = last if first is None else first
        return None, None

    def _baseline(self, trace: Trace) -> tuple[Trace | None, float | None]:
        first = last = None
        for event in self.session.baseline(trace, stop=self.stop):
            if isinstance(event, Trace):
                whole = event.baseline is not None and event.identical is not None
                return (event if whole else None), _between(first, last)
            if self.meter.available:
                last = self.meter.joules()
                first = last if first is None else first
        return None, None

    def _measure(self, prompt: BenchPrompt) -> _Measured | None:
        """None when stopped before all of it was done. Raises RequestError for a prompt that cannot be run."""
        traces: list[Trace] = []
        joules: list[float | None] = []
        plain_joules: list[float | None] = []
        for repeat in range(self.plan.repeats):
            compared = None
            if repeat % 2:  # the order alternates, so that neither run always follows the other
                compared, plain_joule = self._baseline(traces[-1])
                if compared is None:
                    return None
            trace, joule = self._answer(prompt.instruction, self.plan.settings)
            if trace is None:
                return None
            if compared is None:
                compared, plain_joule = self._baseline(trace)
                if compared is None:
                    return None
            same = tuple(token.id for token in compared.baseline.tokens) == trace.token_ids
            traces.append(dataclasses.replace(trace, baseline=compared.baseline, identical=same))
            joules.append(joule)
            plain_joules.append(plain_joule)
        return _Measured(prompt, tuple(traces), tuple(joules), tuple(plain_joules))

    def _peers(self, measured: _Measured, total: int) -> Iterator[Event]:
        if not self.peers:
            return
        settings = self.plan.settings
        trace = measured.traces[0]
        ours = trace.token_ids[:-1] if trace.finish_reason == "stop" else trace.token_ids
        for peer in self.peers:
            if self.stop.is_set():
                return
            yield Step(self.done, total, f"{peer.name} ({peer.variant}), {measured.prompt.task}: {measured.prompt.id}")
            theirs = self._ask(peer, measured.prompt.instruction, settings)
            self.done += 1
            if theirs is None:
                yield self.skipped[-1]
                continue
            # Two engines draw different random numbers, so sampled answers are not compared.
            same = theirs.tokens == ours if settings.temperature == 0 else None
            row = PeerRow(peer.name, peer.variant, measured.prompt.id, theirs.decoded, theirs.seconds, same)
            self.peer_rows.append(row)
            yield row
        self._drop_slow_variants()

    def _ask(self, peer: Peer, instruction: str, settings: Settings) -> PeerAnswer | None:
        """A peer's answer; None when it failed, and it is then not asked again."""
        try:
            return peer.answer(instruction, settings)
        except PeerError as error:
            self.skipped.append(Skipped(f"{peer.name} ({peer.variant})", str(error)))
            self.peers = tuple(other for other in self.peers if other is not peer)
            return None

    def _drop_slow_variants(self) -> None:
        if len(self.measured) < PILOT_PROMPTS:
            return
        rates = {key: rate for key, rate in variant_rates(self.peer_rows).items() if rate is not None}
        best = {
            peer.name: max((r for (name, _), r in rates.items() if name == peer.name), default=0.0)
            for peer in self.peers
        }
        self.peers = tuple(
            peer for peer in self.peers if rates.get((peer.name, peer.variant), 0.0) >= BEHIND * best[peer.name]
        )

    def _sweep(self, prompt: BenchPrompt, settings: Settings) -> None:
        """The prompt with every draft length, all or (when stopped) nothing of it kept."""
        found: dict[int | None, Trace] = {}
        for length in (None, *SWEEP):
            trace, _ = self._answer(prompt.instruction, dataclasses.replace(settings, draft_tokens=length))
            compared = self._baseline(trace)[0] if trace is not None else None
            if compared is None:
                return
            found[length] = compared
        for length, trace in found.items():
            self.sweep.setdefault(length, []).append(trace)

    # Summing up

    def _report(self, seconds: float) -> Report:
        traces = [trace for measured in self.measured for trace in measured.traces]
        costs = predict.measured_costs(traces)
        rows = tuple(_row(measured) for measured in self.measured)
        details = tuple(_detail(measured, costs) for measured in self.measured)
        settings = {(peer.name, peer.variant): peer.settings for peer in self.all_peers}
        return Report(
            machine=describe(),
            versions=versions(),
            pair=traces[0].pair if traces else self.session.info,
            settings=self.plan.settings,
            rows=rows,
            summary=summarize_rows(rows, details),
            peers=peer_figures(self.peer_rows, settings),
            details=Details(
                rows=details,
                positions=tuple(PositionCount(*count) for count in acceptance_by_position(traces)),
                costs=costs,
                predicted_speedup=predict.predicted_speedup(traces, costs) if costs else None,
                spread=spread_of(rows),
                joules_per_token=joules_per_token(details),
                energy="RAPL package counters" if self.meter.available else "not readable on this machine",
                sweep=tuple(_sweep_point(length, found) for length, found in self.sweep.items()),
                sweep_prompts=len(next(iter(self.sweep.values()), ())),
                peer_rows=tuple(self.peer_rows),
                skipped=tuple(self.skipped),
                repeats=self.plan.repeats,
                stopped=self.stop.is_set(),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                seconds=seconds,
            ),
        )


def versions() -> dict[str, str]:
    """Python, this project and the packages that do the work, each with its version, where it is installed."""
    import specdemo

    found = {"specdemo": specdemo.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _between(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else last - first


def _row(measured: _Measured) -> Row:
    """Counts are the first run's (greedy runs differ only in their rounds); times are medians over the repeats."""
    figures = [summarize(trace) for trace in measured.traces]
    plain = median(one.baseline_decode_seconds or 0.0 for one in figures)
    speculative = median(one.decode_seconds for one in figures)
    trace = measured.traces[0]
    compared = [one.identical for one in measured.traces]
    decoded, plain_decoded = len(trace.token_ids) - 1, len(trace.baseline.tokens) - 1
    comparable = decoded > 0 and plain_decoded > 0 and speculative > 0
    return Row(
        id=measured.prompt.id,
        task=measured.prompt.task,
        tokens=figures[0].tokens,
        autoregressive_s=plain,
        speculative_s=speculative,
        speedup=(plain / plain_decoded) / (speculative / decoded) if comparable else None,
        acceptance_rate=figures[0].acceptance_rate,
        tokens_per_round=figures[0].tokens_per_round,
        identical=all(compared) if None not in compared else None,
    )


def _detail(measured: _Measured, costs) -> RowDetail:
    figures = [summarize(trace) for trace in measured.traces]
    one, trace = figures[0], measured.traces[0]
    rounds = predict.decoding_rounds(trace)
    certificates = [t.certificate.certified for t in measured.traces if t.certificate is not None]
    return RowDetail(
        id=measured.prompt.id,
        decoded=max(one.tokens - 1, 0),
        autoregressive_decoded=max(len(trace.baseline.tokens) - 1, 0),
        rounds=len(rounds),
        drafted=one.drafted,
        accepted=one.accepted,
        examined=one.accepted + sum(1 for r in rounds if r.emitted and r.emitted.kind == "correction"),
        draft_s=median(f.draft_seconds for f in figures),
        verify_s=median(f.verify_seconds for f in figures),
        outside_s=median(f.outside_seconds for f in figures),
        autoregressive_cpu_s=median(t.baseline.cpu_seconds for t in measured.traces),
        speculative_cpu_s=median(t.cpu_seconds for t in measured.traces),
        autoregressive_joules=_median_known(measured.autoregressive_joules),
        speculative_joules=_median_known(measured.speculative_joules),
        near_ties=len(trace.baseline.near_ties),
        certified=all(certificates) if certificates else None,
        predicted_speedup=predict.predicted_speedup(measured.traces, costs) if costs else None,
        speedups=tuple(f.speedup for f in figures if f.speedup is not None),
    )


def _median_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _sweep_point(length: int | None, traces: list[Trace]) -> SweepPoint:
    figures = [summarize(trace) for trace in traces]
    plain = sum(f.baseline_decode_seconds or 0.0 for f in figures)
    decoded = sum(f.tokens - 1 for f in figures)
    plain_decoded = sum(len(trace.baseline.tokens) - 1 for trace in traces)
    speculative = sum(f.decode_seconds for f in figures)
    costs = predict.measured_costs(traces)
    rounds = [r for trace in traces for r in predict.decoding_rounds(trace)]
    examined = sum(f.accepted for f in figures) + sum(1 for r in rounds if r.emitted and r.emitted.kind == "correction")
    comparable = plain_decoded > 0 and decoded > 0 and speculative > 0
    return SweepPoint(
        draft_tokens=length,
        speedup=(plain / plain_decoded) / (speculative / decoded) if comparable else 1.0,
        predicted=predict.predicted_speedup(traces, costs) if costs else None,
        acceptance_rate=sum(f.accepted for f in figures) / examined if examined else None,
        mean_draft_tokens=sum(len(r.drafted) for r in rounds) / len(rounds) if rounds else 0.0,
    )
