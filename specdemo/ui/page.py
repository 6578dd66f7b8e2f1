"""Puts the page together: layout, theme, events. What it shows is made by handlers, figures and script.js."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdemo.engine.trace import Trace
from specdemo.ui import api, benchmark, controls, explain, handlers
from specdemo.ui.faststart import import_gradio
from specdemo.ui.service import Service

gr = import_gradio()

HERE = Path(__file__).parent

EXAMPLES = (
    "Explain the difference between fission and fusion",
    "Write a Python function that checks whether a word is a palindrome",
    "List five uses of a paper clip",
    "Summarize the water cycle for a ten year old",
)

HEADER = """<header class="sd-header"><h1>Two models answer faster than one</h1>
<p>A small draft model guesses the next words, and the large one checks several guesses in a single step. The answer
stays the same; only the waiting gets shorter. Watch it race plain decoding, measured on this machine.</p></header>"""

VISITORS = 8
"""Runs that may be in work at once; a session answers one after the other, and the page says how many are ahead."""


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


def build(service: Service, pairs: dict[str, str], default_pair: str, max_new_tokens: int = 100) -> Page:
    """The page for a service. `pairs` maps pair names to titles; `max_new_tokens` is where that setting starts."""
    runs = handlers.Runs()
    defaults = {
        "question": "", "pair": default_pair, "max_new_tokens": max_new_tokens, "draft_tokens": "auto",
        "drafter": "auto", "temperature": 0, "top_p": 1, "top_k": 0, "seed": 0, "numerics": "exact",
    }
    with gr.Blocks(title="specdemo: speculative decoding, measured", analytics_enabled=False,
                   delete_cache=(3600, 24 * 3600)) as blocks:
        gr.HTML(HEADER, elem_id="sd-header")
        status = gr.HTML("", elem_id="sd-models", html_template='<p class="sd-models" role="status">${value}</p>')
        with gr.Tabs():
            with gr.Tab("Race", id="race"):
                parts = _race_tab(pairs, defaults)
            with gr.Tab("Benchmark", id="benchmark"):
                benchmark.build(service, runs, default_pair, VISITORS)
            with gr.Tab("How it works", id="how"):
                explain.build(gr)
        _wire(blocks, service, runs, parts, status, pairs, defaults)
        api.add(service, default_pair, VISITORS)
    script, style = ((HERE / name).read_text(encoding="utf-8") for name in ("script.js", "style.css"))
    return Page(blocks, {
        # Styles go into the head as they are: Gradio's own `css` would put a prefix before every selector.
        "theme": theme(), "head": f"<style>{style}</style><script>{script}</script>",
        "footer_links": ["api"], "run_history": False, "ssr_mode": False,
    })


@dataclass(slots=True)
class _Parts:
    """The components that events connect."""

    inputs: list
    run: Any
    stop: Any
    channel: Any
    trace: Any
    plots: list
    upload: Any


def _race_tab(pairs: dict[str, str], defaults: dict) -> _Parts:
    with gr.Row(elem_id="sd-ask", equal_height=True):
        question = gr.Textbox(label="Your question", placeholder="Ask anything, for example how a rainbow forms",
                              lines=1, max_lines=8, scale=8, elem_id="sd-question", autofocus=True)
        run = gr.Button("Run", variant="primary", scale=1, min_width=110, elem_id="sd-run")
        stop = gr.Button("Stop", variant="stop", scale=1, min_width=110, elem_id="sd-stop", visible="hidden")
    gr.Examples([[text] for text in EXAMPLES], inputs=[question], label="Or try one of these", elem_id="sd-examples")
    settings = _settings_panel(pairs, defaults)
    gr.HTML(html_template=(HERE / "stage.html").read_text(encoding="utf-8"), elem_id="sd-stage",
            js_on_load="window.specdemo.mount(element)", apply_default_css=False)
    channel = gr.HTML("", html_template="", elem_id="sd-channel", visible="hidden", apply_default_css=False,
                      js_on_load="watch('value', () => window.specdemo.receive(props.value));"
                                 "window.specdemo.receive(props.value)")
    upload = gr.UploadButton("Open a saved run", file_types=[".json"], file_count="single", elem_id="sd-open",
                             variant="secondary", size="sm")
    gr.HTML("<h2>Charts of this run</h2>", elem_classes="sd-charts-title")
    with gr.Row(elem_classes="sd-charts"):
        plots = [gr.Plot(show_label=False, container=True, min_width=320, elem_classes="sd-plot",
                         elem_id=f"sd-plot-{i}") for i in range(5)]
    return _Parts([question, *settings], run, stop, channel, gr.State(None), plots, upload)


def _settings_panel(pairs: dict[str, str], defaults: dict) -> list:
    with gr.Accordion("Settings for engineers", open=False, elem_id="sd-settings"):
        with gr.Row():
            pair = gr.Dropdown([(title, name) for name, title in pairs.items()], value=defaults["pair"], label="Pair",
                               info="The target model and its draft. A pair that is not here yet is downloaded first.",
                               scale=2)
            drafter = gr.Dropdown(controls.DRAFTERS, value=defaults["drafter"], label="Drafter",
                                  info="Who guesses: a draft model, or lookup, which copies from the text so far.")
            draft_tokens = gr.Dropdown(controls.DRAFT_TOKENS, value=defaults["draft_tokens"], label="Draft length",
                                       info="Tokens guessed per round. Auto follows measured costs and confidence.")
        with gr.Row():
            max_new_tokens = gr.Slider(1, controls.LONGEST_ANSWER, value=defaults["max_new_tokens"],
                                       step=1, label="Maximum tokens",
                                       info="The answer ends here at the latest. A token is about 3/4 of a word.")
            temperature = gr.Slider(0, 2, value=defaults["temperature"], step=0.05, label="Temperature",
                                    info="0 always takes the likeliest token. Higher draws more freely.")
            top_p = gr.Slider(0.05, 1, value=defaults["top_p"], step=0.01, label="Top-p",
                              info="Draw only from the likeliest tokens that add up to this probability.")
        with gr.Row():
            top_k = gr.Slider(0, 200, value=defaults["top_k"], step=1, label="Top-k",
                              info="Draw only from this many likeliest tokens. 0 means all.")
            seed = gr.Number(defaults["seed"], label="Seed", precision=0, minimum=0,
                             info="The same seed draws the same answer again.")
            numerics = gr.Radio(controls.NUMERICS, value=defaults["numerics"], label="Numerics",
                                info="Exact: the answer is the same as without a draft. Fast: the processor's own "
                                     "defaults, where near ties may flip.")
        gr.HTML('<p class="sd-hint">Models run on the CPU of the machine that serves this page.</p>')
    return [pair, max_new_tokens, draft_tokens, drafter, temperature, top_p, top_k, seed, numerics]


def _wire(blocks, service: Service, runs: handlers.Runs, parts: _Parts, status, pairs: dict[str, str], defaults: dict):
    private = {"api_visibility": "private", "show_progress": "hidden"}

    def race(request: gr.Request, *values):
        busy = (gr.update(visible="hidden"), gr.update(visible=True))
        idle = (gr.update(visible=True), gr.update(visible="hidden"))
        # Every update says which button shows: a browser may draw only the latest of several that arrive together.
        for update in handlers.run(service, runs, request.session_hash, values):
            yield (update.envelope, update.trace or gr.skip(), *(idle if update.final else busy))

    def stop_run(request: gr.Request):
        runs.stop(request.session_hash)

    def draw(trace: Trace | None):
        if trace is None:
            return [gr.skip()] * len(parts.plots)
        from specdemo.ui import figures

        return list(figures.all_figures(trace))

    def draw_empty():
        from specdemo.ui import figures

        return list(figures.all_figures(None))

    def open_file(path):
        envelope, trace = handlers.open_trace(path)
        return envelope, trace if trace is not None else gr.skip()

    def restore(request: gr.Request):
        if not set(controls.NAMES) & set(request.query_params):
            return [gr.skip()] * len(controls.NAMES)
        values = controls.from_link(dict(request.query_params), list(pairs), defaults)
        return [values[name] for name in controls.NAMES]

    outputs = [parts.channel, parts.trace, parts.run, parts.stop]
    started = gr.on([parts.run.click, parts.inputs[0].submit], race, parts.inputs, outputs, trigger_mode="once",
                    concurrency_limit=VISITORS, **private)
    started.then(draw, parts.trace, parts.plots, concurrency_limit=None, **private)
    parts.stop.click(stop_run, None, None, queue=False, **private)
    parts.upload.upload(open_file, parts.upload, [parts.channel, parts.trace], **private).then(
        draw, parts.trace, parts.plots, concurrency_limit=None, **private)

    tell = ("(...values) => { window.specdemo.settings(new URLSearchParams("
            + str(list(controls.NAMES)).replace("'", '"')
            + ".map((name, i) => [name, values[i] === null ? '' : String(values[i])])).toString()) }")
    gr.on([component.change for component in parts.inputs], None, parts.inputs, None, js=tell, **private)
    blocks.load(restore, None, parts.inputs, queue=False, **private)
    blocks.load(draw_empty, None, parts.plots, concurrency_limit=None, **private)
    blocks.load(lambda: (yield from map(html.escape, handlers.loading(service))), None, status,
                concurrency_limit=None, **private)
