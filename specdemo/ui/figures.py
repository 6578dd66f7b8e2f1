"""Plotly figures of one run, as functions of its trace. style.css sets text and grid colours."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from specdemo.bench.costs import CostTable, expected_speedup, measured_costs
from specdemo.trace import Trace, acceptance_by_position, summarize
from specdemo.ui.wording import percent, seconds

SPECULATIVE, BASELINE, MARK = "#0072B2", "#E69F00", "#D55E00"
PREFILL, DRAFT, VERIFY, OUTSIDE = "#999999", "#009E73", "#0072B2", "#CC79A7"
STAR = {"size": 14, "symbol": "star", "color": "#F0E442", "line": {"width": 1.5, "color": "#000"}}
LENGTHS = range(1, 13)
"""Draft lengths in the what-if figures."""

NOTHING = "Nothing was generated in this run"
NO_COSTS = "Needs drafts and a baseline to measure costs"


def _figure(title: str, x: str, y: str, message: str = "") -> go.Figure:
    grid = {"gridcolor": "#ccc", "zeroline": False}
    figure = go.Figure()
    figure.update_layout(
        title={
            "text": title,
            "font": {"size": 15},
            "x": 0.01,
            "y": 0.97,
            "xanchor": "left",
            "yanchor": "top",
            "xref": "container",
            "yref": "container",
        },
        legend={
            "orientation": "h",
            "x": 0.5,
            "y": 0.01,
            "xanchor": "center",
            "yanchor": "bottom",
            "yref": "container",
            "traceorder": "normal",
        },
        height=340,
        margin={"l": 56, "r": 16, "t": 44, "b": 88},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        template="none",
        font={"family": "system-ui, sans-serif", "size": 12},
        hovermode="closest",
        xaxis={"title": {"text": x, "standoff": 8}, **grid},
        yaxis={"title": {"text": y}, "rangemode": "tozero", **grid},
    )
    if message:
        centre = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
        figure.add_annotation(text=message, showarrow=False, **centre)
        figure.update_xaxes(showticklabels=False, range=[0, 1])
        figure.update_yaxes(showticklabels=False, range=[0, 1])
    return figure


def race(trace: Trace) -> go.Figure:
    """Tokens against seconds for both runs, from each one's first token, the time saved marked."""
    axes = "Tokens against time", "seconds after the first token", "tokens"
    if not trace.rounds:
        return _figure(*axes, NOTHING)
    figure = _figure(*axes)
    first = trace.rounds[0].shown_at
    times = [round_.shown_at - first for round_ in trace.rounds]
    counts = [len(trace.rounds[0].tokens)]
    for round_ in trace.rounds[1:]:
        counts.append(counts[-1] + len(round_.tokens))
    # In steps: tokens appear in bursts, a round at a time.
    line = {"color": SPECULATIVE, "width": 2, "shape": "hv"}
    _add_run(figure, "speculative", times, counts, line, {"size": 5})
    if trace.baseline and trace.baseline.tokens:
        shown = trace.baseline.tokens
        slow = [token.shown_at - shown[0].shown_at for token in shown]
        line = {"color": BASELINE, "width": 2, "dash": "dot"}
        marker = {"size": 4, "symbol": "diamond"}
        _add_run(figure, "baseline", slow, list(range(1, len(shown) + 1)), line, marker)
        _mark_saving(figure, times, counts, slow)
    return figure


def _add_run(figure: go.Figure, name: str, x: list, y: list, line: dict, marker: dict) -> None:
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        mode="lines+markers",
        line=line,
        marker=marker,
        hovertemplate=f"%{{y}} tokens after %{{x:.3f}} s<extra>{name}</extra>",
    )


def _mark_saving(figure: go.Figure, times: list, counts: list, slow: list) -> None:
    """A line between the moments at which each run had reached the same number of tokens."""
    same = min(counts[-1], len(slow))
    fast = next(time for time, count in zip(times, counts, strict=True) if count >= same)
    late = slow[same - 1]
    if same < 2 or fast == late:
        return
    line = {"width": 2, "color": MARK}
    figure.add_shape(type="line", x0=fast, x1=late, y0=same, y1=same, line=line)
    words = f"{seconds(abs(late - fast))} {'saved' if late > fast else 'lost'}"
    figure.add_annotation(x=(fast + late) / 2, y=same, text=words, showarrow=False, yshift=10)


def time_spent(trace: Trace) -> go.Figure:
    """Where the seconds of both runs went: prefill, drafting, target forwards, everything else."""
    axes = "Where the time went", "seconds", ""
    if not trace.rounds:
        return _figure(*axes, NOTHING)
    summary = summarize(trace)
    outside = summary.decode_seconds - summary.draft_seconds - summary.verify_seconds
    rows = ["speculative"]
    parts = [
        ("prefill", PREFILL, "/", [trace.prefill_seconds]),
        ("drafting", DRAFT, "x", [summary.draft_seconds]),
        ("target forwards", VERIFY, "", [summary.verify_seconds]),
        ("outside", OUTSIDE, ".", [max(0.0, outside)]),
    ]
    if trace.baseline and summary.baseline_decode_seconds is not None:
        rows.append("baseline")
        baseline = trace.baseline.prefill_seconds, 0.0, summary.baseline_decode_seconds, 0.0
        for (*_, values), value in zip(parts, baseline, strict=True):
            values.append(value)
    figure = _figure(*axes)
    for name, colour, shape, values in parts:
        pattern = {"shape": shape, "fillmode": "overlay", "size": 6, "solidity": 0.25}
        figure.add_bar(
            y=rows,
            x=values,
            name=name,
            orientation="h",
            marker={"color": colour, "pattern": pattern},
            hovertemplate=f"%{{x:.3f}} s<extra>{name}, %{{y}}</extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.45, margin={"l": 84})
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    return figure


def by_position(trace: Trace) -> go.Figure:
    """How often the first, second, ... draft token of a round was accepted, of those examined."""
    axes = "Acceptance by draft position", "position in the draft", "accepted, of those examined"
    counts = acceptance_by_position([trace])
    if not counts:
        return _figure(*axes, "Nothing was drafted in this run" if trace.rounds else NOTHING)
    figure = _figure(*axes)
    figure.add_bar(
        x=list(range(1, len(counts) + 1)),
        y=[accepted / examined for accepted, examined in counts],
        text=[f"{accepted}/{examined}" for accepted, examined in counts],
        textposition="outside",
        marker={"color": DRAFT},
        cliponaxis=False,
        showlegend=False,
        hovertemplate="position %{x}: %{y:.0%} (%{text})<extra></extra>",
    )
    figure.update_yaxes(range=[0, 1.08], tickformat=".0%", tickvals=[0, 0.25, 0.5, 0.75, 1])
    figure.update_xaxes(dtick=1)
    return figure


def what_if(trace: Trace) -> go.Figure:
    """The speed-up to expect by acceptance rate and draft length, at the costs of this run."""
    axes = "What if: speed-up at this machine's costs", "draft length", "acceptance rate"
    costs, summary = measured_costs([trace]), summarize(trace)
    if costs is None or summary.acceptance_rate is None or summary.speedup is None:
        return _figure(*axes, NO_COSTS)
    figure = _figure(*axes)
    rates = [step / 25 for step in range(26)]
    surface = [[expected_speedup(rate, length, costs) for length in LENGTHS] for rate in rates]
    data = {"x": list(LENGTHS), "y": rates, "z": surface}
    top = max(2.0, max(map(max, surface)))
    even = 1.0 / top
    figure.add_contour(
        **data,
        zmin=0,
        zmax=top,
        contours={"start": 0.25, "end": top, "size": 0.25, "showlabels": True},
        colorscale=[
            [0, MARK],
            [even * 0.75, "#F4C7A1"],
            [even, "#F7F7F7"],
            [(1 + even) / 2, "#7FB8DA"],
            [1, SPECULATIVE],
        ],
        line={"width": 0.5},
        showscale=False,
        name="expected speed-up",
        hovertemplate="draft length %{x}, acceptance rate %{y:.0%}: %{z:.2f} times<extra></extra>",
    )
    figure.add_contour(
        **data,
        contours={"type": "constraint", "operation": "=", "value": 1.0},
        line={"width": 3, "color": "#000000"},
        name="break-even",
        showlegend=True,
        hoverinfo="skip",
    )
    drafts = [len(round_.drafted) for round_ in trace.rounds if round_.drafted]
    figure.add_scatter(
        x=[min(sum(drafts) / len(drafts), LENGTHS[-1])],
        y=[summary.acceptance_rate],
        text=[f" {summary.speedup:.2f}×"],
        mode="markers+text",
        name="this run",
        textposition="middle right",
        textfont={"color": "#000000"},
        marker=STAR,
        cliponaxis=False,
        hovertemplate=f"this run: measured {summary.speedup:.2f} times<extra></extra>",
    )
    figure.update_xaxes(dtick=1)
    figure.update_yaxes(tickformat=".0%", rangemode="normal", range=[0, 1])
    return figure


def draft_size(trace: Trace) -> go.Figure:
    """The best speed-up by the draft's cost, with the rule of thumb and what was measured."""
    axes = (
        "What if: a smaller or larger draft",
        "cost of a draft token / a baseline token",
        "best speed-up",
    )
    costs, summary = measured_costs([trace]), summarize(trace)
    if costs is None or summary.acceptance_rate is None or summary.speedup is None:
        return _figure(*axes, NO_COSTS)
    figure = _figure(*axes)
    ratios = [0.01 * 1.12**step for step in range(41)]
    grey = [{"width": 1.5, "color": "#888888", "dash": dash} for dash in ("dot", "dash", "dashdot")]
    ours = {"width": 3, "color": SPECULATIVE}
    for rate, line in zip([0.4, 0.6, 0.8, summary.acceptance_rate], [*grey, ours], strict=True):
        figure.add_scatter(
            x=ratios,
            y=[_best(costs, rate, ratio) for ratio in ratios],
            mode="lines",
            name=percent(rate) + (" accepted (this run)" if line is ours else ""),
            line=line,
            hovertemplate=f"cost %{{x:.2f}}: %{{y:.2f}} times<extra>{percent(rate)}</extra>",
        )
    figure.add_vline(x=0.1, line={"width": 2, "dash": "dash", "color": MARK})
    figure.add_annotation(
        x=-1,
        y=0.02,
        yref="paper",
        text="the advice: ten times smaller",
        showarrow=False,
        xanchor="right",
        xshift=-4,
        yanchor="bottom",
    )
    figure.add_hline(y=1.0, line={"width": 1, "color": "#888888"})
    figure.add_scatter(
        x=[min(max(costs.draft_step / costs.plain, ratios[0]), ratios[-1])],
        y=[summary.speedup],
        mode="markers",
        name="measured",
        marker=STAR,
        cliponaxis=False,
        hovertemplate="measured: cost %{x:.2f}, %{y:.2f} times<extra></extra>",
    )
    figure.update_layout(margin={"b": 112})
    figure.update_xaxes(type="log", tickvals=[0.01, 0.03, 0.1, 0.3, 1], range=[-2, 0])
    return figure


def _best(costs: CostTable, acceptance: float, ratio: float) -> float:
    step = ratio * costs.plain
    return max(expected_speedup(acceptance, length, costs, step) for length in LENGTHS)


def of_benchmark(report: Any) -> list[go.Figure]:
    """The figures of a benchmark report, with this page's background."""
    from specdemo.bench.figures import all_figures as report_figures

    clear = "rgba(0,0,0,0)"
    return [
        figure.update_layout(paper_bgcolor=clear, plot_bgcolor=clear)
        for figure in report_figures(report)
    ]


ALL = (race, time_spent, by_position, what_if, draft_size)


def all_figures(trace: Trace) -> tuple[go.Figure, ...]:
    """Every figure of a trace, in the order of `ALL`."""
    return tuple(draw(trace) for draw in ALL)
