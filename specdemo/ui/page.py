"""Puts the page together: layout, theme, events. What it shows is made by handlers, figures and script.js."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.middleware import Middleware

from specdemo.trace import Trace
from specdemo.ui import api, benchmark, choice, controls, explain, handlers, wire
from specdemo.ui.events import PRIVATE
from specdemo.ui.faststart import import_gradio
from specdemo.ui.head import TITLE, Head
from specdemo.ui.kept import Kept
from specdemo.ui.service import Service
from specdemo.models.errors import ZooError

gr = import_gradio()

HERE = Path(__file__).parent

EXAMPLES = (
    "Explain the difference between fission and fusion",
    "Write a Python function that reverses a string",
    "List five uses of a paper clip",
    "Why is the sky blue?",
)

HEADER = f"""<header class="sd-header"><h1>{TITLE}</h1>
<p>A small draft model guesses the next words, and the large one checks several guesses in a single step. The answer
stays the same; only the waiting gets shorter. Watch it race plain decoding, measured on this machine.</p></header>"""

MODEL_NAMES = ("pair", "device", "draft_device", "kv_cache", "target", "draft", "weight_format")
"""The inputs that choose models, in the order that `controls.models` takes."""

CHARTS = 5
"""How many `figures.all_figures` draws; counted here because importing Plotly is slow."""

VISITORS = 64
"""Runs that may be in work or wait at once; the session decides how many share the models, and the rest is told its
place (docs/visitors.md)."""


@dataclass(frozen=True, slots=True)
class Page:
    """A built page and what `launch` needs with it (Gradio takes theme, styles and scripts there)."""

    blocks: Any
    launch: dict[str, Any]


def theme():
    """Neutral, with the fonts that the visitor's system has: nothing is fetched from another host."""
    fonts = [gr.themes.Font(name) for name in ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto")]
    mono = [gr.themes.Font(name) for name in ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas")]
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue, neutral_hue=gr.themes.colors.slate,
        font=[*fonts, gr.themes.Font("sans-serif")], font_mono=[*mono, gr.themes.Font("monospace")],
    ).set(button_primary_background_fill="#005a8f", button_primary_background_fill_hover="#00497a",
          button_primary_background_fill_dark="#005a8f", button_primary_background_fill_hover_dark="#0072b2",
          button_primary_text_color="white", body_text_color_subdued="#475569",
          body_text_color_subdued_dark="#b6c2d1", block_info_text_color="#475569",
          block_info_text_color_dark="#b6c2d1")


def build(service: Service, offer: choice.Offer, max_new_tokens: int = 100) -> Page:
    """The page for a service. `offer` says which models can be chosen; `max_new_tokens` is where that setting starts."""
    runs, kept = handlers.Runs(), Kept()
    defaults = {
        "question": "", "pair": offer.asked or controls.AUTO, "max_new_tokens": max_new_tokens, "draft_tokens": "auto",
        "drafter": "auto", "temperature": 0, "top_p": 1, "top_k": 0, "seed": 0, "numerics": "exact",
        "coupling": "shared", "device": offer.devices[0], "draft_device": offer.devices[1], "kv_cache": offer.kv_cache,
        "target": "", "draft": "", "weight_format": "int8",
    }
    with gr.Blocks(title="specdemo: speculative decoding, measured", analytics_enabled=False,
                   delete_cache=(3600, 24 * 3600)) as blocks:
        gr.HTML(HEADER, elem_id="sd-header")
        status = gr.HTML("", elem_id="sd-models", html_template='<p class="sd-models" role="status">${value}</p>')
        with gr.Tabs():
            with gr.Tab("Race", id="race"):
                parts = _race_tab(offer, defaults)
            with gr.Tab("Benchmark", id="benchmark"):
                benchmark.build(service, runs, offer, parts.models, VISITORS)
            with gr.Tab("How it works", id="how"):
                explain.build(gr)
        _wire_run(service, offer, runs, kept, parts)
        _wire_load(blocks, service, offer, kept, parts, status, defaults)
        api.add(service, offer, VISITORS)

        def gone(request: gr.Request):
            runs.leave(request.session_hash)

        blocks.unload(gone)
    script, style = ((HERE / name).read_text(encoding="utf-8") for name in ("script.js", "style.css"))
    return Page(blocks, {
        # Styles go into the head as they are: Gradio's own `css` would put a prefix before every selector.
        "theme": theme(), "head": f"<style>{style}</style><script>{script}</script>",
        "app_kwargs": {"middleware": [Middleware(Head)]}, "footer_links": ["api"], "run_history": False, "ssr_mode": False,
    })


@dataclass(slots=True)
class _Parts:
    """The components that events connect. `inputs` are in the order of controls.NAMES, `models` those that choose
    models, `own` the row that only a pair of one's own needs."""

    inputs: list
    models: list
    own: Any
    run: Any
    stop: Any
    channel: Any
    trace: Any
    plots: list
    upload: Any


def _race_tab(offer: choice.Offer, defaults: dict) -> _Parts:
    with gr.Row(elem_id="sd-ask", equal_height=True):
        question = gr.Textbox(label="Your question", placeholder="Ask anything, for example how a rainbow forms",
                              lines=1, max_lines=8, scale=8, elem_id="sd-question", autofocus=True)
        run = gr.Button("Run", variant="primary", scale=1, min_width=110, elem_id="sd-run")
        stop = gr.Button("Stop", variant="stop", scale=1, min_width=110, elem_id="sd-stop")
    gr.Examples([[text] for text in EXAMPLES], inputs=[question], label="Or try one of these", elem_id="sd-examples")
    settings, own = _settings_panel(offer, defaults)
    gr.HTML(html_template=(HERE / "stage.html").read_text(encoding="utf-8"), elem_id="sd-stage",
            js_on_load="window.specdemo.mount(element)", apply_default_css=False)
    channel = gr.HTML("", html_template="", elem_id="sd-channel", visible="hidden", apply_default_css=False,
                      js_on_load="watch('value', () => window.specdemo.receive(props.value));"
                                 "window.specdemo.receive(props.value)")
    # Out of sight: a button of the stage opens it, beside the others that keep and share.
    upload = gr.UploadButton("Open a saved run", file_types=[".json"], file_count="single", elem_id="sd-open",
                             visible="hidden")
    gr.HTML('<h2>Charts of this run</h2><p class="sd-hint sd-charts-empty">They are drawn from the trace when both runs '
            "have ended.</p>", elem_classes="sd-charts-title")
    with gr.Row(elem_classes="sd-charts"):
        plots = [gr.Plot(show_label=False, container=True, min_width=320, elem_classes="sd-plot",
                         elem_id=f"sd-plot-{i}") for i in range(CHARTS)]
    inputs = [question, *settings.values()]
    assert ["question", *settings] == list(controls.NAMES)
    models = [settings[name] for name in MODEL_NAMES]
    return _Parts(inputs, models, own, run, stop, channel, gr.State(None), plots, upload)


def _settings_panel(offer: choice.Offer, defaults: dict) -> tuple[dict[str, Any], Any]:
    """The settings by name, in the order of controls.NAMES, and the row for a pair of the visitor's own."""
    parts: dict[str, Any] = {}
    with gr.Accordion("Settings for engineers", open=False, elem_id="sd-settings"):
        with gr.Row():
            parts["pair"] = gr.Dropdown(
                [(one.title, one.value) for one in offer.pairs()], value=defaults["pair"], label="Pair", scale=2,
                info="The target model and its draft. A pair that is not here yet is downloaded first.")
            parts["drafter"] = gr.Dropdown(
                controls.DRAFTERS, value="auto", label="Drafter",
                info="Who guesses: a draft model, or lookup, which copies from the text so far.")
            parts["draft_tokens"] = gr.Dropdown(
                controls.DRAFT_TOKENS, value="auto", label="Draft length",
                info="Tokens guessed per round. Auto follows measured costs and confidence.")
        with gr.Row(visible=False) as own:
            parts["target"] = gr.Textbox(
                label="Target", placeholder="owner/name or a folder", scale=2, max_lines=1, elem_id="sd-own-target",
                info="OpenVINO IR is used as it is; a PyTorch checkpoint is exported once.")
            parts["draft"] = gr.Textbox(
                label="Draft", placeholder="owner/name or a folder", scale=2, max_lines=1,
                info="With the target's vocabulary. Empty: guesses come from the text so far.")
            parts["weight_format"] = gr.Dropdown(
                controls.WEIGHT_FORMATS, value="int8", label="Weight format", info="For a checkpoint that is exported.")
        with gr.Row():
            parts["max_new_tokens"] = gr.Slider(
                1, controls.LONGEST_ANSWER, value=defaults["max_new_tokens"], step=1, label="Maximum tokens",
                info="The answer ends here at the latest. A token is about 3/4 of a word.")
            parts["temperature"] = gr.Slider(
                0, 2, value=0, step=0.05, label="Temperature",
                info="0 always takes the likeliest token. Higher draws more freely.")
            parts["top_p"] = gr.Slider(
                0.05, 1, value=1, step=0.01, label="Top-p",
                info="Draw only from the likeliest tokens that add up to this probability.")
        with gr.Row():
            parts["top_k"] = gr.Slider(0, 200, value=0, step=1, label="Top-k",
                                       info="Draw only from this many likeliest tokens. 0 means all.")
            parts["seed"] = gr.Number(0, label="Seed", precision=0, minimum=0,
                                      info="The same seed draws the same answer again.")
            parts["coupling"] = gr.Dropdown(
                controls.COUPLINGS, value="shared", label="Acceptance rule",
                info="When drawing. Shared: draft and target share their noise, so the seed alone decides the answer. "
                     "Maximal: the classic rule.")
        with gr.Row():
            parts["numerics"] = gr.Radio(
                controls.NUMERICS, value="exact", label="Numerics",
                info="Exact: the answer is the same as without a draft. Fast: the processor's own defaults, where near "
                     "ties may flip.")
            parts["kv_cache"] = gr.Dropdown(
                controls.KV_CACHES, value="auto", label="KV cache precision",
                info="Auto is what keeps numbers exact here. Smaller saves memory.")
            parts["device"] = gr.Dropdown(
                sorted({"CPU", defaults["device"]}), value=defaults["device"], label="Device", allow_custom_value=True,
                info="Where the target runs: what OpenVINO finds on the server.")
            parts["draft_device"] = gr.Dropdown(
                sorted({"CPU", defaults["draft_device"]}), value=defaults["draft_device"], label="Draft device",
                allow_custom_value=True, info="Where the draft model runs.")
    return {name: parts[name] for name in controls.NAMES if name in parts}, own


def _wire_run(service: Service, offer: choice.Offer, runs: handlers.Runs, kept: Kept, parts: _Parts) -> None:
    """Run, Stop, and a saved run: what fills the stage and the charts."""

    def race(request: gr.Request, *values):
        given = dict(zip(controls.NAMES, values, strict=True))
        try:
            given["pair"] = offer.resolve(controls.models(*(given[name] for name in MODEL_NAMES)))
        except (controls.InputError, ZooError) as error:
            yield wire.error("", str(error)), gr.skip()
            return
        for update in handlers.run(service, runs, request.session_hash, tuple(given.values())):
            if update.final and update.trace is not None:
                kept.put(wire.run_of(update.envelope), update.trace)
            yield update.envelope, update.trace or gr.skip()

    def stop_run(request: gr.Request):
        runs.stop(request.session_hash)

    def open_file(path):
        envelope, trace = handlers.open_trace(path)
        return envelope, trace if trace is not None else gr.skip()

    started = gr.on([parts.run.click, parts.inputs[0].submit], race, parts.inputs, [parts.channel, parts.trace],
                    trigger_mode="once", concurrency_limit=VISITORS, **PRIVATE)
    opened = parts.upload.upload(open_file, parts.upload, [parts.channel, parts.trace], concurrency_limit=None, **PRIVATE)
    for event in (started, opened):
        event.then(_draw, parts.trace, parts.plots, concurrency_limit=None, **PRIVATE)
    parts.stop.click(stop_run, None, None, queue=False, **PRIVATE)


def _draw(trace: Trace | None):
    if trace is None:
        return [gr.skip()] * CHARTS
    from specdemo.ui import figures

    return list(figures.all_figures(trace))


def _wire_load(blocks, service: Service, offer: choice.Offer, kept: Kept, parts: _Parts, status, defaults: dict) -> None:
    """What happens when the page opens: the link's question, settings and result, what this machine offers."""
    pair, device, draft_device = parts.models[:3]

    def restore(request: gr.Request):
        if not set(controls.NAMES) & set(request.query_params):
            return [gr.skip()] * len(controls.NAMES)
        values = controls.from_link(dict(request.query_params), [one.value for one in offer.pairs()], defaults)
        return [values[name] for name in controls.NAMES]

    def result(request: gr.Request):
        wanted = request.query_params.get("run")
        if not wanted:
            return gr.skip(), gr.skip()
        trace = kept.get(wanted)
        if trace is None:
            return wire.idle("The run of this link is no longer kept here; run the question again."), gr.skip()
        return wire.opened(trace, "A shared run, as it was measured.", kept=wanted), trace

    def here():
        there = choice.devices()
        devices = [gr.update(choices=sorted({*there, value})) for value in offer.devices]
        return gr.update(choices=[(one.title, one.value) for one in offer.surveyed_pairs()]), *devices

    def loading():
        for line in handlers.loading(service):
            why = service.state.pair == offer.first() and offer.why
            yield html.escape(f"{line}. Chosen for this machine: {why}" if why else line)

    names = str(list(controls.NAMES)).replace("'", '"')
    tell = (f"(...values) => {{ window.specdemo.settings(new URLSearchParams({names}"
            ".map((name, i) => [name, values[i] === null ? '' : String(values[i])])).toString()) }")
    # "multiple": the default drops a change that comes while another one is being told.
    gr.on([component.change for component in parts.inputs], None, parts.inputs, None, js=tell,
          trigger_mode="multiple", **PRIVATE)
    pair.change(lambda value: gr.update(visible=value == controls.OWN), pair, parts.own, queue=False, **PRIVATE)
    blocks.load(restore, None, parts.inputs, queue=False, **PRIVATE)
    blocks.load(result, None, [parts.channel, parts.trace], queue=False, **PRIVATE).then(
        _draw, parts.trace, parts.plots, concurrency_limit=None, **PRIVATE)
    blocks.load(loading, None, status, concurrency_limit=None, **PRIVATE).then(
        here, None, [pair, device, draft_device], concurrency_limit=None, **PRIVATE)
