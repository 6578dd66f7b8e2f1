"""Plotly figures of one run, as pure functions of its trace. style.css sets text and grid colours."""

from __future__ import annotations

import plotly.graph_objects as go

from specdemo.trace import Trace, acceptance_by_position, summarize
from specdemo.ui.costs import Costs, expected_speedup, measured_costs
from specdemo.ui.verdict import seconds

SPECULATIVE, PLAIN = "#0072B2", "#E69F00"
DRAFT, VERIFY, PREFILL, OUTSIDE = "#009E73", "#0072B2", "#999999", "#CC79A7"
STAR = {"size": 14, "symbol": "star", "color": "#F0E442", "line": {"width": 1.5, "color": "#000"}}
HEIGHT = 340
LONGEST = 12
"""Largest draft length shown in the what-if figure."""


def _figure(title: str, x: str, y: str, message: str = "") -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        title={"text": title, "font": {"size": 15}, "x": 0.01, "xanchor": "left", "xref": "container",
               "yref": "container", "y": 0.97, "yanchor": "top"},
        height=HEIGHT, margin={"l": 56, "r": 16, "t": 44, "b": 88}, paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)", template="none", font={"family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0.5, "xanchor": "center",
                "traceorder": "normal"}, hovermode="closest",
        xaxis={"title": {"text": x, "standoff": 8}, "gridcolor": "#ccc", "zeroline": False},
        yaxis={"title": {"text": y}, "gridcolor": "#ccc", "zeroline": False, "rangemode": "tozero"},
    )
    if message:
        figure.add_annotation(text=message, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
        figure.update_xaxes(showticklabels=False, range=[0, 1])
        figure.update_yaxes(showticklabels=False, range=[0, 1])
    return figure


NOTHING = "Nothing was generated in this run"


def race(trace: Trace) -> go.Figure:
    """Tokens against wall-clock seconds for both runs, from each one's first token, with the time saved marked."""
    title, x, y = "Tokens against time", "seconds after the first token (wall clock)", "tokens"
    if not trace.rounds:
        return _figure(title, x, y, NOTHING)
    figure = _figure(title, x, y)
    times, counts, total = [], [], 0
    first = trace.rounds[0].shown_at
    for round_ in trace.rounds:
        total += len(round_.tokens)
        times.append(round_.shown_at - first)
        counts.append(total)
    # "lines+markers" in steps: what a visitor saw was bursts, not a slope.
    figure.add_scatter(x=times, y=counts, name="speculative", mode="lines+markers", marker={"size": 5},
                       line={"color": SPECULATIVE, "width": 2, "shape": "hv"},
                       hovertemplate="%{y} tokens after %{x:.3f} s<extra>speculative</extra>")
    if trace.baseline and trace.baseline.tokens:
        shown = trace.baseline.tokens
        plain = [token.shown_at - shown[0].shown_at for token in shown]
        figure.add_scatter(x=plain, y=list(range(1, len(shown) + 1)), name="plain", mode="lines+markers",
                           marker={"size": 4, "symbol": "diamond"}, line={"color": PLAIN, "width": 2, "dash": "dot"},
                           hovertemplate="%{y} tokens after %{x:.3f} s<extra>plain</extra>")
        _mark_saving(figure, times, counts, plain)
    return figure


def _mark_saving(figure: go.Figure, times: list[float], counts: list[int], plain: list[float]) -> None:
    """A line between the moments at which each run had reached the same number of tokens."""
    same = min(counts[-1], len(plain))
    fast = next(t for t, n in zip(times, counts, strict=True) if n >= same)
    slow = plain[same - 1]
    if same < 2 or fast == slow:
        return
    figure.add_shape(type="line", x0=fast, x1=slow, y0=same, y1=same, line={"width": 2, "color": "#D55E00"})
    words = f"{seconds(abs(slow - fast))} {'saved' if slow > fast else 'lost'}"
    figure.add_annotation(x=(fast + slow) / 2, y=same, text=words, showarrow=False, yshift=10)


def time_spent(trace: Trace) -> go.Figure:
    """Where the seconds of both runs went: prefill, drafting, verifying, everything else."""
    title, x = "Where the time went", "seconds"
    if not trace.rounds:
        return _figure(title, x, "", NOTHING)
    figure = _figure(title, x, "")
    summary = summarize(trace)
    outside = max(0.0, summary.decode_seconds - summary.draft_seconds - summary.verify_seconds)
    rows = ["speculative"]
    parts = {"prefill": [trace.prefill_seconds], "drafting": [summary.draft_seconds],
             "verifying": [summary.verify_seconds], "outside": [outside]}
    if trace.baseline and summary.baseline_decode_seconds is not None:
        rows.append("plain")
        for name, value in (("prefill", trace.baseline.prefill_seconds), ("drafting", 0.0),
                            ("verifying", summary.baseline_decode_seconds), ("outside", 0.0)):
            parts[name].append(value)
    labels = {"prefill": "prefill", "drafting": "drafting", "verifying": "target forwards", "outside": "outside"}
    looks = {"prefill": (PREFILL, "/"), "drafting": (DRAFT, "x"), "verifying": (VERIFY, ""), "outside": (OUTSIDE, ".")}
    for name, values in parts.items():
        colour, pattern = looks[name]
        figure.add_bar(y=rows, x=values, name=labels[name], orientation="h", marker={
            "color": colour, "pattern": {"shape": pattern, "fillmode": "overlay", "size": 6, "solidity": 0.25}},
            hovertemplate="%{x:.3f} s<extra>" + labels[name] + ", %{y}</extra>")
    figure.update_layout(barmode="stack", bargap=0.45)
    figure.update_yaxes(autorange="reversed", rangemode="normal")
    figure.update_layout(margin={"l": 84})
    return figure


def by_position(trace: Trace) -> go.Figure:
    """How often the first, second, ... draft token of a round was accepted, of those that the target got to see."""
    title, x, y = "Acceptance by draft position", "position in the draft", "accepted, of those examined"
    if not trace.rounds:
        return _figure(title, x, y, NOTHING)
    counts = acceptance_by_position([trace])
    if not counts:
        return _figure(title, x, y, "Nothing was drafted in this run")
    figure = _figure(title, x, y)
    figure.add_bar(x=list(range(1, len(counts) + 1)), y=[a / n for a, n in counts], marker={"color": DRAFT},
                   text=[f"{a}/{n}" for a, n in counts], textposition="outside", cliponaxis=False, showlegend=False,
                   hovertemplate="position %{x}: %{y:.0%} (%{text})<extra></extra>")
    figure.update_yaxes(range=[0, 1.08], tickformat=".0%", tickvals=[0, 0.25, 0.5, 0.75, 1])
    figure.update_xaxes(dtick=1)
    return figure


def what_if(trace: Trace) -> go.Figure:
    """The speed-up to expect over acceptance rate and draft length, for the costs that this run measured."""
    title, x, y = "What if: speed-up at this machine's costs", "draft length", "acceptance rate"
    costs = measured_costs(trace)
    if costs is None:
        return _figure(title, x, y, "Needs a draft and a comparison to measure costs")
    figure = _figure(title, x, y)
    lengths = list(range(1, LONGEST + 1))
    rates = [i / 25 for i in range(26)]
    surface = [[expected_speedup(costs, rate, length) for length in lengths] for rate in rates]
    top = max(2.0, max(map(max, surface)))
    one = 1.0 / top
    figure.add_contour(
        x=lengths, y=rates, z=surface, zmin=0, zmax=top, contours={"start": 0.25, "end": top, "size": 0.25,
                                                                   "showlabels": True},
        colorscale=[[0, "#D55E00"], [one * 0.75, "#F4C7A1"], [one, "#F7F7F7"], [(1 + one) / 2, "#7FB8DA"],
                    [1, "#0072B2"]],
        line={"width": 0.5}, showscale=False, name="expected speed-up",
        hovertemplate="draft length %{x}, acceptance %{y:.0%}: %{z:.2f} times<extra></extra>")
    figure.add_contour(x=lengths, y=rates, z=surface, contours={"type": "constraint", "operation": "=", "value": 1.0},
                       line={"width": 3, "color": "#000000"}, name="break-even", showlegend=True, hoverinfo="skip")
    measured = summarize(trace).speedup
    figure.add_scatter(x=[min(costs.draft_length, LONGEST)], y=[costs.acceptance], mode="markers+text", name="this run",
                       text=[f" {measured:.2f}×"], textposition="middle right", textfont={"color": "#000000"},
                       marker=STAR, cliponaxis=False,
                       hovertemplate=f"this run: measured {measured:.2f} times<extra></extra>")
    figure.update_xaxes(dtick=1)
    figure.update_yaxes(tickformat=".0%", rangemode="normal", range=[0, 1])
    return figure


def draft_size(trace: Trace) -> go.Figure:
    """The best speed-up over the draft's cost, with the "ten times smaller" rule of thumb beside what was measured."""
    title, x, y = "What if: a smaller or larger draft", "cost of a draft token / a plain token", "best speed-up"
    costs = measured_costs(trace)
    if costs is None:
        return _figure(title, x, y, "Needs a draft and a comparison to measure costs")
    figure = _figure(title, x, y)
    ratios = [0.01 * 1.12 ** i for i in range(41)]
    rates = sorted({0.4, 0.6, 0.8}) + [costs.acceptance]
    for index, rate in enumerate(rates):
        ours = index == len(rates) - 1
        figure.add_scatter(x=ratios, y=[_best(costs, rate, ratio) for ratio in ratios], mode="lines",
                           name=f"{rate:.0%} right" + (" (this run)" if ours else ""),
                           line={"width": 3, "color": SPECULATIVE} if ours else
                           {"width": 1.5, "color": "#888888", "dash": ("dot", "dash", "dashdot")[index]},
                           hovertemplate="cost %{x:.2f}: at best %{y:.2f} times<extra>" + f"{rate:.0%} right</extra>")
    figure.add_vline(x=0.1, line={"width": 2, "dash": "dash", "color": "#D55E00"})
    figure.add_annotation(x=-1, y=0.02, yref="paper", text="the advice: ten times smaller", showarrow=False,
                          xanchor="right", xshift=-4, yanchor="bottom")
    figure.add_hline(y=1.0, line={"width": 1, "color": "#888888"})
    ratio = min(max(costs.ratio, ratios[0]), ratios[-1])
    figure.add_scatter(x=[ratio], y=[summarize(trace).speedup], mode="markers", name="measured", marker=STAR,
        cliponaxis=False,
        hovertemplate="measured: cost %{x:.2f}, %{y:.2f} times<extra></extra>")
    figure.update_layout(margin={"b": 112})
    figure.update_xaxes(type="log", tickvals=[0.01, 0.03, 0.1, 0.3, 1], range=[-2, 0])
    return figure


def _best(costs: Costs, acceptance: float, ratio: float) -> float:
    return max(expected_speedup(costs, acceptance, length, ratio) for length in range(1, LONGEST + 1))


def of_benchmark(report) -> list[go.Figure]:
    """The report's own figures, with this page's background."""
    from specdemo.bench.figures import all_figures as report_figures

    clear = "rgba(0,0,0,0)"
    return [figure.update_layout(paper_bgcolor=clear, plot_bgcolor=clear) for figure in report_figures(report)]


ALL = (race, time_spent, by_position, what_if, draft_size)


def all_figures(trace: Trace) -> tuple[go.Figure, ...]:
    """Every figure of a trace, in the order of `ALL`."""
    return tuple(draw(trace) for draw in ALL)
