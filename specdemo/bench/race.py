"""Runs a benchmark: every prompt with and without speculation, then peers and draft lengths, as one
generator. Draws and prints nothing; the page and the command line show what it yields."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import median_low
from time import perf_counter

from specdemo.bench.energy import Meter
from specdemo.bench.peers import Peer
from specdemo.bench.prompts import WARM_UP, BenchPrompt
from specdemo.bench.report import (
    Measurement,
    PeerRow,
    Report,
    Row,
    Skipped,
    SweepPoint,
    by_variant,
    tokens_per_s,
)
from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, RequestFailed
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import BaselineToken, Trace, combined, summarize

PILOT_PROMPTS = 4
BEHIND = 0.9
"""After the pilot prompts, variants of a peer slower than this share of its fastest are dropped."""

SWEEP = (1, 2, 3, 4, 5, 6, 8, 12)  # draft lengths that the sweep tries besides the adaptive one

WARM_UP_TOKENS = 48  # enough for the adaptive draft length to have seen some rounds


@dataclass(frozen=True, slots=True)
class Step:
    """Progress: `done` of `total` pieces of work are finished, and `text` (may hold user text) is
    next."""

    done: int
    total: int
    text: str


@dataclass
class Bench:
    """Iterate over it to run `prompts`. It yields a Step before each piece of work; a Row, or a
    Skipped, after each prompt; a PeerRow, or a Skipped, after each prompt of each peer; last,
    always, the Report.

    The medians of `repeats` runs of a prompt make its row; `sweep_prompts` of the prompts run once
    more with every draft length of SWEEP. Setting `stop` ends within one forward of ours (or one
    answer of a peer), with a Report of the prompts finished until then. A prompt's answer, its
    baseline and then the peers run one after another before the next prompt. Raises BadInput,
    before anything runs, for settings that cannot be used.
    """

    session: Session
    prompts: Sequence[BenchPrompt]
    settings: Settings
    repeats: int = 1
    sweep_prompts: int = 0
    peers: Sequence[Peer] = ()
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._peers_left = list(self.peers)
        self._rows: list[Row] = []
        self._peer_rows: list[PeerRow] = []
        self._skipped: list[Skipped] = []
        self._sweeps: list[SweepPoint] = []

    def __iter__(self) -> Iterator[Step | Row | PeerRow | Skipped | Report]:
        since = perf_counter()
        lengths = (None, *SWEEP) if self.sweep_prompts else ()
        total = 1 + len(self.prompts) + len(lengths)
        yield Step(0, total, "warming up")
        self._warm_up()
        for done, prompt in enumerate(self.prompts, start=1):
            yield Step(done, total, f"{prompt.task}: {prompt.id}")
            try:
                row = self._measure(prompt)
            except BadInput as error:
                self._skipped.append(Skipped(prompt.id, str(error)))
                yield self._skipped[-1]
                continue
            if row is None:
                break
            self._rows.append(row)
            yield row
            for peer in tuple(self._peers_left):
                if not self.stop.is_set():
                    yield Step(done, total, f"{peer.name} ({peer.variant}): {prompt.id}")
                    yield self._ask(peer, prompt.id, prompt.instruction, self.settings)
            if len(self._rows) >= PILOT_PROMPTS:
                self._drop_slow_variants()
        for done, length in enumerate(lengths, start=total - len(lengths)):
            if self._rows and not self.stop.is_set():
                yield Step(done, total, f"draft length {length or 'auto'}")
                self._sweep(length)
        head = Measurement.here(self.session, self.settings)
        yield Report(
            **head | ({"pair": self._rows[0].traces[0].pair} if self._rows else {}),
            rows=tuple(self._rows),
            peer_rows=tuple(self._peer_rows),
            peer_settings={(peer.name, peer.variant): peer.settings for peer in self.peers},
            sweep=tuple(self._sweeps),
            sweep_prompts=min(self.sweep_prompts, len(self._rows)),
            skipped=tuple(self._skipped),
            repeats=self.repeats,
            stopped=self.stop.is_set(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=perf_counter() - since,
        )

    def _warm_up(self) -> None:
        tokens = min(self.settings.max_new_tokens, WARM_UP_TOKENS)
        settings = replace(self.settings, max_new_tokens=tokens)
        list(self.session.race(WARM_UP, settings, stop=self.stop))
        for peer in self.peers:
            if not self.stop.is_set():
                self._ask(peer, "warm-up", WARM_UP, replace(settings, max_new_tokens=16))
        self._peer_rows.clear()

    def _measure(self, prompt: BenchPrompt) -> Row | None:
        """None where it was stopped before its end. Raises BadInput for a prompt that cannot be
        run."""
        # A session that runs elsewhere brings a meter of its own.
        meter = getattr(self.session, "meter", Meter)()
        traces, figures = [], []
        for _ in range(self.repeats):
            joules: dict[type, list[float | None]] = {BaselineToken: [], Round: []}
            for event in self.session.race(prompt.instruction, self.settings, stop=self.stop):
                if not isinstance(event, Trace):
                    joules[type(event)].append(meter.joules())
            if event.identical is None:
                return None
            spent = [seen[-1] - seen[0] if None not in seen else None for seen in joules.values()]
            traces.append(event)
            figures.append(replace(summarize(event), baseline_joules=spent[0], joules=spent[1]))
        return Row(prompt.id, prompt.task, tuple(traces), combined(figures, median_low))

    def _ask(self, peer: Peer, id: str, instruction: str, settings: Settings) -> PeerRow | Skipped:
        """Adds what a peer answered. One that fails is not asked again."""
        try:
            tokens, seconds = peer.answer(instruction, settings)
        except RequestFailed as error:
            self._peers_left.remove(peer)
            self._skipped.append(Skipped(f"{peer.name} ({peer.variant})", str(error)))
            return self._skipped[-1]
        # Two engines draw different random numbers, so sampled answers are not compared.
        same = None
        if self._rows and settings.temperature == 0:
            same = tokens == self._rows[-1].traces[0].token_ids
        decoded = max(len(tokens) - 1, 0)
        self._peer_rows.append(PeerRow(peer.name, peer.variant, id, decoded, seconds, same))
        return self._peer_rows[-1]

    def _drop_slow_variants(self) -> None:
        ran = by_variant(self._peer_rows)
        for peer in tuple(self._peers_left):
            rates = {variant: tokens_per_s(rows) for variant, rows in ran[peer.name].items()}
            if rates[peer.variant] < BEHIND * max(rates.values()):
                self._peers_left.remove(peer)

    def _sweep(self, length: int | None) -> None:
        """The first prompts with one draft length; when stopped, nothing of it is kept."""
        settings = replace(self.settings, draft_tokens=length)
        prompts = self.prompts[: self.sweep_prompts]
        *_, report = Bench(self.session, prompts, settings, stop=self.stop)
        if not report.stopped:
            predicted = report.predicted_speedup(report.rows)
            self._sweeps.append(SweepPoint(length, report.total, predicted))
