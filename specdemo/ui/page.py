"""The page's layout and looks. What happens on it is in `events`, what it shows is made by
`handlers`, `figures` and static/script.js."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from specdemo.settings import Settings
from specdemo.ui import api, benchmark, events, inputs
from specdemo.ui.choice import Offer
from specdemo.ui.limits import LIMITS
from specdemo.ui.runs import Running
from specdemo.ui.service import Service

STATIC = Path(__file__).parent / "static"

EXAMPLES = (
    "Explain the difference between fission and fusion",
    "Write a Python function that reverses a string",
    "List five uses of a paper clip",
    "Why is the sky blue?",
)

HEADER = """<header class="sd-header"><h1>Two models answer faster than one</h1>
<p>A small draft model proposes the next tokens, and the large target model verifies several of them
in a single step. The answer stays the same; it only comes sooner. Watch it race autoregressive
decoding, measured on this machine.</p></header>"""

CHARTS = 5
"""How many charts `figures.all_figures` draws; importing Plotly to count them would be slow."""


@dataclass(frozen=True, slots=True)
class Page:
    """A built page, and what `launch` takes with it: theme, styles and scripts."""

    blocks: gr.Blocks
    launch: dict[str, Any]


def build(service: Service, offer: Offer, max_new_tokens: int = 100) -> Page:
    """The page for a service. `max_new_tokens` is where that setting starts."""
    running = Running()
    defaults = {"question": "", **asdict(Settings(max_new_tokens=max_new_tokens)), **offer.defaults}
    defaults["draft_tokens"] = inputs.AUTO
    with gr.Blocks(
        title="specdemo: speculative decoding, measured",
        analytics_enabled=False,
        delete_cache=(3600, 24 * 3600),
    ) as blocks:
        gr.HTML(HEADER, elem_id="sd-header")
        status = gr.HTML(
            "", elem_id="sd-models", html_template='<p class="sd-models" role="status">${value}</p>'
        )
        with gr.Tabs():
            with gr.Tab("Race", id="race"):
                parts = _race_tab(offer, defaults)
            with gr.Tab("Benchmark", id="benchmark"):
                models = {name: parts.inputs[name] for name in inputs.MODELS}
                benchmark.build(service, running, offer, models)
            with gr.Tab("How it works", id="how"):
                gr.HTML(html_template=_static("explain.html"), apply_default_css=False)
        events.connect(blocks, service, offer, running, parts, status, defaults)
        api.add(service, offer)
    head = f"<style>{_static('style.css')}</style>"
    scripts = "tokens.js", "card.js", "keep.js", "stage.js"
    head += "".join(f"<script>{_static(name)}</script>" for name in scripts)
    return Page(
        blocks,
        {
            # Gradio's own `css` would put a prefix before every selector.
            "theme": _theme(),
            "head": head,
            "footer_links": ["api"],
            "run_history": False,
            "ssr_mode": False,
        },
    )


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _theme() -> gr.themes.Base:
    """Neutral, with the fonts of the visitor's system: nothing is fetched from another host."""
    fonts = "ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"
    mono = "ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        font=[gr.themes.Font(name) for name in fonts],
        font_mono=[gr.themes.Font(name) for name in mono],
    ).set(
        button_primary_background_fill="#005a8f",
        button_primary_background_fill_hover="#00497a",
        button_primary_background_fill_dark="#005a8f",
        button_primary_background_fill_hover_dark="#0072b2",
        button_primary_text_color="white",
        body_text_color_subdued="#475569",
        body_text_color_subdued_dark="#b6c2d1",
        block_info_text_color="#475569",
        block_info_text_color_dark="#b6c2d1",
    )


def _race_tab(offer: Offer, defaults: dict[str, Any]) -> events.Parts:
    with gr.Row(elem_id="sd-ask", equal_height=True):
        question = gr.Textbox(
            label="Your question",
            placeholder="Ask anything, for example how a rainbow forms",
            lines=1,
            max_lines=8,
            scale=8,
            elem_id="sd-question",
            autofocus=True,
        )
        run = gr.Button("Run", variant="primary", scale=1, min_width=110, elem_id="sd-run")
        stop = gr.Button("Stop", variant="stop", scale=1, min_width=110, elem_id="sd-stop")
    gr.Examples(
        [[text] for text in EXAMPLES],
        inputs=[question],
        label="Or try one of these",
        elem_id="sd-examples",
    )
    settings, own = _settings_panel(offer, defaults)
    gr.HTML(
        html_template=_static("stage.html"),
        elem_id="sd-stage",
        js_on_load="window.specdemo.mount(element)",
        apply_default_css=False,
    )
    channel = gr.HTML(
        "",
        html_template="",
        elem_id="sd-channel",
        visible="hidden",
        apply_default_css=False,
        js_on_load="watch('value', () => window.specdemo.receive(props.value));"
        "window.specdemo.receive(props.value)",
    )
    # Out of sight: a button of the stage opens it, beside the others that keep and share.
    upload = gr.UploadButton(
        "Open a saved run", file_types=[".json"], elem_id="sd-open", visible="hidden"
    )
    gr.HTML(
        '<h2>Charts of this run</h2><p class="sd-hint">Drawn when both runs have ended.</p>',
        elem_classes="sd-charts-title",
    )
    with gr.Row(elem_classes="sd-charts"):
        plots = [
            gr.Plot(
                show_label=False, min_width=320, elem_classes="sd-plot", elem_id=f"sd-plot-{index}"
            )
            for index in range(CHARTS)
        ]
    named = {"question": question, **settings}
    ordered = {name: named[name] for name in inputs.NAMES}
    return events.Parts(ordered, own, run, stop, channel, gr.State(None), plots, upload)


def _settings_panel(offer: Offer, defaults: dict[str, Any]) -> tuple[dict[str, Any], gr.Row]:
    """The settings by name, and the row for a pair of the visitor's own."""
    parts: dict[str, Any] = {}

    def put(kind: type, name: str, label: str, **options: Any) -> None:
        options = {"info": inputs.help_of(name), **options}
        parts[name] = kind(label=label, value=defaults[name], **options)

    with gr.Accordion("Settings for engineers", open=False, elem_id="sd-settings"):
        with gr.Row():
            put(
                gr.Dropdown,
                "pair",
                "Pair",
                choices=offer.pairs(),
                scale=2,
                info="The target model and its draft. A pair that is not here yet is downloaded.",
            )
            put(gr.Dropdown, "drafter", "Drafter", choices=inputs.DRAFTERS)
            put(gr.Dropdown, "draft_tokens", "Draft length", choices=inputs.DRAFT_LENGTHS)
        with gr.Row(visible=False) as own:
            repository = {"placeholder": "owner/name or a folder", "max_lines": 1}
            put(gr.Textbox, "target", "Target", scale=2, elem_id="sd-own-target", **repository)
            put(gr.Textbox, "draft", "Draft", scale=2, **repository)
            formats = inputs.choices("weight_format")
            put(gr.Dropdown, "weight_format", "Weight format", choices=formats)
        with gr.Row():
            tokens = {**inputs.limits("max_new_tokens"), "maximum": LIMITS.new_tokens, "step": 1}
            put(gr.Slider, "max_new_tokens", "Maximum tokens", **tokens)
            put(gr.Slider, "temperature", "Temperature", step=0.05, **inputs.limits("temperature"))
            put(gr.Slider, "top_p", "Top-p", minimum=0.01, step=0.01, **inputs.limits("top_p"))
        with gr.Row():
            put(gr.Number, "top_k", "Top-k", precision=0, **inputs.limits("top_k"))
            put(gr.Number, "seed", "Seed", precision=0, **inputs.limits("seed"))
            rules = inputs.choices("coupling")
            put(gr.Dropdown, "coupling", "Acceptance rule", choices=rules)
        with gr.Row():
            put(gr.Radio, "numerics", "Numerics", choices=inputs.choices("numerics"))
            precisions = inputs.choices("kv_cache")
            put(gr.Dropdown, "kv_cache", "KV cache precision", choices=precisions)
            for name, label in (("device", "Device"), ("draft_device", "Draft device")):
                known = sorted({"CPU", defaults[name]})
                put(gr.Dropdown, name, label, choices=known, allow_custom_value=True)
    return parts, own
