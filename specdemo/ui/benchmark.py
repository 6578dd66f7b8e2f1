"""The benchmark tab: prompts, a live table, files to keep, and a race of drafts."""

from __future__ import annotations

import html
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import gradio as gr

from specdemo.errors import BadInput
from specdemo.settings import ModelChoice, Settings
from specdemo.ui import MAX_EVENTS, PRIVATE, inputs
from specdemo.ui.choice import Offer
from specdemo.ui.limits import Visitor, visitor_of
from specdemo.ui.runs import Running
from specdemo.ui.service import Service
from specdemo.ui.wording import error_sentence

MOST_PROMPTS = 32

LEAD = (
    "<p>Runs built-in prompts with and without drafting and sums them up, with the pair and the "
    "settings of the first tab. Leave the machine alone meanwhile: anything else is measured too."
    "</p>"
)

TUNE_LEAD = (
    "<p>Which draft model makes this pair the fastest here? Each of them, and n-grams alone, "
    "answers as many prompts as the benchmark, with and without drafting; those that are not here "
    "are fetched. The fastest is used from then on.</p>"
)


class Tab:
    """The tab's components, and what its buttons do."""

    def __init__(self, service: Service, running: Running, offer: Offer, given: dict[str, Any]):
        """Adds the tab to the layout being built. `given` are the inputs of the race tab, by
        name."""
        self._service, self._running, self._offer = service, running, offer
        self._names = list(given)
        gr.HTML(LEAD)
        info = "Spread over the tasks of the built-in set."
        limit = gr.Slider(1, MOST_PROMPTS, value=8, step=1, label="Prompts", info=info)
        with gr.Row():
            wide = {"scale": 0, "min_width": 220}
            self.start = gr.Button("Run the benchmark", variant="primary", **wide)
            self.stop = gr.Button("Stop the benchmark", variant="stop", interactive=False, **wide)
        self.progress, self.summary = gr.HTML(), gr.HTML()
        self.table = gr.HTML(elem_id="sd-bench-table")
        with gr.Row():
            small = {"interactive": False, "size": "sm", "scale": 0, "min_width": 150}
            kinds = "JSON", "HTML"
            self.files = [gr.DownloadButton(f"Download {kind}", **small) for kind in kinds]
        gr.HTML(TUNE_LEAD)
        self.tune = gr.Button("Find the draft that pays here", **wide)
        self.tuned = gr.HTML()
        shown = [self.progress, self.summary, self.table, self.start, self.stop]
        shown += [self.tune, self.tuned, *self.files]
        asked = [limit, *given.values()]
        limited = {"concurrency_limit": MAX_EVENTS, "preprocess": False, **PRIVATE}
        self.start.click(self.run, asked, shown, **limited)
        self.tuning = self.tune.click(self.run_tune, asked, shown, **limited)
        self.stop.click(self.halt, None, None, queue=False, **PRIVATE)

    def run(self, request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        """Runs the benchmark."""
        yield {
            self.summary: "",
            self.table: "",
            **{file: gr.update(interactive=False) for file in self.files},
        }
        yield from self._guarded(self._measured, request, values)

    def run_tune(self, request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        """Races the drafts of the pair."""
        yield {self.tuned: ""}
        yield from self._guarded(self._tuned, request, values)

    def _guarded(
        self, work: Callable[..., Iterator], request: gr.Request, values: Sequence[Any]
    ) -> Iterator[dict[Any, Any]]:
        """What `work` yields; what fails is one sentence in place of the progress."""
        busy = {button: gr.update(interactive=False) for button in (self.start, self.tune)}
        yield {**busy, self.stop: gr.update(interactive=True)}
        prompts, given = values[0], dict(zip(self._names, values[1:], strict=True))
        try:
            if prompts not in range(1, MOST_PROMPTS + 1):
                raise BadInput(f"Prompts must be a whole number from 1 to {MOST_PROMPTS}.")
            pair, settings = self._offer.resolve(inputs.models_of(given)), inputs.settings_of(given)
            visitor = visitor_of(request)
            with self._running.run(visitor.name, "benchmark") as stop:
                for state in self._service.states(pair, stop):
                    yield {self.progress: progress_html(0, 1, state.line)}
                yield from work(visitor, pair, settings, prompts, stop)
        except Exception as error:
            said = html.escape(error_sentence(error))
            yield {self.progress: f'<p class="sd-error" role="alert">{said}</p>'}
        free = {button: gr.update(interactive=True) for button in (self.start, self.tune)}
        yield {**free, self.stop: gr.update(interactive=False)}

    def halt(self, request: gr.Request) -> None:
        self._running.stop(visitor_of(request).name, "benchmark")

    def _measured(
        self, visitor: Visitor, pair: ModelChoice, settings: Settings, limit: int, stop: Event
    ) -> Iterator[dict[Any, Any]]:
        from specdemo.bench.prompts import read_prompts, spread
        from specdemo.bench.report import bench
        from specdemo.models.progress import Progress

        with self._service.session(pair, visitor) as session:
            for event in bench(session, spread(read_prompts(), limit), settings, stop=stop):
                if isinstance(event, Progress):
                    yield {self.progress: progress_html(event.done, event.total, event.text)}
                elif event["rows"]:
                    yield {self.table: table_html("Prompts", event["rows"])}
        words = "Stopped: what had finished is below." if stop.is_set() else "Finished."
        yield {self.progress: progress_html(1, 1, words), self.summary: summary_html(event)}
        if event["rows"]:
            paths = zip(self.files, write_files(event), strict=True)
            yield {file: gr.update(value=path, interactive=True) for file, path in paths}

    def _tuned(
        self, visitor: Visitor, pair: ModelChoice, settings: Settings, limit: int, stop: Event
    ) -> Iterator[dict[Any, Any]]:
        from specdemo.bench import tune
        from specdemo.models.measured import Raced

        if self._offer.fixed:
            raise BadInput("This server is shared: its owner chooses the draft, by `tune`.")
        if not pair.pair:
            raise BadInput("Drafts are raced for the pairs of the list; yours has one at most.")

        def prepare(chosen: ModelChoice) -> Iterator[str]:
            return (state.line for state in self._service.states(chosen, stop))

        rows: list[Raced] = []
        name = self._offer.named(pair).pair
        sessions = partial(self._service.session, visitor=visitor)
        for event in tune.tune(name, sessions, prepare=prepare, prompts=limit, stop=stop):
            if isinstance(event, str):
                done = len(rows) + 1, len(rows) + 2
                yield {self.progress: progress_html(*done, event)}
            elif isinstance(event, Raced):
                rows.append(event)
                yield {self.tuned: table_html("Drafts", tune.table(rows))}
        words = f"{name} drafts by {tune.named(event.winner)} from now on."
        for _ in self._service.states(pair, stop):
            yield {self.progress: progress_html(1, 1, words)}


def progress_html(done: int, total: int, text: str) -> str:
    return (
        f'<div class="sd-row"><progress max="{max(1, total)}" value="{done}" '
        f'aria-label="Benchmark progress"></progress><span role="status">{html.escape(text)}</span>'
        "</div>"
    )


def table_html(label: str, rows: Sequence[Mapping[str, Any]]) -> str:
    from specdemo.terminal import text

    head = "".join(f'<th scope="col">{name.replace("_", " ")}</th>' for name in rows[0])
    body = ""
    for row in rows:
        cells = (html.escape(text(value)) for value in row.values())
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    return (
        f'<div class="sd-rows" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def summary_html(report: Mapping[str, Any]) -> str:
    """The report in two sentences; one where nothing was finished."""
    summary = report["summary"]
    if summary["speedup"] is None:
        return "<p>No prompt was finished: there is nothing to sum up.</p>"
    same = "Every answer" if summary["identical"] else "Not every answer"
    return (
        f'<p class="sd-bench-summary"><b>{summary["speedup"]:.2f} times the speed</b> over '
        f"{summary['prompts']} prompts: {summary['speculative_tokens_per_s']:.0f} instead of "
        f"{summary['autoregressive_tokens_per_s']:.0f} tokens/s, the worst prompt "
        f"{summary['worst_prompt_speedup']:.2f} times. {same} was identical to its baseline. "
        f"<span>{html.escape(report['machine'])}</span></p>"
    )


def write_files(report: Mapping[str, Any]) -> list[str]:
    """Paths of the report as JSON and HTML, in a new temporary folder."""
    from specdemo.bench.report import page
    from specdemo.trace import as_json

    folder = Path(tempfile.mkdtemp(prefix="specdemo-bench-"))
    paths = [folder / f"specdemo-bench.{kind}" for kind in ("json", "html")]
    for path, text in zip(paths, (as_json(report), page(report)), strict=True):
        path.write_text(text, encoding="utf-8")
    return list(map(str, paths))
