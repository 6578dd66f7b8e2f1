"""Plotly figures of a report, as pure functions of it. Labels that come from files are escaped."""

from __future__ import annotations

from html import escape
from typing import Any

import plotly.graph_objects as go

from specdemo.bench.report import Report, traces_of
from specdemo.trace import acceptance_by_position

SPECULATIVE, PLAIN, DRAFT, OUTSIDE, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#888"


def all_figures(report: Report) -> list[go.Figure]:
    """The figures that this report has the data for."""
    if not (report.total.decoded and report.total.baseline_decoded):
        return []
    figures = [by_task(report), by_position(report), time_spent(report)]
    return figures + [peers(report)] * bool(report.peers)


def by_task(report: Report) -> go.Figure:
    """Speed-up of each task, total over total, and of every prompt in it."""
    prompts = go.Scatter(
        x=[_label(row.task) for row in report.rows],
        y=[row.figures.speedup for row in report.rows],
        text=[_label(row.id) for row in report.rows],
        marker={"color": PLAIN, "size": 8},
        mode="markers",
        showlegend=False,
    )
    bars = _bars(report.speedup_by_task, SPECULATIVE, ".2f")
    y = "speed-up over autoregressive decoding"
    return _figure("Speed-up by task", "", y, bars, prompts).add_hline(y=1.0, line_width=1)


def by_position(report: Report) -> go.Figure:
    """How often the first, second, ... draft token of a round was accepted, of those examined."""
    positions = acceptance_by_position(traces_of(report.rows))
    rates = {str(at): kept / seen for at, (kept, seen) in enumerate(positions, start=1)}
    bars = _bars(rates, DRAFT, ".0%")
    bars.hovertext = [f"{kept} of {seen} examined" for kept, seen in positions]
    title, x = "Acceptance by position in the draft", "position in the draft"
    return _figure(title, x, "accepted", bars).update_yaxes(range=[0, 1.1], tickformat=".0%")


def time_spent(report: Report) -> go.Figure:
    """Milliseconds a token: drafting, verifying and everything else, beside the baseline."""
    total = report.total
    plain, scale = 1e3 / total.baseline_decoded, 1e3 / total.decoded
    parts = {
        "autoregressive decoding": (PLAIN, 0.0, total.baseline_decode_seconds * plain),
        "drafting": (DRAFT, total.draft_seconds * scale, 0.0),
        "verifying": (SPECULATIVE, total.verify_seconds * scale, 0.0),
        "outside inference": (OUTSIDE, total.outside_seconds * scale, 0.0),
    }
    ways = ["speculative", "autoregressive"]
    bars = [
        go.Bar(y=ways, x=values, name=name, orientation="h", marker_color=colour)
        for name, (colour, *values) in parts.items()
    ]
    figure = _figure("Where the time goes", "milliseconds a token", "", *bars)
    figure.update_layout(barmode="stack", bargap=0.45)
    figure.update_xaxes(hoverformat=".2f")
    return figure.update_yaxes(autorange="reversed", rangemode="normal")


def peers(report: Report) -> go.Figure:
    """Tokens a second of decoding, ours beside the peers'."""
    rates = {
        "specdemo/autoregressive": report.total.baseline_tokens_per_second,
        "specdemo/speculative": report.total.tokens_per_second,
        **{name: peer["tokens_per_s"] for name, peer in report.peers.items()},
    }
    bars = _bars(rates, [PLAIN, SPECULATIVE, *[GREY] * len(report.peers)], ".1f")
    return _figure("Beside other engines on the same files", "", "tokens a second", bars)


def _figure(title: str, x: str, y: str, *traces: Any) -> go.Figure:
    axis = {"automargin": True, "zeroline": False}
    layout = {
        "title_text": title,
        "height": 400,
        "margin": {"l": 64, "r": 24, "t": 80, "b": 56},
        "template": "plotly_white",
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        "xaxis": {"title_text": x, **axis},
        "yaxis": {"title_text": y, "rangemode": "tozero", "hoverformat": ".2f", **axis},
    }
    return go.Figure(traces, layout)


def _bars(values: dict[str, float], colour: str | list[str], form: str) -> go.Bar:
    """One bar a name, its value written above it."""
    return go.Bar(
        x=list(map(_label, values)),
        y=list(values.values()),
        text=[f"{value:{form}}" if value else "" for value in values.values()],
        textposition="outside",
        cliponaxis=False,
        showlegend=False,
        marker_color=colour,
    )


def _label(text: str) -> str:
    """Text as Plotly shows it literally: its labels would otherwise read a subset of HTML."""
    return escape(text if len(text) <= 40 else text[:39] + "…", quote=False)
