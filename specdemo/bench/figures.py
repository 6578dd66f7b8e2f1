"""Plotly figures of a report, as pure functions of it. Labels that come from files are escaped here."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go

from specdemo.bench.report import Report

SPECULATIVE, PLAIN, DRAFT, OUTSIDE, MARK = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00"
HEIGHT = 400


def by_task(report: Report) -> go.Figure | None:
    """Speed-up of each task, total over total, and of every prompt in it."""
    tasks = report.summary.speedup_by_task
    if not any(tasks.values()):
        return None
    figure = _figure("Speed-up by task", "", "speed-up over plain decoding")
    figure.add_bar(x=[_label(task) for task in tasks], y=list(tasks.values()), name="task",
                   marker={"color": SPECULATIVE}, text=[f"{value:.2f}" if value else "" for value in tasks.values()],
                   textposition="outside", cliponaxis=False,
                   hovertemplate="%{x}: %{y:.2f} times<extra></extra>")  # fmt: skip
    rows = [row for row in report.rows if row.speedup is not None]
    figure.add_scatter(x=[_label(row.task) for row in rows], y=[row.speedup for row in rows], mode="markers",
                       name="prompt", marker={"color": PLAIN, "size": 6, "line": {"width": 0.5, "color": "#000"}},
                       text=[_label(row.id) for row in rows],
                       hovertemplate="%{text}: %{y:.2f} times<extra></extra>")  # fmt: skip
    _break_even(figure)
    return figure


def by_position(report: Report) -> go.Figure | None:
    """How often the first, second, ... draft token of a round was accepted, of those that the target examined."""
    counts = report.details.positions
    if not counts:
        return None
    figure = _figure("Acceptance by position in the draft", "position in the draft", "accepted, of those examined")
    figure.add_bar(x=list(range(1, len(counts) + 1)), y=[c.accepted / c.examined for c in counts], showlegend=False,
                   marker={"color": DRAFT}, text=[f"{c.accepted}/{c.examined}" for c in counts],
                   textposition="outside", cliponaxis=False,
                   hovertemplate="position %{x}: %{y:.0%} (%{text})<extra></extra>")  # fmt: skip
    figure.update_yaxes(range=[0, 1.1], tickformat=".0%", tickvals=[0, 0.25, 0.5, 0.75, 1])
    figure.update_xaxes(dtick=1)
    return figure


def time_spent(report: Report) -> go.Figure | None:
    """Milliseconds a token: drafting, verifying and everything else, beside plain decoding."""
    details = report.details.rows
    decoded = sum(d.decoded for d in details)
    plain_decoded = sum(d.autoregressive_decoded for d in details)
    if not decoded or not plain_decoded:
        return None
    figure = _figure("Where the time goes", "milliseconds a token", "")
    plain = sum(row.autoregressive_s for row in report.rows) / plain_decoded * 1e3
    parts = (
        ("plain decoding", PLAIN, "", (0.0, plain)),
        ("drafting", DRAFT, "x", (sum(d.draft_s for d in details) / decoded * 1e3, 0.0)),
        ("verifying", SPECULATIVE, "", (sum(d.verify_s for d in details) / decoded * 1e3, 0.0)),
        ("outside inference", OUTSIDE, ".", (sum(d.outside_s for d in details) / decoded * 1e3, 0.0)),
    )
    for name, colour, shape, values in parts:
        figure.add_bar(y=["speculative", "plain"], x=values, name=name, orientation="h",
                       marker={"color": colour, "pattern": {"shape": shape, "fillmode": "overlay", "solidity": 0.25}},
                       hovertemplate="%{x:.2f} ms a token<extra>" + name + "</extra>")  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.45, margin={"l": 96})
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    return figure


def by_draft_length(report: Report) -> go.Figure | None:
    """Speed-up against a fixed draft length, measured and predicted, with the adaptive choice marked."""
    points = sorted((p for p in report.details.sweep if p.draft_tokens is not None), key=lambda p: p.draft_tokens)
    if not points:
        return None
    figure = _figure(f"Speed-up against draft length ({report.details.sweep_prompts} prompts)",
                     "draft length K, the adaptive one at its mean", "speed-up over plain decoding")  # fmt: skip
    lengths = [point.draft_tokens for point in points]
    figure.add_scatter(x=lengths, y=[p.speedup for p in points], name="measured", mode="lines+markers",
                       line={"color": SPECULATIVE, "width": 2},
                       hovertemplate="K = %{x}: %{y:.2f} times<extra>measured</extra>")  # fmt: skip
    figure.add_scatter(x=lengths, y=[p.predicted for p in points], name="predicted (Leviathan et al.)", mode="lines",
                       line={"color": "#666666", "width": 2, "dash": "dash"},
                       hovertemplate="K = %{x}: %{y:.2f} times<extra>predicted</extra>")  # fmt: skip
    for adaptive in (p for p in report.details.sweep if p.draft_tokens is None):
        figure.add_hline(y=adaptive.speedup, line={"width": 1, "color": MARK, "dash": "dot"})
        figure.add_scatter(x=[adaptive.mean_draft_tokens], y=[adaptive.speedup], name="adaptive", mode="markers",
                           marker={"size": 15, "symbol": "star", "color": MARK, "line": {"width": 1, "color": "#000"}},
                           hovertemplate="adaptive, %{x:.1f} on average: %{y:.2f} times<extra></extra>")  # fmt: skip
    _break_even(figure)
    figure.update_xaxes(dtick=1)
    return figure


def predicted(report: Report) -> go.Figure | None:
    """Each prompt's measured speed-up against what its acceptance rate and the measured costs predict."""
    speedups = {row.id: row for row in report.rows if row.speedup is not None}
    pairs = [(d.predicted_speedup, speedups[d.id]) for d in report.details.rows
             if d.predicted_speedup is not None and d.id in speedups]  # fmt: skip
    if not pairs:
        return None
    figure = _figure("Predicted and measured speed-up", "predicted from acceptance rate and costs", "measured")
    low = min(min(p, row.speedup) for p, row in pairs) * 0.95
    high = max(max(p, row.speedup) for p, row in pairs) * 1.05
    figure.add_scatter(x=[low, high], y=[low, high], name="as predicted", mode="lines", hoverinfo="skip",
                       line={"color": "#666666", "dash": "dash", "width": 1})  # fmt: skip
    figure.add_scatter(x=[p for p, _ in pairs], y=[row.speedup for _, row in pairs], name="prompt", mode="markers",
                       marker={"color": SPECULATIVE, "size": 8}, text=[_label(row.id) for _, row in pairs],
                       hovertemplate="%{text}: predicted %{x:.2f}, measured %{y:.2f}<extra></extra>")  # fmt: skip
    figure.update_yaxes(rangemode="normal")
    return figure


def peers(report: Report) -> go.Figure | None:
    """Tokens a second of decoding, ours beside the peers'."""
    summary = report.summary
    if not report.peers or summary.speculative_tokens_per_s is None:
        return None
    figure = _figure("Beside other engines on the same files", "tokens a second", "")
    bars = [("specdemo/autoregressive", summary.autoregressive_tokens_per_s, PLAIN),
            ("specdemo/speculative", summary.speculative_tokens_per_s, SPECULATIVE),
            *((name, peer.tokens_per_s, "#999999") for name, peer in report.peers.items())]  # fmt: skip
    figure.add_bar(y=[_label(name) for name, _, _ in bars], x=[rate or 0.0 for _, rate, _ in bars], orientation="h",
                   marker={"color": [colour for _, _, colour in bars]}, showlegend=False, textposition="outside",
                   text=[f"{rate:.1f}" if rate else "" for _, rate, _ in bars], cliponaxis=False,
                   hovertemplate="%{y}: %{x:.1f} tokens/s<extra></extra>")  # fmt: skip
    figure.update_layout(margin={"l": 280, "r": 56}, height=120 + 36 * len(bars))
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    return figure


ALL = (by_task, by_position, time_spent, by_draft_length, predicted, peers)


def all_figures(report: Report) -> list[go.Figure]:
    """The figures that this report has the data for, in the order of `ALL`."""
    return [figure for draw in ALL if (figure := draw(report)) is not None]


def _figure(title: str, x: str, y: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        title={"text": title, "font": {"size": 16}, "x": 0, "xanchor": "left", "xref": "paper"}, height=HEIGHT,
        margin={"l": 64, "r": 24, "t": 80, "b": 56}, template="none", hovermode="closest",
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        xaxis={"title": {"text": x}, "gridcolor": "#ddd", "zeroline": False},
        yaxis={"title": {"text": y}, "gridcolor": "#ddd", "zeroline": False, "rangemode": "tozero"},
    )  # fmt: skip
    return figure


def _break_even(figure: go.Figure) -> None:
    figure.add_hline(y=1.0, line={"width": 1, "color": "#000000"})


def _label(text: str, longest: int = 40) -> str:
    """Text that Plotly shows as it is: its labels would otherwise read a subset of HTML."""
    return escape(text if len(text) <= longest else text[: longest - 1] + "…", quote=False)
