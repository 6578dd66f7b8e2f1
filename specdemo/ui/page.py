"""The page: its tabs, its looks and its scripts."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gradio as gr

from specdemo.settings import Settings
from specdemo.trace import from_json
from specdemo.ui import api, benchmark, inputs, race
from specdemo.ui.arrival import Arrival
from specdemo.ui.choice import Offer
from specdemo.ui.runs import Running, opened
from specdemo.ui.service import Service

STATIC = Path(__file__).parent / "static"
TITLE = "Speculative decoding on OpenVINO, measured as you watch"
HEADER = """<header class="sd-header"><h1>Speculative decoding on OpenVINO</h1>
<p>Draft tokens, proposed and verified as you watch, against autoregressive decoding.</p>
</header>"""

STATUS = '<p class="sd-models" role="status">${value}</p>'
SCRIPTS = "tokens.js", "figures.js", "keep.js", "stage.js"
RECORDED = STATIC / "recorded.json"
"""The run that plays before anybody has asked; `tools/page_record.py` makes it."""


def build(
    service: Service, offer: Offer, max_new_tokens: int = 100, arrival: Arrival | None = None
) -> tuple[gr.Blocks, dict[str, Any]]:
    """The page for a service, and what `launch` takes with it: theme, styles and scripts.
    `max_new_tokens` is where that setting starts, `arrival` a pair that is being fetched."""
    running = Running()
    recorded = RECORDED.read_text("utf-8")
    defaults = {
        "question": from_json(recorded).instruction,
        **asdict(Settings(max_new_tokens=max_new_tokens)),
        **offer.defaults,
    }
    defaults["draft_tokens"] = inputs.AUTO
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(3600, 86400)) as blocks:
        gr.HTML(HEADER, elem_id="sd-header")
        status = gr.HTML("", elem_id="sd-models", html_template=STATUS)
        if arrival:
            arrival.lay_out()
        with gr.Tabs():
            with gr.Tab("Race", id="race"):
                tab = race.Tab(service, running, offer, defaults, _static("stage.html"))
            with gr.Tab("Benchmark", id="benchmark"):
                tuning = benchmark.Tab(service, running, offer, tab.inputs).tuning
            with gr.Tab("How it works", id="how"):
                drawn = base64.b64encode((STATIC / "round.svg").read_bytes()).decode()
                picture = f"data:image/svg+xml;base64,{drawn}"
                gr.HTML(picture, html_template=_static("explain.html"), apply_default_css=False)
        tab.connect(blocks, status, tuning)
        if arrival:
            arrival.connect(blocks, status, tab.inputs["pair"])
        api.add(service, offer)
    # One closure for all scripts, which share their names. Gradio's own `css` would put a prefix
    # before every selector.
    known = json.dumps(opened(recorded)).replace("<", "\\u003c")
    scripts = "".join([f"const RECORDED = {known};\n", *map(_static, SCRIPTS)])
    head = f"<style>{_static('style.css')}</style>"
    head += f"<script>if (!window.specdemo) (() => {{\n{scripts}\n}})();</script>"
    looks = {"theme": _theme(), "head": head, "footer_links": ["api"]}
    return blocks, {**looks, "run_history": False, "ssr_mode": False}


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _theme() -> gr.themes.Base:
    """Neutral, with the fonts of the visitor's system: nothing is fetched from another host."""
    light, dark = "#475569", "#b6c2d1"  # Base's own have too little contrast
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    ).set(
        button_primary_background_fill="#005a8f",
        button_primary_background_fill_hover="#00497a",
        button_primary_background_fill_dark="#005a8f",
        button_primary_background_fill_hover_dark="#0072b2",
        button_primary_text_color="white",
        body_text_color_subdued=light,
        body_text_color_subdued_dark=dark,
        block_info_text_color=light,
        block_info_text_color_dark=dark,
    )
