"""Runs a benchmark as one generator. Its report is a dict, as in JSON, and tables."""

import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from statistics import median_low
from time import perf_counter
from typing import Any

from specdemo import __version__
from specdemo.bench.peers import Answer, Peer
from specdemo.bench.prompts import WARM_UP, BenchPrompt
from specdemo.errors import BadInput, RequestFailed
from specdemo.host.hardware import describe
from specdemo.host.progress import Progress
from specdemo.host.terminal import Table
from specdemo.pairs.choice import PairInfo
from specdemo.runs.question import Question, trace_of
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

PILOT_PROMPTS = 3  # answered by every variant of a peer; the fastest then answers all prompts
WARM_UP_TOKENS = 48  # enough for the adaptive draft length to have seen some rounds
PACKAGES = "openvino tokenizers numpy".split()
IF_IMPORTED = "openvino-genai openvino-tokenizers torch transformers".split()
CORE_HOUR_PRICE = 0.05  # of a processor core, in whatever currency; the page's first value too
PRICE = f"a million tokens at {CORE_HOUR_PRICE} a core and hour"
WAYS = ("autoregressive", "speculative")

PAPER = {40: (19.87, 13.61), 100: (44.25, 26.97)}
"""Seconds by new tokens, (autoregressive, speculative), in arXiv 2311.04951: dolly-v2-12b with the
draft dolly-v2-3b, K = 5, on its authors' machine. Ratios compare with those of other machines,
seconds do not."""

PAPER_PROMPT = BenchPrompt("fission", "paper", "Explain the difference between fission and fusion")


def head(pair: PairInfo | None, settings: Settings) -> dict[str, Any]:
    """What every report begins with: the machine, versions, pair and settings."""
    versions = {"specdemo": __version__, "python": platform.python_version()}
    imported = [name for name in IF_IMPORTED if name.replace("-", "_") in sys.modules]
    versions |= {package: metadata.version(package) for package in [*PACKAGES, *imported]}
    return {"machine": describe(), "versions": versions, "pair": pair, "settings": settings}


def bench(
    session: Session,
    prompts: Sequence[BenchPrompt],
    settings: Settings,
    *,
    lengths: Sequence[int] = (),
    repeats: int = 1,
    peers: Sequence[Peer] = (),
) -> Iterator[Progress | dict[str, Any]]:
    """Run `prompts`. Yields Progress, counted in prompts, before each step, and last the report.

    A row has the medians of `repeats` runs of a prompt. With several `lengths` (in place of the
    settings' longest answer, tokens) a prompt has a row for each, with `max_new_tokens`, and the
    report `lengths`."""
    limits = tuple(dict.fromkeys(lengths)) or (settings.max_new_tokens,)
    work = [(prompt, replace(settings, max_new_tokens=n)) for prompt in prompts for n in limits]
    begun, total = perf_counter(), 1 + len(work)
    details: dict[str, Any] = {"differences": {}, "skipped": {}, "repeats": repeats}
    rows: list[dict[str, Any]] = []
    report = {**head(session.info, settings), "rows": rows}
    traces: list[Trace] = []
    figures: list[Summary] = []
    others = PeerAnswers(peers, details["skipped"])

    short = replace(settings, max_new_tokens=min(settings.max_new_tokens, WARM_UP_TOKENS))
    yield Progress("warming up", 0, total)
    list(session.ask(Question(WARM_UP, short, baseline=True)))
    for variant in others.ask(WARM_UP, short):
        yield Progress(variant, 0, total)
    others.forget()
    for done, (prompt, settings) in enumerate(work, start=1):
        yield Progress(f"{prompt.task}: {prompt.id}", done, total)
        race = Question(prompt.instruction, settings, baseline=True)
        try:
            races = [trace_of(session.ask(race)) for _ in range(repeats)]
        except BadInput as error:
            details["skipped"][prompt.id] = str(error)
            continue
        report["pair"] = races[-1].pair
        traces += races
        figures.append(combined(map(summarize, races), median_low))
        rows.append(row_of(prompt, races, figures[-1]))
        if len(limits) > 1:
            rows[-1]["max_new_tokens"] = settings.max_new_tokens
        if different := [trace for trace in races if not trace.identical]:
            details["differences"][prompt.id] = describe_difference(different[0])
        for variant in others.ask(prompt.instruction, settings):
            yield Progress(f"{variant}: {prompt.id}", done, total)
        if len(rows) == PILOT_PROMPTS:
            others.keep_fastest()
    report["summary"] = summary_of(rows, figures)
    if len(limits) > 1:
        report["lengths"] = by_length(rows, figures)
    ours = [trace.token_ids for trace in traces[repeats - 1 :: repeats]]
    # Two engines draw different random numbers: sampled answers are not compared.
    report["peers"] = others.figures(None if settings.temperature else ours)
    details["total"] = combined(figures)
    details["positions"] = acceptance_by_position(traces)
    details["created"] = datetime.now(UTC).isoformat(timespec="seconds")
    yield report | {"details": details | {"seconds": perf_counter() - begun}}


class PeerAnswers:
    """The answers of peers to the prompts so far. One that fails is left out, and named in
    `skipped` with the reason."""

    def __init__(self, peers: Sequence[Peer], skipped: dict[str, str]):
        self._answers: dict[Peer, list[Answer]] = {peer: [] for peer in peers}
        self._skipped = skipped

    def ask(self, instruction: str, settings: Settings) -> Iterator[str]:
        """Add each peer's answer. Yields the name of each variant before it answers."""
        for peer in list(self._answers):
            variant = f"{peer.title} ({peer.variant})"
            yield variant
            try:
                self._answers[peer] += peer.answers([(instruction,)], settings)
            except RequestFailed as error:
                del self._answers[peer]
                self._skipped[variant] = str(error)

    def forget(self) -> None:
        self._answers = {peer: [] for peer in self._answers}

    def keep_fastest(self) -> None:
        """Leave out all but the fastest variant of each name, and those without an answer."""
        slowest_first = sorted(self._answers, key=self._tokens_per_s)
        best = {peer.title: peer for peer in slowest_first if self._answers[peer]}
        fastest = [peer for peer in self._answers if best.get(peer.title) is peer]
        self._answers = {peer: self._answers[peer] for peer in fastest}

    def figures(self, ours: Sequence[tuple[int, ...]] | None) -> dict[str, Any]:
        """The `peers` of a report; `identical` to our answers `ours`, if these are compared."""
        self.keep_fastest()
        return {
            peer.title: {
                "tokens_per_s": self._tokens_per_s(peer),
                "settings": peer.facts,
                "identical": None if ours is None else self._identical(peer, ours),
            }
            for peer in self._answers
        }

    def _tokens_per_s(self, peer: Peer) -> float:
        """Decoding tokens per second: the first token of an answer comes from prefill."""
        tokens = sum(len(ids) - 1 for ids, _ in self._answers[peer])
        return over(tokens, sum(seconds for _, seconds in self._answers[peer])) or 0.0

    def _identical(self, peer: Peer, ours: Sequence[tuple[int, ...]]) -> bool:
        theirs = [ids for ids, _ in self._answers[peer]]
        return theirs == list(ours[: len(theirs)])


def row_of(prompt: BenchPrompt, traces: Sequence[Trace], figures: Summary) -> dict[str, Any]:
    """The row of one prompt; `figures` are the medians of its races."""
    return {
        "id": prompt.id,
        "task": prompt.task,
        "tokens": len(traces[0].token_ids),
        "autoregressive_s": figures.baseline_decode_seconds,
        "speculative_s": figures.decode_seconds,
        "speedup": figures.speedup,
        "acceptance_rate": figures.acceptance_rate,
        "tokens_per_round": figures.tokens_per_round,
        "identical": all(trace.identical for trace in traces),
    }


def summary_of(rows: Sequence[dict[str, Any]], figures: Sequence[Summary]) -> dict[str, Any]:
    """The summary of the rows and their figures: ratios of totals, never means of rates."""
    total = combined(figures)
    tasks: dict[str, list[Summary]] = {}
    for row, summary in zip(rows, figures, strict=True):
        tasks.setdefault(row["task"], []).append(summary)
    return {
        "speedup": total.speedup,
        "speedup_by_task": {task: combined(each).speedup for task, each in tasks.items()},
        "worst_prompt_speedup": min(filter(None, (row["speedup"] for row in rows)), default=None),
        "autoregressive_tokens_per_s": total.baseline_tokens_per_second,
        "speculative_tokens_per_s": over(total.decoded, total.decode_seconds),
        "acceptance_rate": total.acceptance_rate,
        "tokens_per_round": over(total.decoded, total.decode_rounds),
        "identical": all(row["identical"] for row in rows) if rows else None,
        "prompts": len(rows),
        "outside_inference_fraction": over(total.outside_seconds, total.decode_seconds),
        "cpu_seconds_per_token": {
            "autoregressive": over(total.baseline_cpu_seconds, total.baseline_decoded),
            "speculative": over(total.cpu_seconds, total.decoded),
        },
        "joules_per_token": {
            "autoregressive": over(total.baseline_joules, total.baseline_decoded),
            "speculative": over(total.joules, total.decoded),
        },
    }


def by_length(
    rows: Sequence[Mapping[str, Any]], figures: Sequence[Summary]
) -> list[dict[str, Any]]:
    """For each `max_new_tokens` of a report's rows: mean seconds of decoding, ratio of totals."""
    lengths = []
    for limit in dict.fromkeys(row["max_new_tokens"] for row in rows):
        same = [
            pair for pair in zip(rows, figures, strict=True) if pair[0]["max_new_tokens"] == limit
        ]
        total, count = combined(summary for _, summary in same), len(same)
        lengths.append(
            {
                "max_new_tokens": limit,
                "answers": count,
                "tokens": sum(row["tokens"] for row, _ in same) / count,
                "autoregressive_s": over(total.baseline_decode_seconds, count),
                "speculative_s": total.decode_seconds / count,
                "speedup": total.speedup,
                "identical": all(row["identical"] for row, _ in same),
            }
        )
    return lengths


def tables(report: dict[str, Any]) -> dict[str, Table]:
    """A report's tables by title, the most important one first."""
    data = json.loads(as_json(report))
    summary, details = data["summary"], data["details"]
    cpu, by_task = summary.pop("cpu_seconds_per_token"), summary.pop("speedup_by_task").items()
    joules = summary.pop("joules_per_token")
    # First how good our baseline is: a weak one flatters the speed-up.
    ratios = {
        f"autoregressive, relative to {name}": over(
            summary["autoregressive_tokens_per_s"] or 0, peer["tokens_per_s"]
        )
        for name, peer in data["peers"].items()
        if name.endswith("/autoregressive")
    }
    summary = ratios | summary
    own: dict[str, Any] = {"settings": {}, "identical": None}
    ours = {
        f"specdemo/{way}": {"tokens_per_s": summary[f"{way}_tokens_per_s"], **own} for way in WAYS
    }
    peers = ours | data["peers"] if data["peers"] else {}
    facts = {"machine": data["machine"]}
    facts |= {name: _listed(data[name]) for name in ("pair", "settings", "versions")}
    facts |= {name: details[name] for name in ("repeats", "created", "seconds")}
    parted = details["differences"]
    return {
        "Summary": [{"": name.replace("_", " "), "is": value} for name, value in summary.items()],
        "Answer lengths": [{**row, "": ""} for row in data.get("lengths", ())],
        "Speed-up by task": [{"": task, "speedup": speedup} for task, speedup in by_task],
        "Time of a token": [
            {"": name, "milliseconds": spent} for name, spent in token_milliseconds(data).items()
        ],
        "What else it saves": [
            {
                "": way,
                "processor seconds a token": cpu[way],
                "joules a token": "not readable here" if joules[way] is None else joules[way],
                PRICE: over((cpu[way] or 0) * CORE_HOUR_PRICE * 1e6, 3600),
            }
            for way in WAYS
        ],
        "Other engines on the same files": [
            {"": name, **peer, "settings": _listed(peer["settings"])}
            for name, peer in peers.items()
        ],
        "How this was measured": [{"": name, "is": value} for name, value in facts.items()],
        "Prompts": [{**row, "": parted.get(row["id"], "")} for row in data["rows"]],
        "Left out": [{"": id, "because": reason} for id, reason in details["skipped"].items()],
    }


def token_milliseconds(data: dict[str, Any]) -> dict[str, float | None]:
    """Milliseconds per token: of both WAYS, and of the parts of speculative decoding."""
    summary, total = data["summary"], data["details"]["total"]
    spent = {f"{way} decoding": over(1e3, summary[f"{way}_tokens_per_s"]) for way in WAYS}
    parts = {"drafting": "draft", "verifying": "verify", "outside inference": "outside"}
    for name, part in parts.items():
        spent[name] = over(1e3 * total[f"{part}_seconds"], total["decoded"])
    return spent


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items() if value is not None)
