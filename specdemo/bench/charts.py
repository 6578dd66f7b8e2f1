"""The charts of a benchmark by Plotly, and its HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import log2
from pathlib import Path
from typing import Any

from specdemo.bench.decision import WAYS, Row
from specdemo.bench.report import PAPER, BenchReport, LengthsReport, tables, token_milliseconds
from specdemo.runs.display import AUTOREGRESSIVE, COLOURS, SPECULATIVE
from specdemo.runs.report_page import GREEN, GREY, PAPER_COLOUR, PINK, Figure, label, render

EQUAL = {"color": AUTOREGRESSIVE, "dash": "dot"}  # the line where both ways are equally fast
SPEEDUP = "speed-up"
INK = "#16202c"
UNCOUNTED = "a race that does not count"
TENTHS = {tenth / 10 for tenth in range(11)}
PAPER_MARK = "the paper's dolly-v2-12b, on its machine"


def page(report: BenchReport) -> str:
    """The HTML page of a report with rows."""
    template = Path(__file__).with_name("bench.html.j2")
    return render(template, charts_of(report), **vars(report), tables=tables(report))


def charts_of(report: BenchReport) -> list[Figure]:
    """All charts of the report of `bench`."""
    decision = report.decision
    charts = [by_users(decision.users)] if decision.users else []
    charts += [by_acceptance(asdict(decision.estimates))] if decision.estimates else []
    charts += [wall_clock(report.lengths)] if isinstance(report, LengthsReport) else []
    charts += [by_task(report), by_position(report), time_spent(report)]
    return charts + ([beside_peers(report)] if report.peers else [])


def by_users(rows: Sequence[Row]) -> Figure:
    """Tokens/s of all users together by their number, in both ways, and the speed-ups."""
    import plotly.express as px

    columns = {way: [row[f"{way}_tokens_per_s"] for row in rows] for way in COLOURS}
    figure = px.line(
        {"users at once": [row["users"] for row in rows], **columns},
        x="users at once",
        y=list(COLOURS),
        color_discrete_map=COLOURS,
        markers=True,
        title="Drafts pay where the speculative line is above the other",
        labels={"value": "tokens a second, all users together", "variable": ""},
    ).update_xaxes(type="category")
    labels = [f"{row['speedup']:.2f}x" if row["speedup"] else "unknown" for row in rows]
    return figure.update_traces(
        text=labels,
        mode="lines+markers+text",
        textposition="top center",
        cliponaxis=False,
        selector={"name": "speculative"},
    ).update_yaxes(rangemode="tozero")


def by_acceptance(estimates: Mapping[str, Any]) -> Figure:
    """A map of the speed-up at tenths of acceptance and numbers of users at once, as estimated by
    a WhatIf, in circles where it was measured. The colours are of a logarithmic scale: 0.5x is as
    red as 2x is green."""
    import plotly.graph_objects as graphs

    rates, users = estimates["rates"], list(map(str, estimates["users"]))
    tenths = [index for index, rate in enumerate(rates) if round(rate, 9) in TENTHS]
    measured = estimates["acceptance_rate"]
    beside = min(tenths, key=lambda index: abs(rates[index] - measured))  # below the circles
    as_raced = [lengths[0] for lengths in estimates["speedups"]]
    speedups = [[row[index] for index in tenths] for row in as_raced]
    octaves = [[log2(max(speedup, 0.01)) for speedup in row] for row in speedups]
    end = max(1.0, *(abs(octave) for row in octaves for octave in row))
    figure = graphs.Figure(layout={"template": "none", "height": 130 + 44 * len(users)})
    figure.add_heatmap(
        x=[100 * rates[index] for index in tenths],
        y=users,
        z=octaves,
        text=[["" if n == beside else f"{row[n]:.1f}" for n in tenths] for row in as_raced],
        customdata=speedups,
        colorscale=[(0, "#d1495b"), (0.5, "#f7f3e8"), (1, "#2a9d6a")],
        zmin=-end,
        zmax=end,
        showscale=False,
        texttemplate="%{text}",
        textfont={"color": INK},
        xgap=1,
        ygap=1,
        hovertemplate="%{x:.0f}% accepted, %{y} at once: %{customdata:.2f}x<extra></extra>",
    )
    figure.add_scatter(
        x=[100 * measured] * len(users),
        y=users,
        text=[f"{row[rates.index(measured)]:.1f}" for row in as_raced],
        mode="markers+text",
        textfont={"color": INK},
        marker={"size": 28, "color": "#fff", "line": {"color": INK, "width": 2}},
        hovertemplate="measured: %{x:.0f}% accepted, %{y} at once<extra></extra>",
    )
    return figure.update_layout(
        xaxis={"title": "acceptance rate, %", "range": [-5, 105], "dtick": 20},
        yaxis={"title": "users at once", "type": "category"},
        title={"text": "Estimated speed-up; in circles: measured"},
        margin={"t": 40},
        showlegend=False,
    )


def wall_clock(lengths: Sequence[Row]) -> Figure:
    """Bars of the decoding seconds of a report's `lengths`, with the ratios of both ways, and those
    of the paper, whose seconds come from another machine and another pair."""
    import plotly.express as px

    names = []
    for row in lengths:
        name = f"{row['max_new_tokens']} tokens<br>{row['speedup']:.2f}x"
        if speedup := PAPER.get(row["max_new_tokens"]):
            name += f"<br>(paper: {speedup:.2f})"
        names.append(name)
    figure = px.bar(
        {"": names, **{way: [row[f"{way}_s"] for row in lengths] for way in COLOURS}},
        x=list(COLOURS),
        y="",
        orientation="h",
        barmode="group",
        color_discrete_map=COLOURS,
        height=90 + 70 * len(lengths),
        template="none",
    )
    figure.update_traces(textposition="outside", cliponaxis=False, hoverinfo="skip")
    figure.for_each_trace(lambda bars: bars.update(texttemplate=f"{bars.name} %{{x:.2f}} s"))
    longest = max(row[f"{way}_s"] for row in lengths for way in WAYS)
    return figure.update_layout(
        xaxis={"title": "seconds of decoding", "range": [0, 2.8 * longest]},
        yaxis={"autorange": "reversed", "automargin": True},
        margin={"t": 20, "b": 50},
        showlegend=False,
    )


def by_prompt(rows: Sequence[Row]) -> Figure:
    """The speed-up of each prompt of a report: a dot a race, a line over their range, and for the
    lengths of the paper its ratio."""
    import plotly.express as px

    dots, lines = [], []
    for row in rows:
        name, races = label(row["id"]), [*zip(row["speedups"], row["whys"], strict=True)]
        dots += [(name, speedup, UNCOUNTED if why else "one race") for speedup, why in races]
        if counted := [speedup for speedup, why in races if not why]:
            lines += [(name, min(counted)), (name, max(counted)), (name, None)]
        if row.get("paper"):
            dots.append((name, PAPER[row["paper"]], PAPER_MARK))
    prompts, speedups, marks = zip(*dots, strict=True)
    figure = px.scatter(
        {"": prompts, SPEEDUP: speedups, "mark": marks},
        x=SPEEDUP,
        y="",
        color="mark",
        symbol="mark",
        color_discrete_map=dict.fromkeys(("one race", UNCOUNTED), SPECULATIVE)
        | {PAPER_MARK: PAPER_COLOUR},
        symbol_map={"one race": "circle", UNCOUNTED: "circle-open", PAPER_MARK: "diamond-open"},
        height=140 + 26 * len(rows),
        template="none",
    )
    figure.update_traces(marker_size=10, hovertemplate="%{y}: %{x:.2f}x<extra></extra>")
    names, ends = zip(*lines, strict=True) if lines else ((), ())
    line = {"color": SPECULATIVE, "width": 2}
    figure.add_scatter(x=ends, y=names, mode="lines", line=line, hoverinfo="skip", showlegend=False)
    figure.data = figure.data[::-1]  # the dots cover the lines
    figure.add_vline(1, line=EQUAL)
    return figure.update_layout(
        xaxis={"rangemode": "tozero"},
        yaxis={"type": "category", "autorange": "reversed", "automargin": True},
        margin={"t": 12},
        legend={"title": None},
    )


def by_task(report: BenchReport) -> Figure:
    speedups = report.summary["speedup_by_task"]
    figure = _columns("Speed-up by task", SPEEDUP, ".2f", speedups, [SPECULATIVE])
    figure.add_scatter(
        x=[label(row["task"]) for row in report.rows],
        y=[row["speedup"] for row in report.rows],
        text=[label(row["id"]) for row in report.rows],
        mode="markers",
        marker={"color": AUTOREGRESSIVE, "size": 8},
        showlegend=False,
    )
    return figure.add_hline(1, line=EQUAL)


def by_position(report: BenchReport) -> Figure:
    counts = report.details.positions
    rates = {str(n): accepted / examined for n, (accepted, examined) in enumerate(counts, start=1)}
    figure = _columns("Acceptance by position in the draft", "accepted", ".0%", rates, [GREEN])
    hovertext = [f"{accepted} of {examined} examined" for accepted, examined in counts]
    return figure.update_traces(hovertext=hovertext, hovertemplate="%{hovertext}<extra></extra>")


def time_spent(report: BenchReport) -> Figure:
    parts = token_milliseconds(report)
    del parts["speculative decoding"]  # the sum of its parts
    colours = [AUTOREGRESSIVE, GREEN, SPECULATIVE, PINK]
    title, columns = "Where the time of a token goes", [WAYS[0], *[WAYS[1]] * 3]
    return _columns(title, "milliseconds", ".3g", parts, colours, x=columns, color=list(parts))


def beside_peers(report: BenchReport) -> Figure:
    title = "Beside other engines on the same files"
    figure = _columns(title, "tokens a second", ".1f", report.tokens_per_s, [GREY])
    colours = [AUTOREGRESSIVE, SPECULATIVE, *[GREY] * len(report.peers)]
    return figure.update_traces(marker_color=colours)


def _columns(
    title: str,
    unit: str,
    form: str,
    values: Mapping[str, float | None],
    colours: Sequence[str],
    **columns: Sequence[str],
) -> Figure:
    """Bars of `values`, in the `columns` x if names are not theirs, with a legend for `color`."""
    import plotly.express as px

    data = {"x": list(map(label, values)), "y": list(values.values())} | columns
    return px.bar(
        data,
        **{name: name for name in data},
        title=title,
        labels={"x": "", "y": unit, "color": ""},
        text_auto=form,
        color_discrete_sequence=colours,
    ).update_xaxes(type="category")


def as_data(figure: Figure) -> dict[str, Any]:
    """A figure as plain JSON with lists of numbers, for a page's own Plotly."""
    data = figure.to_plotly_json()
    for encoded, trace in zip(data["data"], figure.data, strict=True):
        encoded |= {axis: list(trace[axis]) for axis in "xy"}
    return {"data": data["data"], "layout": data["layout"]}
