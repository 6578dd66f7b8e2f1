"""Audits engines: a row for each engine and method, a cell for each property. Judges all cells at
once. Makes the HTML page: who is lossless, what a failure means."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from specdemo.audit.engines import OWN_PROPERTIES, AuditedEngine
from specdemo.audit.properties import PROPERTIES, Cell, Plan, Subject, cell_of
from specdemo.machine.terminal import Progress
from specdemo.runs.display import SPECULATIVE
from specdemo.runs.report_page import PAPER_COLOUR, PINK, Figure, ReportHeader, label, render

SIGNIFICANCE = 0.01
"""The chance that a correct engine fails the sampled part: of all cells of a report together."""

PUBLIC_REPORTS: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {
    ("openvino-genai", "sampling"): ("openvinotoolkit/openvino.genai", (4190,)),
    ("openvino-genai", "greedy"): ("openvinotoolkit/openvino.genai", (4425, 4367, 4476)),
    ("llama-cpp", "greedy"): ("ggml-org/llama.cpp", (25618, 27407, 27975)),
    ("mlx-lm", "greedy"): ("ml-explore/mlx-lm", (1423, 1470)),
}
"""Repository and issues that report a failure of the same kind, by engine and property."""


@dataclass(eq=False)
class AuditRow:
    """The cells of one method of an engine, by property."""

    engine: str
    method: str
    pair: str
    facts: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)

    @property
    def failures(self) -> dict[str, Cell]:
        return {name: cell for name, cell in self.cells.items() if cell.result == "fail"}


@dataclass(kw_only=True)
class AuditReport(ReportHeader):
    """A whole audit."""

    prompts: int = 0
    draws: int = 0
    rows: list[AuditRow] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # why a peer could not run
    greedy: dict[str, int] = field(default_factory=dict)  # of our own answers
    sampling: Cell | None = None  # that of our own with the smallest p-value
    sampling_cells: int = 0  # number of p-values
    created: str = ""

    def judge(self) -> None:
        """A sampled cell fails where a draw failed, or where Holm's correction over all p-values of
        the report rejects its own."""
        tested = [
            (p_value, row)
            for row in self.rows
            if "sampling" in row.cells
            for p_value in (row.cells["sampling"].p_values or {}).values()
        ]
        tested.sort(key=itemgetter(0))
        rejected = []
        for rank, (p_value, row) in enumerate(tested):
            if p_value > SIGNIFICANCE / (len(tested) - rank):
                break
            rejected.append(row)
        for _, row in tested:
            cell = row.cells["sampling"]
            fails = cell.failures or row in rejected
            row.cells["sampling"] = replace(cell, result="fail" if fails else "pass")
        ours = [row.cells for row in self.rows if row.engine == "specdemo"]
        greedy = [cells["greedy"] for cells in ours if "greedy" in cells]
        identical = sum(cell.cases - cell.failures for cell in greedy)
        self.greedy = {"prompts": sum(cell.cases for cell in greedy), "identical": identical}
        cells = (row.cells["sampling"] for _, row in tested if row.engine == "specdemo")
        self.sampling = next(cells, None)
        self.sampling_cells = len(tested)
        self.created = datetime.now(UTC).isoformat(timespec="seconds")


def audit(
    engines: Iterable[AuditedEngine], plan: Plan, report: AuditReport, pair: str
) -> Iterator[Progress]:
    """Add a row for each engine to the `report`. Yields Progress before each cell and after an
    engine, when the report is judged."""
    baselines: dict[tuple[str, bool], dict[Any, Any]] = {}
    report.judge()
    for engine in engines:
        own_properties = engine.method.endswith(OWN_PROPERTIES)
        subject = Subject(engine, baselines.setdefault((engine.name, own_properties), {}))
        sizes = {"prompts": len(plan.prompts), "draws": plan.draws, "seed": plan.settings.seed}
        row = AuditRow(engine.name, engine.method, pair, {**engine.facts, **sizes})
        report.rows.append(row)
        for done, (name, prop) in enumerate(PROPERTIES.items()):
            wanted = name in plan.only and (plan.draws or name != "sampling")
            if not wanted:
                continue
            text = f"{engine.name}, {engine.method}: {prop.title}"
            yield Progress(text, done, len(PROPERTIES))
            without_baseline = "greedy" in row.cells and row.cells["greedy"].result == "not offered"
            if without_baseline and name not in ("repeat", "batch"):
                row.cells[name] = Cell("not offered")
            else:
                row.cells[name] = cell_of(name, subject, plan)
            report.judge()
        yield Progress(f"{engine.name}, {engine.method}", len(PROPERTIES), len(PROPERTIES))
        engine.close()


VERDICTS = {
    "pass": "{engine} is lossless: none of {ran} tests failed.",
    "fail": "{engine} failed {failed} of {ran} tests.",
    "none": "{engine} was not tested: {why}.",
}


def engine_results(rows: Sequence[AuditRow]) -> list[dict[str, Any]]:
    """The tests of each engine with one set of plugin properties. Lossless engines first, then
    failing ones, then those that did not run."""
    groups: dict[str, list[AuditRow]] = {}
    for row in rows:
        suffix = ", its own properties" if row.method.endswith(OWN_PROPERTIES) else ""
        groups.setdefault(row.engine + suffix, []).append(row)
    results = []
    for engine, group in groups.items():
        cells = [cell for row in group for cell in row.cells.values()]
        passed, failed = (sum(cell.result == kind for cell in cells) for kind in ("pass", "fail"))
        results.append(
            {
                "engine": engine,
                "result": "fail" if failed else "pass" if passed else "none",
                "methods": dict.fromkeys(row.method.removesuffix(OWN_PROPERTIES) for row in group),
                "pairs": dict.fromkeys(row.pair for row in group if row.pair),
                "ran": passed + failed,
                "failed": failed,
                "failing": dict.fromkeys(name for row in group for name in row.failures),
                "why": next(
                    (cell.note.rstrip(".") for cell in cells if cell.note), "no test applies"
                ),
            }
        )
    return sorted(results, key=lambda each: [*VERDICTS].index(each["result"]))


def verdicts(rows: Sequence[AuditRow]) -> list[str]:
    """A sentence for each of the `engine_results`."""
    return [VERDICTS[each["result"]].format_map(each) for each in engine_results(rows)]


def page(report: AuditReport) -> str:
    sampled = [row for row in report.rows if "sampling" in row.cells]
    sampled = [row for row in sampled if row.cells["sampling"].p_values]
    return render(
        Path(__file__).with_name("audit.html.j2"),
        [distances(sampled)] if sampled else [],
        **vars(report),
        properties=PROPERTIES,
        links=links,
        engines=engine_results(report.rows),
        failing=[row for row in report.rows if row.failures],
        significance=SIGNIFICANCE,
    )


def links(engine: str, name: str) -> list[str]:
    """Addresses of public reports of such failures of an engine."""
    repository, numbers = PUBLIC_REPORTS.get((engine, name), ("", ()))
    return [f"https://github.com/{repository}/issues/{number}" for number in numbers]


def distances(rows: Sequence[AuditRow]) -> Figure:
    """How far the draws of each row are from their distribution, beside the mean distance of
    correct draws."""
    import plotly.express as px

    names = [label(f"{row.engine}, {row.method}") + f"<br>{label(row.pair)}" for row in rows]
    positions = list(range(len(rows)))  # shortened names may be equal
    cells = [row.cells["sampling"] for row in rows]
    figure = px.bar(
        {
            "total variation distance": [cell.tv_distance for cell in cells],
            "": positions,
            "draws": ["failed" if cell.result == "fail" else "passed" for cell in cells],
        },
        x="total variation distance",
        y="",
        color="draws",
        orientation="h",
        color_discrete_map={"failed": PINK, "passed": SPECULATIVE},
    )
    figure.add_scatter(
        x=[cell.tv_noise_floor for cell in cells],
        y=positions,
        mode="markers",
        name="correct draws, on average",
        marker={"color": PAPER_COLOUR, "symbol": "line-ns-open", "size": 20, "line": {"width": 3}},
    )
    return figure.update_layout(
        xaxis={"hoverformat": ".3f"},
        yaxis={"tickvals": positions, "ticktext": names, "autorange": "reversed"},
        height=150 + 40 * len(rows),
        margin={"t": 20},
        legend={"orientation": "h", "y": -0.25},
    )
