"""How a run is shown: names, colours, an answer in a notebook, and the chart of a race as Plotly's
JSON: plain data, since Plotly itself takes a second to import."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from specdemo.engine.rounds import DraftToken, EmittedToken, Source

Figure = dict[str, Any]
Curve = tuple[Sequence[float], Sequence[int]]
"""Seconds since the first token, and the tokens that the answer has then."""

SPECULATIVE, AUTOREGRESSIVE = "#0072B2", "#64748b"
COLOURS = {"speculative": SPECULATIVE, "autoregressive": AUTOREGRESSIVE}
"""The colours of both runs in every chart; they differ in brightness too."""

SOURCES: dict[Source, str] = {
    "model": "draft model",
    "head": "draft head",
    "eagle3": "EAGLE-3 head",
    "mtp": "prediction layer",
    "lookup": "n-gram lookup",
    "prediction": "predicted text",
    "ngrams": "n-gram table",
    "grammar": "grammar",
}
"""The names of the sources of draft tokens, for the scripts too; the first four are a pair's."""

STYLES = {
    "accepted": "background: #00785a33",
    "forced": "background: #8a3fa033",
    "correction": "background: #b04a0033; text-decoration: wavy underline",
    "bonus": "background: #0069a833; text-decoration: double underline",
}
"""CSS of a token in a notebook, by kind; others have none."""

MAX_ROOM = 1.3  # of the axis of time, for repeats that took longer than the race on show


def notebook_html(tokens: Iterable[DraftToken | EmittedToken], figures: Iterable[str]) -> str:
    """The text of an answer with `figures` below it."""
    text = "".join(
        f'<span style="{STYLES.get(token.kind, "")}" title="{token.kind}">'
        f"{escape(token.text)}</span>"
        for token in tokens
    )
    return f'<div style="white-space: pre-wrap">{text}</div><small>{", ".join(figures)}</small>'


def wall_clock(runs: Mapping[str, Sequence[Curve]], identical: bool) -> Figure:
    """The first curve of each way, of the race on show, and as bands the range of all, those of
    other races. With `identical` answers the seconds between both ends are named."""
    curves = {way: drawn[0] for way, drawn in runs.items()}
    data = [_band(others, COLOURS[way]) for way, others in runs.items() if len(others) > 1]
    notes: list[Figure] = []
    for way, (seconds, tokens) in reversed(curves.items()):
        data.append(line(way, seconds, tokens, COLOURS[way]))
        middle = len(seconds) // 2
        ours = way == "speculative"
        anchors = ("right", "bottom") if ours else ("left", "top")
        notes.append(_label(way, seconds[middle], tokens[middle], COLOURS[way], *anchors))
    ends = [seconds[-1] for seconds, _ in curves.values()] or [1.0]
    highest = max((tokens[-1] for _, tokens in curves.values()), default=1)
    drawn = [seconds for others in runs.values() for seconds, _ in others if seconds]
    slowest = max((seconds[-1] for seconds in drawn), default=0.0)
    span = max(*ends, min(slowest, MAX_ROOM * max(ends))) or 1.0
    shapes: list[Figure] = []
    if len(ends) == 2 and identical and abs(ends[0] - ends[1]) > 0.01 * span:
        shapes = [{"type": "line", "x0": ends[0], "x1": ends[1], "y0": highest, "y1": highest}]
        shapes[0]["line"] = {"width": 2, "dash": "dot"}
        difference = abs(round(ends[1], 2) - round(ends[0], 2))  # as a reader would subtract
        words = f"<b>{difference:.2f} s {'saved' if ends[1] > ends[0] else 'lost'}</b>"
        anchor = "left" if max(ends) < span / 3 else "right"  # inside the chart
        notes.append(_label(words, max(ends), highest, None, anchor, "bottom"))
    return figure(data, span, highest, shapes=shapes, annotations=notes)


def _band(curves: Iterable[Curve], colour: str) -> Figure:
    """The area between the earliest and the latest of several runs at each token of the first."""
    runs = [[*zip(tokens, seconds, strict=False)] for seconds, tokens in curves]
    tokens = range(1, runs[0][-1][0] + 1)
    places = ([(run, bisect_left(run, (token,))) for run in runs] for token in tokens)
    reached = [[run[place][1] for run, place in each if place < len(run)] for each in places]
    early, late = ([end(seconds) for seconds in reached] for end in (min, max))
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


def line(name: str, x: Sequence[float], y: Sequence[float], colour: str) -> Figure:
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


def figure(data: list[Figure], span: float, most: int, **layout: Any) -> Figure:
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
