"""The benchmark tab: a choice of prompts, a live table, figures, and files to keep. Measures nothing itself."""

from __future__ import annotations

import csv
import html
import io
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdemo.trace import Settings
from specdemo.ui import controls
from specdemo.ui.choice import Offer
from specdemo.ui.events import PRIVATE
from specdemo.ui.faststart import import_gradio
from specdemo.ui.handlers import Runs, loading_line
from specdemo.ui.pump import Pump
from specdemo.ui.service import Service, sentence
from specdemo.models.errors import ZooError

gr = import_gradio()

COLUMNS = ("id", "task", "tokens", "autoregressive_s", "speculative_s", "speedup", "acceptance_rate",
           "tokens_per_round", "identical")
HEADS = ("Prompt", "Task", "Tokens", "Plain, s", "Speculative, s", "Speed-up", "Guessed right", "Tokens per round",
         "Identical")
FIGURES = 4
"""Figures of the report that the tab has room for; the HTML file holds all of them."""

LARGEST = 100
"""Prompts at most, of the built-in set."""


@dataclass(frozen=True, slots=True)
class View:
    """What the tab shows: HTML for the progress and the table, and the report once there is one."""

    progress: str
    table: str = ""
    report: Any = None
    failed: bool = False


def run(service: Service, stop: threading.Event, pair: controls.Models, limit, max_new_tokens, draft_tokens, drafter,
        ) -> Iterator[View]:
    """Runs the benchmark and yields a View whenever something changed; the last one holds the report or a sentence."""
    try:
        settings = controls.parse("benchmark", pair, max_new_tokens, draft_tokens, drafter, 0, 1, 0, 0, "exact").settings
        prompts_wanted = controls.number("Prompts", limit, 1, LARGEST, int)
        for state in service.states(pair, stop):
            if state.kind != "ready":
                yield View(progress_html(0, 1, loading_line(state)), failed=state.kind == "failed")
            if state.kind == "failed":
                return
        if stop.is_set():
            yield View(progress_html(0, 1, "Stopped before the models were ready."), failed=True)
        else:
            with service.session(pair) as session:
                yield from _rows(session, settings, prompts_wanted, stop)
    except Exception as error:
        text = str(error) if isinstance(error, controls.InputError) else sentence(error)
        yield View(f'<p class="sd-error" role="alert">{html.escape(text)}</p>', failed=True)


def _rows(session, settings: Settings, limit: int, stop: threading.Event) -> Iterator[View]:
    from specdemo.bench.prompts import read_prompts, spread
    from specdemo.bench.report import Report, Row
    from specdemo.bench.run import Plan, Step, bench

    prompts = spread(read_prompts(), limit)
    rows: list[Row] = []
    progress = progress_html(0, 1, "Starting")
    for batch in Pump(lambda: bench(session, prompts, Plan(settings), stop=stop), stop).batches(0.2):
        for event in batch:
            if isinstance(event, Step):
                progress = progress_html(event.done, event.total, event.text)
            elif isinstance(event, Row):
                rows.append(event)
            elif isinstance(event, Report):
                words = "Stopped: what had finished is below." if stop.is_set() else "Finished."
                yield View(progress_html(1, 1, words), table_html(rows), event)
                return
        if batch:
            yield View(progress, table_html(rows))


def progress_html(done: int, total: int, text: str) -> str:
    share = 100 * done / max(1, total)
    return (f'<div class="sd-progress"><progress max="100" value="{share:.1f}" aria-label="Benchmark progress"></progress>'
            f'<span role="status">{html.escape(text)}</span></div>')


def cells(row) -> list[str]:
    """A row's figures as text, in the order of HEADS."""
    def percent(value):
        return "-" if value is None else f"{value:.0%}".replace("%", " %")

    return [row.id, row.task, str(row.tokens), f"{row.autoregressive_s:.2f}", f"{row.speculative_s:.2f}",
            "-" if row.speedup is None else f"{row.speedup:.2f}×", percent(row.acceptance_rate),
            f"{row.tokens_per_round:.2f}", {True: "yes", False: "no", None: "-"}[row.identical]]


def table_html(rows: list) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADS)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(row)) + "</tr>" for row in rows)
    return (f'<div class="sd-bench-table" tabindex="0" role="region" aria-label="Benchmark rows"><table><thead><tr>{head}'
            f"</tr></thead><tbody>{body}</tbody></table></div>")


def summary_html(report) -> str:
    """The report's totals in one sentence and a half."""
    total = report.summary
    if total.speedup is None:
        return '<p class="sd-bench-summary">No prompt was finished, so there is nothing to sum up.</p>'
    faster = "faster" if total.speedup >= 1 else "as fast"
    same = {True: "Every answer was identical to plain decoding.", False: "Not every answer was identical.",
            None: "The answers were not all compared."}[total.identical]
    right = "" if total.acceptance_rate is None else f"; the draft guessed {total.acceptance_rate:.0%} right"
    return (f'<p class="sd-bench-summary"><b>{total.speedup:.2f} times {faster}</b> over {total.prompts} prompts: '
            f"{total.speculative_tokens_per_s:.0f} instead of {total.autoregressive_tokens_per_s:.0f} tokens/s, the worst "
            f"prompt {total.worst_prompt_speedup:.2f} times{right.replace('%', ' %')}. {same} "
            f"<span>{html.escape(report.machine)}</span></p>")


def csv_text(report) -> str:
    """The rows as CSV, with the JSON's names as the head."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in report.rows:
        # A cell that starts like a formula would be run by a spreadsheet.
        values = [getattr(row, name) for name in COLUMNS]
        writer.writerow(["'" + v if isinstance(v, str) and v[:1] in "=+-@\t\r" else v for v in values])
    return out.getvalue()


def write_files(report) -> tuple[str, str, str]:
    """Paths of the report as CSV, JSON and HTML, in a new temporary folder."""
    from specdemo.bench.html import page
    from specdemo.bench.report import to_json

    folder = Path(tempfile.mkdtemp(prefix="specdemo-bench-"))
    paths = folder / "specdemo-bench.csv", folder / "specdemo-bench.json", folder / "specdemo-bench.html"
    for path, text in zip(paths, (csv_text(report), to_json(report), page(report)), strict=True):
        path.write_text(text, encoding="utf-8")
    return tuple(map(str, paths))


def build(service: Service, runs: Runs, offer: Offer, models: list, visitors: int) -> None:
    """Adds the tab's components and events to the layout being built. It measures the pair chosen by `models`, the
    inputs of the race tab that `controls.models` takes."""
    gr.HTML('<p class="sd-lead">Runs a chosen number of built-in prompts, each with and without the draft, one after the '
            "other in this process, and sums them up. It measures the pair and the devices that are chosen under "
            "“Settings for engineers” on the first tab. Leave the machine alone meanwhile: anything else that runs is "
            "measured too.</p>")
    with gr.Row():
        limit = gr.Slider(1, 32, value=8, step=1, label="Prompts", info="Spread over the tasks of the built-in set.")
        length = gr.Slider(8, 200, value=64, step=8, label="Tokens per answer", info="At most.")
        draft = gr.Dropdown(controls.DRAFT_TOKENS, value="auto", label="Draft length of the benchmark",
                            info="Tokens guessed per round.")
        drafter = gr.Dropdown(controls.DRAFTERS, value="auto", label="Drafter of the benchmark", info="Who guesses.")
    with gr.Row():
        start = gr.Button("Run the benchmark", variant="primary", elem_id="sd-bench-run", scale=0, min_width=220)
        stop = gr.Button("Stop the benchmark", variant="stop", elem_id="sd-bench-stop", interactive=False, scale=0,
                         min_width=220)
    progress = gr.HTML("", elem_id="sd-bench-progress")
    summary = gr.HTML("", elem_id="sd-bench-summary")
    table = gr.HTML("", elem_id="sd-bench-table")
    with gr.Row(elem_classes="sd-charts"):
        plots = [gr.Plot(show_label=False, elem_classes="sd-plot", elem_id=f"sd-bench-plot-{i}", visible=False)
                 for i in range(FIGURES)]
    with gr.Row():
        files = [gr.DownloadButton(f"Download {kind}", interactive=False, size="sm", scale=0, min_width=150,
                                   elem_id=f"sd-bench-{kind.lower()}") for kind in ("CSV", "JSON", "HTML")]

    def key(request: gr.Request) -> str:
        return f"benchmark {request.session_hash}"

    def begin(request: gr.Request, *values):
        chosen, values = values[: len(models)], values[len(models):]
        signal = runs.begin(key(request))
        same = [gr.skip()] * (len(plots) + len(files))
        yield (gr.skip(), "", "", gr.update(interactive=False), gr.update(interactive=True),
               *[gr.update(visible=False)] * len(plots), *[gr.update(interactive=False)] * len(files))
        try:
            try:
                pair = offer.resolve(controls.models(*chosen))
            except (controls.InputError, ZooError) as error:
                yield (f'<p class="sd-error" role="alert">{html.escape(str(error))}</p>', gr.skip(), gr.skip(),
                       gr.update(interactive=True), gr.update(interactive=False), *same)
                return
            for view in run(service, signal, pair, *values):
                if view.report is None:
                    ended = (gr.update(interactive=view.failed), gr.update(interactive=not view.failed))
                    yield view.progress, gr.skip(), view.table, *ended, *same
                    continue
                from specdemo.ui import figures

                ready, words = [gr.skip()] * len(files), summary_html(view.report)
                if view.report.rows:
                    try:
                        ready = [gr.update(value=path, interactive=True) for path in write_files(view.report)]
                    except OSError as error:  # a full disk must not cost the figures
                        words += f'<p class="sd-error" role="alert">{html.escape(sentence(error))}</p>'
                drawn = [gr.update(value=figure, visible=True) for figure in figures.of_benchmark(view.report)[:FIGURES]]
                drawn += [gr.skip()] * (FIGURES - len(drawn))
                yield (view.progress, words, view.table, gr.update(interactive=True),
                       gr.update(interactive=False), *drawn, *ready)
        finally:
            signal.set()
            runs.end(key(request), signal)

    def halt(request: gr.Request):
        runs.stop(key(request))

    start.click(begin, [*models, limit, length, draft, drafter], [progress, summary, table, start, stop, *plots, *files],
                concurrency_limit=visitors, **PRIVATE)
    stop.click(halt, None, None, queue=False, **PRIVATE)
