"""A benchmark's report (a dict, as in its JSON) as one HTML page with Plotly figures."""

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Template
from plotly.offline import get_plotlyjs

from specdemo.bench.charts import AUTOREGRESSIVE, SPECULATIVE, TIMES, label, wall_clock
from specdemo.bench.report import WAYS, tables, token_milliseconds
from specdemo.host.terminal import text
from specdemo.runs.trace import as_json

GREEN, PINK, GREY = "#009E73", "#CC79A7", "#888"


def page(report: dict[str, Any]) -> str:
    """One self-contained HTML page, 5 MB with plotly.js. All but plotly's output is escaped."""
    source = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    data = json.loads(as_json(report))
    look = {"full_html": False, "include_plotlyjs": False, "config": {"displaylogo": False}}
    figures = [figure.to_html(**look) for figure in all_figures(data)]
    names = {"tables": tables(data), "figures": figures, "text": text, "plotlyjs": get_plotlyjs()}
    html: str = Template(source, autoescape=True).render(data, **names)
    return html


def all_figures(report: dict[str, Any]) -> list[go.Figure]:
    figures = [by_task, by_position, time_spent] if report["rows"] else []
    figures = [answer_lengths] * bool(report.get("lengths")) + figures
    return [figure(report) for figure in figures + [peers] * bool(report["peers"])]


def answer_lengths(report: dict[str, Any]) -> go.Figure:
    figure = wall_clock(report["lengths"])
    return go.Figure(figure["data"], figure["layout"])


def by_task(report: dict[str, Any]) -> go.Figure:
    rows = report["rows"]
    dots = go.Scatter(
        x=[label(row["task"]) for row in rows],
        y=[row["speedup"] for row in rows],
        text=[label(row["id"]) for row in rows],
        marker={"color": AUTOREGRESSIVE, "size": 8},
        mode="markers",
    )
    bars = _bars(report["summary"]["speedup_by_task"], SPECULATIVE, ".2f")
    return _figure("Speed-up by task", TIMES, bars, dots).add_hline(y=1.0, line_width=1)


def by_position(report: dict[str, Any]) -> go.Figure:
    counts = report["details"]["positions"]
    rates = {str(at): kept / seen for at, (kept, seen) in enumerate(counts, start=1)}
    bars = _bars(rates, GREEN, ".0%")
    bars.hovertext = [f"{kept} of {seen} examined" for kept, seen in counts]
    return _figure("Acceptance by position in the draft", "accepted", bars)


def time_spent(report: dict[str, Any]) -> go.Figure:
    baseline, _, *parts = token_milliseconds(report).items()
    bars = [go.Bar(x=WAYS[:1], y=[baseline[1]], name=baseline[0], marker_color=AUTOREGRESSIVE)]
    for (name, spent), colour in zip(parts, (GREEN, SPECULATIVE, PINK), strict=True):
        bars.append(go.Bar(x=WAYS[1:], y=[spent], name=name, marker_color=colour))
    figure = _figure("Where the time of a token goes", "milliseconds", *bars)
    return figure.update_layout(barmode="stack", showlegend=True)


def peers(report: dict[str, Any]) -> go.Figure:
    rates = {f"specdemo/{way}": report["summary"][f"{way}_tokens_per_s"] for way in WAYS}
    rates |= {name: peer["tokens_per_s"] for name, peer in report["peers"].items()}
    bars = _bars(rates, [AUTOREGRESSIVE, SPECULATIVE, *[GREY] * len(report["peers"])], ".1f")
    return _figure("Beside other engines on the same files", "tokens a second", bars)


def _figure(title: str, y: str, *bars: Any) -> go.Figure:
    figure = go.Figure(bars, {"title_text": title, "template": "plotly_white", "showlegend": False})
    figure.update_xaxes(type="category", automargin=True)
    return figure.update_yaxes(title_text=y, rangemode="tozero", hoverformat=".3g")


def _bars(values: dict[str, float | None], colour: str | list[str], form: str) -> go.Bar:
    names, heights = list(map(label, values)), list(values.values())
    return go.Bar(x=names, y=heights, texttemplate=f"%{{y:{form}}}", marker_color=colour)
