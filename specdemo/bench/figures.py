"""Plotly figures of a report, as pure functions of it. Labels that come from files are escaped."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go

from specdemo.bench.report import Report

SPECULATIVE, PLAIN, DRAFT, OUTSIDE, MARK = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00"
GREY = "#888"
SPEEDUP = "speed-up over autoregressive decoding"
DOTS = {"mode": "markers", "showlegend": False, "marker_size": 8}


def all_figures(report: Report) -> list[go.Figure]:
    """The figures that this report has the data for."""
    total = report.details.total
    decoded = total.decoded and total.baseline_decoded
    drawings = {
        by_task: decoded,
        by_position: report.details.positions,
        time_spent: decoded,
        by_draft_length: decoded and report.details.sweep,
        predicted: decoded,
        peers: decoded and report.peers,
    }
    return [draw(report) for draw, known in drawings.items() if known]


def by_task(report: Report) -> go.Figure:
    """Speed-up of each task, total over total, and of every prompt in it."""
    tasks = {_label(task): speedup for task, speedup in report.summary.speedup_by_task.items()}
    figure = _figure("Speed-up by task", "", SPEEDUP)
    _bars(figure, tasks, SPECULATIVE, ".2f")
    figure.add_scatter(
        x=[_label(row.task) for row in report.rows],
        y=[row.speedup for row in report.rows],
        text=[_label(row.id) for row in report.rows],
        marker_color=PLAIN,
        **DOTS,
    )
    figure.add_hline(y=1.0, line_width=1)
    return figure


def by_position(report: Report) -> go.Figure:
    """How often the first, second, ... draft token of a round was accepted, of those examined."""
    counts = report.details.positions
    title = "Acceptance by position in the draft"
    figure = _figure(title, "position in the draft", "accepted, of those examined")
    rates = {str(at): accepted / seen for at, (accepted, seen) in enumerate(counts, start=1)}
    _bars(figure, rates, DRAFT, ".0%")
    figure.update_traces(hovertext=[f"{accepted} of {seen}" for accepted, seen in counts])
    figure.update_yaxes(range=[0, 1.1], tickformat=".0%")
    return figure


def time_spent(report: Report) -> go.Figure:
    """Milliseconds a token: drafting, verifying and everything else, beside the baseline."""
    whole = report.details.total
    figure = _figure("Where the time goes", "milliseconds a token", "")
    plain, scale = 1e3 / whole.baseline_decoded, 1e3 / whole.decoded
    for name, colour, *values in (
        ("autoregressive decoding", PLAIN, 0.0, whole.baseline_decode_seconds * plain),
        ("drafting", DRAFT, whole.draft_seconds * scale, 0.0),
        ("verifying", SPECULATIVE, whole.verify_seconds * scale, 0.0),
        ("outside inference", OUTSIDE, whole.outside_seconds * scale, 0.0),
    ):
        ways = ["speculative", "autoregressive"]
        figure.add_bar(y=ways, x=values, name=name, orientation="h", marker_color=colour)
    figure.update_layout(barmode="stack", bargap=0.45)
    figure.update_xaxes(hoverformat=".2f")
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    return figure


def by_draft_length(report: Report) -> go.Figure:
    """Speed-up against a fixed draft length, measured and predicted, and the adaptive choice."""
    first, *points = report.details.sweep
    adaptive = first.figures
    title = f"Speed-up against draft length ({report.details.sweep_prompts} prompts)"
    figure = _figure(title, "draft length k; the adaptive one at its mean", SPEEDUP)
    lengths = [point.draft_tokens for point in points]
    speedups = [point.figures.speedup for point in points]
    figure.add_scatter(x=lengths, y=speedups, name="measured", line_color=SPECULATIVE)
    predictions = [point.predicted for point in points]
    name = "predicted (Leviathan et al.)"
    figure.add_scatter(x=lengths, y=predictions, name=name, line_color=GREY, line_dash="dash")
    mean = adaptive.drafted / max(adaptive.rounds, 1)
    figure.add_scatter(x=[mean], y=[adaptive.speedup], text="adaptive", marker_color=MARK, **DOTS)
    figure.add_hline(y=adaptive.speedup, line_width=1, line_color=MARK, line_dash="dot")
    figure.add_hline(y=1.0, line_width=1)
    return figure


def predicted(report: Report) -> go.Figure:
    """Each prompt's measured speed-up against what its acceptance rate and the costs predict."""
    known = [
        (detail.predicted_speedup, row.speedup, _label(row.id))
        for row, detail in zip(report.rows, report.details.rows, strict=True)
        if None not in (detail.predicted_speedup, row.speedup)
    ]
    title = "Predicted and measured speed-up"
    figure = _figure(title, "predicted from acceptance rate and costs", "measured")
    x, y, names = zip(*known, strict=True)
    ends = [min(x + y) * 0.95, max(x + y) * 1.05]
    figure.add_scatter(x=ends, y=ends, name="as predicted", line_color=GREY, line_dash="dash")
    figure.add_scatter(x=x, y=y, text=names, marker_color=SPECULATIVE, **DOTS)
    figure.update_yaxes(rangemode="normal")
    return figure


def peers(report: Report) -> go.Figure:
    """Tokens a second of decoding, ours beside the peers'."""
    summary = report.summary
    figure = _figure("Beside other engines on the same files", "", "tokens a second")
    rates = {
        "specdemo/autoregressive": summary.autoregressive_tokens_per_s,
        "specdemo/speculative": summary.speculative_tokens_per_s,
        **{_label(name): peer.tokens_per_s for name, peer in report.peers.items()},
    }
    _bars(figure, rates, [PLAIN, SPECULATIVE, *[GREY] * len(report.peers)], ".1f")
    return figure


def _figure(title: str, x: str, y: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        title_text=title,
        height=400,
        margin={"l": 64, "r": 24, "t": 80, "b": 56},
        template="plotly_white",
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
    )
    figure.update_xaxes(title_text=x, automargin=True, zeroline=False)
    figure.update_yaxes(
        title_text=y, automargin=True, zeroline=False, rangemode="tozero", hoverformat=".2f"
    )
    return figure


def _bars(
    figure: go.Figure, values: dict[str, float | None], colour: str | list[str], form: str
) -> None:
    """One bar a name, its value written above it."""
    figure.add_bar(
        x=list(values),
        y=list(values.values()),
        text=[f"{value:{form}}" if value else "" for value in values.values()],
        textposition="outside",
        cliponaxis=False,
        showlegend=False,
        marker_color=colour,
    )


def _label(text: str, longest: int = 40) -> str:
    """Text as Plotly shows it literally: its labels would otherwise read a subset of HTML."""
    short = text if len(text) <= longest else text[: longest - 1] + "…"
    return escape(short, quote=False)
