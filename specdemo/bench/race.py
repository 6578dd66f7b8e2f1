"""Runs a benchmark: every prompt with and without speculation, then peers and draft lengths, as one
generator. Draws and prints nothing; the page and the command line show what it yields."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter
from typing import Protocol

from specdemo.bench import report as reports
from specdemo.bench.costs import measured_costs, predicted_speedup
from specdemo.bench.energy import Meter
from specdemo.bench.prompts import WARM_UP, BenchPrompt
from specdemo.bench.report import Measured, PeerRow, Report, Row, Skipped
from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, RequestFailed
from specdemo.models.machine import describe
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import BaselineToken, Trace, acceptance_by_position

PILOT_PROMPTS = 4
BEHIND = 0.9
"""After the pilot prompts, variants of a peer slower than this share of its fastest are dropped."""

SWEEP = (1, 2, 3, 4, 5, 6, 8, 12)
"""Draft lengths that the sweep tries besides the adaptive one."""

WARM_UP_TOKENS = 48
"""Enough for the adaptive draft length to have seen some rounds."""

PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "tokenizers", "numpy")


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


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """A peer's token ids, with the stop token, and the seconds from the first to the last."""

    tokens: tuple[int, ...]
    seconds: float


class Peer(Protocol):
    """Another engine on the same models. Among variants of one name the report takes the fastest.
    `answer` raises RequestFailed when the peer fails."""

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
    """Run `prompts` and yield, in order: a Step before each piece of work; a Row, or a Skipped,
    after each prompt; a PeerRow after each prompt of each peer; last, always, the Report.

    Setting `stop` ends within one forward of ours (or one answer of a peer), with a Report of the
    prompts finished until then. A prompt's answer, its baseline and then the peers run one after
    another before the next prompt. Raises BadInput, before anything runs, for settings that cannot
    be used.
    """
    return _Bench(session, prompts, plan, peers, stop or threading.Event()).run()


def finished_race(
    session: Session,
    instruction: str,
    settings: Settings,
    stop: threading.Event | None = None,
    meter: Meter | None = None,
) -> tuple[Trace, tuple[float | None, float | None]] | None:
    """The trace of one race with its baseline, and the joules of decoding, autoregressive and
    speculative (None where `meter` shows none); None when stopped before the end."""
    readings: dict[type, list[float]] = {Round: [], BaselineToken: []}
    trace = None
    for event in session.race(instruction, settings, stop=stop):
        if isinstance(event, Trace):
            trace = event
        elif meter and (joules := meter.joules()) is not None:
            readings[type(event)].append(joules)
    if trace is None or trace.identical is None:
        return None
    spent = (seen[-1] - seen[0] if seen else None for seen in readings.values())
    speculative, plain = spent
    return trace, (plain, speculative)


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
        # A session that runs elsewhere brings a meter of its own.
        self.meter = getattr(session, "meter", Meter)()
        self.measured: list[Measured] = []
        self.peer_rows: list[PeerRow] = []
        self.skipped: list[Skipped] = []
        self.sweep: dict[int | None, list[Trace]] = {}

    def run(self) -> Iterator[Event]:
        since = perf_counter()
        sweep_prompts = self.prompts[: self.plan.sweep_prompts]
        pieces = 1 + len(self.all_peers)
        total = 1 + len(self.prompts) * pieces + len(sweep_prompts)
        yield Step(0, total, "warming up")
        self._warm_up()
        for place, prompt in enumerate(self.prompts):
            done = 1 + place * pieces
            yield Step(done, total, f"{prompt.task}: {prompt.id}")
            try:
                measured = self._measure(prompt)
            except BadInput as error:
                self.skipped.append(Skipped(prompt.id, str(error)))
                yield self.skipped[-1]
                continue
            if measured is None:
                break
            self.measured.append(measured)
            yield measured.row
            yield from self._run_peers(measured, done + 1, total)
        usable = {measured.prompt.id for measured in self.measured}
        for place, prompt in enumerate(sweep_prompts):
            if prompt.id in usable and not self.stop.is_set():
                done = total - len(sweep_prompts) + place
                yield Step(done, total, f"draft lengths on {prompt.task}: {prompt.id}")
                self._sweep(prompt)
        yield self._report(perf_counter() - since)

    def _warm_up(self) -> None:
        tokens = min(self.plan.settings.max_new_tokens, WARM_UP_TOKENS)
        settings = dataclasses.replace(self.plan.settings, max_new_tokens=tokens)
        finished_race(self.session, WARM_UP, settings, self.stop)
        for peer in self.peers:
            if not self.stop.is_set():
                self._ask(peer, WARM_UP, dataclasses.replace(settings, max_new_tokens=16))

    def _measure(self, prompt: BenchPrompt) -> Measured | None:
        """None when stopped before all of it was done. Raises BadInput for a prompt that cannot be
        run."""
        races = []
        for _ in range(self.plan.repeats):
            race = finished_race(
                self.session, prompt.instruction, self.plan.settings, self.stop, self.meter
            )
            if race is None:
                return None
            races.append(race)
        traces = tuple(trace for trace, _ in races)
        return Measured(prompt, traces, tuple(reports.figures_of(*race) for race in races))

    def _run_peers(self, measured: Measured, done: int, total: int) -> Iterator[Event]:
        settings = self.plan.settings
        for place, peer in enumerate(self.peers):
            if self.stop.is_set():
                return
            yield Step(done + place, total, f"{peer.name} ({peer.variant}): {measured.prompt.id}")
            theirs = self._ask(peer, measured.prompt.instruction, settings)
            if theirs is None:
                yield self.skipped[-1]
                continue
            # Two engines draw different random numbers, so sampled answers are not compared.
            same = None
            if settings.temperature == 0:
                same = theirs.tokens == measured.traces[0].token_ids
            decoded = max(len(theirs.tokens) - 1, 0)
            row = PeerRow(
                peer.name, peer.variant, measured.prompt.id, decoded, theirs.seconds, same
            )
            self.peer_rows.append(row)
            yield row
        if len(self.measured) >= PILOT_PROMPTS:
            self._drop_slow_variants()

    def _ask(self, peer: Peer, instruction: str, settings: Settings) -> PeerAnswer | None:
        """A peer's answer; None when it failed, and it is then not asked again."""
        try:
            return peer.answer(instruction, settings)
        except RequestFailed as error:
            self.skipped.append(Skipped(f"{peer.name} ({peer.variant})", str(error)))
            self.peers = tuple(other for other in self.peers if other is not peer)
            return None

    def _drop_slow_variants(self) -> None:
        rates = reports.variant_rates(self.peer_rows)
        best: dict[str, float] = {}
        for (name, _), rate in rates.items():
            best[name] = max(best.get(name, 0.0), rate)
        self.peers = tuple(
            peer
            for peer in self.peers
            if rates.get((peer.name, peer.variant), 0.0) >= BEHIND * best.get(peer.name, 0.0)
        )

    def _sweep(self, prompt: BenchPrompt) -> None:
        """The prompt with every draft length; when stopped, nothing of it is kept."""
        found: dict[int | None, Trace] = {}
        for length in (None, *SWEEP):
            settings = dataclasses.replace(self.plan.settings, draft_tokens=length)
            race = finished_race(self.session, prompt.instruction, settings, self.stop)
            if race is None:
                return
            found[length] = race[0]
        for length, trace in found.items():
            self.sweep.setdefault(length, []).append(trace)

    def _report(self, seconds: float) -> Report:
        traces = [trace for measured in self.measured for trace in measured.traces]
        costs = measured_costs(traces)
        rows = tuple(measured.row for measured in self.measured)
        details = tuple(measured.detail(costs) for measured in self.measured)
        settings = {(peer.name, peer.variant): peer.settings for peer in self.all_peers}
        energy = "RAPL package counters" if self.meter.available else "not readable on this machine"
        return Report(
            machine=describe(),
            versions=versions(),
            pair=traces[0].pair if traces else self.session.info,
            settings=self.plan.settings,
            rows=rows,
            summary=reports.summarize_rows(rows, details),
            peers=reports.peer_figures(self.peer_rows, settings),
            details=reports.Details(
                rows=details,
                total=reports.total(detail.figures for detail in details),
                positions=tuple(acceptance_by_position(traces)),
                costs=costs,
                predicted_speedup=predicted_speedup(traces, costs) if costs else None,
                quartiles=reports.quartiles(rows),
                energy=energy,
                sweep=tuple(reports.sweep_point(*point) for point in self.sweep.items()),
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
    """Python, this project and the packages that do the work, where they are installed."""
    import specdemo

    found = {"specdemo": specdemo.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
