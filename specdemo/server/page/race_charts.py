"""The charts of drafters and of steps as Plotly's JSON; `runs.wall_clock` draws that of a race."""

from collections.abc import Mapping, Sequence

from specdemo.bench.costs import StepCost
from specdemo.runs.display import AUTOREGRESSIVE, SPECULATIVE, Curve, Figure, figure, line
from specdemo.runs.trace import Trace

DRAFTER_LINES = {
    AUTOREGRESSIVE: "dash",
    "#9a6700": "dot",
    "#a63f00": "dashdot",
    SPECULATIVE: "solid",
}
"""By colour, which not everybody tells apart."""


def of_drafters(curves: Mapping[str, Curve]) -> Figure:
    """The median run of each drafter, by its label."""
    data, span, most = [], 1e-9, 1
    for (name, curve), (colour, dash) in zip(curves.items(), DRAFTER_LINES.items(), strict=False):
        seconds, tokens = curve
        data.append(line(name, seconds, tokens, colour))
        data[-1]["line"]["dash"] = dash
        span, most = max(span, seconds[-1]), max(most, tokens[-1])
    return figure(data, span, most, showlegend=True, height=250)


def step_costs(costs: Sequence[StepCost], trace: Trace) -> Figure:
    """Milliseconds of a step by its number of tokens, and as dots the rounds of the run."""
    steps = line(
        "median step, middle half",
        [cost.tokens for cost in costs],
        [1000 * cost.seconds for cost in costs],
        SPECULATIVE,
    )
    steps |= {
        "line": {"color": SPECULATIVE, "width": 2.5},
        "error_y": {
            "color": SPECULATIVE,
            "symmetric": False,
            "array": [1000 * (cost.high - cost.seconds) for cost in costs],
            "arrayminus": [1000 * (cost.seconds - cost.low) for cost in costs],
        },
        "hovertemplate": "%{x} tokens: %{y:.1f} ms<extra></extra>",
    }
    rounds = trace.decoding_rounds
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": "rounds of this run",
        "x": [len(round_.drafted) + 1 for round_ in rounds],
        "y": [1000 * round_.verify_seconds for round_ in rounds],
        "marker": {"color": AUTOREGRESSIVE, "size": 8, "opacity": 0.5},
        "hoverinfo": "skip",
    }
    layout = {
        "xaxis": {"title": {"text": "tokens of a step"}},
        "yaxis": {"title": {"text": "milliseconds"}, "rangemode": "tozero"},
        "height": 240,
    }
    return {"data": [steps, dots], "layout": layout}
