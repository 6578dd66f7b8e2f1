"""Runs a benchmark as one generator: every prompt with and without speculation, and by peers."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median_low
from time import perf_counter

from specdemo.bench.peers import Answer, Peer
from specdemo.bench.prompts import WARM_UP, BenchPrompt
from specdemo.bench.report import Measurement, Report, Row, Skipped
from specdemo.errors import BadInput, RequestFailed
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import combined, over, summarize

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
    stop, since = stop or threading.Event(), perf_counter()
    report = Report(**Measurement.here(session, settings), repeats=repeats)
    total = 1 + len(prompts)
    yield Step(0, total, "warming up")
    short = replace(settings, max_new_tokens=min(settings.max_new_tokens, WARM_UP_TOKENS))
    list(session.race(WARM_UP, short, stop=stop))
    chosen = yield from _pilot(peers, prompts[:PILOT_PROMPTS], settings, stop, report, total)
    answers: dict[str, list[Answer]] = {name: [] for name in chosen}
    for done, prompt in enumerate(prompts, start=1):
        yield Step(done, total, f"{prompt.task}: {prompt.id}")
        try:
            traces = []
            for _ in range(repeats):
                *_, trace = session.race(prompt.instruction, settings, stop=stop)
                traces.append(trace)
        except BadInput as error:
            report.skipped.append(Skipped(prompt.id, str(error)))
            yield report.skipped[-1]
            continue
        if trace.identical is None:
            break
        figures = combined(map(summarize, traces), median_low)
        report.rows.append(Row(prompt.id, prompt.task, tuple(traces), figures))
        yield report.rows[-1]
        for name in list(chosen):
            if stop.is_set():
                break
            yield Step(done, total, f"{name}: {prompt.id}")
            try:
                answers[name].append(chosen[name].answer(prompt.instruction, settings))
            except RequestFailed as error:
                del chosen[name]
                report.skipped.append(Skipped(name, str(error)))
    if report.rows:
        report.pair = report.rows[0].traces[0].pair
    ours = [row.traces[0].token_ids for row in report.rows]
    for name, peer in chosen.items():
        if theirs := answers[name]:
            same = all(one == own for (one, _), own in zip(theirs, ours, strict=False))
            # Two engines draw different random numbers: sampled answers are not compared.
            report.peers[name] = {
                "tokens_per_s": _tokens_per_s(theirs),
                "settings": peer.settings,
                "identical": None if settings.temperature else same,
            }
    report.stopped, report.seconds = stop.is_set(), perf_counter() - since
    report.created = datetime.now(UTC).isoformat(timespec="seconds")
    yield report


def _pilot(
    peers: Sequence[Peer],
    prompts: Sequence[BenchPrompt],
    settings: Settings,
    stop: threading.Event,
    report: Report,
    total: int,
) -> Iterator[Step]:
    """Returns the fastest variant of each peer, by name; reports those that failed."""
    rates: dict[str, dict[float, Peer]] = defaultdict(dict)
    for peer in peers:
        if stop.is_set():
            break
        variant = f"{peer.name} ({peer.variant})"
        yield Step(0, total, variant)
        try:
            peer.answer(WARM_UP, replace(settings, max_new_tokens=16))
            answers = [peer.answer(prompt.instruction, settings) for prompt in prompts]
            rates[peer.name][_tokens_per_s(answers)] = peer
        except RequestFailed as error:
            report.skipped.append(Skipped(variant, str(error)))
    return {name: variants[max(variants)] for name, variants in rates.items()}


def _tokens_per_s(answers: Sequence[Answer]) -> float:
    """Of decoding: the first token of an answer comes from its prefill."""
    tokens = sum(len(ids) - 1 for ids, _ in answers)
    return over(tokens, sum(seconds for _, seconds in answers)) or 0.0
