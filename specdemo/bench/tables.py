"""Results as tables, and how they and other lines are printed.

A table is a list of rows, a row maps the columns' names to values. The terminal and the HTML page
show the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from tqdm import tqdm

from specdemo.bench.paper import PaperRow
from specdemo.bench.report import Report, over
from specdemo.trace import Difference

Table = list[dict[str, Any]]


def of_report(report: Report) -> dict[str, Table]:
    """The tables of a report by their titles, the most important one first."""
    s, d, pair = report.summary, report.details, report.pair
    figures = {
        "speed-up in total": s.speedup,
        "speed-up predicted from acceptance rate and costs": d.predicted_speedup,
        "speed-up of the worst prompt": s.worst_prompt_speedup,
        "speed-up, quartiles of the prompts": ", ".join(map(text, d.quartiles)) or None,
        **{f"speed-up, {task}": speedup for task, speedup in s.speedup_by_task.items()},
        "prompts": s.prompts,
        "identical to autoregressive decoding": s.identical,
        "acceptance rate": s.acceptance_rate,
        "tokens per round": s.tokens_per_round,
        "fraction outside inference": s.outside_inference_fraction,
        "energy": d.energy,
    }
    facts = {
        "machine": report.machine,
        "target model": f"{pair.target} {pair.target_revision}",
        "draft model": f"{pair.draft or 'none: n-gram lookup'} {pair.draft_revision}",
        "numerics": pair.numerics_found,
        "settings": _listed(asdict(report.settings)),
        "versions": _listed(report.versions),
        "runs of each prompt": d.repeats,
        "measured": f"{d.created}, {d.seconds:.0f} s in all",
    }
    decoding = [
        {
            "": way,
            "tokens per second": getattr(s, f"{way}_tokens_per_s"),
            "processor seconds per token": s.cpu_seconds_per_token[way],
            "joules per token": d.total.per_token("joules")[way],
        }
        for way in ("autoregressive", "speculative")
    ]
    prompts = [
        {**asdict(row), "predicted": detail.predicted_speedup, "": where(detail.difference)}
        for row, detail in zip(report.rows, d.rows, strict=True)
    ]
    return {
        "Summary": [{"": name, "figure": value} for name, value in figures.items()],
        "Decoding": decoding,
        "Other engines": _of_peers(report),
        "How this was measured": [{"": name, "value": value} for name, value in facts.items()],
        "Prompts": prompts,
    }


def _of_peers(report: Report) -> Table:
    """`ours is` compares like with like: a peer's autoregressive decoding with ours."""
    rows = []
    for name, peer in report.peers.items():
        way = "autoregressive" if "/autoregressive" in name else "speculative"
        gain = over(getattr(report.summary, f"{way}_tokens_per_s"), peer.tokens_per_s)
        settings = _listed(peer.settings)
        rows.append({"peer": name, **asdict(peer), "settings": settings, "ours is": gain})
    return rows


def of_paper(rows: Iterable[PaperRow]) -> Table:
    """The published figures are the last columns."""
    table = []
    for row in rows:
        columns, published = asdict(row), row.published
        del columns["published"]
        columns["paper: autoregressive s"] = published.autoregressive_s
        columns["paper: speculative s"] = published.speculative_s
        columns["paper: speed-up"] = published.autoregressive_s / published.speculative_s
        table.append(columns)
    return table


def where(difference: Difference | None) -> str:
    """Where an answer and its baseline part: position, both tokens and margin."""
    if difference is None:
        return ""
    margin = "" if difference.margin is None else f", margin {text(difference.margin)} logits"
    return (
        f"token {difference.position + 1} is {difference.text!r}, "
        f"autoregressive {difference.baseline_text!r}{margin}"
    )


def text(value: Any) -> str:
    """A value as a table shows it: figures with three significant digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def printable(line: str) -> str:
    """One line without control characters, which could command the terminal: ids and tasks come
    from a file."""
    return "".join(char if char.isprintable() else "?" for char in line)


def say(line: str, out: TextIO) -> None:
    """Print a line above a progress bar."""
    tqdm.write(printable(line), file=out)


def show(title: str, table: Table, out: TextIO) -> None:
    """Print a table; nothing where it has no rows."""
    if not table:
        return
    drawn = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name, value in table[0].items():
        justify = "left" if isinstance(value, str) else "right"
        drawn.add_column(name.replace("_", " "), justify=justify, overflow="fold")
    for row in table:
        drawn.add_row(*(printable(text(value)) for value in row.values()))
    width = None if out.isatty() else 200
    Console(file=out, width=width, markup=False, highlight=False).print(drawn)


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={'auto' if value is None else value}" for key, value in values.items())
