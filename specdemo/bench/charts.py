"""The charts that page and report share, as Plotly figures in JSON's terms: no package is needed to
make one. Colours and words are those of the whole project."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from specdemo.bench.report import PAPER, WAYS, token_milliseconds

SPECULATIVE, AUTOREGRESSIVE, PAPERS = "#0072B2", "#64748b", "#9a6700"
"""Colours; blue and slate differ in brightness too."""

GREEN, PINK, GREY = "#009E73", "#CC79A7", "#888"
TIMES = "times as fast"

Figure = dict[str, Any]
Report = dict[str, Any]
UNITY = {"type": "line", "line": {"color": AUTOREGRESSIVE, "dash": "dot"}}
"""A line where both ways are equally fast."""


def wall_clock(lengths: Sequence[Report]) -> Figure:
    """Bars of the decoding seconds of a report's `lengths`, with the ratios of both ways, and those
    of the paper, whose seconds come from another machine and another pair."""
    names = []
    for row in lengths:
        name = f"{row['max_new_tokens']} tokens<br>{row['speedup']:.2f} times as fast"
        if both := PAPER.get(row["max_new_tokens"]):
            name += f"<br>(paper: {both[0] / both[1]:.2f})"
        names.append(name)
    bars = []
    for way, colour in (("speculative", SPECULATIVE), ("autoregressive", AUTOREGRESSIVE)):
        seconds = [row[f"{way}_s"] for row in lengths]
        bars.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": way,
                "y": names,
                "x": seconds,
                "texttemplate": "%{x:.2f} s",
                "textposition": "outside",
                "cliponaxis": False,
                "marker": {"color": colour},
                "hovertemplate": f"%{{y}}, {way}: %{{x:.2f}} s<extra></extra>",
            }
        )
    longest = max(row[f"{way}_s"] for row in lengths for way in WAYS)
    return {
        "data": bars,
        "layout": {
            "xaxis": {"title": {"text": "seconds of decoding"}, "range": [0, 1.15 * longest]},
            "yaxis": {"autorange": "reversed", "automargin": True},
            "barmode": "group",
            "height": 90 + 70 * len(lengths),
            "margin": {"t": 20, "b": 50},
            "legend": {"traceorder": "reversed"},
        },
    }


def by_prompt(rows: Sequence[Report]) -> Figure:
    """The speed-up of each prompt of a report: a dot a race, a line from the least to the largest,
    and for the lengths of the paper its ratio."""
    ranges: Figure = {"x": [], "y": []}
    dots: Figure = {"x": [], "y": []}
    papers: Figure = {"x": [], "y": []}
    for row in rows:
        name, races = label(row["id"]), row.get("speedups") or [row["speedup"]]
        ranges["x"] += [min(races), max(races), None]
        ranges["y"] += [name] * 3
        dots["x"] += races
        dots["y"] += [name] * len(races)
        if row.get("paper"):
            baseline, seconds = PAPER[row["paper"]]
            papers["x"].append(baseline / seconds)
            papers["y"].append(name)
    marks = {"type": "scatter", "mode": "markers"}
    data: list[Figure] = [
        {
            **ranges,
            "type": "scatter",
            "mode": "lines",
            "line": {"color": SPECULATIVE, "width": 2},
            "hoverinfo": "skip",
            "showlegend": False,
        },
        {
            **dots,
            **marks,
            "name": "one race",
            "marker": {"color": SPECULATIVE, "size": 9, "opacity": 0.75},
            "hovertemplate": f"%{{y}}: %{{x:.2f}} {TIMES}<extra></extra>",
        },
    ]
    if papers["x"]:
        data.append(
            {
                **papers,
                **marks,
                "name": "the paper's dolly-v2-12b, on its machine",
                "marker": {"color": PAPERS, "size": 11, "symbol": "diamond-open"},
                "hovertemplate": f"the paper: %{{x:.2f}} {TIMES}<extra></extra>",
            }
        )
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": TIMES}, "rangemode": "tozero"},
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "shapes": [UNITY | {"x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}],
            "height": 140 + 26 * len(rows),
        },
    }


def of_report(report: Report) -> list[Figure]:
    """All charts of the report of `bench`."""
    charts = [wall_clock(report["lengths"])] if report.get("lengths") else []
    if report["rows"]:
        charts += [by_task(report), by_position(report), time_spent(report)]
    return charts + ([peers(report)] if report["peers"] else [])


def by_task(report: Report) -> Figure:
    rows = report["rows"]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": [label(row["task"]) for row in rows],
        "y": [row["speedup"] for row in rows],
        "text": [label(row["id"]) for row in rows],
        "marker": {"color": AUTOREGRESSIVE, "size": 8},
    }
    bars = _bars(report["summary"]["speedup_by_task"], SPECULATIVE, ".2f")
    chart = _columns("Speed-up by task", TIMES, bars, dots)
    chart["layout"]["shapes"] = [UNITY | {"y0": 1, "y1": 1, "xref": "paper", "x0": 0, "x1": 1}]
    return chart


def by_position(report: Report) -> Figure:
    counts = report["details"]["positions"]
    rates = {str(n): accepted / seen for n, (accepted, seen) in enumerate(counts, start=1)}
    bars = _bars(rates, GREEN, ".0%")
    bars["hovertext"] = [f"{accepted} of {seen} examined" for accepted, seen in counts]
    return _columns("Acceptance by position in the draft", "accepted", bars)


def time_spent(report: Report) -> Figure:
    baseline, _, *parts = token_milliseconds(report).items()
    bars = [_bars({WAYS[0]: baseline[1]}, AUTOREGRESSIVE, ".3g", baseline[0])]
    for (name, spent), colour in zip(parts, (GREEN, SPECULATIVE, PINK), strict=True):
        bars.append(_bars({WAYS[1]: spent}, colour, ".3g", name))
    return _columns("Where the time of a token goes", "milliseconds", *bars)


def peers(report: Report) -> Figure:
    rates = {f"specdemo/{way}": report["summary"][f"{way}_tokens_per_s"] for way in WAYS}
    rates |= {name: peer["tokens_per_s"] for name, peer in report["peers"].items()}
    bars = _bars(rates, [AUTOREGRESSIVE, SPECULATIVE, *[GREY] * len(report["peers"])], ".1f")
    return _columns("Beside other engines on the same files", "tokens a second", bars)


def distances(rows: Sequence[Report]) -> Figure:
    """How far the draws of an audit's rows are from their distribution, beside the mean distance of
    right draws."""
    names = [
        label(f"{row['engine']}, {row['method']}") + f"<br>{label(row['pair'])}" for row in rows
    ]
    places = list(range(len(rows)))  # shortened names may be equal
    cells = [row["cells"]["sampling"] for row in rows]
    distance = {
        "type": "bar",
        "orientation": "h",
        "name": "these draws",
        "y": places,
        "x": [cell["tv_distance"] for cell in cells],
        "marker": {"color": [PINK if cell["result"] == "fail" else SPECULATIVE for cell in cells]},
    }
    floor = {
        "type": "scatter",
        "mode": "markers",
        "name": "right draws, on average",
        "y": places,
        "x": [cell["tv_noise_floor"] for cell in cells],
        "marker": {"color": PAPERS, "symbol": "line-ns", "size": 20, "line": {"width": 3}},
    }
    return {
        "data": [distance, floor],
        "layout": {
            "xaxis": {"title": {"text": "total variation distance"}, "hoverformat": ".3f"},
            "yaxis": {
                "tickvals": places,
                "ticktext": names,
                "autorange": "reversed",
                "automargin": True,
            },
            "height": 150 + 40 * len(rows),
            "margin": {"t": 20},
            "legend": {"orientation": "h", "y": -0.25},
        },
    }


def _columns(title: str, y: str, *data: Figure) -> Figure:
    return {
        "data": data,
        "layout": {
            "title": {"text": title},
            "xaxis": {"type": "category", "automargin": True},
            "yaxis": {"title": {"text": y}, "rangemode": "tozero", "hoverformat": ".3g"},
            "barmode": "stack",
            "showlegend": any("name" in trace for trace in data),
        },
    }


def _bars(
    values: Mapping[str, float | None], colour: str | list[str], form: str, name: str = ""
) -> Figure:
    bars = {
        "type": "bar",
        "x": list(map(label, values)),
        "y": list(values.values()),
        "texttemplate": f"%{{y:{form}}}",
        "marker": {"color": colour},
    }
    return bars | ({"name": name} if name else {})


def label(text: str) -> str:
    """At most 40 characters, escaped: Plotly's labels interpret a subset of HTML."""
    return escape(text if len(text) <= 40 else text[:39] + "…", quote=False)
