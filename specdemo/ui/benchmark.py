"""The benchmark tab: a choice of prompts, a live table, charts, and files to keep."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from specdemo.errors import RequestFailed
from specdemo.settings import ModelChoice, Settings
from specdemo.ui import inputs
from specdemo.ui.choice import Offer
from specdemo.ui.events import MAX_EVENTS, PRIVATE
from specdemo.ui.limits import Visitor, visitor_of
from specdemo.ui.runs import Running
from specdemo.ui.service import Service
from specdemo.ui.wording import error_sentence, percent

if TYPE_CHECKING:
    from specdemo.bench.report import Report, Row

COLUMNS = {
    "id": "Prompt",
    "task": "Task",
    "tokens": "Tokens",
    "autoregressive_s": "Baseline, s",
    "speculative_s": "Speculative, s",
    "speedup": "Speed-up",
    "acceptance_rate": "Acceptance rate",
    "tokens_per_round": "Tokens per round",
    "identical": "Identical",
}
CHARTS = 4
"""Charts of the report that the tab has room for; the HTML file holds all of them."""

LEAD = (
    '<p class="sd-lead">Runs a number of built-in prompts with and without drafting and sums them '
    "up. It measures the pair and the devices chosen under “Settings for engineers” on the first "
    "tab. Leave the machine alone meanwhile: anything else that runs is measured too.</p>"
)


@dataclass(frozen=True, slots=True)
class View:
    """What the tab shows: HTML for progress and table, and the report once there is one."""

    progress: str
    table: str = ""
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class _Parts:
    """The components that a run of the benchmark changes."""

    start: gr.Button
    stop: gr.Button
    progress: gr.HTML
    summary: gr.HTML
    table: gr.HTML
    plots: list[gr.Plot]
    files: list[gr.DownloadButton]


def run(
    service: Service,
    running: Running,
    visitor: Visitor | None,
    pair: ModelChoice,
    settings: Settings,
    limit: int,
) -> Iterator[View]:
    """Runs the benchmark; the last View holds the report, or one sentence in its place."""
    with running.run(visitor and visitor.name, "benchmark") as stop:
        try:
            for state in service.states(pair, stop):
                if state.kind == "failed":
                    raise RequestFailed(state.text)
                yield View(progress_html(0, 1, state.line))
            if stop.is_set():
                raise RequestFailed("Stopped before the models were ready.")
            with service.session(pair, visitor) as session:
                yield from _measure(session, settings, limit, stop)
        except Exception as error:
            yield View(error_html(error))


def _measure(session: Any, settings: Settings, limit: int, stop: threading.Event) -> Iterator[View]:
    from specdemo.bench.prompts import read_prompts, spread
    from specdemo.bench.race import Plan, Step, bench
    from specdemo.bench.report import Report, Row

    rows: list[Row] = []
    prompts = spread(read_prompts(), limit)
    for event in bench(session, prompts, Plan(settings), stop=stop):
        if isinstance(event, Row):
            rows.append(event)
        elif isinstance(event, Step):
            yield View(progress_html(event.done, event.total, event.text), table_html(rows))
        elif isinstance(event, Report):
            words = "Stopped: what had finished is below." if stop.is_set() else "Finished."
            yield View(progress_html(1, 1, words), table_html(rows), event)


def error_html(error: Exception) -> str:
    return f'<p class="sd-error" role="alert">{html.escape(error_sentence(error))}</p>'


def progress_html(done: int, total: int, text: str) -> str:
    share = 100 * done / max(1, total)
    return (
        f'<div class="sd-progress"><progress max="100" value="{share:.1f}" '
        f'aria-label="Benchmark progress"></progress><span role="status">{html.escape(text)}</span>'
        "</div>"
    )


def table_html(rows: list[Row]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{title}</th>' for title in COLUMNS.values())
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(row)) + "</tr>"
        for row in rows
    )
    return (
        '<div class="sd-bench-table" tabindex="0" role="region" aria-label="Benchmark rows"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(row: Row) -> list[str]:
    """A row's figures as text, in the order of COLUMNS."""
    return [
        row.id,
        row.task,
        str(row.tokens),
        f"{row.autoregressive_s:.2f}",
        f"{row.speculative_s:.2f}",
        "-" if row.speedup is None else f"{row.speedup:.2f}×",
        "-" if row.acceptance_rate is None else percent(row.acceptance_rate),
        f"{row.tokens_per_round:.2f}",
        {True: "yes", False: "no", None: "-"}[row.identical],
    ]


def summary_html(report: Report) -> str:
    """The report's totals in two sentences."""
    total = report.summary
    if total.speedup is None:
        return '<p class="sd-bench-summary">No prompt was finished: there is nothing to sum up.</p>'
    same = {
        True: "Every answer was identical to its baseline.",
        False: "Not every answer was identical to its baseline.",
        None: "The answers were not all compared.",
    }[total.identical]
    rate = total.acceptance_rate
    accepted = "" if rate is None else f"; acceptance rate {percent(rate)}"
    return (
        f'<p class="sd-bench-summary"><b>{total.speedup:.2f} times '
        f"{'faster' if total.speedup >= 1 else 'as fast'}</b> over {total.prompts} prompts: "
        f"{total.speculative_tokens_per_s:.0f} instead of {total.autoregressive_tokens_per_s:.0f} "
        f"tokens/s, the worst prompt {total.worst_prompt_speedup:.2f} times{accepted}. {same} "
        f"<span>{html.escape(report.machine)}</span></p>"
    )


def csv_text(report: Report) -> str:
    """The rows as CSV, with the JSON's names as the head."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    for row in report.rows:
        cells = dataclasses.asdict(row)
        for name in ("id", "task"):
            if cells[name].startswith(tuple("=+-@\t\r")):  # a spreadsheet would run it as a formula
                cells[name] = "'" + cells[name]
        writer.writerow(cells)
    return out.getvalue()


def write_files(report: Report) -> list[str]:
    """Paths of the report as CSV, JSON and HTML, in a new temporary folder."""
    from specdemo.bench.html import page
    from specdemo.bench.report import to_json

    folder = Path(tempfile.mkdtemp(prefix="specdemo-bench-"))
    texts = {"csv": csv_text(report), "json": to_json(report), "html": page(report)}
    paths = []
    for kind, text in texts.items():
        paths.append(folder / f"specdemo-bench.{kind}")
        paths[-1].write_text(text, encoding="utf-8")
    return [str(path) for path in paths]


def build(service: Service, running: Running, offer: Offer, models: dict[str, Any]) -> None:
    """Adds the tab to the layout being built. `models` are the inputs of the race tab, by name,
    that choose the pair to measure."""
    gr.HTML(LEAD)
    with gr.Row():
        info = "Spread over the tasks of the built-in set."
        limit = gr.Slider(1, 32, value=8, step=1, label="Prompts", info=info)
        length = gr.Slider(8, 200, value=64, step=8, label="Tokens per answer", info="At most.")
        draft = gr.Dropdown(
            inputs.DRAFT_LENGTHS,
            value="auto",
            label="Draft length of the benchmark",
            info=inputs.help_of("draft_tokens"),
        )
        drafter = gr.Dropdown(
            inputs.DRAFTERS,
            value="auto",
            label="Drafter of the benchmark",
            info=inputs.help_of("drafter"),
        )
    with gr.Row():
        wide = {"scale": 0, "min_width": 220}
        start = gr.Button("Run the benchmark", variant="primary", elem_id="sd-bench-run", **wide)
        stop = gr.Button("Stop the benchmark", variant="stop", interactive=False, **wide)
    html_parts = gr.HTML(""), gr.HTML(""), gr.HTML("", elem_id="sd-bench-table")
    with gr.Row(elem_classes="sd-charts"):
        looks = {"show_label": False, "elem_classes": "sd-plot", "visible": False}
        plots = [gr.Plot(elem_id=f"sd-bench-plot-{index}", **looks) for index in range(CHARTS)]
    with gr.Row():
        small = {"interactive": False, "size": "sm", "scale": 0, "min_width": 150}
        files = [gr.DownloadButton(f"Download {kind}", **small) for kind in ("CSV", "JSON", "HTML")]
    parts = _Parts(start, stop, *html_parts, plots, files)
    chosen = {"max_new_tokens": length, "draft_tokens": draft, "drafter": drafter}
    _connect(service, running, offer, parts, {**models, **chosen}, limit)


def _connect(
    service: Service,
    running: Running,
    offer: Offer,
    parts: _Parts,
    chosen: dict[str, Any],
    limit: gr.Slider,
) -> None:
    """Runs and stops the benchmark of what the inputs `chosen` and `limit` say."""

    def begin(request: gr.Request, prompts: int, *values: Any) -> Iterator[dict[Any, Any]]:
        yield {
            parts.summary: "",
            parts.table: "",
            parts.start: gr.update(interactive=False),
            parts.stop: gr.update(interactive=True),
            **{plot: gr.update(visible=False) for plot in parts.plots},
            **{file: gr.update(interactive=False) for file in parts.files},
        }
        given = dict(zip(chosen, values, strict=True))
        try:
            pair, settings = offer.resolve(inputs.models_of(given)), inputs.settings_of(given)
            for view in run(service, running, visitor_of(request), pair, settings, prompts):
                yield {parts.progress: view.progress, parts.table: view.table}
                if view.report is not None:
                    yield _finished(parts, view.report)
        except Exception as error:
            yield {parts.progress: error_html(error)}
        yield {parts.start: gr.update(interactive=True), parts.stop: gr.update(interactive=False)}

    def halt(request: gr.Request) -> None:
        running.stop(visitor_of(request).name, "benchmark")

    shown = [parts.progress, parts.summary, parts.table, parts.start, parts.stop]
    parts.start.click(
        begin,
        [limit, *chosen.values()],
        [*shown, *parts.plots, *parts.files],
        concurrency_limit=MAX_EVENTS,
        **PRIVATE,
    )
    parts.stop.click(halt, None, None, queue=False, **PRIVATE)


def _finished(parts: _Parts, report: Report) -> dict[Any, Any]:
    """What shows a finished report: its summary, its charts and its files."""
    from specdemo.ui import figures

    changes: dict[Any, Any] = {parts.summary: summary_html(report)}
    for plot, figure in zip(parts.plots, figures.of_benchmark(report), strict=False):
        changes[plot] = gr.update(value=figure, visible=True)
    try:
        for file, path in zip(parts.files, write_files(report), strict=True):
            changes[file] = gr.update(value=path, interactive=bool(report.rows))
    except OSError as error:  # a full disk must not cost the figures
        changes[parts.summary] += error_html(error)
    return changes
