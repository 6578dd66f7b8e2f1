"""The page: its tabs, theme and scripts, and the events of the race tab."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import gradio as gr

from specdemo.engine.policy import MAX_DRAFT
from specdemo.runs.settings import Settings
from specdemo.server.page import PRIVATE, events, model_menu
from specdemo.server.page.background_download import BackgroundDownload
from specdemo.server.page.model_menu import ModelMenu
from specdemo.server.page.service import LIMITS, Service

STATIC = Path(__file__).parent / "static"
TITLE = "Speculative decoding on OpenVINO, measured as you watch"
IDEA = "A draft guesses words ahead, the model checks them in one step: the same answer, sooner."

LOOKS = {
    "theme": gr.themes.Base(
        neutral_hue="slate",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    ),
    "footer_links": ["api"],
    "run_history": False,
    "ssr_mode": False,
}
"""Options of mounting the page. Fonts are those of the visitor's system: nothing is fetched from
another host. Colours of the theme are replaced in style.css."""

DOES_NOT_PAY = "Describe a storm at sea"  # the fewest tokens a round (docs/results/benchmark.md)
BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "author": {"type": "string", "maxLength": 24},
        "year": {"type": "integer"},
        "genres": {
            "type": "array",
            "items": {"enum": ["adventure", "history", "love"]},
            "maxItems": 2,
        },
        "in_print": {"type": "boolean"},
    },
    "required": ["title", "author", "year", "genres", "in_print"],
    "additionalProperties": False,
}
FIRST_QUESTION = "Write a Python function that checks whether a number is prime."
"""That of the recorded race that is shown first."""
EXAMPLES = {
    "What is the water cycle?": "",
    "Write is_even(n) in Python": "",
    "Explain the difference between fission and fusion": "",
    "As JSON: a novel of the sea": json.dumps(BOOK),
    DOES_NOT_PAY: "",
}
"""Questions, each with the JSON Schema of its answer, if any. The embedded head was not trained on
them: a learnt answer would be too quick. The schema's lengths have an end, as small models do not
find one: an answer that is cut fills no schema."""

CHOOSE = "element.onclick = ({ target: { value } }) => "
CHOOSE += "value && trigger('click', specdemo.pair = value)"
"""A button of the table of pairs chooses its pair."""


def build(
    service: Service,
    menu: ModelMenu,
    max_new_tokens: int = 100,
    download: BackgroundDownload | None = None,
) -> gr.Blocks:
    """The page for a service. `max_new_tokens` is the first value of that setting."""
    defaults = {
        "question": FIRST_QUESTION,
        **asdict(Settings(max_new_tokens=max_new_tokens)),
        **menu.defaults,
    }
    defaults["draft_tokens"] = model_menu.AUTO
    with gr.Blocks(title=TITLE, analytics_enabled=False) as blocks:
        _html("header.html", "sd-header")
        with gr.Tabs(elem_id="sd-tabs"):
            with gr.Tab("Race", id="race"):
                _race_tab(blocks, service, menu, defaults, download)
            with gr.Tab("Benchmark", id="benchmark"):
                _html("benchmark.html", "sd-benchmark", "mountBenchmark")
        events.add_endpoint(service, menu)
    return blocks


def fill(config: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Puts first values of inputs, by name, into the page's configuration of one visitor."""
    wanted = {f"sd-{name}": value for name, value in values.items()}
    for component in config["components"]:
        if (id := component["props"].get("elem_id")) in wanted:
            component["props"]["value"] = wanted[id]


def _html(name: str, elem_id: str, mount: str = "") -> None:
    """Adds a file of HTML; the function `mount` of main.js gets its element."""
    options: dict[str, Any] = {"elem_id": elem_id, "apply_default_css": False}
    if mount:
        options["js_on_load"] = f"window.specdemo.page.then((page) => page.{mount}(element))"
    gr.HTML(html_template=(STATIC / name).read_text("utf-8"), **options)


def _called(name: str, *arguments: Any) -> str:
    """JavaScript for an event: calls the function `name` of main.js, last with the inputs."""
    first = "".join(f"{json.dumps(argument)}, " for argument in arguments)
    return f"(...values) => {{ window.specdemo.page.then((page) => page.{name}({first}values)); }}"


def _race_tab(
    blocks: gr.Blocks,
    service: Service,
    menu: ModelMenu,
    defaults: dict[str, Any],
    download: BackgroundDownload | None,
) -> None:
    """Adds the tab to the layout being built, and its events; the inputs start with `defaults`."""
    with gr.Row(elem_id="sd-ask", equal_height=True):
        looks = {"scale": 8, "max_lines": 8, "elem_id": "sd-question", "container": False}
        question = gr.Textbox(label="Your question", value=defaults["question"], **looks)
        narrow = {"scale": 1, "min_width": 110}
        run = gr.Button("Run", variant="primary", elem_id="sd-run", **narrow)
        stop = gr.Button("Stop", variant="stop", elem_id="sd-stop", **narrow)
    with gr.Row(elem_id="sd-examples"):
        chip = gr.Button("JSON ✕", size="sm", scale=0, elem_id="sd-json")
        examples = [gr.Button(text, size="sm", scale=0) for text in EXAMPLES]
    line = '<p class="sd-models" role="status">${value}</p>'
    status = gr.HTML("", elem_id="sd-models", html_template=line)
    if download:
        download.lay_out()
    _html("status.html", "sd-state")
    with gr.Accordion("Settings", open=False, elem_id="sd-settings") as opened:
        settings, table = _settings(menu, defaults)
        inputs = {"question": question, **settings}
    _html("race.html", "sd-view", "mountRace")
    _add_answer()

    every, schema = list(inputs.values()), inputs["json_schema"]
    labels = {name: item.label for name, item in inputs.items()} | {"question": False}
    known = [(name, label, defaults[name]) for name, label in labels.items()]
    remember, ask = (_called(name, known) for name in ("settings", "ask"))
    # The schema of an example goes when another question is typed; a visitor's own stays.
    typed = f"{json.dumps([*EXAMPLES.values()])}.includes(schema) ? '' : schema"
    question.input(None, schema, schema, js=f"(schema) => {typed}", **PRIVATE)
    for example, (text, wanted) in zip(examples, EXAMPLES.items(), strict=True):
        js = f"(schema) => [{json.dumps(text)}, {json.dumps(wanted)} || ({typed})]"
        filled = example.click(None, schema, [question, schema], js=js, **PRIVATE)
        filled.then(None, every, None, js=ask, **PRIVATE)
    # The chip is hidden then: without another place the focus would be lost.
    emptied = "() => { document.querySelector('#sd-run').focus(); return ''; }"
    chip.click(None, None, schema, js=emptied, **PRIVATE)
    # "multiple": the default drops a change that comes while another one is handled.
    changes = [component.change for component in every]
    gr.on(changes, None, every, None, js=remember, trigger_mode="multiple", **PRIVATE)
    gr.on([run.click, question.submit], None, every, None, js=ask, **PRIVATE)
    stop.click(None, None, None, js=_called("stop"), **PRIVATE)

    blocks.load(None, every, None, js=remember, **PRIVATE)
    blocks.load(service.status_lines, None, status, concurrency_limit=None, **PRIVATE)
    opened.expand(lambda: menu.survey, None, table, queue=False, **PRIVATE)
    if download:
        download.connect(blocks, status)


def _settings(menu: ModelMenu, defaults: dict[str, Any]) -> tuple[dict[str, Any], gr.HTML]:
    """Adds the settings to the layout being built. Gives them by name, in the order of HELP, and
    the table of the pairs."""
    inputs = {}

    def put(kind: type, name: str, label: str, **options: Any) -> None:
        info = model_menu.HELP[name]
        options = {"info": f"{info[0].upper()}{info[1:]}.", **options}
        options["visible"] = name == "pair" or name not in menu.fixed
        options["elem_id"] = f"sd-{name}"
        inputs[name] = kind(label=label, value=defaults[name], **options)

    def slide(name: str, label: str, minimum: float, maximum: float, step: float) -> None:
        put(gr.Slider, name, label, minimum=minimum, maximum=maximum, step=step)

    def choose(name: str, label: str, choices: Any = None, **options: Any) -> None:
        choices = choices or [*get_args(model_menu.KINDS[name])]
        put(gr.Dropdown, name, label, choices=choices, **options)

    with gr.Row():
        info = "The target model and its draft. A pair that is not here yet is downloaded."
        choose("pair", "Pair", menu.pairs(), scale=2, min_width=320, info=info)
        choose("drafter", "Drafter", ["auto", "model", "lookup"])
    with gr.Accordion("Compare the pairs", open=False, visible=not menu.fixed):
        table = gr.HTML(elem_classes="sd-rows", js_on_load=CHOOSE, apply_default_css=False)
        chosen = "() => window.specdemo.pair"
        table.click(None, None, inputs["pair"], js=chosen, **PRIVATE)
    with gr.Row(elem_id="sd-own"):  # shown with a pair of the visitor's own
        put(gr.Textbox, "model", "Target", max_lines=1, scale=2)
        put(gr.Textbox, "assistant_model", "Draft", max_lines=1, scale=2)
        choose("weight_format", "Weight format")
    with gr.Row():
        slide("max_new_tokens", "Maximum tokens", 1, LIMITS.new_tokens, 1)
        slide("temperature", "Temperature", 0, 5, 0.05)
    with gr.Accordion("Expert", open=False, elem_id="sd-expert"):
        with gr.Row():
            choose("draft_tokens", "Draft length", ["auto", *map(str, range(1, MAX_DRAFT + 1))])
            slide("top_p", "Top-p", 0.01, 1, 0.01)
            slide("min_p", "Min-p", 0, 1, 0.01)
            put(gr.Number, "top_k", "Top-k", precision=0, minimum=0)
            put(gr.Number, "seed", "Seed", precision=0, minimum=0)
        with gr.Row():
            slide("presence_penalty", "Presence penalty", -2, 2, 0.1)
            slide("frequency_penalty", "Frequency penalty", -2, 2, 0.1)
            slide("repetition_penalty", "Repetition penalty", 0.5, 2, 0.05)
        with gr.Row():
            choose("coupling", "Acceptance rule")
            choose("numerics", "Numerics")
            choose("kv_cache", "KV cache precision")
            put(gr.Textbox, "json_schema", "JSON Schema", lines=1, max_lines=4)
        with gr.Row():
            put(gr.Checkbox, "thinking", "Thinking")
            put(gr.Textbox, "device", "Device", max_lines=1)
            put(gr.Textbox, "draft_device", "Draft device", max_lines=1)
    return {name: inputs[name] for name in model_menu.HELP if name in inputs}, table


def _add_answer() -> None:
    """Adds the answer as formatted text to the layout being built."""
    settled = gr.Button(visible="hidden", elem_id="sd-settled")
    looks = {"open": False, "elem_classes": "sd-more"}
    with gr.Accordion("The answer as formatted text", **looks) as opened:
        shown = gr.Markdown(latex_delimiters=[], elem_id="sd-formatted")
    answer = "() => window.specdemo.page.then((page) => page.formattedAnswer())"
    gr.on([settled.click, opened.expand], None, None, shown, js=answer, **PRIVATE)
