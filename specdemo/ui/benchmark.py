"""The benchmark tab: runs prompts, shows a live table, offers its files, and draws answers of two
lengths beside the paper's."""

from __future__ import annotations

import html
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import gradio as gr
from gradio.components.plot import PlotData

from specdemo.bench.lengths import PAPER_PROMPT, chart
from specdemo.errors import BadInput
from specdemo.host.terminal import text as shown
from specdemo.pairs.choice import ModelChoice
from specdemo.runs.settings import Settings
from specdemo.ui import MAX_EVENTS, PRIVATE, offers
from specdemo.ui.events import Running
from specdemo.ui.offers import Offer
from specdemo.ui.service import Service, Visitor, visitor_of
from specdemo.ui.wording import error_sentence

MOST_PROMPTS = 32

LEAD = """<p>Built-in prompts with and without drafting, with the pair and the settings of the first
tab. Run nothing else on the machine meanwhile: it would be measured too.</p>"""

LENGTHS = 40, 100
LENGTHS_LEAD = f"""<h2>Answer lengths</h2><p>“{PAPER_PROMPT.instruction}”, answered with and
without drafting in up to {LENGTHS[0]} and {LENGTHS[1]} tokens: decoding seconds of the pair,
medians, and beside them, in grey, those of the paper that this demo follows: dolly-v2-12b with the
draft dolly-v2-3b, on its authors' machine. Ratios compare, seconds of two machines do not. See <a
href="https://arxiv.org/abs/2311.04951">arXiv 2311.04951</a></p>"""

# The report, with its `commit`, that is shown before any run; `tools/page_record.py` makes it.
RECORDED = Path(__file__).parent / "static" / "lengths.json"


def _guarded(work: Callable[..., Iterator]) -> Callable[..., Iterator]:
    """An event handler that yields what the method `work` yields; an error is shown as one sentence
    in place of the progress."""

    def run(self: Tab, request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        files = {file: gr.update(interactive=False) for file in self.files}
        yield {self.table: "", **files}
        prompts, given = values[0], dict(zip(self._names, values[1:], strict=True))
        try:
            if prompts not in range(1, MOST_PROMPTS + 1):
                raise BadInput(f"Prompts must be a whole number from 1 to {MOST_PROMPTS}.")
            pair, settings = self._offer.resolve(offers.models_of(given)), offers.settings_of(given)
            visitor = visitor_of(request)
            with self._running.run(visitor.name) as stop:
                for state in self._service.states(pair, stop):
                    yield {self.progress: progress_html(0, 1, state.line)}
                yield from work(self, visitor, pair, settings, prompts, stop)
        except Exception as error:
            message = html.escape(error_sentence(error))
            yield {self.progress: f'<p class="sd-error" role="alert">{message}</p>'}

    return run


class Tab:
    """The tab's components, and what its buttons do."""

    def __init__(self, service: Service, running: Running, offer: Offer, given: dict[str, Any]):
        """Adds the tab to the layout being built, for the inputs `given` of the race tab."""
        self._service, self._running, self._offer = service, running, offer
        self._names = list(given)
        wide = {"scale": 0, "min_width": 220}
        gr.HTML(LENGTHS_LEAD)
        # The browser loads Plotly, 4.6 MB, when the tab is opened, not before.
        recorded = json.loads(RECORDED.read_text("utf-8"))
        drawn, table = drawn_lengths(recorded, f"Recorded, commit {recorded['commit']}")
        self.chart = gr.Plot(drawn, show_label=False, elem_id="sd-lengths")
        self.lengths = gr.HTML(table, apply_default_css=False, elem_id="sd-lengths-table")
        measure = gr.Button("Measure answer lengths here", **wide)
        gr.HTML(LEAD)
        limit = gr.Slider(1, MOST_PROMPTS, value=8, step=1, label="Prompts")
        with gr.Row():
            start = gr.Button("Run the benchmark", variant="primary", **wide)
            self.stop = gr.Button("Stop the benchmark", variant="stop", **wide)
        self.progress, self.table = (gr.HTML(apply_default_css=False) for _ in range(2))
        with gr.Row():
            small = {"interactive": False, "size": "sm", "scale": 0, "min_width": 150}
            labels = "Download JSON", "Download HTML"
            self.files = [gr.DownloadButton(label, **small) for label in labels]
        shown, asked = [self.progress, self.table, *self.files], [limit, *given.values()]
        limited = {"concurrency_limit": MAX_EVENTS, "preprocess": False, **PRIVATE}
        start.click(self.run, asked, shown, **limited)
        measure.click(self.run_lengths, asked, [*shown, self.chart, self.lengths], **limited)

    def _measured(
        self,
        visitor: Visitor,
        pair: ModelChoice,
        settings: Settings,
        limit: int,
        stop: Event,
        lengths: Sequence[int] = (),
    ) -> Iterator[dict[Any, Any]]:
        from specdemo.bench.figures import page
        from specdemo.bench.prompts import read_prompts, spread
        from specdemo.bench.report import bench, tables
        from specdemo.host.progress import Progress
        from specdemo.runs.trace import as_json

        prompts = [PAPER_PROMPT] if lengths else spread(read_prompts(), limit)
        how = {"lengths": lengths, "repeats": 3 if lengths else 1, "stop": stop}
        with self._service.session(pair, visitor) as session:
            for event in bench(session, prompts, settings, **how):
                if isinstance(event, Progress):
                    yield {self.progress: progress_html(event.done, event.total, event.text)}
                elif event["rows"]:
                    yield {self.table: table_html("Prompts", event["rows"])}
        yield {self.progress: progress_html(1, 1, "Stopped." if stop.is_set() else "Finished.")}
        if event.get("lengths"):
            drawn, table = drawn_lengths(json.loads(as_json(event)), "Measured just now")
            yield {self.chart: drawn, self.lengths: table}
        if event["rows"]:
            summary = table_html("Summary", tables(event)["Summary"])
            yield {self.table: summary + table_html("Prompts", event["rows"])}
            folder = Path(tempfile.mkdtemp(prefix="specdemo-bench-"))
            texts = {"json": as_json(event), "html": page(event)}
            for file, (kind, text) in zip(self.files, texts.items(), strict=True):
                path = folder / f"specdemo-bench.{kind}"
                path.write_text(text, encoding="utf-8")
                yield {file: gr.update(value=str(path), interactive=True)}

    run, run_lengths = _guarded(_measured), _guarded(partial(_measured, lengths=LENGTHS))


def drawn_lengths(report: Mapping[str, Any], when: str) -> tuple[PlotData, str]:
    """The chart and the table of a report's `lengths`, with where they were measured."""
    pair, day = report["pair"], report["details"]["created"][:10]
    words = f"{when}: {pair['target']}, draft: {pair['draft'] or 'n-grams'}, on "
    words = html.escape(f"{words}{report['machine'].partition(',')[0]}, {day}.")
    drawn = chart(report["lengths"], html.escape(pair["target"].rpartition("/")[2]))
    table = table_html("Answer lengths", report["lengths"])
    return PlotData(type="plotly", plot=json.dumps(drawn)), f"<p>{words}</p>{table}"


def progress_html(done: int, total: int, text: str) -> str:
    return (
        f'<div class="sd-row"><progress max="{total}" value="{done}" '
        f'aria-label="Progress"></progress><span role="status">{html.escape(text)}</span></div>'
    )


def table_html(label: str, rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f'<th scope="col">{name.replace("_", " ")}</th>' for name in rows[0])
    body = ""
    for row in rows:
        cells = (html.escape(shown(value)) for value in row.values())
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    return (
        f'<div class="sd-rows" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
