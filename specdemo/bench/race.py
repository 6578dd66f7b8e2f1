"""Runs a benchmark as one generator: every prompt with and without speculation, and by peers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median_low
from time import perf_counter
from typing import Any

from specdemo.bench.peers import Answer, Peer
from specdemo.bench.prompts import WARM_UP, BenchPrompt
from specdemo.bench.report import Measurement, difference, row_of, summary_of
from specdemo.errors import BadInput, RequestFailed
from specdemo.models.progress import Progress
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import Summary, combined, over, summarize

PILOT_PROMPTS = 3
"""Answered by every variant of a peer; the fastest then answers all prompts."""

WARM_UP_TOKENS = 48  # enough for the adaptive draft length to have seen some rounds


def bench(
    session: Session,
    prompts: Sequence[BenchPrompt],
    settings: Settings,
    *,
    repeats: int = 1,
    peers: Sequence[Peer] = (),
    stop: threading.Event | None = None,
) -> Iterator[Progress | dict[str, Any]]:
    """Run `prompts`. Yields Progress, in prompts, before each piece of work; after each prompt, and
    last, the report on what has finished, as the contract has it; what that does not name is in
    `details`.

    The medians of `repeats` runs of a prompt make its row. A prompt's answer, its baseline and then
    the peers run one after another before the next prompt. Setting `stop` ends within one forward
    of ours (or one answer of a peer).
    """
    stop, since, total = stop or threading.Event(), perf_counter(), 1 + len(prompts)
    rows: list[dict[str, Any]] = []
    figures: list[Summary] = []
    ours: list[tuple[int, ...]] = []
    details: dict[str, Any] = {"differences": {}, "skipped": {}, "repeats": repeats}
    report = {**Measurement.here(session, settings), "rows": rows}
    answers: dict[Peer, list[Answer]] = {peer: [] for peer in peers}
    yield Progress("warming up", 0, total)
    short = replace(settings, max_new_tokens=min(settings.max_new_tokens, WARM_UP_TOKENS))
    list(session.race(WARM_UP, short, stop=stop))
    for step in _ask(answers, WARM_UP, short, details["skipped"], stop):
        yield Progress(step, 0, total)
    answers = {peer: [] for peer in answers}
    for done, prompt in enumerate(prompts, start=1):
        yield Progress(f"{prompt.task}: {prompt.id}", done, total)
        traces = []
        try:
            for _ in range(repeats):
                *_, trace = session.race(prompt.instruction, settings, stop=stop)
                traces.append(trace)
        except BadInput as error:
            details["skipped"][prompt.id] = str(error)
            continue
        if trace.identical is None:
            break
        report["pair"] = trace.pair
        ours.append(trace.token_ids)
        figures.append(combined(map(summarize, traces), median_low))
        rows.append(row_of(prompt, traces, figures[-1]))
        if parted := difference(traces):
            details["differences"][prompt.id] = parted
        yield report
        for step in _ask(answers, prompt.instruction, settings, details["skipped"], stop):
            yield Progress(f"{step}: {prompt.id}", done, total)
        if len(rows) == PILOT_PROMPTS:
            answers = _fastest(answers)
    report["summary"] = summary_of(rows, figures)
    report["peers"] = _peers(_fastest(answers), ours, settings)
    details |= {"stopped": stop.is_set(), "total": combined(figures)}
    details["created"] = datetime.now(UTC).isoformat(timespec="seconds")
    yield report | {"details": details | {"seconds": perf_counter() - since}}


def _ask(
    answers: dict[Peer, list[Answer]],
    instruction: str,
    settings: Settings,
    skipped: dict[str, str],
    stop: threading.Event,
) -> Iterator[str]:
    """Adds every peer's answer; one that fails is skipped from then on. Yields what comes next."""
    for peer in list(answers):
        variant = f"{peer.name} ({peer.variant})"
        yield variant
        if stop.is_set():
            return
        try:
            answers[peer].append(peer.answer(instruction, settings))
        except RequestFailed as error:
            del answers[peer]
            skipped[variant] = str(error)


def _fastest(answers: dict[Peer, list[Answer]]) -> dict[Peer, list[Answer]]:
    """The fastest variant of each peer that answered anything."""
    slowest_first = sorted(answers, key=lambda peer: _tokens_per_s(answers[peer]))
    best = {peer.name: peer for peer in slowest_first if answers[peer]}
    return {peer: answers[peer] for peer in answers if best.get(peer.name) is peer}


def _peers(
    answers: dict[Peer, list[Answer]], ours: Sequence[tuple[int, ...]], settings: Settings
) -> dict[str, dict[str, Any]]:
    found = {}
    for peer, given in answers.items():
        same = all(one == own for (one, _), own in zip(given, ours, strict=False))
        # Two engines draw different random numbers: sampled answers are not compared.
        found[peer.name] = {
            "tokens_per_s": _tokens_per_s(given),
            "settings": peer.settings,
            "identical": None if settings.temperature else same,
        }
    return found


def _tokens_per_s(answers: Sequence[Answer]) -> float:
    """Of decoding: the first token of an answer comes from its prefill."""
    tokens = sum(len(ids) - 1 for ids, _ in answers)
    return over(tokens, sum(seconds for _, seconds in answers)) or 0.0
