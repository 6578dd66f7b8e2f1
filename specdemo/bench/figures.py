"""Plotly figures of a report, as pure functions of it. Labels that come from files are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from specdemo.bench.report import Report

SPECULATIVE, PLAIN, DRAFT, OUTSIDE, MARK = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00"
GREY = "#666666"
SPEEDUP = "speed-up over autoregressive decoding"


def all_figures(report: Report) -> list[go.Figure]:
    """The figures that this report has the data for."""
    drawings = (by_task, by_position, time_spent, by_draft_length, predicted, peers)
    return [figure for draw in drawings if (figure := draw(report)) is not None]


def by_task(report: Report) -> go.Figure | None:
    """Speed-up of each task, total over total, and of every prompt in it."""
    tasks = report.summary.speedup_by_task
    if not any(tasks.values()):
        return None
    figure = _figure("Speed-up by task", "", SPEEDUP)
    _bars(figure, [_label(task) for task in tasks], list(tasks.values()), SPECULATIVE, "{:.2f}")
    tasks_of_rows = [_label(row.task) for row in report.rows]
    names = [row.id for row in report.rows]
    _dots(figure, tasks_of_rows, [row.speedup for row in report.rows], names, PLAIN)
    figure.add_hline(y=1.0, line={"width": 1})
    return figure


def by_position(report: Report) -> go.Figure | None:
    """How often the first, second, ... draft token of a round was accepted, of those examined."""
    counts = report.details.positions
    if not counts:
        return None
    title = "Acceptance by position in the draft"
    figure = _figure(title, "position in the draft", "accepted, of those examined")
    positions = [str(position) for position in range(1, len(counts) + 1)]
    _bars(figure, positions, [accepted / seen for accepted, seen in counts], DRAFT, "{:.0%}")
    hover = "%{customdata[0]} of %{customdata[1]}<extra></extra>"
    figure.update_traces(customdata=counts, hovertemplate=hover)
    figure.update_yaxes(range=[0, 1.1], tickformat=".0%")
    return figure


def time_spent(report: Report) -> go.Figure | None:
    """Milliseconds a token: drafting, verifying and everything else, beside the baseline."""
    whole = report.details.total
    if not whole.speculative_tokens or not whole.autoregressive_tokens:
        return None
    figure = _figure("Where the time goes", "milliseconds a token", "")
    plain, scale = 1e3 / whole.autoregressive_tokens, 1e3 / whole.speculative_tokens
    parts = (
        ("autoregressive decoding", PLAIN, "", 0.0, whole.autoregressive_s * plain),
        ("drafting", DRAFT, "x", whole.draft_s * scale, 0.0),
        ("verifying", SPECULATIVE, "", whole.verify_s * scale, 0.0),
        ("outside inference", OUTSIDE, ".", whole.outside_s * scale, 0.0),
    )
    for name, colour, shape, *values in parts:
        figure.add_bar(
            y=["speculative", "autoregressive"],
            x=values,
            name=name,
            orientation="h",
            marker={"color": colour, "pattern": {"shape": shape, "solidity": 0.25}},
            hovertemplate="%{x:.2f} ms a token<extra>" + name + "</extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.45, margin={"l": 112})
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    return figure


def by_draft_length(report: Report) -> go.Figure | None:
    """Speed-up against a fixed draft length, measured and predicted, and the adaptive choice."""
    points = [point for point in report.details.sweep if point.draft_tokens is not None]
    if not points:
        return None
    title = f"Speed-up against draft length ({report.details.sweep_prompts} prompts)"
    figure = _figure(title, "draft length k; the adaptive one at its mean", SPEEDUP)
    lengths = [point.draft_tokens for point in points]
    _curve(figure, "measured", lengths, [p.figures.speedup for p in points], SPECULATIVE)
    predictions = [point.predicted for point in points]
    _curve(figure, "predicted (Leviathan et al.)", lengths, predictions, GREY, "dash")
    for adaptive in (point for point in report.details.sweep if point.draft_tokens is None):
        figures = adaptive.figures
        mean = figures.drafted / max(figures.rounds, 1)
        _dots(figure, [mean], [figures.speedup], ["adaptive"], MARK)
        figure.add_hline(y=figures.speedup, line={"width": 1, "color": MARK, "dash": "dot"})
    figure.add_hline(y=1.0, line={"width": 1})
    return figure


def predicted(report: Report) -> go.Figure | None:
    """Each prompt's measured speed-up against what its acceptance rate and the costs predict."""
    known = [
        (detail.predicted_speedup, row.speedup, row.id)
        for row, detail in zip(report.rows, report.details.rows, strict=True)
        if None not in (detail.predicted_speedup, row.speedup)
    ]
    if not known:
        return None
    title = "Predicted and measured speed-up"
    figure = _figure(title, "predicted from acceptance rate and costs", "measured")
    x, y, names = map(list, zip(*known, strict=True))
    ends = [min(x + y) * 0.95, max(x + y) * 1.05]
    _curve(figure, "as predicted", ends, ends, GREY, "dash")
    _dots(figure, x, y, names, SPECULATIVE)
    figure.update_yaxes(rangemode="normal")
    return figure


def peers(report: Report) -> go.Figure | None:
    """Tokens a second of decoding, ours beside the peers'."""
    summary = report.summary
    if not report.peers or summary.speculative_tokens_per_s is None:
        return None
    figure = _figure("Beside other engines on the same files", "", "tokens a second")
    rates = {
        "specdemo/autoregressive": summary.autoregressive_tokens_per_s,
        "specdemo/speculative": summary.speculative_tokens_per_s,
    }
    rates |= {_label(name): peer.tokens_per_s for name, peer in report.peers.items()}
    colours = [PLAIN, SPECULATIVE, *["#999999"] * len(report.peers)]
    _bars(figure, list(rates), list(rates.values()), colours, "{:.1f}")
    return figure


def _figure(title: str, x: str, y: str) -> go.Figure:
    figure = go.Figure()
    axis = {"gridcolor": "#ddd", "zeroline": False, "automargin": True}
    figure.update_layout(
        title={"text": title, "font": {"size": 16}, "x": 0, "xref": "paper"},
        height=400,
        margin={"l": 64, "r": 24, "t": 80, "b": 56},
        template="none",
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        xaxis={"title": {"text": x}, **axis},
        yaxis={"title": {"text": y}, "rangemode": "tozero", **axis},
    )
    return figure


def _bars(figure: go.Figure, names: Sequence[str], values: Any, colour: Any, form: str) -> None:
    """One bar a name, its value written above it."""
    figure.add_bar(
        x=names,
        y=values,
        marker={"color": colour},
        text=[form.format(value) if value else "" for value in values],
        textposition="outside",
        cliponaxis=False,
        showlegend=False,
        hovertemplate="%{x}: %{y:.2f}<extra></extra>",
    )


def _dots(figure: go.Figure, x: Any, y: Any, names: Sequence[str], colour: str) -> None:
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers",
        showlegend=False,
        marker={"color": colour, "size": 8, "line": {"width": 0.5, "color": "#000"}},
        text=[_label(name) for name in names],
        hovertemplate="%{text}: %{y:.2f} times<extra></extra>",
    )


def _curve(figure: go.Figure, name: str, x: Any, y: Any, colour: str, dash: str = "solid") -> None:
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        mode="lines",
        line={"color": colour, "width": 2, "dash": dash},
        hovertemplate="%{x}: %{y:.2f} times<extra>" + name + "</extra>",
    )


def _label(text: str, longest: int = 40) -> str:
    """Text as Plotly shows it literally: its labels would otherwise read a subset of HTML."""
    short = text if len(text) <= longest else text[: longest - 1] + "…"
    return escape(short, quote=False)
