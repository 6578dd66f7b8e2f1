"""Runs a benchmark as one generator: every prompt with and without speculation, and by peers."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median_low
from time import perf_counter

from specdemo.bench.energy import Meter
from specdemo.bench.peers import Answer, Peer
from specdemo.bench.prompts import WARM_UP, BenchPrompt
from specdemo.bench.report import Measurement, Report, Row, Skipped
from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, RequestFailed
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import BaselineToken, Trace, combined, over, summarize

PILOT_PROMPTS = 3
"""Answered by every variant of a peer; the fastest then answers all prompts."""

WARM_UP_TOKENS = 48  # enough for the adaptive draft length to have seen some rounds


@dataclass(frozen=True, slots=True)
class Step:
    """Progress: `done` of `total` prompts are finished, `text` (may hold user text) is next."""

    done: int
    total: int
    text: str


def bench(
    session: Session,
    prompts: Sequence[BenchPrompt],
    settings: Settings,
    *,
    repeats: int = 1,
    peers: Sequence[Peer] = (),
    stop: threading.Event | None = None,
) -> Iterator[Step | Row | Skipped | Report]:
    """Run `prompts`. Yields a Step before each piece of work; a Row, or a Skipped, after each
    prompt; last, always, the Report.

    The medians of `repeats` runs of a prompt make its row. A prompt's answer, its baseline and then
    the peers run one after another before the next prompt. Setting `stop` ends within one forward
    of ours (or one answer of a peer), with a Report of the prompts finished until then.
    """
    stop = stop or threading.Event()
    since, total = perf_counter(), 1 + len(prompts)
    rows: list[Row] = []
    skipped: list[Skipped] = []
    yield Step(0, total, "warming up")
    short = replace(settings, max_new_tokens=min(settings.max_new_tokens, WARM_UP_TOKENS))
    list(session.race(WARM_UP, short, stop=stop))
    chosen = yield from _pilot(peers, prompts[:PILOT_PROMPTS], settings, stop, skipped, total)
    answers: dict[str, list[Answer]] = {name: [] for name in chosen}
    for done, prompt in enumerate(prompts, start=1):
        yield Step(done, total, f"{prompt.task}: {prompt.id}")
        try:
            row = _measure(session, prompt, settings, repeats, stop)
        except BadInput as error:
            skipped.append(Skipped(prompt.id, str(error)))
            yield skipped[-1]
            continue
        if row is None:
            break
        rows.append(row)
        yield row
        for name, peer in list(chosen.items()):
            if stop.is_set():
                break
            yield Step(done, total, f"{name}: {prompt.id}")
            try:
                answers[name].append(peer.answer(prompt.instruction, settings))
            except RequestFailed as error:
                del chosen[name]
                skipped.append(Skipped(name, str(error)))
    ours = [row.traces[0].token_ids for row in rows]
    head = Measurement.here(session, settings)
    yield Report(
        **head | ({"pair": rows[0].traces[0].pair} if rows else {}),
        rows=tuple(rows),
        peers={
            name: {
                "tokens_per_s": _tokens_per_s(answers[name]),
                "settings": peer.settings,
                # Two engines draw different random numbers: sampled answers are not compared.
                "identical": None
                if settings.temperature
                else all(one[0] == own for one, own in zip(answers[name], ours, strict=False)),
            }
            for name, peer in chosen.items()
            if answers[name]
        },
        skipped=tuple(skipped),
        repeats=repeats,
        stopped=stop.is_set(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=perf_counter() - since,
    )


def _pilot(
    peers: Sequence[Peer],
    prompts: Sequence[BenchPrompt],
    settings: Settings,
    stop: threading.Event,
    skipped: list[Skipped],
    total: int,
) -> Iterator[Step]:
    """Returns the fastest variant of each peer, by name; adds those that failed to `skipped`."""
    rates: dict[str, dict[float, Peer]] = defaultdict(dict)
    for peer in peers:
        if stop.is_set():
            break
        yield Step(0, total, f"{peer.name} ({peer.variant})")
        try:
            peer.answer(WARM_UP, replace(settings, max_new_tokens=16))
            answers = [peer.answer(prompt.instruction, settings) for prompt in prompts]
            rates[peer.name][_tokens_per_s(answers)] = peer
        except RequestFailed as error:
            skipped.append(Skipped(f"{peer.name} ({peer.variant})", str(error)))
    return {name: variants[max(variants)] for name, variants in rates.items() if variants}


def _tokens_per_s(answers: Sequence[Answer]) -> float:
    """Of decoding: the first token of an answer comes from its prefill."""
    tokens = sum(len(ids) - 1 for ids, _ in answers)
    return over(tokens, sum(seconds for _, seconds in answers)) or 0.0


def _measure(
    session: Session, prompt: BenchPrompt, settings: Settings, repeats: int, stop: threading.Event
) -> Row | None:
    """None where it was stopped before its end. Raises BadInput for a prompt that cannot be run."""
    # A session that runs elsewhere brings a meter of its own.
    meter = getattr(session, "meter", Meter)()
    traces, figures = [], []
    for _ in range(repeats):
        joules: dict[type, list[float | None]] = {BaselineToken: [], Round: []}
        for event in session.race(prompt.instruction, settings, stop=stop):
            if not isinstance(event, Trace):
                joules[type(event)].append(meter.joules())
        if event.identical is None:
            return None
        spent = [seen[-1] - seen[0] if None not in seen else None for seen in joules.values()]
        traces.append(event)
        figures.append(replace(summarize(event), baseline_joules=spent[0], joules=spent[1]))
    return Row(prompt.id, prompt.task, tuple(traces), combined(figures, median_low))
