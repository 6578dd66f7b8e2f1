"""The charts of a race as Plotly's JSON: wall-clock time, the drafters of one question, what a step
costs. Plain data, since Plotly itself takes a second to import."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specdemo.bench.costs import StepCost
from specdemo.runs.judge import times
from specdemo.runs.trace import AUTOREGRESSIVE, COLOURS, SPECULATIVE, Trace

Figure = dict[str, Any]
Curve = tuple[Sequence[float], Sequence[int]]
"""Seconds since the first token, and the tokens that the answer has then."""

DRAFTER_COLOURS = (AUTOREGRESSIVE, "#9a6700", "#a63f00", SPECULATIVE)
MAX_ROOM = 1.3  # of the axis of time, for repeats that took longer than the race on show


def wall_clock(trace: Trace) -> Figure:
    """Both runs of the race on show, and as bands the range of the other counted races."""
    curves = {way: curve for way, curve in _curves(trace).items() if curve[0]}
    counted = [race for race in trace.repeats if not race.why and race.times]
    repeats: list[Curve] = [(race.times, race.tokens) for race in counted]
    baselines: list[Curve] = [
        (race.baseline_times, range(1, len(race.baseline_times) + 1)) for race in counted
    ]
    data: list[Figure] = []
    notes: list[Figure] = []
    for way, others in zip(COLOURS, (repeats, baselines), strict=True):
        if way in curves and others:
            data.append(_band([curves[way], *others], COLOURS[way]))
    for way, (seconds, tokens) in reversed(curves.items()):
        data.append(_line(way, seconds, tokens, COLOURS[way]))
        middle = len(seconds) // 2
        ours = way == "speculative"
        anchors = ("right", "bottom") if ours else ("left", "top")
        notes.append(_label(way, seconds[middle], tokens[middle], COLOURS[way], *anchors))
    ends = [seconds[-1] for seconds, _ in curves.values()] or [1.0]
    most = max((tokens[-1] for _, tokens in curves.values()), default=1)
    slowest = max((max(race.seconds, race.baseline_seconds) for race in counted), default=0.0)
    span = max(*ends, min(slowest, MAX_ROOM * max(ends))) or 1.0
    shapes: list[Figure] = []
    if len(ends) == 2 and trace.identical and abs(ends[0] - ends[1]) > 0.01 * span:
        line = {"width": 2, "dash": "dot"}
        shapes = [{"type": "line", "x0": ends[0], "x1": ends[1], "y0": most, "y1": most}]
        shapes[0]["line"] = line
        difference = abs(round(ends[1], 2) - round(ends[0], 2))  # as a reader would subtract
        words = f"<b>{difference:.2f} s {'saved' if ends[1] > ends[0] else 'lost'}</b>"
        anchor = "left" if max(ends) < span / 3 else "right"  # inside the chart
        notes.append(_label(words, max(ends), most, None, anchor, "bottom"))
    return _figure(data, span, most, shapes=shapes, annotations=notes)


def of_drafters(curves: Mapping[str, Curve]) -> Figure:
    """The median run of each drafter, by its label."""
    data, span, most = [], 1e-9, 1
    for (name, (seconds, tokens)), colour in zip(curves.items(), DRAFTER_COLOURS, strict=False):
        data.append(_line(name, seconds, tokens, colour))
        span, most = max(span, seconds[-1]), max(most, tokens[-1])
    return _figure(data, span, most, showlegend=True, height=250)


def step_costs(costs: Sequence[StepCost], trace: Trace) -> Figure:
    """Milliseconds of a step by its number of tokens, and as dots the rounds of the run."""
    line = _line(
        "median step, middle half",
        [cost.tokens for cost in costs],
        [1000 * cost.seconds for cost in costs],
        SPECULATIVE,
    )
    line |= {
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
    return {"data": [line, dots], "layout": layout}


def label_of(name: str, speedup: float | None, acceptance_rate: float | None) -> str:
    """The name of a drafter with its figures."""
    words = name if speedup is None else f"{name}: {times(speedup)}"
    return words if acceptance_rate is None else f"{words}, {acceptance_rate:.0%} accepted"


def _curves(trace: Trace) -> dict[str, Curve]:
    rounds, shown = trace.rounds, trace.baseline.tokens if trace.baseline else ()
    reached, count = [], 0
    for round_ in rounds:
        reached.append(count := count + len(round_.tokens))
    return {
        "speculative": ([one.shown_at - rounds[0].shown_at for one in rounds], reached),
        "autoregressive": (
            [one.shown_at - shown[0].shown_at for one in shown],
            list(range(1, len(shown) + 1)),
        ),
    }


def _band(curves: Iterable[Curve], colour: str) -> Figure:
    """The area between the earliest and the latest of several runs at each token."""
    reached: dict[int, list[float]] = {}
    for seconds, tokens in curves:
        before = 0
        for time, count in zip(seconds, tokens, strict=False):
            for token in range(before + 1, count + 1):
                reached.setdefault(token, []).append(time)
            before = count
    tokens = sorted(reached)
    early, late = ([end(reached[token]) for token in tokens] for end in (min, max))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*early, *reversed(late)],
        "y": [*tokens, *reversed(tokens)],
        "fill": "toself",
        "fillcolor": colour,
        "opacity": 0.18,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _line(name: str, x: Sequence[float], y: Sequence[float], colour: str) -> Figure:
    """Tokens come in rounds, so a curve has steps. Plotly takes tags in names for markup."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name.replace("&", "&amp;").replace("<", "&lt;"),
        "x": list(x),
        "y": list(y),
        "line": {
            "color": colour,
            "width": 3,
            "shape": "hv",
            "dash": "dash" if colour == AUTOREGRESSIVE else "solid",
        },
        "hovertemplate": "%{fullData.name}: %{y} tokens after %{x:.2f} s<extra></extra>",
    }


def _label(text: str, x: float, y: float, colour: str | None, xanchor: str, yanchor: str) -> Figure:
    font = {"color": colour} if colour else {}
    shift = 4 if yanchor == "bottom" else -4
    return {
        "text": text,
        "x": x,
        "y": y,
        "xanchor": xanchor,
        "yanchor": yanchor,
        "yshift": shift,
        "showarrow": False,
        "font": font,
    }


def _figure(data: list[Figure], span: float, most: int, **layout: Any) -> Figure:
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "seconds"}, "range": [0, 1.02 * span]},
            "yaxis": {"title": {"text": "tokens"}, "range": [0, 1.18 * most]},
            "height": 225,
            "showlegend": False,
            **layout,
        },
    }
