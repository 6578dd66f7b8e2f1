"""Plotly figures of a report, as pure functions of it. Labels that come from files are escaped."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go

from specdemo.bench.report import Report

SPECULATIVE, PLAIN, DRAFT, OUTSIDE, MARK = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00"
GREY = "#888"
SPEEDUP = "speed-up over autoregressive decoding"
DOTS = {"mode": "markers", "showlegend": False, "marker_size": 8}
LAYOUT = {
    "height": 400,
    "margin": {"l": 64, "r": 24, "t": 80, "b": 56},
    "template": "plotly_white",
    "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
}


def all_figures(report: Report) -> list[go.Figure]:
    """The figures that this report has the data for."""
    decoded = report.total.decoded and report.total.baseline_decoded
    drawings = {
        by_task: decoded,
        by_position: report.positions,
        time_spent: decoded,
        by_draft_length: decoded and report.sweep,
        predicted: decoded,
        peers: decoded and report.peers,
    }
    return [draw(report) for draw, known in drawings.items() if known]


def by_task(report: Report) -> go.Figure:
    """Speed-up of each task, total over total, and of every prompt in it."""
    figure = _bars("Speed-up by task", "", SPEEDUP, report.speedup_by_task, SPECULATIVE, ".2f")
    figure.add_scatter(
        x=[_label(row.task) for row in report.rows],
        y=[row.figures.speedup for row in report.rows],
        text=[_label(row.id) for row in report.rows],
        marker_color=PLAIN,
        **DOTS,
    )
    figure.add_hline(y=1.0, line_width=1)
    return figure


def by_position(report: Report) -> go.Figure:
    """How often the first, second, ... draft token of a round was accepted, of those examined."""
    counts = {str(at): count for at, count in enumerate(report.positions, start=1)}
    rates = {at: kept / seen for at, (kept, seen) in counts.items()}
    title, axes = "Acceptance by position in the draft", ("position in the draft", "accepted")
    figure = _bars(title, *axes, rates, DRAFT, ".0%")
    figure.update_traces(hovertext=[f"{kept} of {seen} examined" for kept, seen in counts.values()])
    figure.update_yaxes(range=[0, 1.1], tickformat=".0%")
    return figure


def time_spent(report: Report) -> go.Figure:
    """Milliseconds a token: drafting, verifying and everything else, beside the baseline."""
    total = report.total
    figure = _figure("Where the time goes", "milliseconds a token", "")
    plain, scale = 1e3 / total.baseline_decoded, 1e3 / total.decoded
    for name, colour, *values in (
        ("autoregressive decoding", PLAIN, 0.0, total.baseline_decode_seconds * plain),
        ("drafting", DRAFT, total.draft_seconds * scale, 0.0),
        ("verifying", SPECULATIVE, total.verify_seconds * scale, 0.0),
        ("outside inference", OUTSIDE, total.outside_seconds * scale, 0.0),
    ):
        ways = ["speculative", "autoregressive"]
        figure.add_bar(y=ways, x=values, name=name, orientation="h", marker_color=colour)
    figure.update_layout(barmode="stack", bargap=0.45)
    figure.update_xaxes(hoverformat=".2f")
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    return figure


def by_draft_length(report: Report) -> go.Figure:
    """Speed-up against a fixed draft length, measured and predicted, and the adaptive choice."""
    first, *points = report.sweep
    adaptive = first.figures
    title = f"Speed-up against draft length ({report.sweep_prompts} prompts)"
    figure = _figure(title, "draft length k; the adaptive one at its mean", SPEEDUP)
    lengths = [point.draft_tokens for point in points]
    measured = [point.figures.speedup for point in points]
    expected = [point.predicted for point in points]
    figure.add_scatter(x=lengths, y=measured, name="measured", line_color=SPECULATIVE)
    dashed = {"line_color": GREY, "line_dash": "dash"}
    figure.add_scatter(x=lengths, y=expected, name="predicted (Leviathan et al.)", **dashed)
    mean = adaptive.drafted / max(adaptive.rounds, 1)
    figure.add_scatter(x=[mean], y=[adaptive.speedup], text="adaptive", marker_color=MARK, **DOTS)
    figure.add_hline(y=adaptive.speedup, line_width=1, line_color=MARK, line_dash="dot")
    figure.add_hline(y=1.0, line_width=1)
    return figure


def predicted(report: Report) -> go.Figure:
    """Each prompt's measured speed-up against what its acceptance rate and the costs predict."""
    title = "Predicted and measured speed-up"
    figure = _figure(title, "predicted from acceptance rate and costs", "measured")
    known = {
        _label(row.id): (report.predicted_speedup([row]), row.figures.speedup)
        for row in report.rows
        if row.figures.speedup
    }
    x, y = zip(*known.values(), strict=True)
    ends = [min(x + y) * 0.95, max(x + y) * 1.05]
    figure.add_scatter(x=ends, y=ends, name="as predicted", line_color=GREY, line_dash="dash")
    figure.add_scatter(x=x, y=y, text=list(known), marker_color=SPECULATIVE, **DOTS)
    figure.update_yaxes(rangemode="normal")
    return figure


def peers(report: Report) -> go.Figure:
    """Tokens a second of decoding, ours beside the peers'."""
    rates = {
        "specdemo/autoregressive": report.total.baseline_tokens_per_second,
        "specdemo/speculative": report.total.tokens_per_second,
        **{name: peer["tokens_per_s"] for name, peer in report.peers.items()},
    }
    colours = [PLAIN, SPECULATIVE, *[GREY] * len(report.peers)]
    title = "Beside other engines on the same files"
    return _bars(title, "", "tokens a second", rates, colours, ".1f")


def _figure(title: str, x: str, y: str) -> go.Figure:
    figure = go.Figure(layout={"title_text": title, **LAYOUT})
    common = {"automargin": True, "zeroline": False}
    figure.update_xaxes(title_text=x, **common)
    figure.update_yaxes(title_text=y, rangemode="tozero", hoverformat=".2f", **common)
    return figure


def _bars(
    title: str, x: str, y: str, values: dict[str, float], colour: str | list[str], form: str
) -> go.Figure:
    """A figure with one bar a name, its value written above it."""
    figure = _figure(title, x, y)
    figure.add_bar(
        x=list(map(_label, values)),
        y=list(values.values()),
        text=[f"{value:{form}}" if value else "" for value in values.values()],
        textposition="outside",
        cliponaxis=False,
        showlegend=False,
        marker_color=colour,
    )
    return figure


def _label(text: str) -> str:
    """Text as Plotly shows it literally: its labels would otherwise read a subset of HTML."""
    return escape(text if len(text) <= 40 else text[:39] + "…", quote=False)
