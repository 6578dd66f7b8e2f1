"""An audit's report as one HTML page: who is lossless, what a failure means."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdemo.audit.auditor import SIGNIFICANCE, AuditReport, AuditRow
from specdemo.audit.engines import OWN_PROPERTIES
from specdemo.audit.properties import PROPERTIES
from specdemo.audit.report_page import PAPER_COLOUR, PINK, Figure, label, render
from specdemo.runs.trace import SPECULATIVE

PUBLIC_REPORTS: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {
    ("openvino-genai", "sampling"): ("openvinotoolkit/openvino.genai", (4190,)),
    ("openvino-genai", "greedy"): ("openvinotoolkit/openvino.genai", (4425, 4367, 4476)),
    ("llama-cpp", "greedy"): ("ggml-org/llama.cpp", (25618, 27407, 27975)),
    ("mlx-lm", "greedy"): ("ml-explore/mlx-lm", (1423, 1470)),
}
"""Repository and issues that report a failure of the same kind, by engine and property."""


def engine_results(rows: Sequence[AuditRow]) -> list[dict[str, Any]]:
    """For the template: the tests of each engine with one set of plugin properties. Lossless
    engines first, then failing ones, then those that did not run."""
    groups: dict[str, list[AuditRow]] = {}
    for row in rows:
        own = ", its own properties" if row.method.endswith(OWN_PROPERTIES) else ""
        groups.setdefault(row.engine + own, []).append(row)
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
                "why": next((cell.note for cell in cells if cell.note), "nothing was tested"),
            }
        )
    return sorted(results, key=lambda each: ("pass", "fail", "none").index(each["result"]))


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
