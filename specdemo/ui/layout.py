"""The page: its tabs, theme and scripts, and the events of the race tab."""

import html
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import gradio as gr

from specdemo.engine.policy import MAX_DRAFT
from specdemo.runs.settings import Settings
from specdemo.runs.trace import from_json
from specdemo.ui import MAX_EVENTS, PRIVATE, benchmark, events, offers
from specdemo.ui.arrival import Arrival
from specdemo.ui.events import Running
from specdemo.ui.offers import Offer
from specdemo.ui.service import LIMITS, Service, visitor_of

STATIC = Path(__file__).parent / "static"
TITLE = "Speculative decoding on OpenVINO, measured as you watch"
IDEA = "A draft guesses ahead, the model checks it in one step: the same answer, sooner."
HEADER = f"""<header class="sd-header"><h1>Speculative decoding on OpenVINO</h1>
<p>{IDEA}</p></header>"""

SCRIPTS = "tokens.js", "share.js", "slow_motion.js", "curve.js", "examples.js", "race_view.js"
RECORDED = STATIC / "recorded.json"  # played before the first question; see tools/page_record.py

LIGHT, DARK = "#475569", "#b6c2d1"  # Gradio's own have too little contrast
THEME = gr.themes.Base(
    primary_hue=gr.themes.colors.blue,
    neutral_hue=gr.themes.colors.slate,
    font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"],
).set(
    button_primary_background_fill="#005a8f",
    button_primary_background_fill_dark="#005a8f",
    button_primary_text_color="white",
    **dict.fromkeys(("body_text_color_subdued", "block_info_text_color"), LIGHT),
    **dict.fromkeys(("body_text_color_subdued_dark", "block_info_text_color_dark"), DARK),
)
"""Neutral, with the fonts of the visitor's system: nothing is fetched from another host."""

DOES_NOT_PAY = "Describe a storm at sea"  # the fewest tokens a round (docs/results/benchmark.md)
BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "author": {"type": "string"},
        "year": {"type": "integer"},
        "genres": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "in_print": {"type": "boolean"},
    },
    "required": ["title", "author", "year", "genres", "in_print"],
    "additionalProperties": False,
}
EXAMPLES = {
    "What is the water cycle?": "",
    "Write is_even(n) in Python": "",
    "Explain the difference between fission and fusion": "",
    "As JSON: a novel of the sea": json.dumps(BOOK),
    DOES_NOT_PAY: "",
}
"""Questions, each with the JSON Schema of its answer, if any. The embedded head was not trained on
them: a learnt answer would be too quick."""


def build(
    service: Service, offer: Offer, max_new_tokens: int = 100, arrival: Arrival | None = None
) -> tuple[gr.Blocks, dict[str, Any]]:
    """The page for a service, and the options to mount it with. `max_new_tokens` is the first value
    of that setting, `arrival` a pair that is being fetched."""
    running = Running()
    recorded = RECORDED.read_text("utf-8")
    defaults = {
        "question": from_json(recorded).instruction,
        **asdict(Settings(max_new_tokens=max_new_tokens)),
        **offer.defaults,
    }
    defaults["draft_tokens"] = offers.AUTO
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(3600, 86400)) as blocks:
        gr.HTML(HEADER, elem_id="sd-header")
        line = '<p class="sd-models" role="status">${value}</p>'
        status = gr.HTML("", elem_id="sd-models", html_template=line)
        if arrival:
            arrival.lay_out()
        with gr.Tabs():
            with gr.Tab("Race", id="race"):
                tab = RaceTab(service, running, offer, defaults)
            with gr.Tab("Benchmark", id="benchmark"):
                measuring = benchmark.Tab(service, running, offer, tab.inputs)
            with gr.Tab("How it works", id="how"):
                looks = {"html_template": _static("explain.html"), "apply_default_css": False}
                gr.HTML(DOES_NOT_PAY, **looks, js_on_load="window.specdemo.explain()")
        tab.connect(blocks, status, measuring)
        if arrival:
            arrival.connect(blocks, status, tab.inputs["pair"])
        events.add_endpoint(service, offer)
    # The scripts share their names, so they are in one closure. Gradio's own `css` would put a
    # prefix before every selector.
    known = json.dumps(events.opened(recorded)).replace("<", "\\u003c")
    scripts = "".join([f"const RECORDED = {known};\n", *map(_static, SCRIPTS)])
    head = f'<meta name="description" content="{IDEA}"><style>{_static("style.css")}</style>'
    head += f"<script>if (!window.specdemo) (() => {{\n{scripts}\n}})();</script>"
    looks = {"theme": THEME, "head": head, "footer_links": ["api"]}
    return blocks, {**looks, "run_history": False, "ssr_mode": False}


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


class RaceTab:
    """The tab's components and its events. `inputs` are by name, in the order of offers.NAMES."""

    def __init__(self, service: Service, running: Running, offer: Offer, defaults: dict[str, Any]):
        """Adds the tab to the layout being built; the inputs start with `defaults`."""
        self._service, self._running, self._offer = service, running, offer
        self._defaults = defaults
        with gr.Row(elem_id="sd-ask", equal_height=True):
            looks = {"scale": 8, "max_lines": 8, "elem_id": "sd-question", "container": False}
            question = gr.Textbox(label="Your question", value=defaults["question"], **looks)
            narrow = {"scale": 1, "min_width": 110}
            self.run = gr.Button("Run", variant="primary", elem_id="sd-run", **narrow)
            self.stop = gr.Button("Stop", variant="stop", elem_id="sd-stop", **narrow)
        with gr.Row(elem_id="sd-examples"):
            self._examples = [gr.Button(text, size="sm", scale=0) for text in EXAMPLES]
        self.inputs = {"question": question}
        with gr.Accordion("Settings for engineers", open=False, elem_id="sd-settings"):
            self._add_settings()
        self.inputs = {name: self.inputs[name] for name in offers.NAMES}
        looks = {"apply_default_css": False}
        looks["js_on_load"] = "window.specdemo.mount(element)"
        gr.HTML(html_template=_static("race.html"), elem_id="sd-view", **looks)
        looks["js_on_load"] = "watch('value', () => window.specdemo.receive(props.value))"
        self.channel = gr.HTML("", html_template="", visible="hidden", **looks)

    def _add_settings(self) -> None:
        def put(kind: type, name: str, label: str, **options: Any) -> None:
            info = offers.HELP[name]
            options = {"info": f"{info[0].upper()}{info[1:]}.", **options}
            options["visible"] = name == "pair" or name not in self._offer.fixed
            self.inputs[name] = kind(label=label, value=self._defaults[name], **options)

        def choose(name: str, label: str, choices: Any = None, **options: Any) -> None:
            choices = choices or [*get_args(offers.KINDS[name])]
            put(gr.Dropdown, name, label, choices=choices, **options)

        with gr.Row():
            info = "The target model and its draft. A pair that is not here yet is downloaded. "
            info += "Tokens/s: without a draft, to half of its tokens accepted."
            choose("pair", "Pair", self._offer.pairs(), scale=2, min_width=320, info=info)
            choose("drafter", "Drafter", ["auto", "model", "lookup"])
            lengths = ["auto", *map(str, range(1, MAX_DRAFT + 1))]
            choose("draft_tokens", "Draft length", lengths)
        with gr.Row():
            put(gr.Textbox, "model", "Target", max_lines=1, scale=2)
            put(gr.Textbox, "assistant_model", "Draft", max_lines=1, scale=2)
            choose("weight_format", "Weight format")
            put(gr.Checkbox, "thinking", "Thinking")
        with gr.Row():
            most = LIMITS.new_tokens
            put(gr.Slider, "max_new_tokens", "Maximum tokens", minimum=1, maximum=most, step=1)
            put(gr.Slider, "temperature", "Temperature", minimum=0, maximum=5, step=0.05)
            put(gr.Slider, "top_p", "Top-p", minimum=0.01, maximum=1, step=0.01)
        with gr.Row():
            put(gr.Number, "top_k", "Top-k", precision=0, minimum=0)
            put(gr.Number, "seed", "Seed", precision=0, minimum=0)
            choose("coupling", "Acceptance rule")
            put(gr.Textbox, "json_schema", "JSON Schema", lines=1, max_lines=4)
        with gr.Row():
            choose("numerics", "Numerics")
            choose("kv_cache", "KV cache precision")
            put(gr.Textbox, "device", "Device", max_lines=1)
            put(gr.Textbox, "draft_device", "Draft device", max_lines=1)

    def connect(self, blocks: gr.Blocks, status: gr.HTML, measuring: benchmark.Tab) -> None:
        """Connects the events of the tab, of both Stop buttons, and of opening and leaving the
        page. `status` shows the loaded pair."""
        every, pair = list(self.inputs.values()), self.inputs["pair"]
        now = {"queue": False, **PRIVATE}
        set_by_example = [self.inputs["question"], self.inputs["json_schema"]]
        for example, both in zip(self._examples, EXAMPLES.items(), strict=True):
            example.click(None, None, set_by_example, js=f"() => {json.dumps(both)}", **PRIVATE)
        labels = {name: one.label for name, one in self.inputs.items()} | {"question": False}
        known = [(name, label, self._defaults[name]) for name, label in labels.items()]
        remember = f"(...values) => window.specdemo.settings({json.dumps(known)}, values)"
        # "multiple": the default drops a change that comes while another one is handled.
        changes = [component.change for component in every]
        gr.on(changes, None, every, None, js=remember, trigger_mode="multiple", **PRIVATE)
        # `preprocess` is off: `settings.parse` checks the values and reports errors in a sentence.
        limited = {"trigger_mode": "once", "concurrency_limit": MAX_EVENTS, "preprocess": False}
        asked = [self.run.click, self.inputs["question"].submit]
        raced = gr.on(asked, self._race, every, self.channel, **limited, **PRIVATE)
        gr.on([self.stop.click, measuring.stop.click], self._stop, None, None, **now)
        blocks.unload(self._stop)
        blocks.load(self._linked_inputs, None, every, **now)
        for event in (raced.then, blocks.load):
            event(self._loading, None, status, concurrency_limit=None, **PRIVATE)
        blocks.load(lambda: gr.update(choices=self._offer.survey), None, pair, **now)

    def _race(self, request: gr.Request, *values: Any) -> Iterator[str]:
        asked = visitor_of(request), dict(zip(offers.NAMES, values, strict=True))
        yield from events.run(self._service, self._running, self._offer, *asked)

    def _stop(self, request: gr.Request) -> None:
        self._running.stop(visitor_of(request).name)

    def _linked_inputs(self, request: gr.Request) -> list[Any]:
        """The question and the settings of a link."""
        query = dict(request.query_params)
        if not set(offers.NAMES) & set(query):
            return [gr.skip()] * len(offers.NAMES)
        names = [name for _, name in self._offer.pairs()]
        values = offers.from_link(query, names, self._defaults)
        values |= {name: self._defaults[name] for name in self._offer.fixed}
        return [values[name] for name in offers.NAMES]

    def _loading(self) -> Iterator[str]:
        """Text for the line under the title, until the pair is ready or has failed."""
        words, shown = {"loading": "Loading. ", "ready": "", "failed": "Not available. "}, None
        while shown is None or shown.kind == "loading":
            if shown != self._service.state:
                shown = self._service.state
                yield html.escape(words[shown.kind] + shown.line)
            time.sleep(0.2)
