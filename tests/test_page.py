"""The page in a real browser, on the embedded pair: one server and one Chromium for all tests."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from fakes import FakeSession

from specdemo.bench.costs import expected_speedup, measured_costs
from specdemo.settings import ModelChoice
from specdemo.trace import from_json, summarize
from specdemo.ui import choice, page
from specdemo.ui.service import Service

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 240_000
"""Milliseconds to wait for anything: the machine may be busy with something else."""

expect.set_options(timeout=PATIENCE)

LINK_HAS = """([name, value]) =>
  new URLSearchParams(window.specdemo.link().split('?')[1]).get(name) === value"""
"""Whether the page's link has the value: what the page knows of its inputs."""

KINDS = {"sd-accepted", "sd-correction", "sd-bonus", "sd-first", "sd-plain"}


def packed(data: bytes) -> str:
    """What a link to a run has in its fragment."""
    deflate = zlib.compressobj(wbits=-15)
    return base64.urlsafe_b64encode(deflate.compress(data) + deflate.flush()).decode().strip("=")


@pytest.fixture(scope="module")
def url(embedded_pair):
    """Address of a server started as a user starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}/"
    log = ROOT / ".pytest_cache" / "page-server.log"
    log.parent.mkdir(exist_ok=True)
    command = [sys.executable, "app.py", "--port", address.split(":")[-1].strip("/")]
    offline = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    with (
        open(log, "w", encoding="utf-8") as output,
        subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=offline) as server,
    ):
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(address, timeout=2).read()
                    break
                except OSError:
                    assert server.poll() is None, log.read_text()
                    time.sleep(0.1)
            yield address
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def browser(chromium):
    with playwright.sync_playwright() as run:
        opened = run.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def desk(browser):
    """A window of a usual size. Tabs share its cache, as a visitor's do."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, color_scheme="light")
    yield context
    context.close()


class Visit:
    """A browser tab on the page; notes console errors and requests to other hosts."""

    def __init__(self, context, url: str, query: str = "max_new_tokens=24"):
        self.page = context.new_page()
        self.errors: list[str] = []
        self.asked: set[str] = set()
        self.url = url
        self.before = None  # the run that was on the stage when a question was asked
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.add(request.url))
        self.page.set_default_timeout(PATIENCE)
        self.page.goto(url + ("?" + query if query else ""))
        self.page.wait_for_selector("#sd-question textarea", state="attached")
        self.page.wait_for_function("window.specdemo && window.specdemo.stage")
        if "max_new_tokens" in query:
            wanted = query.split("max_new_tokens=")[1].split("&")[0]
            self.page.wait_for_function(LINK_HAS, arg=["max_new_tokens", wanted])

    def ask(self, question: str) -> None:
        self.before = self.page.evaluate("window.specdemo.stage.run")
        self.page.fill("#sd-question textarea", question)
        self.page.get_by_role("button", name="Run", exact=True).click()

    def set_number(self, label: str, name: str, value: str) -> None:
        """Fills the box beside a slider; again if it was filled before the page listened to it."""
        for _ in range(6):
            self.page.get_by_label(f"number input for {label}").fill(value)
            self.page.keyboard.press("Tab")
            try:
                self.page.wait_for_function(LINK_HAS, arg=[name, value], timeout=PATIENCE / 6)
                return
            except playwright.TimeoutError:
                continue
        pytest.fail(f"{label} does not become {value}")

    def finished(self) -> dict:
        """Waits for the end of the run; gives the trace that the script holds."""
        self.page.wait_for_function(
            """before => {
              const { root: { dataset }, run } = window.specdemo.stage;
              return dataset.phase === 'error' || run !== before && dataset.settled === run;
            }""",
            arg=self.before,
        )
        assert self.page.evaluate("document.querySelector('.sd-error').textContent") == ""
        return self.page.evaluate("window.specdemo.stage.trace")

    def open_file(self, path: Path) -> None:
        self.before = self.page.evaluate("window.specdemo.stage.run")
        with self.page.expect_file_chooser() as chooser:
            self.page.locator(".sd-open").click()
        chooser.value.set_files(path)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def open_tab(self, name: str) -> None:
        """Select a tab, which on a narrow page may be in the menu for those that found no room."""
        tab = self.page.get_by_role("tab", name=name)
        if tab.count() and tab.first.is_visible():
            tab.first.click()
        else:
            self.page.locator(".overflow-menu > button").click()
            self.page.locator(".overflow-dropdown button").filter(has_text=name).click()

    def axe_finds_nothing(self) -> None:
        self.page.get_by_role("button", name="Settings for engineers").click()
        self.page.locator("details summary").last.click()
        axe = resources.files("axe_playwright_python").joinpath("axe.min.js")
        self.page.evaluate(axe.read_text(encoding="utf-8"))
        for name in ("Race", "Benchmark", "How it works"):
            self.open_tab(name)
            expect(self.page.get_by_role("tab", name=name)).to_have_attribute(
                "aria-selected", "true"
            )
            self.page.wait_for_function(
                "document.getAnimations().every(one => one.playState !== 'running')"
            )
            found = self.page.evaluate("axe.run(document).then(result => result.violations)")
            told = [(one["id"], one["nodes"][0]["html"][:300]) for one in found]
            assert told == [], name

    def close(self) -> None:
        self.page.close()
        own = self.url, "data:", "blob:"
        assert [one for one in self.asked if not one.startswith(own)] == []
        assert self.errors == []


@pytest.fixture
def visit(browser, desk, url):
    """Opens the page in a tab; given settings of a context, in a browser that is new here."""
    opened, contexts = [], []

    def go(query: str = "max_new_tokens=24", **fresh) -> Visit:
        if fresh:
            contexts.append(browser.new_context(**fresh))
        opened.append(Visit(contexts[-1] if fresh else desk, url, query))
        return opened[-1]

    yield go
    for one in opened:
        one.close()
    for one in contexts:
        one.close()


def test_a_question_is_answered_twice_with_coloured_tokens_figures_and_rounds(visit):
    tab = visit("max_new_tokens=48")
    tab.page.evaluate("""() => {
      const box = document.querySelector('.sd-text-spec');
      window.seen = new Set();
      const look = () => window.seen.add(box.querySelectorAll('.sd-tok:not(.sd-later)').length);
      new MutationObserver(look).observe(box, { subtree: true, childList: true, attributes: true });
      window.shifts = [];
      const name = ({ node }) => (node?.className || node?.nodeName) + '';
      const note = one => window.shifts.push([one.value, ...one.sources.map(name)]);
      new PerformanceObserver(list => list.getEntries().forEach(note))
        .observe({ type: 'layout-shift' });
    }""")
    tab.ask("Explain the difference between fission and fusion")
    trace = tab.finished()
    tokens = tab.page.locator(".sd-text-spec .sd-tok:not(.sd-later)")
    assert tab.page.evaluate("window.seen.size") >= 3, "the tokens all came at once"
    assert tokens.count() == trace["summary"]["tokens"] == 48
    classes = tokens.evaluate_all("nodes => nodes.map(node => node.className.split(' ')[1])")
    assert set(classes) <= KINDS and classes[0] == "sd-first"
    assert float(tab.text('[data-figure="speculative-rate"]')) > 0
    assert float(tab.text('[data-figure="plain-rate"]')) > 0
    expect(tab.page.locator(".sd-strip .sd-round")).to_have_count(len(trace["rounds"]))
    assert tab.text(".sd-text-plain").split() == tab.text(".sd-text-spec").split()
    assert trace["identical"] is True
    assert "Identical: two independent runs" in tab.text(".sd-identity")
    shifts = tab.page.evaluate("window.shifts")
    assert sum(shift[0] for shift in shifts) < 0.02, shifts
    drawn = tab.page.get_attribute(".sd-canvas", "aria-label")
    assert drawn.count("48 tokens in") == 2
    expect(tab.page.locator(".sd-who-table")).to_contain_text("target model itself")
    assert tab.page.evaluate("typeof Plotly") == "undefined"


def test_stop_ends_a_run_at_once_and_the_next_question_is_answered(visit):
    tab = visit("max_new_tokens=1500")
    # Opened early: a box filled while Gradio still builds the panel takes its old value again.
    tab.page.get_by_role("button", name="Settings for engineers").click()
    tab.ask("Write a long story about a lighthouse keeper")
    tab.page.wait_for_selector(".sd-text-spec .sd-tok:not(.sd-later)")
    tab.page.get_by_role("button", name="Stop", exact=True).click()
    since = time.monotonic()
    stopped = tab.finished()
    assert time.monotonic() - since < 20
    assert stopped["summary"]["tokens"] < 1500 or stopped["baseline"] is None
    expect(tab.page.locator(".sd-headline")).to_have_text("Stopped")
    tab.set_number("Maximum tokens", "max_new_tokens", "8")
    tab.ask("What is two plus two?")
    assert tab.finished()["summary"]["tokens"] <= 8


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("", "The instruction is empty; write a question or a task."),
        ("7" * 9000, "this model reads fewer than"),
    ],
    ids=["empty", "too long"],
)
def test_bad_input_gets_one_sentence_on_the_page(visit, question, said):
    tab = visit()
    tab.ask(question)
    tab.page.wait_for_selector(".sd-error:not([hidden])")
    expect(tab.page.locator(".sd-error")).to_contain_text(said)
    assert tab.text(".sd-error").count(".") <= 1 + said.count(".")
    tab.page.get_by_role("button", name="Run", exact=True).wait_for()


def ids(trace: dict) -> list[int]:
    """The ids of the answer's tokens."""
    kept = [[t for t in one["drafted"] if t["accepted"]] for one in trace["rounds"]]
    last = [[one["emitted"]] if one["emitted"] else [] for one in trace["rounds"]]
    return [token["id"] for pair in zip(kept, last, strict=True) for part in pair for token in part]


HOSTILE = [
    '<img src=x onerror="window.hacked=1">',
    "<script>window.hacked=1</script>",
    "**bold**",
    "$x^2$",
    "\\(a\\)",
    "{{value}}",
    "${window.hacked=1}",
    "`code`",
    "\u0000\u001b[31m",
    "\u202edesrever",
    "&lt;",
    "\n# heading",
]


def hostile_trace() -> dict:
    """A saved run whose every text tries to be markup."""
    target = {"target_probability": 0.5}
    first = {"id": 1, "kind": "first", "text": HOSTILE[0], **target}
    rounds = [{"drafted": [], "emitted": first, "shown_at": 0.1}]
    for i, text in enumerate(HOSTILE):
        draft = {"source": "model", "text": text, "draft_probability": 0.6, **target}
        drafted = [{"id": 2, "accepted": True, **draft}, {"id": 3, "accepted": False, **draft}]
        emitted = {"id": 4, "kind": "correction", "text": text, **target}
        rounds.append({"drafted": drafted, "emitted": emitted, "shown_at": 0.2 + 0.1 * i})
    for one in rounds:
        one |= {"draft_seconds": 0.01, "verify_seconds": 0.05}
    plain = [{"id": 1, "shown_at": 0.1 + 0.1 * i, "text": HOSTILE[i % 12]} for i in range(25)]
    return {
        "schema": 1,
        "instruction": HOSTILE[1],
        "prompt_tokens": 3,
        "prompt_reused": 0,
        "pair": {"name": HOSTILE[0], "target": "t", "draft": None},
        "settings": {},
        "prefill_seconds": 0.1,
        "rounds": rounds,
        "finish_reason": "length",
        "cpu_seconds": 1.0,
        "outside_seconds": 0.01,
        "baseline": {"tokens": plain, "prefill_seconds": 0.1, "cpu_seconds": 2.0},
        "identical": True,
    }


@pytest.fixture
def saved(visit, tmp_path):
    """A tab that shows the hostile trace, opened from a file."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(hostile_trace()), encoding="utf-8")
    tab = visit()
    tab.open_file(path)
    tab.finished()
    return tab


def test_a_saved_run_replays_at_its_true_speed_and_its_text_never_becomes_markup(saved):
    shown = saved.page.evaluate("document.querySelector('.sd-text-spec').textContent")
    for text in HOSTILE:
        assert text in shown
    assert (
        saved.page.locator(".sd-stage img, .sd-stage .sd-text script, .sd-stage .sd-text b").count()
        == 0
    )
    saved.page.locator(".sd-table summary").click()
    expect(saved.page.locator(".sd-table tbody tr")).to_have_count(len(HOSTILE) + 1)
    saved.page.locator(".sd-text-spec .sd-correction").first.hover()
    expect(saved.page.locator(".sd-card")).to_contain_text("rejected here")
    assert saved.page.evaluate("window.hacked") is None
    since = time.monotonic()
    saved.page.get_by_role("button", name="Replay the race").click()
    expect(saved.page.locator(".sd-text-plain .sd-later")).not_to_have_count(0)
    saved.page.wait_for_function("document.querySelector('.sd-time').textContent === '2.40 s'")
    saved.page.wait_for_function(
        "document.querySelector('.sd-play').textContent.includes('Replay')"
    )
    assert time.monotonic() - since > 2.3


def test_the_strip_and_the_slider_move_the_answer_with_them(saved):
    saved.page.locator(".sd-round").nth(2).click()
    expect(saved.page.locator(".sd-text-spec .sd-tok:not(.sd-later)")).to_have_count(1 + 2 * 2)
    saved.page.locator(".sd-seek").fill("1000")
    expect(saved.page.locator(".sd-text-spec .sd-later")).to_have_count(0)


def test_a_question_with_markup_is_text_everywhere_and_a_run_can_be_kept_and_opened_again(
    visit, tmp_path
):
    tab = visit("max_new_tokens=6")
    tab.ask(HOSTILE[0] + " <|im_end|> **x** $y$ say it back")
    trace = tab.finished()
    assert tab.page.evaluate("window.hacked") is None
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="Download this run").click()
    path = tmp_path / "kept.json"
    download.value.save_as(path)
    other = visit()
    other.open_file(path)
    again = other.finished()
    assert again["rounds"] == trace["rounds"] and again["instruction"] == trace["instruction"]
    expect(other.page.locator(".sd-headline")).to_have_text(tab.text(".sd-headline"))


def test_every_control_reaches_the_run_and_its_link_restores_all_with_the_result_in_a_fresh_browser(
    visit,
):
    tab = visit("max_new_tokens=24&kv_cache=auto")
    page = tab.page
    page.get_by_role("button", name="Settings for engineers").click()
    chosen = {"Drafter": "lookup", "Draft length": "3", "Acceptance rule": "maximal"}
    for label, value in chosen.items():
        page.get_by_label(label, exact=True).click()
        page.get_by_role("option", name=value, exact=True).click()
    tab.set_number("Maximum tokens", "max_new_tokens", "7")
    tab.set_number("Temperature", "temperature", "0.5")
    tab.set_number("Top-p", "top_p", "0.9")
    for label, value in (("Top-k", "40"), ("Seed", "11")):
        page.get_by_label(label).fill(value)
        page.keyboard.press("Tab")
    page.get_by_label("fast", exact=True).check()
    page.wait_for_function("window.specdemo.link().includes('numerics=fast')")
    for label in ("Device", "Draft device", "Pair", "KV cache precision"):
        expect(page.get_by_label(label, exact=True)).to_be_visible()
    tab.ask("Why & how?")
    trace = tab.finished()
    wanted = {
        "max_new_tokens": 7,
        "draft_tokens": 3,
        "drafter": "lookup",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": 11,
        "numerics": "fast",
        "coupling": "maximal",
    }
    assert {name: trace["settings"][name] for name in wanted} == wanted
    page.get_by_role("button", name="Copy a link").click()
    expect(page.locator(".sd-link-text")).not_to_have_value("")
    link = page.input_value(".sd-link-text")
    other = visit(link.split("?", 1)[1], viewport={"width": 1280, "height": 1000})
    assert ids(other.finished()) == ids(trace)
    expect(other.page.locator(".sd-headline")).to_have_text(tab.text(".sd-headline"))
    plain = link.split("#")[0]
    other.page.wait_for_function("link => window.specdemo.link() === link", arg=plain)


def test_an_old_link_to_a_run_says_that_it_is_not_kept_and_keeps_the_question(visit):
    tab = visit("run=0123456789abcdef&question=Why%3F&max_new_tokens=5")
    expect(tab.page.locator(".sd-note")).to_contain_text("kept the run of this old link only until")
    expect(tab.page.locator("#sd-question textarea")).to_have_value("Why?")


@pytest.mark.skipif("SPECDEMO_ENGINE" in os.environ, reason="an engine elsewhere has one pair")
def test_a_pair_of_ones_own_is_asked_for_by_name_and_a_wrong_name_gets_one_sentence(visit):
    tab = visit()
    tab.page.get_by_role("button", name="Settings for engineers").click()
    tab.page.get_by_label("Pair", exact=True).click()
    tab.page.get_by_role("option", name="Your own pair").click()
    tab.page.locator("#sd-own-target").locator("textarea, input").fill("no such model")
    tab.ask("Why?")
    expect(tab.page.locator(".sd-error")).to_have_text(
        "Target 'no such model' is neither a folder here nor a Hub repository (owner/name)."
    )


@pytest.fixture
def fake():
    """Another server, whose models load when `ready` is set; they are made up."""
    ready = threading.Event()

    def opener(pair, report):
        report("Compiling the models")
        ready.wait(60)
        return FakeSession()

    service = Service(ModelChoice("embedded"), opener)
    blocks, looks = page.build(service, choice.Offer(ModelChoice("embedded"), False))
    _, url, _ = blocks.queue().launch(prevent_thread_lock=True, quiet=True, **looks)
    service.start()
    yield SimpleNamespace(url=url, ready=ready)
    ready.set()
    blocks.close()


def test_a_recorded_race_plays_while_models_load_and_run_pressed_at_once_is_answered(browser, fake):
    tab = Visit(browser.new_context(), fake.url, "")
    tab.page.wait_for_function("window.specdemo.stage.playing")
    expect(tab.page.locator(".sd-note")).to_contain_text("Recorded on")
    question = tab.page.input_value("#sd-question textarea")
    assert question in tab.text(".sd-note")
    tab.before = tab.page.evaluate("window.specdemo.stage.run")
    tab.page.get_by_role("button", name="Run", exact=True).click()
    expect(tab.page.locator(".sd-note")).to_have_text(
        "Compiling the models. Your question is next."
    )
    expect(tab.page.locator(".sd-text-spec .sd-tok:not(.sd-later)")).not_to_have_count(0)
    assert tab.text(".sd-spoken") == ""
    fake.ready.set()
    assert tab.finished()["instruction"] == question
    assert tab.text(".sd-spoken").startswith(tab.text(".sd-headline"))
    tab.close()


def test_a_link_to_a_run_opens_on_a_server_that_never_saw_it(browser, visit, saved, fake):
    saved.page.get_by_role("button", name="Copy a link").click()
    expect(saved.page.locator(".sd-link-text")).not_to_have_value("")
    link = saved.page.input_value(".sd-link-text")
    other = Visit(browser.new_context(), fake.url, "#" + link.split("#")[1])
    assert other.finished()["instruction"] == HOSTILE[1]
    assert other.page.evaluate("window.hacked") is None
    assert other.page.locator(".sd-stage img, .sd-text script").count() == 0
    other.close()


@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("7VdLb9s4EP4r", "the link is damaged or was cut off"),
        ("%3Cscript%3E", "the link is damaged or was cut off"),
        (packed(b"0" * 20_000_000), "the link is damaged or was cut off"),
        (packed(b'{"schema": 1}'), "is missing."),
        (packed(b"<b>"), "is not JSON"),
    ],
    ids=["cut off", "markup", "a bomb", "no trace", "no JSON"],
)
def test_a_link_that_holds_no_run_says_so_in_one_sentence(visit, fragment, said):
    tab = visit("#run=" + fragment)
    expect(tab.page.locator(".sd-error")).to_contain_text(said)
    assert tab.text(".sd-error").count(".") == 1
    expect(tab.page.locator(".sd-note")).to_contain_text("Recorded on")


def test_a_run_too_long_for_a_link_says_so_and_gives_the_question(visit):
    tab = visit()
    tab.page.evaluate("""() => {
      const noise = () => Array.from({ length: 100 }, () => Math.random().toString(36)).join('');
      for (const round of window.specdemo.stage.trace.rounds) round.noise = Array.from(
        { length: 20 }, noise);
    }""")
    tab.page.get_by_role("button", name="Copy a link").click()
    expect(tab.page.locator(".sd-keep [role=status]")).to_contain_text("Download the run instead")
    assert "#run" not in tab.page.input_value(".sd-link-text")


def test_the_card_of_a_run_is_a_picture_of_1200_by_630_in_which_text_stays_text(saved, tmp_path):
    for kind in ("PNG", "SVG"):
        with saved.page.expect_download() as download:
            saved.page.get_by_role("button", name=f"Card ({kind})").click()
        download.value.save_as(tmp_path / kind)
    assert struct.unpack(">II", (tmp_path / "PNG").read_bytes()[16:24]) == (1200, 630)
    root = ElementTree.parse(tmp_path / "SVG").getroot()
    assert {node.tag.split("}")[1] for node in root.iter()} == {"svg", "rect", "text"}
    assert any("<script>" in (node.text or "") for node in root.iter())


def test_what_if_expects_what_leviathans_theorem_gives_over_the_costs_of_the_run(saved):
    trace = from_json(json.dumps(hostile_trace()))
    costs = measured_costs([trace])
    for rate, length in ((0.0, 1), (0.6, 4), (0.9, 15)):
        there = saved.page.evaluate(
            "([rate, length]) => window.specdemo.expectedSpeedup(rate, length, "
            "window.specdemo.stage.figures.costs)",
            [rate, length],
        )
        step = summarize(trace).draft_seconds / summarize(trace).drafted
        assert there == pytest.approx(expected_speedup(rate, length, costs, step))
    saved.page.locator(".sd-alpha").fill("0")
    expect(saved.page.locator(".sd-formula")).to_contain_text("α = 0.00 (acceptance rate)")


def test_with_reduced_motion_the_result_is_there_without_the_race(visit):
    tab = visit("", reduced_motion="reduce")
    expect(tab.page.locator(".sd-details")).to_be_visible()
    assert tab.page.evaluate("window.specdemo.stage.playing") is False
    expect(tab.page.locator(".sd-text-spec .sd-later")).to_have_count(0)


def test_an_embedded_page_shows_the_race_without_header_and_settings(visit):
    tab = visit("embed=1", viewport={"width": 640, "height": 480})
    expect(tab.page.locator(".sd-race")).to_be_visible()
    for hidden in ("#sd-header", "#sd-ask", "#sd-settings", "footer"):
        expect(tab.page.locator(hidden)).to_be_hidden()
    expect(tab.page.get_by_role("link", name="Open the whole page")).to_be_visible()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 640


def test_a_token_tells_by_keyboard_what_the_draft_thought(saved):
    saved.page.locator(".sd-text-spec").focus()
    for _ in range(2):
        saved.page.keyboard.press("ArrowRight")
    for said in ("accepted draft token", "60 %", "50 %"):
        expect(saved.page.locator(".sd-card")).to_contain_text(said)
    saved.page.keyboard.press("Escape")
    expect(saved.page.locator(".sd-card")).to_be_hidden()


def test_work_per_update_does_not_grow_with_the_answer(visit):
    tab = visit()
    changes = tab.page.evaluate("""() => {
      const stage = window.specdemo.stage, counts = [];
      const draft = { id: 1, draft_probability: .5, target_probability: .5, accepted: true,
        source: 'model', text: ' word' };
      const emitted = { id: 2, kind: 'bonus', target_probability: .5, text: ' more' };
      const round = (i) => ({ drafted: [draft], emitted, draft_seconds: .001,
        verify_seconds: .01, shown_at: .01 * i });
      const watch = new MutationObserver(() => {});
      watch.observe(document.body,
        { subtree: true, childList: true, attributes: true, characterData: true });
      const pen = CanvasRenderingContext2D.prototype, line = pen.lineTo;
      let strokes = 0;
      pen.lineTo = function (...at) { strokes++; return line.apply(this, at); };
      for (let i = 0; i < 300; i++) {
        stage.take({ run: 'x', phase: 'speculative', note: '', limit: 1200,
          rounds_from: i, rounds: [round(i)], plain_from: 0, plain: [] });
        stage.follow();
        counts.push(watch.takeRecords().length);
      }
      for (let i = 0; i < 2000; i++) stage.addRound(round(300 + i));
      stage.spec.reach(2300, 5000);
      strokes = 0;
      stage.sketch.paint();
      return { counts, strokes };
    }""")
    assert max(changes["counts"][200:]) <= max(changes["counts"][10:100]) + 2
    assert changes["strokes"] <= 2 * 300 + 8, "a drawing of the sketch grows with the answer"


def test_the_rounds_follow_the_race_once_they_are_in_sight(visit):
    tab = visit(viewport={"width": 1280, "height": 500})
    tab.page.evaluate("""() => {
      const emitted = { id: 2, kind: 'plain', target_probability: .5, text: ' word' };
      const rounds = Array.from({ length: 200 }, (_, i) => ({ drafted: [], draft_seconds: 0,
        verify_seconds: .01, shown_at: .01 * i, emitted }));
      window.specdemo.stage.receive(JSON.stringify({ run: 'x', phase: 'speculative', note: '',
        limit: 300, rounds_from: 0, rounds, plain_from: 0, plain: [] }));
    }""")
    expect(tab.page.locator(".sd-text-spec .sd-later")).to_have_count(0)
    assert tab.page.evaluate("window.specdemo.stage.stripSeen") is False
    tab.page.locator(".sd-strip").scroll_into_view_if_needed()
    tab.page.wait_for_function("document.querySelector('.sd-strip').scrollLeft > 1000")


def test_axe_finds_nothing_on_the_page(visit):
    tab = visit("max_new_tokens=12")
    assert not tab.page.evaluate("document.body.classList.contains('dark')")
    tab.ask("Name two colours")
    tab.finished()
    tab.axe_finds_nothing()


def test_a_phone_in_the_dark_shows_everything_without_sideways_scrolling_and_axe_agrees(visit):
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    tab = visit("max_new_tokens=12", color_scheme="dark", **phone)
    assert tab.page.evaluate("document.body.classList.contains('dark')")
    tab.ask("What is a rainbow?")
    tab.finished()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.page.locator(".sd-text-spec .sd-tok").first.tap()
    expect(tab.page.locator(".sd-card")).to_contain_text("first token")
    tab.axe_finds_nothing()


def test_a_small_benchmark_runs_on_the_page_and_its_files_can_be_kept(visit, tmp_path):
    tab = visit("")
    tab.page.get_by_role("tab", name="Benchmark").click()
    for name, value in (("Prompts", "2"), ("Tokens per answer", "8")):
        tab.page.get_by_label(f"number input for {name}").fill(value)
        tab.page.keyboard.press("Tab")
    tab.page.get_by_role("button", name="Run the benchmark").click()
    tab.page.wait_for_selector(".sd-bench-summary b")
    expect(tab.page.locator("#sd-bench-table tbody tr")).to_have_count(2)
    kept = {}
    for kind in ("CSV", "JSON", "HTML"):
        with tab.page.expect_download() as download:
            tab.page.get_by_role("button", name=f"Download {kind}").click()
        path = tmp_path / kind
        download.value.save_as(path)
        kept[kind] = path.read_text(encoding="utf-8")
    assert len(kept["CSV"].splitlines()) == 3
    assert len(json.loads(kept["JSON"])["rows"]) == 2
    assert kept["HTML"].startswith("<!DOCTYPE html>")


def test_other_sites_are_told_the_pages_name_and_given_its_card(url):
    source = urllib.request.urlopen(url).read().decode()
    assert source.count('property="og:title"') == source.count('property="og:image"') == 1
    assert f'property="og:image" content="{url}card.png"' in source
    assert "Click to try out the app" not in source
    card = urllib.request.urlopen(url + "card.png")
    assert struct.unpack(">II", card.read()[16:24]) == (1200, 630)


def test_gradio_client_gets_a_streamed_answer_a_comparison_and_one_sentence_for_bad_input(url):
    from gradio_client import Client
    from gradio_client.exceptions import AppError

    client = Client(url, verbose=False)
    parts = list(client.submit("Explain why the sky is blue", 30, api_name="/generate"))
    assert len(parts) > 2 and parts[-1]["done"] and parts[-1]["tokens"] == 30
    assert "".join(part["delta"] for part in parts) == parts[-1]["text"]
    compared = client.predict("Explain why the sky is blue", 30, api_name="/compare")
    assert compared["identical"] is True and compared["speedup"] > 0
    assert compared["text"] == parts[-1]["text"]
    with pytest.raises(AppError, match="max_new_tokens is 0; it must be at least 1"):
        client.predict("Hello", 0, api_name="/compare")


def test_an_mcp_client_gets_an_answer_and_a_comparison(url):
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    steps = []

    async def progress(step, total, message):
        steps.append(step)

    async def use():
        async with (
            streamablehttp_client(url + "gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = {tool.name.split("_")[-1]: tool for tool in (await session.list_tools()).tools}
            asked = {"instruction": "Name a colour", "max_new_tokens": 8}
            calls = [("generate", asked), ("compare", asked)]
            calls.append(("compare", {**asked, "max_new_tokens": 0}))
            answers = [
                await session.call_tool(tools[name].name, given, progress_callback=progress)
                for name, given in calls
            ]
            return tools, answers

    with ThreadPoolExecutor(1) as other:  # playwright keeps an event loop of its own in this thread
        tools, (answer, compared, refused) = other.submit(lambda: asyncio.run(use())).result()
    assert set(tools) == {"generate", "compare", "benchmark"}
    assert "speculative decoding" in tools["generate"].description
    assert answer.structuredContent["done"] and answer.structuredContent["tokens"] == 8
    assert "both answers are identical" in compared.structuredContent["verdict"]
    for one in (answer, compared):
        assert json.loads(one.content[0].text) == one.structuredContent
    assert refused.isError
    assert refused.content[0].text == "max_new_tokens is 0; it must be at least 1."
    assert steps[:2] == [0, 1]
