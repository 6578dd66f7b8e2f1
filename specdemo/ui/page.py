"""The page: its tabs, its looks and its scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import gradio as gr

from specdemo.settings import Settings
from specdemo.ui import api, benchmark, inputs, race
from specdemo.ui.choice import Offer
from specdemo.ui.race import STATIC
from specdemo.ui.runs import Running
from specdemo.ui.service import Service

HEADER = """<header class="sd-header"><h1>Speculative decoding on OpenVINO</h1>
<p>A draft model or repeated n-grams propose the next tokens, and the target model verifies several
of them in a single step. Watch it race autoregressive decoding, measured on this machine; the two
answers are compared token by token.</p></header>"""

STATUS = '<p class="sd-models" role="status">${value}</p>'
SCRIPTS = "tokens.js", "card.js", "keep.js", "stage.js"


def build(
    service: Service, offer: Offer, max_new_tokens: int = 100
) -> tuple[gr.Blocks, dict[str, Any]]:
    """The page for a service, and what `launch` takes with it: theme, styles and scripts.
    `max_new_tokens` is where that setting starts."""
    running = Running()
    defaults = {"question": "", **asdict(Settings(max_new_tokens=max_new_tokens)), **offer.defaults}
    defaults["draft_tokens"] = inputs.AUTO
    title = "specdemo: speculative decoding, measured"
    with gr.Blocks(title=title, analytics_enabled=False, delete_cache=(3600, 86400)) as blocks:
        gr.HTML(HEADER, elem_id="sd-header")
        status = gr.HTML("", elem_id="sd-models", html_template=STATUS)
        with gr.Tabs():
            with gr.Tab("Race", id="race"):
                tab = race.Tab(service, running, offer, defaults)
            with gr.Tab("Benchmark", id="benchmark"):
                models = {name: tab.inputs[name] for name in inputs.MODELS}
                benchmark.Tab(service, running, offer, models)
            with gr.Tab("How it works", id="how"):
                gr.HTML(html_template=_static("explain.html"), apply_default_css=False)
        tab.connect(blocks, status)
        api.add(service, offer)
    # One closure for all scripts, which share their names. Gradio's own `css` would put a prefix
    # before every selector.
    scripts = "".join(map(_static, SCRIPTS))
    head = f"<style>{_static('style.css')}</style>"
    head += f"<script>if (!window.specdemo) (() => {{\n{scripts}\n}})();</script>"
    looks = {"theme": _theme(), "head": head, "footer_links": ["api"]}
    return blocks, {**looks, "run_history": False, "ssr_mode": False}


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
