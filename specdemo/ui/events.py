"""What happens on the page: Run, Stop, a saved run, a link, and what is shown while models load."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specdemo.errors import BadInput
from specdemo.trace import Trace
from specdemo.ui import choice, envelopes, handlers, inputs
from specdemo.ui.choice import Offer
from specdemo.ui.limits import visitor_of
from specdemo.ui.runs import Finished, Running
from specdemo.ui.service import Service

PRIVATE = {"api_visibility": "private", "show_progress": "hidden", "show_progress_on": []}
"""Options of an event that is no endpoint. Gradio's own sign of progress keeps a browser drawing
sixty times a second even where it is hidden, so it is shown on nothing; the page has its own."""

MAX_EVENTS = 64
"""Runs in work or waiting at once; the session's scheduler decides how many share the models."""

REMEMBER_INPUTS = """(...values) => {
  const names = %s;
  const pairs = names.map((name, i) => [name, values[i] === null ? "" : String(values[i])]);
  window.specdemo.settings(new URLSearchParams(pairs).toString());
}"""


@dataclass(frozen=True, slots=True)
class Parts:
    """The components that events connect. `inputs` are by name, in the order of inputs.NAMES; `own`
    is the row that only a pair of one's own needs."""

    inputs: dict[str, Any]
    own: gr.Row
    run: gr.Button
    stop: gr.Button
    channel: gr.HTML
    trace: gr.State
    plots: list[gr.Plot]
    upload: gr.UploadButton


def connect(
    blocks: gr.Blocks,
    service: Service,
    offer: Offer,
    running: Running,
    parts: Parts,
    status: gr.HTML,
    defaults: dict[str, Any],
) -> None:
    """Connects all events of the race tab and of opening and leaving the page."""
    finished = Finished()
    _connect_inputs(parts)
    _connect_run(service, offer, running, finished, parts)
    _connect_load(blocks, service, offer, finished, parts, status, defaults)

    def leave(request: gr.Request) -> None:
        running.stop(visitor_of(request).name)

    blocks.unload(leave)


def _connect_inputs(parts: Parts) -> None:
    """The page's link follows the inputs; the row of one's own pair shows when it is chosen."""
    every = list(parts.inputs.values())
    # "multiple": the default drops a change that comes while another one is being told.
    gr.on(
        [component.change for component in every],
        None,
        every,
        None,
        js=REMEMBER_INPUTS % json.dumps(inputs.NAMES),
        trigger_mode="multiple",
        **PRIVATE,
    )
    pair = parts.inputs["pair"]
    pair.change(
        lambda value: gr.update(visible=value == inputs.OWN),
        pair,
        parts.own,
        queue=False,
        **PRIVATE,
    )


def _connect_run(
    service: Service, offer: Offer, running: Running, finished: Finished, parts: Parts
) -> None:
    def race(request: gr.Request, *values: Any) -> Iterator[tuple[Any, Any]]:
        given = dict(zip(inputs.NAMES, values, strict=True))
        try:
            settings = inputs.settings_of(given)
            pair = offer.resolve(inputs.models_of(given))
        except BadInput as error:
            yield envelopes.error(str(error)), gr.skip()
            return
        visitor, question = visitor_of(request), given["question"] or ""
        for update in handlers.run(service, running, finished, visitor, question, pair, settings):
            yield update.envelope, update.trace or gr.skip()

    def open_file(path: str | None) -> tuple[str, Any]:
        update = handlers.open_trace(path)
        return update.envelope, update.trace or gr.skip()

    def stop(request: gr.Request) -> None:
        running.stop(visitor_of(request).name, "race")

    shown = [parts.channel, parts.trace]
    started = gr.on(
        [parts.run.click, parts.inputs["question"].submit],
        race,
        list(parts.inputs.values()),
        shown,
        trigger_mode="once",
        concurrency_limit=MAX_EVENTS,
        **PRIVATE,
    )
    opened = parts.upload.upload(open_file, parts.upload, shown, concurrency_limit=None, **PRIVATE)
    for event in (started, opened):
        event.then(_draw, parts.trace, parts.plots, concurrency_limit=None, **PRIVATE)
    parts.stop.click(stop, None, None, queue=False, **PRIVATE)


def _draw(trace: Trace | None) -> list[Any]:
    from specdemo.ui import figures

    if trace is None:
        return [gr.skip()] * len(figures.ALL)
    return list(figures.all_figures(trace))


def _connect_load(
    blocks: gr.Blocks,
    service: Service,
    offer: Offer,
    finished: Finished,
    parts: Parts,
    status: gr.HTML,
    defaults: dict[str, Any],
) -> None:
    """What opening the page does: a link's question, settings and result; what is on offer here."""

    def restore(request: gr.Request) -> list[Any]:
        query = dict(request.query_params)
        if not set(inputs.NAMES) & set(query):
            return [gr.skip()] * len(inputs.NAMES)
        names = [name for _, name in offer.pairs()]
        values = inputs.from_link(query, names, defaults)
        return [values[name] for name in inputs.NAMES]

    def result(request: gr.Request) -> tuple[Any, Any]:
        run = request.query_params.get("run")
        if not run:
            return gr.skip(), gr.skip()
        trace = finished.get(run)
        if trace is None:
            note = "The run of this link is no longer kept here; run the question again."
            return envelopes.Channel().envelope("idle", note), gr.skip()
        return envelopes.opened(trace, "A shared run, as it was measured.", kept=run), trace

    def here() -> list[Any]:
        there = choice.devices()
        names = ("device", "draft_device")
        found = [gr.update(choices=sorted({*there, defaults[name]})) for name in names]
        return [gr.update(choices=offer.surveyed_pairs()), *found]

    def loading() -> Iterator[str]:
        for line in handlers.loading(service):
            why = offer.why and service.state.pair == offer.first()
            yield html.escape(f"{line}. Chosen for this machine: {offer.why}" if why else line)

    every = list(parts.inputs.values())
    models = [parts.inputs[name] for name in ("pair", "device", "draft_device")]
    blocks.load(restore, None, every, queue=False, **PRIVATE)
    blocks.load(result, None, [parts.channel, parts.trace], queue=False, **PRIVATE).then(
        _draw, parts.trace, parts.plots, concurrency_limit=None, **PRIVATE
    )
    blocks.load(loading, None, status, concurrency_limit=None, **PRIVATE).then(
        here, None, models, concurrency_limit=None, **PRIVATE
    )
