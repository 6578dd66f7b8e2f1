"""The page: its tabs, its looks and its scripts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import gradio as gr

from specdemo.settings import Settings
from specdemo.trace import from_json
from specdemo.ui import api, benchmark, figures, inputs, race
from specdemo.ui.arrival import Arrival, Strip
from specdemo.ui.choice import Offer
from specdemo.ui.race import STATIC
from specdemo.ui.runs import Running, opened
from specdemo.ui.service import Service

TITLE = "Speculative decoding on OpenVINO, measured as you watch"
DESCRIPTION = (
    "Watch draft tokens being proposed and verified on a CPU, raced against autoregressive "
    "decoding on the same machine, with both answers compared token by token."
)
HEADER = """<header class="sd-header"><h1>Speculative decoding on OpenVINO</h1>
<p>Draft tokens, proposed and verified as you watch, against autoregressive decoding.</p>
</header>"""

STATUS = '<p class="sd-models" role="status">${value}</p>'
SCRIPTS = (
    "tokens.js",
    "card.js",
    "figures.js",
    "whatif.js",
    "share.js",
    "picture.js",
    "keep.js",
    "stage.js",
)
RECORDED = STATIC / "recorded.json"
"""The run that plays before anybody has asked; `tools/page_record.py` makes it."""


def build(
    service: Service, offer: Offer, max_new_tokens: int = 100, arrival: Arrival | None = None
) -> tuple[gr.Blocks, dict[str, Any]]:
    """The page for a service, and what `launch` takes with it: theme, styles and scripts.
    `max_new_tokens` is where that setting starts, `arrival` a pair that is being fetched."""
    running = Running()
    recorded = from_json(RECORDED.read_bytes())
    defaults = {
        "question": recorded.instruction,
        **asdict(Settings(max_new_tokens=max_new_tokens)),
        **offer.defaults,
    }
    defaults["draft_tokens"] = inputs.AUTO
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(3600, 86400)) as blocks:
        gr.HTML(HEADER, elem_id="sd-header")
        status = gr.HTML("", elem_id="sd-models", html_template=STATUS)
        strip = Strip(service, offer, arrival) if arrival else None
        with gr.Tabs():
            with gr.Tab("Race", id="race"):
                tab = race.Tab(service, running, offer, defaults)
            with gr.Tab("Benchmark", id="benchmark"):
                models = {name: tab.inputs[name] for name in inputs.MODELS}
                benchmark.Tab(service, running, offer, models)
            with gr.Tab("How it works", id="how"):
                gr.HTML(html_template=_static("explain.html"), apply_default_css=False)
        tab.connect(blocks, status)
        if strip:
            strip.connect(blocks, status, tab.inputs["pair"])
        api.add(service, offer)
    # One closure for all scripts, which share their names. Gradio's own `css` would put a prefix
    # before every selector.
    data = {"RECORDED": opened(RECORDED.read_text("utf-8")), "MACHINES": figures.machines()}
    scripts = "".join(f"const {name} = {_literal(value)};\n" for name, value in data.items())
    scripts += "".join(map(_static, SCRIPTS))
    head = f"<style>{_static('style.css')}</style>"
    head += f"<script>if (!window.specdemo) (() => {{\n{scripts}\n}})();</script>"
    looks = {"theme": _theme(), "head": head, "footer_links": ["api"]}
    return blocks, {**looks, "run_history": False, "ssr_mode": False}


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _literal(value: Any) -> str:
    """A value for a script that is part of a page."""
    return json.dumps(value).replace("<", "\\u003c")


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
