"""The charts that page and report share, as Plotly figures in JSON's terms: no package is needed to
make one. Colours and words are those of the whole project."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from specdemo.bench.lengths import PAPER

SPECULATIVE, AUTOREGRESSIVE, PAPERS = "#0072B2", "#64748b", "#9a6700"
"""Colours; blue and slate differ in brightness too."""

TIMES = "times as fast"

Figure = dict[str, Any]


def wall_clock(lengths: Sequence[Mapping[str, Any]]) -> Figure:
    """Bars of the decoding seconds of a report's `lengths`, with the ratios of both ways, and those
    of the paper, whose seconds come from another machine and another pair."""
    names = []
    for row in lengths:
        name = f"{row['max_new_tokens']} tokens<br>{row['speedup']:.2f} times as fast"
        if both := PAPER.get(row["max_new_tokens"]):
            name += f"<br>(paper: {both[0] / both[1]:.2f})"
        names.append(name)
    ways = {"autoregressive": AUTOREGRESSIVE, "speculative": SPECULATIVE}
    bars = []
    for way, colour in ways.items():
        spent = [row[f"{way}_s"] for row in lengths]
        bars.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": way,
                "y": names,
                "x": spent,
                "text": [f"{seconds:.2f} s" for seconds in spent],
                "textposition": "outside",
                "cliponaxis": False,
                "marker": {"color": colour},
                "hovertemplate": f"%{{y}}, {way}: %{{x:.2f}} s<extra></extra>",
            }
        )
    longest = max(row["autoregressive_s"] for row in lengths)
    return {
        "data": bars[::-1],
        "layout": {
            "xaxis": {"title": {"text": "seconds of decoding"}, "range": [0, 1.15 * longest]},
            "yaxis": {"autorange": "reversed", "automargin": True},
            "barmode": "group",
            "height": 90 + 70 * len(lengths),
            "legend": {"traceorder": "reversed"},
        },
    }


def by_prompt(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The speed-up of each prompt of a report: a dot a race, a line from the least to the largest,
    and for the lengths of the paper its ratio."""
    names = [label(row["id"]) for row in rows]
    races = [row.get("speedups") or [row["speedup"]] for row in rows]
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [end for one in races for end in (min(one), max(one), None)],
            "y": [name for name in names for _ in range(3)],
            "line": {"color": SPECULATIVE, "width": 2},
            "hoverinfo": "skip",
            "showlegend": False,
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "one race",
            "x": [speedup for one in races for speedup in one],
            "y": [name for name, one in zip(names, races, strict=True) for _ in one],
            "marker": {"color": SPECULATIVE, "size": 9, "opacity": 0.75},
            "hovertemplate": f"%{{y}}: %{{x:.2f}} {TIMES}<extra></extra>",
        },
    ]
    papers = {
        name: PAPER[row["paper"]] for name, row in zip(names, rows, strict=True) if row.get("paper")
    }
    if papers:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "the paper's dolly-v2-12b, on its machine",
                "x": [baseline / seconds for baseline, seconds in papers.values()],
                "y": list(papers),
                "marker": {"color": PAPERS, "size": 11, "symbol": "diamond-open"},
                "hovertemplate": f"the paper: %{{x:.2f}} {TIMES}<extra></extra>",
            }
        )
    line = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": TIMES}, "rangemode": "tozero"},
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "shapes": [line | {"line": {"color": AUTOREGRESSIVE, "dash": "dot"}}],
            "height": 110 + 26 * len(rows),
        },
    }


def label(text: str) -> str:
    """At most 40 characters, escaped: Plotly's labels interpret a subset of HTML."""
    return escape(text if len(text) <= 40 else text[:39] + "…", quote=False)
