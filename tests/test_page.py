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
from contextlib import suppress
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from fakes import FakeSession, page_server

from specdemo.bench.costs import expected_speedup, measured_costs
from specdemo.settings import ModelChoice, Settings
from specdemo.trace import PairInfo, Trace, summarize, to_json
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
    command = [sys.executable, "app.py", "--port", address.split(":")[-1].strip("/")]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=offline) as server:
        while server.poll() is None:
            with suppress(OSError):
                urllib.request.urlopen(address, timeout=2).read()
                break
            time.sleep(0.1)
        yield address
        server.terminate()


@pytest.fixture(scope="module")
def browser(chromium):
    with playwright.sync_playwright() as run:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        yield run.chromium.launch(executable_path=chromium, args=arguments)


@pytest.fixture(scope="module")
def desk(browser):
    """A window of a usual size. Tabs share its cache, as a visitor's do."""
    return browser.new_context(viewport={"width": 1280, "height": 1000}, color_scheme="light")


class Visit:
    """A browser tab on the page; notes what the console says and requests to other hosts."""

    def __init__(self, context, url: str, query: str = "max_new_tokens=24"):
        self.page = context.new_page()
        self.errors: list[str] = []
        self.asked: set[str] = set()
        self.url = url
        self.before = None  # the run that was on the stage when a question was asked
        self.page.on("console", self.heard)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.add(request.url))
        self.page.set_default_timeout(PATIENCE)
        self.page.goto(url + ("?" + query if query else ""))
        self.page.wait_for_function("window.specdemo?.stage")
        if "max_new_tokens=" in query:
            wanted = query.split("max_new_tokens=")[1].split("&")[0]
            self.page.wait_for_function(LINK_HAS, arg=["max_new_tokens", wanted])

    def heard(self, message) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

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
        if not (tab.count() and tab.first.is_visible()):
            self.page.locator(".overflow-menu > button").click()
            tab = self.page.locator(".overflow-dropdown button").filter(has_text=name)
        tab.first.click()

    def kept(self, button: str, path: Path) -> Path:
        """What a button lets a visitor download."""
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name=button).click()
        download.value.save_as(path)
        return path

    def link(self) -> str:
        """The link that "Copy a link" shows."""
        self.page.get_by_role("button", name="Copy a link").click()
        expect(self.page.locator(".sd-link-text")).not_to_have_value("")
        return self.page.input_value(".sd-link-text")

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
    tab = visit("max_new_tokens=96")
    tab.page.evaluate("""() => {
      const box = document.querySelector('.sd-text-spec');
      window.seen = new Set();
      window.shifts = [];
      new MutationObserver(() => window.seen.add(box.childElementCount))
        .observe(box, { childList: true });
      const name = ({ node }) => (node?.className || node?.nodeName) + '';
      const note = one => window.shifts.push([one.value, ...one.sources.map(name)]);
      new PerformanceObserver(list => list.getEntries().forEach(note))
        .observe({ type: 'layout-shift' });
    }""")
    tab.ask("Explain the difference between fission and fusion")
    trace = tab.finished()
    tokens = tab.page.locator(".sd-text-spec .sd-tok:not(.sd-later)")
    assert tab.page.evaluate("window.seen.size") >= 3, "the tokens all came at once"
    assert tokens.count() == trace["summary"]["tokens"] == 96
    classes = tokens.evaluate_all("nodes => nodes.map(node => node.className.split(' ')[1])")
    assert set(classes) <= KINDS and classes[0] == "sd-first"
    for figure in ("speculative-rate", "plain-rate"):
        assert float(tab.text(f'[data-figure="{figure}"]')) > 0
    expect(tab.page.locator(".sd-strip .sd-round")).to_have_count(len(trace["rounds"]))
    assert tab.text(".sd-text-plain").split() == tab.text(".sd-text-spec").split()
    assert trace["identical"] is True
    assert "Identical: two independent runs" in tab.text(".sd-identity")
    shifts = tab.page.evaluate("window.shifts")
    assert sum(shift[0] for shift in shifts) < 0.02, shifts
    drawn = tab.page.get_attribute(".sd-sketch", "aria-label")
    assert drawn.count("96 tokens in") == 2
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
    expect(tab.page.locator(".sd-error")).to_contain_text(said)
    assert tab.text(".sd-error").count(".") <= 1 + said.count(".")
    tab.page.get_by_role("button", name="Run", exact=True).wait_for()


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


def hostile_trace() -> Trace:
    """A run whose every text tries to be markup."""
    session = FakeSession(HOSTILE, info=PairInfo(HOSTILE[0], "t", None))
    *_, trace = session.race(HOSTILE[1], Settings(max_new_tokens=2 * len(HOSTILE) + 1))
    return trace


@pytest.fixture
def saved(visit, tmp_path):
    """A tab that shows the hostile trace, opened from a file."""
    path = tmp_path / "run.json"
    path.write_text(to_json(hostile_trace()), encoding="utf-8")
    tab = visit()
    tab.open_file(path)
    tab.finished()
    return tab


def test_a_saved_run_replays_at_its_true_speed_and_its_text_never_becomes_markup(saved):
    page = saved.page
    shown = page.evaluate("document.querySelector('.sd-text-spec').textContent")
    assert all(text in shown for text in HOSTILE)
    assert page.locator(".sd-stage img, .sd-text script, .sd-text b").count() == 0
    page.locator(".sd-table summary").click()
    expect(page.locator(".sd-table tbody tr")).to_have_count(2 * len(HOSTILE) + 1)
    page.locator(".sd-text-spec .sd-correction").first.hover()
    expect(page.locator(".sd-card")).to_contain_text("rejected here")
    assert page.evaluate("window.hacked") is None
    since = time.monotonic()
    page.get_by_role("button", name="Replay the race").click()
    expect(page.locator(".sd-text-plain .sd-later")).not_to_have_count(0)
    page.wait_for_function("document.querySelector('.sd-time').textContent === '0.48 s'")
    expect(page.locator(".sd-play")).to_contain_text("Replay")
    assert time.monotonic() - since > 0.45


def test_the_strip_and_the_slider_move_the_answer_with_them(saved):
    saved.page.locator(".sd-round").nth(2).click()
    expect(saved.page.locator(".sd-text-spec .sd-tok:not(.sd-later)")).to_have_count(3)
    saved.page.locator(".sd-seek").fill("1000")
    expect(saved.page.locator(".sd-text-spec .sd-later")).to_have_count(0)


def test_a_question_with_markup_is_text_everywhere_and_a_run_can_be_kept_and_opened_again(
    visit, tmp_path
):
    tab = visit("max_new_tokens=6")
    tab.ask(HOSTILE[0] + " <|im_end|> **x** $y$ say it back")
    trace = tab.finished()
    assert tab.page.evaluate("window.hacked") is None
    other = visit()
    other.open_file(tab.kept("Download this run", tmp_path / "kept.json"))
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
    numbers = {"Maximum tokens": "max_new_tokens", "Temperature": "temperature", "Top-p": "top_p"}
    for (label, name), value in zip(numbers.items(), ("7", "0.5", "0.9"), strict=True):
        tab.set_number(label, name, value)
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
    assert trace["settings"] == wanted
    link = tab.link()
    other = visit(link.split("?", 1)[1], viewport={"width": 1280, "height": 1000})
    other.finished()
    assert other.text(".sd-text-spec") == tab.text(".sd-text-spec")
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
def fake(tmp_path):
    """Another server, whose models load when `ready` is set; they are made up."""
    ready = threading.Event()

    def opener(pair, report):
        report("Compiling the models")
        ready.wait(60)
        return FakeSession()

    service = Service(ModelChoice("embedded"), opener)
    service.start()
    with page_server(service, tmp_path) as url:
        yield SimpleNamespace(url=url + "/", ready=ready)
        ready.set()


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
    other = Visit(browser.new_context(), fake.url, "#" + saved.link().split("#")[1])
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
    assert "#run" not in tab.link()
    expect(tab.page.locator(".sd-kept")).to_contain_text("Download the run instead")


def test_the_card_of_a_run_is_a_picture_of_1200_by_630_in_which_text_stays_text(saved, tmp_path):
    png = saved.kept("Card (PNG)", tmp_path / "png").read_bytes()
    assert struct.unpack(">II", png[16:24]) == (1200, 630)
    root = ElementTree.parse(saved.kept("Card (SVG)", tmp_path / "svg")).getroot()
    assert {node.tag.split("}")[1] for node in root.iter()} == {"svg", "rect", "text"}
    assert any("<script>" in (node.text or "") for node in root.iter())


def test_what_if_expects_what_leviathans_theorem_gives_over_the_costs_of_the_run(saved):
    trace = hostile_trace()
    costs, summary = measured_costs([trace]), summarize(trace)
    expected = "asked => window.specdemo.expectedSpeedup(...asked, specdemo.stage.figures.costs)"
    for asked in ((0.0, 1), (0.6, 4), (0.9, 15)):
        there = expected_speedup(*asked, costs, summary.draft_seconds / summary.drafted)
        assert saved.page.evaluate(expected, asked) == pytest.approx(there)
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
    for said in ("accepted draft token", "draft50 %", "target50 %"):
        expect(saved.page.locator(".sd-card")).to_contain_text(said)
    saved.page.keyboard.press("Escape")
    expect(saved.page.locator(".sd-card")).to_be_hidden()


ROUNDS = """count => Array.from({ length: count }, (_, at) => ({
  drafted: [{ id: 1, draft_probability: .5, target_probability: .5, accepted: true,
    source: 'model', text: ' word' }],
  emitted: { id: 2, kind: 'bonus', target_probability: .5, text: ' more' },
  draft_seconds: .001, verify_seconds: .01, shown_at: .01 * at }))"""
"""Rounds of a run in progress, of two tokens each."""


def test_work_per_update_does_not_grow_with_the_answer(visit):
    counts, points = visit().page.evaluate(
        """rounds => {
      const { stage } = window.specdemo, counts = [], watch = new MutationObserver(() => {});
      watch.observe(document.body,
        { subtree: true, childList: true, attributes: true, characterData: true });
      rounds.forEach((round, at) => {
        stage.take({ run: 'x', phase: 'speculative', note: '', limit: 1200,
          rounds_from: at, rounds: [round], plain_from: 0, plain: [] });
        if (at < 300 || at === rounds.length - 1) stage.show(Infinity);
        counts.push(watch.takeRecords().length);
      });
      const [line] = document.querySelectorAll('.sd-sketch polyline');
      return [counts, line.points.length];
    }""",
        visit().page.evaluate(ROUNDS, 2300),
    )
    assert max(counts[200:300]) <= max(counts[10:100]) + 2
    assert points < 320, "the sketch grows with the answer"


def test_the_rounds_follow_the_race_once_they_are_in_sight(visit):
    tab = visit(viewport={"width": 1280, "height": 500})
    rounds = tab.page.evaluate(ROUNDS, 200)
    tab.page.evaluate(
        """rounds => window.specdemo.stage.receive(JSON.stringify({ run: 'x', note: '', rounds,
        phase: 'speculative', limit: 300, rounds_from: 0, plain_from: 0, plain: [] }))""",
        rounds,
    )
    expect(tab.page.locator(".sd-text-spec .sd-tok")).to_have_count(400)
    assert tab.page.locator(".sd-strip .sd-round").count() == 0
    tab.page.locator(".sd-strip").scroll_into_view_if_needed()
    tab.page.wait_for_function("document.querySelector('.sd-strip').scrollLeft > 1000")


def test_a_page_at_rest_asks_for_no_frames(browser, url):
    context = browser.new_context(reduced_motion="reduce")
    context.add_init_script("""window.asked = 0;
      const real = requestAnimationFrame;
      window.requestAnimationFrame = draw => { window.asked++; return real(draw); };""")
    tab = Visit(context, url)
    for _ in range(60):  # until Gradio has finished with what it does after loading
        tab.page.evaluate("window.asked = 0")
        tab.page.wait_for_timeout(500)
        if tab.page.evaluate("window.asked") == 0:
            break
    else:
        pytest.fail("something asks for frames for ever")
    tab.close()


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
    report, whole = (
        tab.kept(f"Download {kind}", tmp_path / kind).read_text(encoding="utf-8")
        for kind in ("JSON", "HTML")
    )
    assert len(json.loads(report)["rows"]) == 2
    assert whole.startswith("<!DOCTYPE html>")


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
    parts = list(client.submit("Explain why the sky is blue", 60, api_name="/generate"))
    assert len(parts) > 2 and parts[-1]["done"] and parts[-1]["tokens"] == 60
    assert "".join(part["delta"] for part in parts) == parts[-1]["text"]
    compared = client.predict("Explain why the sky is blue", 60, api_name="/compare")
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
            return tools, [
                await session.call_tool(
                    tools[name].name,
                    {"instruction": "Name a colour", "max_new_tokens": length},
                    progress_callback=progress,
                )
                for name, length in (("generate", 8), ("compare", 8), ("compare", 0))
            ]

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
