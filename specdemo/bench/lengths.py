"""Answers of several lengths beside those of the paper (arXiv 2311.04951)."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdemo.bench.prompts import BenchPrompt
from specdemo.runs.trace import Summary, combined

PAPER = {40: (19.87, 13.61), 100: (44.25, 26.97)}
"""Seconds by new tokens, (autoregressive, speculative): dolly-v2-12b with the draft dolly-v2-3b,
K = 5, on its authors' machine. Ratios compare with those of other machines, seconds do not."""

PAPER_PROMPT = BenchPrompt("fission", "paper", "Explain the difference between fission and fusion")
WAYS = {"autoregressive_s": "autoregressive", "speculative_s": "speculative"}
COLOURS = ("#E69F00", "#0072B2"), ("#b4b4b4", "#7d7d7d")  # ours, the paper's


def by_length(
    rows: Sequence[Mapping[str, Any]], figures: Sequence[Summary]
) -> list[dict[str, Any]]:
    """For each `max_new_tokens` of a report's rows: mean seconds of decoding, ratio of totals."""
    found = []
    for limit in dict.fromkeys(row["max_new_tokens"] for row in rows):
        places = [at for at, row in enumerate(rows) if row["max_new_tokens"] == limit]
        total = combined([figures[at] for at in places])
        found.append(
            {
                "max_new_tokens": limit,
                "answers": len(places),
                "tokens": sum(rows[at]["tokens"] for at in places) / len(places),
                "autoregressive_s": total.baseline_decode_seconds / len(places),
                "speculative_s": total.decode_seconds / len(places),
                "speedup": total.speedup,
                "identical": all(rows[at]["identical"] for at in places),
            }
        )
    return found


def chart(lengths: Sequence[Mapping[str, Any]], ours: str) -> dict[str, Any]:
    """A Plotly figure as JSON has it: bars of seconds, left of the report's `lengths`, titled
    `ours`, right the paper's. Each side has its own scale: seconds of two machines."""
    paper = [
        {"max_new_tokens": limit, **dict(zip(WAYS, seconds, strict=True))}
        for limit, seconds in PAPER.items()
    ]
    sides = [(lengths, ours, ""), (paper, "dolly-v2-12b (paper)", "2")]
    data, axes, small = [], {}, {"size": 11}
    for (rows, title, axis), colours in zip(sides, COLOURS, strict=True):
        for (field, name), colour in zip(WAYS.items(), colours, strict=True):
            heights = [row[field] for row in rows]
            data.append(
                {
                    "type": "bar",
                    "name": f"{name}, paper" if axis else name,
                    "x": [f"N = {row['max_new_tokens']}" for row in rows],
                    "y": heights,
                    "text": [f"{s:.1f}" if s >= 10 else f"{s:.2f}" for s in heights],
                    "textfont": small,
                    "constraintext": "none",
                    "textposition": "outside",
                    "cliponaxis": False,
                    "marker": {"color": colour},
                    "xaxis": f"x{axis}",
                    "yaxis": f"y{axis}",
                }
            )
        axes[f"xaxis{axis}"] = {"title": {"text": title, "font": small}, "tickangle": 0}
        unit = "" if axis else "seconds"
        axes[f"yaxis{axis}"] = {"title": {"text": unit}, "gridcolor": "rgba(128,128,128,.3)"}
    layout = {
        **axes,
        "grid": {"rows": 1, "columns": 2, "pattern": "independent"},
        "dragmode": False,
        "barmode": "group",
        "legend": {"orientation": "h", "y": -0.3},
        "margin": {"l": 50, "r": 10, "t": 20, "b": 40},
        "height": 380,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
    return {"data": data, "layout": layout, "config": {"displayModeBar": False}}
