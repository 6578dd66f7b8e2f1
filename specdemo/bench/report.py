"""Runs a benchmark as one generator. Its report is a dict, as in JSON, and tables."""

import json
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from specdemo.host.terminal import Progress, Table
from specdemo.pairs.registry import PairInfo
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
WAYS = ("autoregressive", "speculative")

PAPER = {40: (19.87, 13.61), 100: (44.25, 26.97)}
"""Seconds by new tokens, (autoregressive, speculative), in arXiv 2311.04951: dolly-v2-12b with the
draft dolly-v2-3b, K = 5, on its authors' machine. Ratios compare with those of other machines,
seconds do not."""

PAPER_PROMPT = BenchPrompt("fission", "paper", "Explain the difference between fission and fusion")


@dataclass
class RacedPrompt:
    """The races of one prompt with these settings."""

    prompt: BenchPrompt
    settings: Settings
    traces: list[Trace] = field(default_factory=list)

    @property
    def figures(self) -> Summary:
        """The medians of the races."""
        return combined(map(summarize, self.traces), median_low)

    @property
    def identical(self) -> bool:
        return all(trace.identical for trace in self.traces)

    @property
    def row(self) -> dict[str, Any]:
        """The row of a report."""
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
        }


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
    work = [
        RacedPrompt(prompt, replace(settings, max_new_tokens=limit))
        for prompt in prompts
        for limit in limits
    ]
    begun, total = perf_counter(), 1 + len(work)
    skipped: dict[str, str] = {}
    measured: list[RacedPrompt] = []
    others = PeerAnswers(peers, skipped)

    short = replace(settings, max_new_tokens=min(settings.max_new_tokens, WARM_UP_TOKENS))
    yield Progress("warming up", 0, total)
    list(session.ask(Question(WARM_UP, short, baseline=True)))
    for variant in others.ask(WARM_UP, short):
        yield Progress(variant, 0, total)
    others.forget()
    for done, item in enumerate(work, start=1):
        name, instruction = item.prompt.id, item.prompt.instruction
        yield Progress(f"{item.prompt.task}: {name}", done, total)
        race = Question(instruction, item.settings, baseline=True)
        try:
            item.traces = [trace_of(session.ask(race)) for _ in range(repeats)]
        except BadInput as error:
            skipped[name] = str(error)
            continue
        measured.append(item)
        for variant in others.ask(instruction, item.settings):
            yield Progress(f"{variant}: {name}", done, total)
        if len(measured) == PILOT_PROMPTS:
            others.keep_fastest()

    traces = [trace for item in measured for trace in item.traces]
    report = head(traces[-1].pair if traces else session.info, settings)
    report["rows"] = [item.row for item in measured]
    report["summary"] = summary_of(measured)
    if len(limits) > 1:
        report["lengths"] = by_length(measured)
        for row, item in zip(report["rows"], measured, strict=True):
            row["max_new_tokens"] = item.settings.max_new_tokens
    # Two engines draw different random numbers: sampled answers are not compared.
    ours = None if settings.temperature else [item.traces[-1].token_ids for item in measured]
    report["peers"] = others.figures(ours)
    different = [(item, trace) for item in measured for trace in item.traces if not trace.identical]
    report["details"] = {
        "differences": {
            item.prompt.id: describe_difference(trace) for item, trace in reversed(different)
        },
        "skipped": skipped,
        "repeats": repeats,
        "total": combined(item.figures for item in measured),
        "positions": acceptance_by_position(traces),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": perf_counter() - begun,
    }
    yield report


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


def summary_of(measured: Sequence[RacedPrompt]) -> dict[str, Any]:
    """The summary of a report: ratios of totals, never means of rates."""
    figures = [item.figures for item in measured]
    total = combined(figures)
    tasks: dict[str, list[Summary]] = {}
    for item, summary in zip(measured, figures, strict=True):
        tasks.setdefault(item.prompt.task, []).append(summary)
    return {
        "speedup": total.speedup,
        "speedup_by_task": {task: combined(each).speedup for task, each in tasks.items()},
        "worst_prompt_speedup": min(
            filter(None, (summary.speedup for summary in figures)), default=None
        ),
        "autoregressive_tokens_per_s": total.baseline_tokens_per_second,
        "speculative_tokens_per_s": over(total.decoded, total.decode_seconds),
        "acceptance_rate": total.acceptance_rate,
        "tokens_per_round": over(total.decoded, total.decode_rounds),
        "identical": all(item.identical for item in measured) if measured else None,
        "prompts": len(measured),
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


def by_length(measured: Sequence[RacedPrompt]) -> list[dict[str, Any]]:
    """For each longest answer: mean seconds of decoding, ratio of totals."""
    lengths = []
    for limit in dict.fromkeys(item.settings.max_new_tokens for item in measured):
        same = [item for item in measured if item.settings.max_new_tokens == limit]
        total, count = combined(item.figures for item in same), len(same)
        lengths.append(
            {
                "max_new_tokens": limit,
                "answers": count,
                "tokens": sum(len(item.traces[0].token_ids) for item in same) / count,
                "autoregressive_s": over(total.baseline_decode_seconds, count),
                "speculative_s": total.decode_seconds / count,
                "speedup": total.speedup,
                "identical": all(item.identical for item in same),
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
