"""The benchmark tab: a choice of prompts, a live table, charts, and files to keep."""

from __future__ import annotations

import csv
import html
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from specdemo.errors import BadInput
from specdemo.settings import ModelChoice, Settings
from specdemo.ui import MAX_EVENTS, PRIVATE, inputs
from specdemo.ui.choice import Offer
from specdemo.ui.limits import Visitor, visitor_of
from specdemo.ui.runs import Running
from specdemo.ui.service import Service
from specdemo.ui.wording import error_sentence

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
MOST_PROMPTS = 32
CHARTS = 4
"""Charts of the report that the tab has room for; the HTML file holds all of them."""

LEAD = (
    "<p>Runs a number of built-in prompts with and without drafting and sums them "
    "up. It measures the pair and the devices chosen under “Settings for engineers” on the first "
    "tab. Leave the machine alone meanwhile: anything else that runs is measured too.</p>"
)


class Tab:
    """The tab's components, and what its two buttons do."""

    def __init__(self, service: Service, running: Running, offer: Offer, models: dict[str, Any]):
        """Adds the tab to the layout being built. `models` are the inputs of the race tab, by name,
        that choose the pair to measure."""
        self._service, self._running, self._offer = service, running, offer
        gr.HTML(LEAD)
        with gr.Row():
            info = "Spread over the tasks of the built-in set."
            limit = gr.Slider(1, MOST_PROMPTS, value=8, step=1, label="Prompts", info=info)
            length = gr.Slider(8, 200, value=64, step=8, label="Tokens per answer", info="At most.")
            draft, drafter = (
                gr.Dropdown(choices, value="auto", label=label, info=inputs.help_of(name))
                for name, label, choices in (
                    ("draft_tokens", "Draft length of the benchmark", inputs.DRAFT_LENGTHS),
                    ("drafter", "Drafter of the benchmark", inputs.DRAFTERS),
                )
            )
        given = {**models, "max_new_tokens": length, "draft_tokens": draft, "drafter": drafter}
        self._names = list(given)
        with gr.Row():
            wide = {"scale": 0, "min_width": 220}
            self.start = gr.Button("Run the benchmark", variant="primary", **wide)
            self.stop = gr.Button("Stop the benchmark", variant="stop", interactive=False, **wide)
        self.progress, self.summary = gr.HTML(), gr.HTML()
        self.table = gr.HTML(elem_id="sd-bench-table")
        with gr.Row(elem_classes="sd-charts"):
            looks = {"show_label": False, "elem_classes": "sd-plot", "visible": False}
            self.plots = [gr.Plot(**looks) for _ in range(CHARTS)]
        with gr.Row():
            small = {"interactive": False, "size": "sm", "scale": 0, "min_width": 150}
            kinds = "CSV", "JSON", "HTML"
            self.files = [gr.DownloadButton(f"Download {kind}", **small) for kind in kinds]
        shown = [self.progress, self.summary, self.table, self.start, self.stop]
        shown += [*self.plots, *self.files]
        asked = [limit, *given.values()]
        limited = {"concurrency_limit": MAX_EVENTS, "preprocess": False, **PRIVATE}
        self.start.click(self.run, asked, shown, **limited)
        self.stop.click(self.halt, None, None, queue=False, **PRIVATE)

    def run(self, request: gr.Request, prompts: int, *values: Any) -> Iterator[dict[Any, Any]]:
        """Runs the benchmark; what fails is one sentence in place of the progress."""
        yield {
            self.summary: "",
            self.table: "",
            self.start: gr.update(interactive=False),
            self.stop: gr.update(interactive=True),
            **{plot: gr.update(visible=False) for plot in self.plots},
            **{file: gr.update(interactive=False) for file in self.files},
        }
        given = dict(zip(self._names, values, strict=True))
        try:
            if prompts not in range(1, MOST_PROMPTS + 1):
                raise BadInput(f"Prompts must be a whole number from 1 to {MOST_PROMPTS}.")
            pair, settings = self._offer.resolve(inputs.models_of(given)), inputs.settings_of(given)
            yield from self._measured(visitor_of(request), pair, settings, prompts)
        except Exception as error:
            yield {self.progress: error_html(error)}
        yield {self.start: gr.update(interactive=True), self.stop: gr.update(interactive=False)}

    def halt(self, request: gr.Request) -> None:
        self._running.stop(visitor_of(request).name, "benchmark")

    def _measured(
        self, visitor: Visitor, pair: ModelChoice, settings: Settings, limit: int
    ) -> Iterator[dict[Any, Any]]:
        from specdemo.bench.prompts import read_prompts, spread
        from specdemo.bench.race import Bench, Step
        from specdemo.bench.report import Report, Row

        with self._running.run(visitor.name, "benchmark") as stop:
            for state in self._service.states(pair, stop):
                yield {self.progress: progress_html(0, 1, state.line)}
            rows: list[Row] = []
            with self._service.session(pair, visitor) as session:
                prompts = spread(read_prompts(), limit)
                for event in Bench(session, prompts, settings, stop=stop):
                    if isinstance(event, Row):
                        rows.append(event)
                        yield {self.table: table_html(rows)}
                    elif isinstance(event, Step):
                        yield {self.progress: progress_html(event.done, event.total, event.text)}
                    elif isinstance(event, Report):
                        words = "Stopped: what had finished is below."
                        words = words if stop.is_set() else "Finished."
                        yield {self.progress: progress_html(1, 1, words), **self._finished(event)}

    def _finished(self, report: Report) -> dict[Any, Any]:
        """What shows a finished report: its summary, its charts and its files."""
        from specdemo.bench.figures import all_figures

        changes: dict[Any, Any] = {self.summary: summary_html(report)}
        for plot, figure in zip(self.plots, all_figures(report), strict=False):
            changes[plot] = gr.update(value=figure, visible=True)
        try:
            for file, path in zip(self.files, write_files(report), strict=True):
                changes[file] = gr.update(value=path, interactive=bool(report.rows))
        except OSError as error:  # a full disk must not cost the figures
            changes[self.summary] += error_html(error)
        return changes


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
    from specdemo.terminal import text

    head = "".join(f'<th scope="col">{title}</th>' for title in COLUMNS.values())
    body = ""
    for row in rows:
        cells = (html.escape(text(row.as_dict()[name])) for name in COLUMNS)
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    return (
        '<div class="sd-rows" tabindex="0" role="region" aria-label="Benchmark rows"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def summary_html(report: Report) -> str:
    """The report in two sentences; one where nothing was finished."""
    total = report.total
    if not report.rows or total.speedup is None:
        return '<p class="sd-bench-summary">No prompt was finished: there is nothing to sum up.</p>'
    same = "Every answer" if report.identical else "Not every answer"
    return (
        f'<p class="sd-bench-summary"><b>{total.speedup:.2f} times the speed</b> over '
        f"{len(report.rows)} prompts: {total.tokens_per_second:.0f} instead of "
        f"{total.baseline_tokens_per_second:.0f} tokens/s, the worst prompt "
        f"{report.worst_prompt_speedup:.2f} times. {same} was identical to its baseline. "
        f"<span>{html.escape(report.machine)}</span></p>"
    )


def write_files(report: Report) -> list[str]:
    """Paths of the report as CSV (its rows), JSON and HTML, in a new temporary folder."""
    from specdemo.bench.html import page
    from specdemo.bench.report import to_json

    rows = io.StringIO()
    writer = csv.DictWriter(rows, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.as_dict() for row in report.rows)
    folder = Path(tempfile.mkdtemp(prefix="specdemo-bench-"))
    paths = []
    texts = {"csv": rows.getvalue(), "json": to_json(report), "html": page(report)}
    for kind, text in texts.items():
        paths.append(folder / f"specdemo-bench.{kind}")
        paths[-1].write_text(text, encoding="utf-8")
    return [str(path) for path in paths]
