"""Audits engines: a row for each engine and method, a cell for each property. Judges all cells at
once, and says in words what a failure means."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from specdemo.bench.engines import OWN_PROPERTIES, AuditedEngine
from specdemo.bench.properties import PROPERTIES, Cell, Plan, cell_of
from specdemo.host.terminal import Progress

LEAST_P_VALUE = 0.01
"""The chance that a correct engine fails the sampled part: of all cells of a report together."""

MEANINGS = {
    "greedy": "Drafting changes answers even without sampling: users do not get the model that was "
    "tested.",
    "seed": "A sampled answer cannot be reproduced without drafting.",
    "repeat": "The same request gives different answers: a reported error may not recur.",
    "batch": "An answer depends on the other requests of the moment.",
    "sampling": "Sampled answers have other frequencies than the model's: some are missing, others "
    "too frequent, or the request fails.",
    "end": "Answers run on after their end, or lose it.",
    "stop": "Text after a stop string gets through, or text before it is lost.",
    "schema": "An answer that has to be JSON is not, or is another one.",
    "penalties": "Penalties against repetition work otherwise with drafts.",
    "context": "Answers differ or fail where the context is full.",
}

REPOSITORIES = {
    "openvino-genai": "openvinotoolkit/openvino.genai",
    "llama-cpp": "ggml-org/llama.cpp",
    "mlx-lm": "ml-explore/mlx-lm",
}
ISSUES: dict[str, dict[str, tuple[int, ...]]] = {
    "sampling": {"openvino-genai": (4190,)},
    "greedy": {
        "openvino-genai": (4425, 4367, 4476),
        "llama-cpp": (25618, 27407, 27975),
        "mlx-lm": (1423, 1470),
    },
}
"""Public reports of the same kind, by property and engine."""

Report = dict[str, Any]


def audit(
    engines: Iterable[AuditedEngine], plan: Plan, report: Report, pair: str
) -> Iterator[Progress | Report]:
    """Adds a row for each engine to the `report`'s rows. A cell that a row has already is not run
    again. Yields Progress before each cell and the report, judged, after it."""
    rows = report.setdefault("rows", [])
    baselines: dict[tuple[str, bool], dict[Any, Any]] = {}
    yield judge(report)
    for engine in engines:
        key = {"engine": engine.name, "method": engine.method, "pair": pair}
        row = next((row for row in rows if key.items() <= row.items()), None)
        if row is None:
            sizes = {"prompts": len(plan.prompts), "draws": plan.draws}
            facts = {**engine.facts, **sizes, "seed": plan.settings.seed}
            rows.append(row := {**key, "facts": facts, "cells": {}})
        for done, (name, (title, _)) in enumerate(PROPERTIES.items()):
            wanted = name in plan.only and (plan.draws or name != "sampling")
            if wanted and name not in row["cells"]:
                text = f"{engine.name}, {engine.method}: {title}"
                yield Progress(text, done, len(PROPERTIES))
                absent = row["cells"].get("greedy", {}).get("result") == "not offered"
                if absent and name not in ("repeat", "batch"):  # which need no baseline
                    cell = Cell("not offered")
                else:
                    of_engine = engine.name, engine.method.endswith(OWN_PROPERTIES)
                    cell = cell_of(name, engine, plan, baselines.setdefault(of_engine, {}))
                row["cells"][name] = asdict(cell)
                yield judge(report)
        engine.close()


def judge(report: Report) -> Report:
    """The report with its verdicts: a sampled cell fails where a draw failed, or where Holm's
    correction over all p-values of the report rejects its own."""
    cells = [row["cells"]["sampling"] for row in report["rows"] if "sampling" in row["cells"]]
    cells = [cell for cell in cells if cell["p_values"]]
    for cell in cells:
        cell["result"] = "fail" if cell["failures"] else "pass"
    tested = [(value, cell) for cell in cells for value in cell["p_values"].values()]
    tested.sort(key=itemgetter(0))
    for rank, (value, cell) in enumerate(tested):
        if value > LEAST_P_VALUE / (len(tested) - rank):
            break
        cell["result"] = "fail"
    ours = [row["cells"] for row in report["rows"] if row["engine"] == "specdemo"]
    greedy = [cells["greedy"] for cells in ours if "greedy" in cells]
    prompts, different = (sum(cell[key] for cell in greedy) for key in ("cases", "failures"))
    report["greedy"] = {"prompts": prompts, "identical": prompts - different}
    own = [row["sampling"] for row in ours if row.get("sampling", {}).get("p_value") is not None]
    report["sampling"] = min(own, key=itemgetter("p_value"), default=None)
    report["sampling_cells"] = len(tested)
    report["created"] = datetime.now(UTC).isoformat(timespec="seconds")
    return report


def failures(row: Report) -> dict[str, Report]:
    """The failing cells of a row."""
    return {name: cell for name, cell in row["cells"].items() if cell["result"] == "fail"}


def links(engine: str, name: str) -> list[str]:
    """Addresses of public reports of such failures of an engine."""
    numbers: Sequence[int] = ISSUES.get(name, {}).get(engine, ())
    return [f"https://github.com/{REPOSITORIES[engine]}/issues/{number}" for number in numbers]
