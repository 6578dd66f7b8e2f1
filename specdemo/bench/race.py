"""Runs a benchmark: every prompt with and without speculation, then peers and draft lengths, as one
generator. Draws and prints nothing; the page and the command line show what it yields."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import median_low
from time import perf_counter

from specdemo.bench import report as reports
from specdemo.bench.costs import measured_costs, predicted_speedup
from specdemo.bench.energy import Meter
from specdemo.bench.peers import Peer
from specdemo.bench.prompts import WARM_UP, BenchPrompt
from specdemo.bench.report import (
    Measurement,
    PeerRow,
    Report,
    Row,
    RowDetail,
    Skipped,
    SweepPoint,
)
from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, RequestFailed
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import (
    BaselineToken,
    Summary,
    Trace,
    acceptance_by_position,
    combined,
    summarize,
)

PILOT_PROMPTS = 4
BEHIND = 0.9
"""After the pilot prompts, variants of a peer slower than this share of its fastest are dropped."""

SWEEP = (1, 2, 3, 4, 5, 6, 8, 12)
"""Draft lengths that the sweep tries besides the adaptive one."""

WARM_UP_TOKENS = 48
"""Enough for the adaptive draft length to have seen some rounds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. The medians of `repeats` runs of each prompt make its row; `sweep_prompts` of
    the prompts run once more with every draft length of SWEEP."""

    settings: Settings = field(default_factory=Settings)
    repeats: int = 1
    sweep_prompts: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Progress: `done` of `total` pieces of work are finished, and `text` (may hold user text) is
    next."""

    done: int
    total: int
    text: str


def bench(
    session: Session,
    prompts: Sequence[BenchPrompt],
    plan: Plan = Plan(),
    *,
    peers: Sequence[Peer] = (),
    stop: threading.Event | None = None,
) -> Iterator[Step | Row | PeerRow | Skipped | Report]:
    """Run `prompts` and yield, in order: a Step before each piece of work; a Row, or a Skipped,
    after each prompt; a PeerRow after each prompt of each peer; last, always, the Report.

    Setting `stop` ends within one forward of ours (or one answer of a peer), with a Report of the
    prompts finished until then. A prompt's answer, its baseline and then the peers run one after
    another before the next prompt. Raises BadInput, before anything runs, for settings that cannot
    be used.
    """
    # A session that runs elsewhere brings a meter of its own.
    meter = getattr(session, "meter", Meter)()
    stop = stop or threading.Event()
    return _Bench(session, prompts, plan, peers, list(peers), stop, meter).run()


@dataclass(frozen=True, slots=True)
class _Ran:
    """A prompt's row, and the trace and the figures of each of its races."""

    row: Row
    traces: list[Trace]
    figures: list[Summary]


@dataclass
class _Bench:
    session: Session
    prompts: Sequence[BenchPrompt]
    plan: Plan
    peers: Sequence[Peer]
    peers_left: list[Peer]
    stop: threading.Event
    meter: Meter
    ran: list[_Ran] = field(default_factory=list)
    peer_rows: list[PeerRow] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    sweep: list[SweepPoint] = field(default_factory=list)

    def run(self) -> Iterator[Step | Row | PeerRow | Skipped | Report]:
        since = perf_counter()
        lengths = (None, *SWEEP) if self.plan.sweep_prompts else ()
        total = 1 + len(self.prompts) + len(lengths)
        yield Step(0, total, "warming up")
        self._warm_up()
        for done, prompt in enumerate(self.prompts, start=1):
            yield Step(done, total, f"{prompt.task}: {prompt.id}")
            try:
                ran = self._measure(prompt)
            except BadInput as error:
                self.skipped.append(Skipped(prompt.id, str(error)))
                yield self.skipped[-1]
                continue
            if ran is None:
                break
            self.ran.append(ran)
            yield ran.row
            for peer in tuple(self.peers_left):
                if not self.stop.is_set():
                    yield Step(done, total, f"{peer.name} ({peer.variant}): {prompt.id}")
                    yield self._run_peer(peer, prompt)
            if len(self.ran) >= PILOT_PROMPTS:
                self._drop_slow_variants()
        for done, length in enumerate(lengths, start=total - len(lengths)):
            if self.ran and not self.stop.is_set():
                yield Step(done, total, f"draft length {length or 'auto'}")
                self._sweep(length)
        yield self._report(perf_counter() - since)

    def _warm_up(self) -> None:
        tokens = min(self.plan.settings.max_new_tokens, WARM_UP_TOKENS)
        settings = replace(self.plan.settings, max_new_tokens=tokens)
        list(self.session.race(WARM_UP, settings, stop=self.stop))
        for peer in self.peers:
            if not self.stop.is_set():
                self._ask(peer, WARM_UP, replace(settings, max_new_tokens=16))

    def _measure(self, prompt: BenchPrompt) -> _Ran | None:
        """None where it was stopped before its end. Raises BadInput for a prompt that cannot be
        run."""
        traces, figures = [], []
        for _ in range(self.plan.repeats):
            joules: dict[type, list[float | None]] = {BaselineToken: [], Round: []}
            for event in self.session.race(prompt.instruction, self.plan.settings, stop=self.stop):
                if not isinstance(event, Trace):
                    joules[type(event)].append(self.meter.joules())
            if event.identical is None:
                return None
            spent = [seen[-1] - seen[0] if None not in seen else None for seen in joules.values()]
            traces.append(event)
            one = replace(summarize(event), baseline_joules=spent[0], joules=spent[1])
            figures.append(one)
        row = reports.row_of(prompt, traces, combined(figures, median_low))
        return _Ran(row, traces, figures)

    def _run_peer(self, peer: Peer, prompt: BenchPrompt) -> PeerRow | Skipped:
        answer = self._ask(peer, prompt.instruction, self.plan.settings)
        if answer is None:
            return self.skipped[-1]
        tokens, seconds = answer
        # Two engines draw different random numbers, so sampled answers are not compared.
        greedy = self.plan.settings.temperature == 0
        same = tokens == self.ran[-1].traces[0].token_ids if greedy else None
        decoded = max(len(tokens) - 1, 0)
        row = PeerRow(peer.name, peer.variant, prompt.id, decoded, seconds, same)
        self.peer_rows.append(row)
        return row

    def _ask(
        self, peer: Peer, instruction: str, settings: Settings
    ) -> tuple[tuple[int, ...], float] | None:
        """A peer's answer; None when it failed, and it is then not asked again."""
        try:
            return peer.answer(instruction, settings)
        except RequestFailed as error:
            self.skipped.append(Skipped(f"{peer.name} ({peer.variant})", str(error)))
            self.peers_left.remove(peer)
            return None

    def _drop_slow_variants(self) -> None:
        ran = reports.by_variant(self.peer_rows)
        for peer in tuple(self.peers_left):
            rates = {
                variant: reports.tokens_per_s(rows) for variant, rows in ran[peer.name].items()
            }
            if rates[peer.variant] < BEHIND * max(rates.values()):
                self.peers_left.remove(peer)

    def _sweep(self, length: int | None) -> None:
        """The first prompts with one draft length; when stopped, nothing of it is kept."""
        plan = Plan(replace(self.plan.settings, draft_tokens=length))
        prompts = self.prompts[: self.plan.sweep_prompts]
        *_, report = bench(self.session, prompts, plan, stop=self.stop)
        if not report.details.stopped:
            details = report.details
            self.sweep.append(SweepPoint(length, details.total, details.predicted_speedup))

    def _report(self, seconds: float) -> Report:
        traces = [trace for ran in self.ran for trace in ran.traces]
        rows = tuple(ran.row for ran in self.ran)
        costs = measured_costs(traces)
        details = tuple(
            RowDetail(
                id=ran.row.id,
                figures=combined(ran.figures, median_low),
                difference=next(filter(None, (trace.difference for trace in ran.traces)), None),
                predicted_speedup=predicted_speedup(ran.traces, costs),
                speedups=tuple(one.speedup for one in ran.figures),
            )
            for ran in self.ran
        )
        parts = [detail.figures for detail in details]
        whole = combined(parts)
        settings = {(peer.name, peer.variant): peer.settings for peer in self.peers}
        head = Measurement.here(self.session, self.plan.settings)
        return Report(
            **head | ({"pair": traces[0].pair} if traces else {}),
            rows=rows,
            summary=reports.summarize_rows(rows, whole, parts),
            peers=reports.peer_figures(self.peer_rows, settings),
            details=reports.Details(
                rows=details,
                total=whole,
                positions=tuple(acceptance_by_position(traces)),
                costs=costs,
                predicted_speedup=predicted_speedup(traces, costs),
                sweep=tuple(self.sweep),
                sweep_prompts=min(self.plan.sweep_prompts, len(self.ran)),
                peer_rows=tuple(self.peer_rows),
                skipped=tuple(self.skipped),
                repeats=self.plan.repeats,
                stopped=self.stop.is_set(),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                seconds=seconds,
            ),
        )
