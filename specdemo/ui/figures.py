"""Plotly figures of one run, as functions of its trace: None where the run has too little for one.
style.css sets the colours of backgrounds, text and grid."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

import plotly.graph_objects as go

from specdemo.bench.costs import expected_speedup, measured_costs
from specdemo.trace import Trace, acceptance_by_position, summarize
from specdemo.ui.wording import percent, seconds

SPECULATIVE, BASELINE, MARK = "#0072B2", "#E69F00", "#D55E00"
PREFILL, DRAFT, VERIFY, OUTSIDE = "#999999", "#009E73", "#0072B2", "#CC79A7"
STAR = {
    "mode": "markers",
    "marker": {"size": 14, "symbol": "star", "color": "#F0E442", "line_width": 1.5},
    "cliponaxis": False,
}
"""Where a run lies in the what-if figures."""

LENGTHS = range(1, 13)
"""Draft lengths in the what-if figures."""


def all_figures(trace: Trace) -> list[go.Figure | None]:
    """Every figure of a trace, in the order in which the page shows them."""
    return [draw(trace) for draw in (race, time_spent, by_position, what_if, draft_size)]


def _figure(title: str, x: str, y: str) -> go.Figure:
    left = {"x": 0.01, "xanchor": "left", "xref": "container"}
    below = {"x": 0.5, "xanchor": "center", "y": 0.01, "yanchor": "bottom", "yref": "container"}
    figure = go.Figure()
    figure.update_xaxes(title_text=x, title_standoff=8, gridcolor="#ccc", zeroline=False)
    figure.update_yaxes(title_text=y, rangemode="tozero", gridcolor="#ccc", zeroline=False)
    return figure.update_layout(
        title={"text": title, "font_size": 15, "y": 0.97, "yanchor": "top", **left},
        legend={"orientation": "h", "traceorder": "normal", **below},
        height=340,
        margin={"l": 56, "r": 16, "t": 44, "b": 88},
        template="none",
        font={"family": "system-ui, sans-serif", "size": 12},
        hovermode="closest",
    )


def race(trace: Trace) -> go.Figure | None:
    """Tokens against seconds for both runs, from each one's first token, the time saved marked."""
    if not trace.rounds:
        return None
    figure = _figure("Tokens against time", "seconds after the first token", "tokens")
    figure.update_xaxes(hoverformat=".3f")
    times = [round_.shown_at - trace.rounds[0].shown_at for round_ in trace.rounds]
    counts = list(accumulate(len(round_.tokens) for round_ in trace.rounds))
    # In steps: tokens appear in bursts, a round at a time.
    line = {"color": SPECULATIVE, "shape": "hv"}
    figure.add_scatter(x=times, y=counts, name="speculative", mode="lines+markers", line=line)
    baseline = trace.baseline.tokens if trace.baseline else ()
    if not baseline:
        return figure
    slow = [token.shown_at - baseline[0].shown_at for token in baseline]
    numbers = list(range(1, len(slow) + 1))
    line = {"color": BASELINE, "dash": "dot"}
    figure.add_scatter(x=slow, y=numbers, name="baseline", mode="lines+markers", line=line)
    # A line between the moments at which each run had reached the same number of tokens.
    same = min(counts[-1], len(slow))
    fast, late = times[bisect_left(counts, same)], slow[same - 1]
    figure.add_shape(type="line", x0=fast, x1=late, y0=same, y1=same, line_color=MARK)
    words = f"{seconds(abs(late - fast))} {'saved' if late > fast else 'lost'}"
    figure.add_annotation(x=(fast + late) / 2, y=same, text=words, showarrow=False, yshift=10)
    return figure


def time_spent(trace: Trace) -> go.Figure | None:
    """Where the seconds of both runs went: prefill, drafting, target forwards, everything else."""
    if not trace.rounds:
        return None
    summary = summarize(trace)
    outside = summary.decode_seconds - summary.draft_seconds - summary.verify_seconds
    prefill = trace.baseline.prefill_seconds if trace.baseline else 0.0
    runs = ["speculative", "baseline"] if trace.baseline else ["speculative"]
    figure = _figure("Where the time went", "seconds", "")
    for name, colour, shape, *values in (
        ("prefill", PREFILL, "/", trace.prefill_seconds, prefill),
        ("drafting", DRAFT, "x", summary.draft_seconds, 0.0),
        ("target forwards", VERIFY, "", summary.verify_seconds, summary.baseline_decode_seconds),
        ("outside", OUTSIDE, ".", max(0.0, outside), 0.0),
    ):
        marker = {"color": colour, "pattern": {"shape": shape, "solidity": 0.25}}
        figure.add_bar(y=runs, x=values[: len(runs)], name=name, orientation="h", marker=marker)
    figure.update_xaxes(hoverformat=".3f")
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    return figure.update_layout(barmode="stack", bargap=0.45, margin_l=84)


def by_position(trace: Trace) -> go.Figure | None:
    """How often the first, second, ... draft token of a round was accepted, of those examined."""
    counts = acceptance_by_position([trace])
    if not counts:
        return None
    axes = "position in the draft", "accepted, of those examined"
    figure = _figure("Acceptance by draft position", *axes)
    figure.add_bar(
        x=list(range(1, len(counts) + 1)),
        y=[accepted / examined for accepted, examined in counts],
        text=[f"{accepted}/{examined}" for accepted, examined in counts],
        textposition="outside",
        marker_color=DRAFT,
        cliponaxis=False,
    )
    figure.update_yaxes(range=[0, 1.08], tickformat=".0%")
    return figure.update_xaxes(dtick=1)


def what_if(trace: Trace) -> go.Figure | None:
    """The speed-up to expect by acceptance rate and draft length, at the costs of this run."""
    costs, summary = measured_costs([trace]), summarize(trace)
    if costs is None or summary.acceptance_rate is None or summary.speedup is None:
        return None
    title = "What if: speed-up at this machine's costs"
    figure = _figure(title, "draft length", "acceptance rate")
    rates = [step / 25 for step in range(26)]
    surface = [[expected_speedup(rate, length, costs) for length in LENGTHS] for rate in rates]
    data = {"x": list(LENGTHS), "y": rates, "z": surface}
    top = max(2.0, max(map(max, surface)))
    figure.add_contour(
        **data,
        zmin=0,
        zmax=top,
        zhoverformat=".2f",
        contours={"start": 0.25, "end": top, "size": 0.25, "showlabels": True},
        colorscale=[[0, MARK], [1.0 / top, "#F7F7F7"], [1, SPECULATIVE]],
        line_width=0.5,
        showscale=False,
        name="expected speed-up",
    )
    even = {"contours": {"type": "constraint", "operation": "=", "value": 1.0}, "line_width": 3}
    figure.add_contour(**data, **even, name="break-even", showlegend=True, hoverinfo="skip")
    drafts = [len(round_.drafted) for round_ in trace.rounds if round_.drafted]
    length = min(sum(drafts) / len(drafts), LENGTHS[-1])
    words = f"measured {summary.speedup:.2f} times"
    rate = summary.acceptance_rate
    figure.add_scatter(x=[length], y=[rate], name="this run", text=words, **STAR)
    figure.update_xaxes(dtick=1)
    return figure.update_yaxes(tickformat=".0%", rangemode="normal", range=[0, 1])


def draft_size(trace: Trace) -> go.Figure | None:
    """The best speed-up by the draft's cost, with the rule of thumb and what was measured."""
    costs, summary = measured_costs([trace]), summarize(trace)
    if costs is None or summary.acceptance_rate is None or summary.speedup is None:
        return None
    axes = "cost of a draft token / a baseline token", "best speed-up"
    figure = _figure("What if: a smaller or larger draft", *axes)
    ratios = [0.01 * 1.12**step for step in range(41)]
    rates = 0.4, 0.6, 0.8, summary.acceptance_rate
    for rate, dash in zip(rates, ("dot", "dash", "dashdot", "solid"), strict=True):
        best = [
            max(expected_speedup(rate, length, costs, ratio * costs.plain) for length in LENGTHS)
            for ratio in ratios
        ]
        ours = dash == "solid"
        name = percent(rate) + (" accepted (this run)" if ours else "")
        line = {"width": 3, "color": SPECULATIVE} if ours else {"color": "#888", "dash": dash}
        figure.add_scatter(x=ratios, y=best, mode="lines", name=name, line=line)
    figure.add_vline(x=0.1, line_dash="dash", line_color=MARK)
    left = {"xanchor": "right", "yanchor": "bottom", "yref": "paper", "showarrow": False}
    figure.add_annotation(x=-1, y=0.02, text="the advice: ten times smaller ", **left)
    figure.add_hline(y=1.0, line_width=1, line_color="#888")
    cost = min(max(costs.draft_step / costs.plain, ratios[0]), ratios[-1])
    figure.add_scatter(x=[cost], y=[summary.speedup], name="measured", **STAR)
    figure.update_layout(margin_b=112)
    figure.update_yaxes(hoverformat=".2f")
    return figure.update_xaxes(type="log", tickvals=[0.01, 0.03, 0.1, 0.3, 1], range=[-2, 0])
