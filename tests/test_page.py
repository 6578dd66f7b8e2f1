"""The page in a Chromium. Made-up sessions answer, except where a test is about real models."""

import base64
import contextlib
import dataclasses
import json
import random
import re
import threading
import time
import zlib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import httpx
import pytest
from helpers import at_pace, page_server, race_trace, service_of, until
from test_page_parts import PLAIN, ROUND, SAVED, largest_run
from toy_session import ToySession, toy_clock

from specdemo.bench.report import WAYS
from specdemo.engine.rounds import DraftToken, EmittedToken, Round
from specdemo.errors import BadInput
from specdemo.machine.terminal import Progress
from specdemo.pairs.registry import ModelChoice, PairInfo
from specdemo.runs.race import on_show
from specdemo.runs.session import Session
from specdemo.runs.trace import Baseline, BaselineToken, Trace
from specdemo.server.page import benchmark, events
from specdemo.server.page.layout import BOOK, DOES_NOT_PAY, FIRST_QUESTION
from specdemo.server.page.service import Service, VisitorLimits

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

PATIENCE = 60_000
"""Milliseconds to wait for anything: the machine may be busy with something else."""

expect.set_options(timeout=PATIENCE)

TROUBLE = "error", "warning"
LINK_HAS = """([name, value]) =>
  (new URLSearchParams(window.specdemo.link().split('?')[1]).get(name) ?? '') === value"""
"""Whether the page's link has the value: what the page knows of its inputs."""
DRAWN = """document.querySelector('.sd-plot')?.dataset.run === window.specdemo?.race?.run
  && !!document.querySelector('.sd-chart').data"""
"""Whether the chart is that of the run on show."""

DESK = {"viewport": {"width": 1280, "height": 1000}, "has_touch": True, "color_scheme": "light"}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "color_scheme": "dark"}


class Tab:
    """A browser tab on the page; notes what the console says and requests to other hosts."""

    def __init__(self, context, url: str, query: str = "speed=steps"):
        self.page = context.new_page()
        self.errors: list[str] = []
        self.requested: set[str] = set()
        self.url = url
        self.before = None  # the run that was shown when a question was asked
        note = self.errors.append
        self.page.on("console", lambda said: note(said.text) if said.type in TROUBLE else None)
        self.page.on("pageerror", lambda error: note(str(error)))
        self.page.on("request", lambda request: self.requested.add(request.url))
        self.page.set_default_timeout(PATIENCE)
        self.page.goto(f"{url}?{query}")
        self.page.wait_for_function("window.specdemo?.race?.run")
        if "max_new_tokens=" in query:
            wanted = query.split("max_new_tokens=")[1].split("&")[0]
            self.wait_for_link("max_new_tokens", wanted)

    def wait_for_link(self, name: str, value: str) -> None:
        self.page.wait_for_function(LINK_HAS, arg=[name, value])

    def press(self, button: str) -> None:
        self.page.get_by_role("button", name=button, exact=True).click()

    def unfold(self, accordion: str) -> None:
        """Opens an accordion; waits for the next frame, when Gradio sets its inputs once more."""
        self.page.get_by_role("button", name=accordion).click()
        twice = "requestAnimationFrame(() => requestAnimationFrame(ask))"
        self.page.evaluate(f"() => new Promise(ask => {twice})")

    def run(self, button: str = "Run") -> None:
        self.before = self.page.evaluate("window.specdemo.race.run")
        self.press(button)

    def ask(self, question: str) -> None:
        self.page.fill("#sd-question textarea", question)
        self.run()

    def finished(self) -> dict:
        """Waits for the end of the run and its repeats; gives the trace that the script holds."""
        self.page.wait_for_function(
            """before => {
              const { root: { dataset }, run } = window.specdemo.race;
              return dataset.phase === 'error'
                || run !== before && dataset.settled === run && dataset.phase !== 'again';
            }""",
            arg=self.before,
        )
        assert self.text(".sd-state .sd-error") == ""
        return self.page.evaluate("window.specdemo.race.trace")

    def open_file(self, path: Path) -> None:
        self.before = self.page.evaluate("window.specdemo.race.run")
        self.page.locator(".sd-open").set_input_files(path)
        self.finished()

    def text(self, selector: str) -> str:
        return self.page.evaluate("name => document.querySelector(name).textContent", selector)

    def tab(self, name: str) -> None:
        tab = self.page.get_by_role("tab", name=name)
        tab.click()
        expect(tab).to_have_attribute("aria-selected", "true")

    def downloaded(self, button: str) -> str:
        """The text of the file that a button gives."""
        with self.page.expect_download() as download:
            self.press(button)
        return download.value.path().read_text("utf-8")

    def link(self) -> str:
        """The link to the run."""
        self.press("Copy a link to this run")
        expect(self.page.locator(".sd-link-text")).not_to_have_value("")
        return self.page.input_value(".sd-link-text")

    def close(self) -> None:
        self.page.close()
        own = self.url, "data:", "blob:"
        assert [url for url in self.requested if not url.startswith(own)] == []
        assert self.errors == []


@pytest.fixture(scope="module")
def session():
    """Answers with the question from its end, which n-gram lookup cannot draft."""
    with toy_clock(), ToySession(lambda question: question[::-1]) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(session):
    return service_of(session, VisitorLimits(per_minute=10_000, race_seconds=0.01))


@pytest.fixture(scope="module")
def url(service):
    with page_server(service) as url:
        yield url + "/"


@pytest.fixture(scope="module")
def real_url(embedded_pair):
    """Address of a page with the embedded pair."""
    service = service_of(Session(embedded_pair, background=False), VisitorLimits(race_seconds=0))
    with page_server(service) as url:
        yield url + "/"


@pytest.fixture(scope="module")
def desk(browser):
    """A window of a usual size. Tabs share its cache, as a visitor's do."""
    return browser.new_context(**DESK)


@pytest.fixture
def open_tab(desk):
    """Opens tabs; at the end no console may have a message, and no other host a request."""
    tabs = []

    def go(url: str, query: str = "speed=steps", context=desk) -> Tab:
        tabs.append(Tab(context, url, query))
        return tabs[-1]

    yield go
    for tab in tabs:
        tab.close()


@pytest.fixture(scope="module")
def shared_tab(desk, url):
    tab = Tab(desk, url)
    yield tab
    tab.close()


@pytest.fixture
def tab(shared_tab):
    """One tab for all tests that begin on the race tab and leave no setting changed."""
    shared_tab.tab("Race")
    yield shared_tab
    assert shared_tab.errors == []


# Real models


WATCH = """() => {
  const box = document.querySelector('.sd-text-spec');
  window.seen = new Set();
  window.shifts = [];
  new MutationObserver(() => window.seen.add(box.childElementCount))
    .observe(box, { childList: true });
  const name = ({ node }) => (node?.className || node?.nodeName) + '';
  const note = one => window.shifts.push([one.value, ...one.sources.map(name)]);
  new PerformanceObserver(list => list.getEntries().forEach(note))
    .observe({ type: "layout-shift" });
}"""


def test_a_question_is_answered_twice_with_coloured_tokens_figures_and_rounds(open_tab, real_url):
    tab = open_tab(real_url, "max_new_tokens=64&speed=steps")
    page = tab.page
    page.evaluate(WATCH)
    tab.ask("Explain the difference between fission and fusion")
    trace = tab.finished()
    tokens = page.locator(".sd-text-spec .sd-tok:not(.sd-later)")
    assert tokens.count() == trace["summary"]["tokens"] == 64
    expect(tokens.first).to_have_class("sd-tok sd-own")
    assert all("64 tokens" in pace for pace in page.locator(".sd-pace").all_inner_texts())
    expect(page.locator(".sd-tree .sd-round")).to_have_count(len(trace["rounds"]))
    assert tab.text(".sd-text-baseline").split() == tab.text(".sd-text-spec").split()
    assert trace["identical"] is True
    assert "Identical: two independent runs" in tab.text(".sd-identity")
    shifts = page.evaluate("window.shifts")
    assert sum(shift[0] for shift in shifts) < 0.02, shifts
    drawn = page.get_attribute(".sd-chart", "aria-label")
    assert drawn.count("64 tokens in") == 2
    page.get_by_text("For engineers").click()
    expect(page.locator(".sd-who")).to_contain_text("target model itself")
    assert trace["verdict"]["sentence"]
    expect(page.locator(".sd-cost-sentence")).not_to_be_empty()
    # A prediction that the race belies, as on a busy machine, is not shown.
    said = page.locator(".sd-prediction").is_visible()
    assert (tab.text(".sd-predicted") != "-") == said

    # An example runs, and answers as JSON until its chip is removed.
    tab.run("As JSON: a novel of the sea")
    trace = tab.finished()
    tab.wait_for_link("json_schema", json.dumps(BOOK))
    assert tab.text(".sd-text-spec").startswith('{"title": "') and trace["identical"]
    drafted = [token for round_ in trace["rounds"] for token in round_["drafted"]]
    assert any(token["accepted"] and token["source"] == "grammar" for token in drafted)
    page.locator(".sd-text-spec .sd-right").first.click()
    expect(page.locator(".sd-about")).to_contain_text("forced by the grammar")
    chip = page.get_by_role("button", name="JSON ✕")
    chip.click()
    tab.wait_for_link("json_schema", "")
    expect(chip).to_be_hidden()


def test_gradio_client_gets_a_streamed_answer_and_one_sentence_for_bad_input(real_url):
    from gradio_client import Client
    from gradio_client.exceptions import AppError

    client = Client(real_url, verbose=False)
    parts = list(client.submit("Explain why the sky is blue", 60, api_name="/generate"))
    assert len(parts) > 1 and parts[-1]["done"] and parts[-1]["tokens"] == 60
    assert "".join(part["delta"] for part in parts) == parts[-1]["text"]
    with pytest.raises(AppError, match="max_new_tokens is 0; it must be"):
        client.predict("Hello", 0, api_name="/generate")


# Made-up sessions


def test_the_log_names_a_call_of_generate_by_the_id_of_its_response(url, caplog):
    caplog.set_level("INFO", "specdemo")
    call = url + "gradio_api/call/v2/generate"
    response = httpx.post(call, json={"instruction": "Hi", "max_new_tokens": 2})
    assert "complete" in httpx.get(f"{call}/{response.json()['event_id']}").text
    assert [line.request for line in caplog.records] == [response.headers["x-request-id"]]


def test_tokens_come_as_decoded_until_stop_and_the_next_run_is_answered(tab, session, monkeypatch):
    monkeypatch.setattr("specdemo.server.page.service.UPDATE_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(session.draft, "right", (0, 1))
    tab.page.evaluate(WATCH)
    session.pause(2)
    tab.ask("The quick brown fox jumps over the lazy dog")
    for count in range(1, 4):
        tab.page.wait_for_function(f"window.seen.size >= {count}")
        session.step(2)
    expect(tab.page.locator(".sd-figure .sd-exports")).to_be_hidden()  # of the run before
    tab.press("Stop")
    until(session.questions[-1].stop.is_set)
    session.resume()
    stopped = tab.finished()
    assert stopped["summary"]["tokens"] < 30 and stopped["baseline"] is None
    expect(tab.page.locator(".sd-headline")).to_have_text("Stopped")
    tab.ask("two plus two")
    assert tab.finished()["instruction"] == "two plus two"


HOSTILE = (
    '<img src=x onerror="window.hacked=1">|<script>window.hacked=1</script>|**bold**|$x^2$|\\(a\\)|'
    "{{value}}|${window.hacked=1}|`code`|\u0000\u001b[31m|\u202edesrever|&lt;|\n# heading|"
    "![image](http://host.invalid/i.png)|[link](javascript:window.hacked=1)|```cpp\n<b>\n```"
).split("|")


def hostile_trace() -> Trace:
    """A run whose every text tries to be markup."""
    pair = PairInfo(HOSTILE[0], "t", None)
    return race_trace(*HOSTILE, *HOSTILE, HOSTILE[0], instruction=HOSTILE[1], pair=pair)


def is_harmless(page) -> bool:
    made = "img, script, iframe, [href^=javascript]"
    markup = page.locator(f":is(.sd-view, #sd-formatted) :is({made}), .sd-text b").count()
    return page.evaluate("window.hacked") is None and not markup


@pytest.fixture(scope="module")
def other_server():
    """Another server, whose models load when `ready` is set; they are made up."""
    ready = threading.Event()

    def opener(pair, report):
        report(Progress("Compiling the models"))
        ready.wait(600)
        return ToySession()

    service = Service(ModelChoice("embedded"), opener)
    service.load(service.state.pair)
    with page_server(service) as url:
        yield SimpleNamespace(url=url + "/", ready=ready)
        ready.set()


def test_a_recorded_race_plays_while_models_load_and_run_is_answered(open_tab, other_server):
    tab = open_tab(other_server.url, "")
    tab.page.wait_for_function("window.specdemo.race.motion.playing")
    asked, question = tab.page.locator(".sd-asked"), tab.page.input_value("#sd-question textarea")
    for words in (f"“{question}”", "Recorded on", "Model Qwen2.5-Coder-1.5B-Instruct"):
        expect(asked).to_contain_text(words)
    expect(tab.page.locator(".sd-view")).to_have_attribute("data-recorded", "")  # not green
    tab.run()
    words = "Compiling the models. Your question is answered next."
    expect(tab.page.locator(".sd-status")).to_have_text(words)
    expect(tab.page.locator(".sd-text-spec .sd-tok:not(.sd-later)")).not_to_have_count(0)
    other_server.ready.set()
    assert tab.finished()["instruction"] == question


def test_a_saved_run_replays_and_no_text_becomes_markup(tab, open_tab, other_server, tmp_path):
    path, page = tmp_path / "run.json", tab.page
    path.write_text(hostile_trace().to_json(), encoding="utf-8")
    tab.open_file(path)
    again = json.loads(tab.downloaded("Download this run (JSON)"))
    assert again == json.loads(hostile_trace().to_json())
    assert all(text in tab.text(".sd-text-spec") for text in HOSTILE)
    page.get_by_role("button", name="The answer as formatted text").click()
    formatted = page.locator("#sd-formatted")
    for text in (HOSTILE[0], HOSTILE[1], "![image]", "[link](javascript:"):
        expect(formatted).to_contain_text(text)
    expect(formatted.locator("strong").first).to_have_text("bold")
    assert is_harmless(page)
    about = page.locator(".sd-about")
    page.locator(".sd-text-spec").focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(about).to_contain_text(
        "accepted draft token, number 1 of 1 by draft model, in round 1; draft 50%, target 50%."
    )
    page.locator(".sd-text-spec .sd-wrong").first.hover()
    expect(about).to_contain_text("In place of")
    page.locator(".sd-seek").fill("0")
    expect(page.locator(".sd-text-spec .sd-tok:not(.sd-later)")).to_have_count(1)
    since = time.monotonic()
    tab.press("Real time")
    page.wait_for_function("document.querySelector('.sd-time').textContent.startsWith('0.60 s')")
    expect(page.locator(".sd-play")).to_contain_text("Play")
    assert time.monotonic() - since > 0.55, "quicker than it was"
    tab.press("Step by step")
    # A link to it opens on a server that never saw it.
    fragment = tab.link().split("#")[1]
    other = open_tab(other_server.url, "speed=steps#" + fragment)
    other.page.wait_for_function("window.specdemo.race.root.dataset.phase === 'opened'")
    assert other.finished()["instruction"] == HOSTILE[1]
    assert is_harmless(other.page)


def test_a_link_restores_every_setting_and_the_result_in_a_fresh_browser(browser, open_tab, url):
    wanted = {"max_new_tokens": 7, "draft_tokens": 3, "drafter": "lookup", "temperature": 0.5}
    wanted |= {"top_p": 0.9, "top_k": 40, "min_p": 0.02, "seed": 11, "coupling": "maximal"}
    wanted |= {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1}
    tab = open_tab(url, urlencode(wanted | {"speed": "steps"}))
    differing = "maximum tokens 7, draft length 3, drafter lookup, temperature 0.5"
    expect(tab.page.locator(".sd-differ")).to_contain_text(differing)
    tab.unfold("Settings")
    tab.page.get_by_label("Drafter", exact=True).click()
    tab.page.get_by_role("option", name="model", exact=True).click()
    tab.wait_for_link("drafter", "model")
    tab.ask("Why & how?")
    raced = tab.finished()["settings"]
    assert {name: raced[name] for name in wanted} == {**wanted, "drafter": "model"}
    assert raced["json_schema"] == ""
    other = open_tab(url, tab.link().split("?", 1)[1], browser.new_context(**DESK))
    other.page.wait_for_function("window.specdemo.race.root.dataset.phase === 'opened'")
    other.finished()
    for part in (".sd-text-spec", ".sd-headline"):
        assert other.text(part) == tab.text(part) != ""
    # The run in the address goes when another question is asked.
    other.ask("Which?")
    other.finished()
    other.page.reload()
    expect(other.page.locator("#sd-question textarea")).to_have_value("Which?")
    expect(other.page.locator(".sd-asked")).to_contain_text("Recorded on")


def test_the_schema_of_an_example_goes_with_its_question_and_a_visitors_own_stays(open_tab, url):
    tab = open_tab(url)
    question, example = tab.page.locator("#sd-question textarea"), "As JSON: a novel of the sea"
    for leave in (lambda: question.press_sequentially("?"), lambda: tab.run(DOES_NOT_PAY)):
        tab.run(example)
        tab.wait_for_link("json_schema", json.dumps(BOOK))
        tab.finished()
        leave()
        tab.wait_for_link("json_schema", "")
    tab.finished()
    for name in ("Settings", "Expert"):
        tab.unfold(name)
    tab.page.get_by_label("JSON Schema").fill('{"type": "integer"}')
    question.fill("How many legs has a cat?")
    tab.wait_for_link("question", "How many legs has a cat?")
    tab.wait_for_link("json_schema", '{"type": "integer"}')


def test_a_link_with_a_question_plays_a_recorded_race_until_run_is_pressed(open_tab, url, session):
    question = "Why? چرا می\u200cخندد؟ 👩\u200d👧"  # with joiners, which letters and emoji need
    tab = open_tab(url, urlencode({"question": question, "speed": "steps"}))
    asked, html = tab.page.locator(".sd-asked"), tab.page.locator("html")
    expect(asked).to_contain_text("Recorded on")
    expect(html).to_have_class(re.compile("sd-asks"))
    assert tab.page.input_value("#sd-question textarea") == question
    session.pause(3)
    tab.run()
    expect(asked).to_have_text(f"“{question}”")
    # What would take the place of the live answer waits for its end.
    inert = "every(name => document.querySelector(name).inert)"
    assert tab.page.evaluate(f"['.sd-visits', '.sd-file'].{inert}")
    open_run(tab.page, made_up().to_json())
    session.resume()
    assert tab.finished()["instruction"] == question
    expect(html).not_to_have_class(re.compile("sd-asks"))


def test_a_link_names_only_what_differs_and_a_wrong_value_of_it_is_said(open_tab, url):
    tab = open_tab(url, "pair=nonsense&temperature=0.5&speed=steps")
    refused = "This link asks for what is not offered here: pair=nonsense."
    expect(tab.page.locator(".sd-status")).to_have_text(refused)
    tab.press("Copy a link to this question")
    link = tab.page.input_value(".sd-link-text").split("?")[1]
    assert [part.split("=")[0] for part in link.split("&")] == ["question", "temperature", "speed"]


def packed(data: bytes) -> str:
    """What a link to a run has in its fragment."""
    deflate = zlib.compressobj(wbits=-15)
    return base64.urlsafe_b64encode(deflate.compress(data) + deflate.flush()).decode().strip("=")


def test_a_link_that_holds_no_run_says_so_in_one_sentence(open_tab, url):
    damaged = "the link is damaged or was cut off"
    tab = open_tab(url, "speed=steps#run=7VdLb9s4EP4r")
    error = tab.page.locator(".sd-state .sd-error")
    expect(error).to_contain_text(damaged)
    for fragment, words in (
        (packed(b"0" * 20_000_000), "larger than 2.5 MB"),
        ("7" * 60_001, damaged),  # it might inflate to anything
        (packed(b'{"schema": 1}'), "is missing."),
    ):
        tab.page.evaluate("fragment => { location.hash = '#run=' + fragment; }", fragment)
        expect(error).to_contain_text(words)
        expect(tab.page.locator(".sd-asked")).to_contain_text("Recorded on")


def test_drafts_race_as_the_run_on_show_was_asked_and_the_fastest_is_named(open_tab, url, session):
    tab = open_tab(url)
    drafts = tab.page.get_by_role("button", name="Race the drafts")
    expect(drafts).to_be_hidden()  # the run on show was recorded on another machine
    tab.ask("A question")
    tab.finished()
    tab.unfold("Settings")
    tab.page.get_by_label("number input for Maximum tokens").fill("9")
    tab.wait_for_link("max_new_tokens", "9")
    asked = session.questions[-1].settings.max_new_tokens
    drafts.click()
    expect(tab.page.locator(".sd-status")).to_contain_text("Fastest: ")
    assert {one.settings.max_new_tokens for one in session.questions[-4:]} == {asked} != {9}
    names = tab.page.locator(".sd-drafts-chart .legendtext")
    expect(names).to_have_count(4)
    expect(names.first).to_have_text("autoregressive, no draft: 1.00x")


def away(page) -> Callable[[], None]:
    """Holds requests for the server's health, until the function that is returned is called."""
    held, back = [], threading.Event()
    go_on = lambda route: route.continue_() if back.is_set() else held.append(route)  # noqa: E731

    def come_back() -> None:
        back.set()
        for route in held:
            route.continue_()

    page.route("**/health", go_on)
    return come_back


def test_the_last_race_chosen_is_shown_and_one_that_cannot_be_had_is_said(tab):
    page, asked, held = tab.page, tab.page.locator(".sd-asked"), []
    races = page.evaluate("window.specdemo.known.races.map(([file, label]) => [file, label])")
    (slow, of_slow), (_, of_quick), (lost, _) = races[1:4]
    page.route(f"**/{Path(slow).name}", lambda route: held.append(route))
    page.route(f"**/{Path(lost).name}", lambda route: route.fulfill(body="no JSON"))
    recorded = page.get_by_label("Watch a recorded race")
    recorded.select_option(of_slow)
    recorded.select_option(of_quick)
    expect(asked).to_contain_text(of_quick.split(": ", 1)[1])
    tab.wait_for_link("question", of_quick.split(": ", 1)[1])
    with page.expect_response(f"**/{Path(slow).name}") as response:
        held[0].continue_()
    response.value.finished()
    come_back = away(page)
    recorded.select_option(lost)
    expect(page.locator(".sd-state .sd-error")).to_contain_text("The server does not answer")
    expect(asked).to_contain_text(of_quick.split(": ", 1)[1])
    come_back()
    page.unroute_all()


def test_a_stream_that_ends_before_its_run_is_a_lost_server(tab):
    come_back = away(tab.page)
    message = {"phase": "speculative", "rounds": json.loads(made_up().to_json())["rounds"]}
    body = f":\n\ndata: {json.dumps(message)}\n\n"
    tab.page.route("**/race", lambda route: route.fulfill(body=body))
    tab.run()
    expect(tab.page.locator(".sd-state .sd-error")).to_contain_text("The server does not answer")
    expect(tab.page.locator(".sd-headline")).to_have_text("Interrupted after 8 tokens")
    expect(tab.page.locator("#sd-run")).to_be_visible()
    come_back()
    expect(tab.page.locator(".sd-status")).to_have_text(re.compile("^The server is back"))
    tab.page.unroute_all()


SHIFTS = """() => new Promise((resolve) => {
  const name = ({ node }) => (node?.className || node?.nodeName) + '';
  new PerformanceObserver(list => resolve(list.getEntries().filter(one => !one.hadRecentInput)
    .map(one => [one.value, ...one.sources.map(name)])))
    .observe({ type: 'layout-shift', buffered: true });
  setTimeout(() => resolve([]), 1000);   // there was none
})"""
COUNT_FRAMES = """const ask = requestAnimationFrame;
window.frames_asked = 0;
window.requestAnimationFrame = (draw) => { window.frames_asked++; return ask(draw); };"""
AT_REST = """() => {
  const before = window.frames_before;
  window.frames_before = window.frames_asked;
  return before === window.frames_asked;
}"""
DARK_PAPER = "rgb(20, 28, 39)"
AXE = """rules => axe.run(document, { resultTypes: ['violations'], ...rules })
  .then(result => result.violations)"""


def axe_finds_nothing(tab: Tab, *rules: str) -> None:
    """Of these rules, or of all."""
    page, only = tab.page, {"runOnly": rules} if rules else {}
    for name in ("Race", "Benchmark"):
        tab.tab(name)
        if name == "Benchmark":
            expect(page.locator(".sd-bench-charts .bartext")).to_have_count(4)
        page.wait_for_function("document.getAnimations().every(one => one.playState !== 'running')")
        found = page.evaluate(AXE, only)
        assert [(one["id"], one["nodes"][0]["html"][:300]) for one in found] == [], name


FIRST_SCREEN = """() => ['.sd-pane .sd-text', '.sd-verdict', '.sd-panes .sd-clock']
  .flatMap(name => [...document.querySelectorAll(name)])
  .every((node) => { const { top, bottom } = node.getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight; })"""
FLAGS = """() => {
  const { live, baseline } = window.specdemo.race, ended = [!live || baseline.tokens > 0, !live];
  return [...document.querySelectorAll('.sd-panes .sd-pane')].every((pane, number) =>
    pane.hasAttribute('data-ended') === ended[number]); }"""


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desk", "phone"])
def test_both_panes_and_the_figure_are_on_the_first_screen_from_first_token_to_verdict(
    open_tab, url, session, monkeypatch, size
):
    monkeypatch.setattr("specdemo.server.page.service.UPDATE_SECONDS", (0.0, 0.0))
    tab = open_tab(url)
    tab.page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
    tab.page.wait_for_function(FIRST_SCREEN)  # of the recorded race
    session.pause(3)
    tab.ask("The quick brown fox jumps over the lazy dog")
    shown = ".sd-text-{} > :not(.sd-later)"
    for way in ("spec", "baseline"):
        expect(tab.page.locator(shown.format(way)).nth(1)).to_be_attached()
        assert tab.page.evaluate(FIRST_SCREEN), way
        assert tab.page.evaluate(FLAGS), way
        session.step(44)
    session.resume()
    tab.finished()
    expect(tab.page.locator(".sd-verdict")).to_have_attribute("data-figure", "")
    assert tab.page.evaluate(FIRST_SCREEN), "with the verdict"
    expect(tab.page.locator(".sd-pane[data-ended]")).to_have_count(2)
    assert tab.text(".sd-text-spec") == tab.text(".sd-text-baseline")


def test_a_race_is_shown_at_once_and_its_repeats_end_when_the_visitor_acts(
    open_tab, url, session, service, monkeypatch
):
    """It replays side by side by one press, which ends the repeats, and a chosen token stays
    chosen; the press that asked, which its answer may follow at once, does not."""
    monkeypatch.setattr("specdemo.server.page.events.DRAWING_SECONDS", 600.0)  # none begins
    monkeypatch.setattr(service, "limits", VisitorLimits(per_minute=10_000))
    tab = open_tab(url, "")
    tab.ask("two plus two")
    expect(tab.page.locator(".sd-view")).to_have_attribute("data-phase", "again")
    expect(tab.page.locator(".sd-headline")).to_contain_text("x")
    tab.page.evaluate("new Promise(go_on => setTimeout(go_on, 300))")
    assert f"{url}stop" not in tab.requested
    tab.page.locator(".sd-text-spec .sd-tok").nth(2).hover()
    expect(tab.page.locator(".sd-about")).to_have_class(re.compile("sd-open"))
    tab.press("▶ Replay side by side")
    until(session.questions[-1].stop.is_set)
    expect(tab.page.locator(".sd-view")).to_have_attribute("data-phase", "done")
    assert f"{url}stop" in tab.requested
    tab.page.wait_for_function("window.specdemo.race.motion.view === Infinity")
    expect(tab.page.locator(".sd-about")).to_have_class(re.compile("sd-open"))


def test_forced_colours_keep_the_chart_the_bars_the_chosen_tab_and_the_outline_of_run(page):
    page.wait_for_function(DRAWN)
    page.emulate_media(forced_colors="active")
    expect(page.locator("#sd-run")).to_have_css("border-top-width", "1px")  # after a transition
    looks = page.evaluate("""() => {
      const style = (name) => getComputedStyle(document.querySelector(name));
      return [style('.sd-chart .main-svg').backgroundColor === style('.sd-chart .js-line').stroke,
        style('.sd-panes .sd-bar').backgroundColor === style('.sd-track').backgroundColor,
        style('[role="tab"][aria-selected="true"]').borderBottomWidth,
        style('.sd-about .sd-right').textDecorationStyle,
        style('.sd-about .sd-wrong').textDecorationStyle];
    }""")
    page.emulate_media(forced_colors="none")
    assert looks == [False, False, "4px", "dotted", "double"]


@pytest.mark.parametrize("looks", [PHONE, DESK], ids=["phone in the dark", "desk"])
def test_a_phone_and_a_desk_show_everything_and_axe_finds_nothing(browser, open_tab, url, looks):
    """Nothing jumps while the page loads; a visitor who wants no motion gets none, and no frames
    are drawn."""
    context = browser.new_context(**looks, reduced_motion="reduce")
    context.add_init_script(COUNT_FRAMES)
    if looks is PHONE:  # as in Safari
        context.add_init_script("delete requestIdleCallback; delete cancelIdleCallback")
    tab = open_tab(url, "", context)
    page = tab.page
    page.wait_for_function(DRAWN)
    page.wait_for_function(AT_REST, polling=300)
    shifts = page.evaluate(SHIFTS)
    assert sum(shift[0] for shift in shifts) < 0.02, shifts
    assert page.evaluate("document.body.classList.contains('dark')") == (looks is PHONE)
    for control in (".sd-speeds", ".sd-play", ".sd-replay"):
        expect(page.locator(control)).to_be_hidden()
    assert page.evaluate("window.specdemo.race.motion.speed") == "steps"
    tab.ask("What is a rainbow?")
    tab.finished()
    assert page.evaluate("document.documentElement.scrollWidth") <= looks["viewport"]["width"]
    page.locator(".sd-text-spec .sd-tok").first.tap()
    expect(page.locator(".sd-about")).to_contain_text("first token")
    page.locator(".sd-about").tap()  # a sheet on the phone, which a tap closes
    tab.unfold("Settings")
    page.get_by_text("For engineers").click()
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js")
    page.evaluate(axe.read_text(encoding="utf-8"))
    axe_finds_nothing(tab)
    if looks is DESK:
        page.emulate_media(color_scheme="dark")
        page.wait_for_function("document.body.classList.contains('dark')")
        for name in (".sd-chart", ".sd-cost-chart", ".sd-bench-chart"):
            paper = f"document.querySelector('{name}').layout.paper_bgcolor"
            page.wait_for_function(f"{paper} === '{DARK_PAPER}'")
        axe_finds_nothing(tab, "color-contrast")


def test_the_benchmark_runs_before_any_question_and_gives_its_files(open_tab, url, session):
    tab = open_tab(url, "drafter=model&draft_tokens=3")
    tab.tab("Benchmark")
    recorded = json.loads(benchmark.RECORDED.read_text("utf-8"))
    ours = [f"{way} {row[f'{way}_s']:.2f} s" for way in WAYS for row in recorded["lengths"]]
    bars = tab.page.locator(".sd-bench-charts .bartext")
    expect(bars).to_have_count(len(ours))
    decision = recorded["decision"]
    expect(tab.page.locator(".sd-decision")).to_have_text(decision["headline"])
    expect(tab.page.locator(".sd-command")).to_have_text(decision["command"])
    assert sorted(bars.all_text_contents()) == sorted(ours)
    session.pause(2)
    run = tab.page.get_by_role("button", name="Run the benchmark")
    stop = tab.page.get_by_role("button", name="Stop the benchmark")
    run.press("Enter")
    expect(stop).to_be_focused()
    expect(tab.page.locator(".sd-bench .sd-exports")).to_be_hidden()  # there is no chart
    expect(tab.page.locator(".sd-bench-note")).to_contain_text("Turn 1: ")
    assert not tab.page.evaluate("window.specdemo.race.motion.playing")
    stop.press("Enter")
    until(lambda: session.questions[-1].stop.is_set())
    session.resume()
    expect(bars).to_have_count(len(ours))  # nothing was raced
    sentence = tab.page.locator(".sd-bench-sentence")
    expect(sentence).to_contain_text(f"commit {recorded['commit']}")
    run.press("Enter")
    expect(stop).to_be_hidden()
    expect(sentence).not_to_contain_text("commit")
    expect(tab.page.get_by_role("region", name="Prompts").locator("tbody tr")).to_have_count(10)
    expect(run).to_be_focused()
    report = json.loads(tab.downloaded("JSON"))
    expect(tab.page.locator(".sd-decision")).to_have_text(report["decision"]["headline"])
    assert len(report["rows"]) == 10 and all(len(row["speedups"]) == 3 for row in report["rows"])
    assert tab.downloaded("CSV").count("\n") == 11
    pictures = []
    with tab.page.expect_download(lambda one: pictures.append(one) or len(pictures) == 3):
        tab.press("SVG")
    texts = [picture.path().read_text("utf-8") for picture in pictures]
    for words in ("seconds of decoding", "one race", "users at once"):  # of the charts
        assert sum(words in text for text in texts) == 1


def test_what_if_gives_the_bars_of_another_draft_length_acceptance_rate_and_number_of_users(tab):
    estimates = json.loads(benchmark.RECORDED.read_text("utf-8"))["decision"]["estimates"]
    rates, paces, speedups = (estimates[name] for name in ("rates", "seconds", "speedups"))
    tab.tab("Benchmark")
    form = tab.page.locator(".sd-what-if")

    def shown(users: int, length: int, rate: int) -> None:
        speedup, slow = speedups[users][length][rate], 100 * paces[users]
        expect(form.locator(".sd-if-speedup")).to_have_text(f"{speedup:.2f}x")
        expect(form.locator(".sd-if-percent")).to_have_text(f"{rates[rate]:.0%}")
        clocks = [f"{seconds:.2f} s" for seconds in (slow / speedup, slow)]
        expect(form.locator(".sd-clock")).to_have_text(clocks)

    shown(0, 0, rates.index(estimates["acceptance_rate"]))
    form.get_by_label("Task").select_option("code")  # 82 % of its draft tokens were accepted
    shown(0, 0, rates.index(0.8))
    form.get_by_label("Draft length").select_option("3")
    form.get_by_label("Users at once").select_option(str(estimates["users"][1]))
    form.get_by_label("Acceptance rate").press("End")
    shown(1, 3, -1)


SHOWN = """() => ({
  lines: document.querySelector('.sd-chart').data.map(({ name, x, y }) =>
    [name, x.at(-1) - x[0], y.at(-1) - y[0]]),
  gap: document.querySelector('.sd-chart').layout.annotations?.at(-1)?.text ?? '',
  qualifier: document.querySelector('.sd-qualifier').textContent,
  headline: document.querySelector('.sd-headline').textContent,
  tone: document.querySelector('.sd-verdict').dataset.tone,
  sentence: document.querySelector('.sd-sentence').textContent,
  notes: document.querySelector('.sd-notes').textContent,
  clocks: [...document.querySelectorAll('.sd-panes .sd-clock')].map(node => node.textContent),
  bars: [...document.querySelectorAll('.sd-panes .sd-bar')]
    .map(node => node.getBoundingClientRect().width),
  dots: document.querySelectorAll('.sd-dot:not(.sd-hollow)').length,
})"""


@pytest.mark.parametrize(
    ("seconds", "headline", "qualifier", "tone", "shown", "gap"),
    [
        ([], "2.00x", "in this race", "unclear", (0.08, 0.16), "0.08 s saved"),
        ([(1, 1.5)] * 6, "1.50x", "1.50 to 1.50 over 6", "faster", (1, 1.5), "0.50 s saved"),
        ([(1, 0.8)] * 6, "0.80x", "over 6 races (97 % ", "slower", (1, 0.8), "0.20 s lost"),
        ([(1, 0.8), (1, 1.3)], "0.80x", "undecided, 1 of 2", "unclear", (1, 0.8), "0.20 s lost"),
    ],
)
def test_the_headline_says_what_the_chart_shows(
    tab, seconds, headline, qualifier, tone, shown, gap
):
    """`seconds` of decoding, speculative and autoregressive, of the repeats; `shown` of the race on
    show."""
    watched = race_trace(*["question "] * 9)
    races = [watched, *(at_pace(watched, *both) for both in seconds)]
    open_run(tab.page, on_show(races).to_json())
    tab.page.wait_for_function(DRAWN)
    page = SimpleNamespace(**tab.page.evaluate(SHOWN))
    assert (page.headline, page.tone) == (headline, tone) and qualifier in page.qualifier
    assert page.clocks == [f"{second:.2f} s" for second in shown]
    assert " instead of ".join(page.clocks) in page.sentence
    assert page.bars[1] / page.bars[0] == pytest.approx(shown[1] / shown[0], rel=0.03)
    lines = {name: spent for name, spent, tokens in page.lines if name and tokens == 8}
    names = "speculative", "autoregressive"
    assert lines == pytest.approx(dict(zip(names, shown, strict=True)))
    assert gap in page.gap and gap in page.sentence
    assert page.dots == max(1, len(seconds))
    assert "cut at 9 tokens" in page.notes


def test_a_busy_machine_gets_a_figure_which_says_that_it_decides_nothing(tab):
    watched = race_trace(*["question "] * 9)
    races = [at_pace(watched, 1, 2, share=share) for share in (0.25, 0.5, 0.5)]
    open_run(tab.page, on_show(races).to_json())
    expect(tab.page.locator(".sd-headline")).to_have_text("about 2.0x")
    words = "in this race; busy machine, no verdict"
    expect(tab.page.locator(".sd-qualifier")).to_have_text(words)
    expect(tab.page.locator(".sd-dots .sd-hint")).to_have_count(0)


def test_with_the_keyboard_alone_a_question_is_asked_and_its_race_is_watched(open_tab, url):
    tab = open_tab(url)
    press, focus = tab.page.keyboard.press, "document.activeElement"

    def tab_to(selector: str) -> None:
        for _ in range(60):
            press("Tab")
            if tab.page.evaluate(f"{focus}.matches({json.dumps(selector)})"):
                return
        raise AssertionError(f"no way to {selector} by Tab")

    tab_to("#sd-run")
    tab.before = tab.page.evaluate("window.specdemo.race.run")
    press("Enter")
    tab.finished()
    assert tab.page.evaluate(f"{focus}.id") == "sd-run", "the button that vanished took the focus"
    while not tab.page.evaluate(f"{focus}.matches('#sd-question textarea')"):
        press("Shift+Tab")
    ring = tab.page.evaluate(f"[getComputedStyle({focus}).outlineStyle, {focus}.value]")
    assert ring == ["solid", FIRST_QUESTION]
    press("Control+A")
    tab.page.keyboard.type("Name three animals")
    tab.before = tab.page.evaluate("window.specdemo.race.run")
    press("Enter")
    tab.finished()
    tab_to(".sd-text-spec")
    press("ArrowRight")
    expect(tab.page.locator(".sd-about")).to_contain_text("first token")
    tab_to(".sd-back")
    press("Enter")
    press("Enter")
    expect(tab.page.locator(".sd-later").first).to_be_attached()
    tab_to(".sd-drafts")
    press("Enter")
    expect(tab.page.locator(".sd-status")).to_contain_text("Fastest: ")
    assert tab.page.evaluate(f"{focus}.id") == "sd-run", "what waits lost the focus"
    tab_to(".sd-engineers summary")
    press("Enter")
    expect(tab.page.locator(".sd-who")).to_be_visible()
    tab.run("As JSON: a novel of the sea")
    tab.finished()
    tab_to("#sd-json")
    press("Enter")
    expect(tab.page.locator("#sd-json")).to_be_hidden()
    assert tab.page.evaluate(f"{focus}.id") == "sd-run"
    for _ in range(8):
        press("Shift+Tab")
        if tab.page.evaluate(f"{focus}.matches('.sd-how')"):
            break
    press("Enter")
    expect(tab.page.locator(".sd-tour-next")).to_be_focused()
    for _ in range(4):
        press("Enter")
    expect(tab.page.locator(".sd-tour-place")).to_have_text("5 of 5")
    press("Enter")
    expect(tab.page.locator(".sd-how")).to_be_focused()


# A made-up run


WORDS = "One two three four five six seven 8".split()
"""Of a forward of 1, 2, ... tokens."""


def id_of(text: str) -> int:
    return WORDS.index(text.strip()) if text.strip() in WORDS else 90 + len(text)


def drafted(**target: float | None):
    """Draft tokens by text with the target's probability: accepted with 0.5, rejected with less,
    None for one that was not examined."""
    tokens = ((id_of(text), text, share) for text, share in target.items())
    return tuple(DraftToken(id, 0.5, q, q == 0.5, "head", f" {text}") for id, text, q in tokens)


def made_up():
    """A run with every kind of token; rounds take 0.1 s, baseline tokens 0.08 s."""
    rounds = [
        ((), ("first", "One")),
        (drafted(two=0.5, three=0.5), ("bonus", " four")),
        (drafted(five=0.5, sax=0.1, sven=None), ("correction", " six")),
        ((), ("plain", " seven")),
        ((DraftToken(90, None, 0.1, False, "lookup", " eight"),), ("correction", " 8")),
    ]
    made = tuple(
        Round(draft, EmittedToken(id_of(text), kind, 0.5, text), 0.001, 0.09, 0.1 * at + 0.1)
        for at, (draft, (kind, text)) in enumerate(rounds)
    )
    made[2].candidates = drafted(sax=0.1, **{"<i>six</i>": 0.004})
    tokens = [BaselineToken(at, 0.08 * at + 0.1, f" {word}") for at, word in enumerate(WORDS)]
    baseline = Baseline(tuple(tokens), 0.01, 0.2)
    return dataclasses.replace(race_trace("One"), rounds=made, baseline=baseline)


@pytest.fixture
def page(tab):
    """The shared tab, with the made-up run on it."""
    open_run(tab.page, made_up().to_json())
    return tab.page


def open_run(page, run: str) -> None:
    page.evaluate("async text => window.specdemo.receive(await window.specdemo.openRun(text))", run)


def drawn(page) -> str:
    """The visible words of the answer, each with its look."""
    return page.evaluate("""[...document.querySelector('.sd-text-spec').children]
      .filter(node => !node.classList.contains('sd-later'))
      .map(node => node.textContent.trim() + ':' + node.className.match(
        /sd-(guess|struck|right|wrong|own)/)[1]).join(' ')""")


SOLID = "One:own two:right three:right four:own"
MORE = f"{SOLID} five:right six:wrong seven:own"
STEPS = [
    ("One:own", "The target model read the question and gave the first token."),
    ("One:own two:guess three:guess", "The draft guesses 2 tokens ahead"),
    (SOLID, "guessed 2 tokens, all were right, and the check gave one more: 3 tokens for one step"),
    (f"{SOLID} five:guess sax:guess sven:guess", "The draft guesses 3 tokens ahead"),
    (
        f"{SOLID} five:right sax:struck six:wrong",
        "The draft guessed 3 tokens, 1 was right: 2 tokens for one step of the target. "
        "It put “six” for “sax”.",
    ),
    (MORE, "The draft guessed nothing, which would not have paid: 1 token for one step"),
    (f"{MORE} eight:guess", "The draft guesses 1 token ahead"),
    (f"{MORE} eight:struck 8:wrong", "The draft guessed 1 token, none was right: 1 token"),
    (f"{MORE} 8:wrong", "8 tokens in 4 steps of the target in 0.40 s; without a draft 7"),
]


MARK = "getComputedStyle(document.querySelector('.sd-text-spec'), '::after').content"


def test_each_step_draws_guesses_in_grey_and_then_the_verdict_on_them(page):
    assert drawn(page) == STEPS[-1][0]
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowRight")
    assert drawn(page) == STEPS[-1][0], "a key of the whole page moved the race"
    page.locator(".sd-player").focus()
    caption = page.locator(".sd-caption")
    for looks, words in STEPS:
        page.keyboard.press("ArrowRight")
        assert drawn(page) == looks
        expect(caption).to_contain_text(words)
    assert "cut at 8 tokens" in page.evaluate(MARK)
    for looks, _ in STEPS[-2::-1]:
        page.keyboard.press("ArrowLeft")
        assert drawn(page) == looks
    assert page.evaluate(MARK) == "none", "the answer seems cut before its end"
    assert page.locator(".sd-pace").all_inner_texts() == ["1 token"] * 2
    page.keyboard.press(" ")
    assert drawn(page) == STEPS[1][0]
    page.locator("#sd-question textarea").press("ArrowRight")
    assert drawn(page) == STEPS[1][0], "a key that somebody types with moved the race"


def test_nothing_is_replayed_beside_models(page):
    page.evaluate("window.specdemo.race.motion.speed = 'slow'")
    playing = "window.specdemo.race.motion.playing"
    pressed = f"() => document.querySelector('.sd-play').click() ?? {playing}"
    page.evaluate("window.specdemo.receive({ phase: 'drafts', note: 'Races with each drafter' })")
    assert not page.evaluate(pressed)
    page.evaluate("window.specdemo.receive({ phase: 'error', note: 'Stopped.' })")
    assert page.evaluate(pressed)


def test_behind_a_rejected_guess_are_the_drafts_candidates_with_both_probabilities(page):
    shown, box = page.locator(".sd-candidates"), page.locator(".sd-text-spec")
    for point in (
        box.locator(".sd-wrong").first.tap,
        lambda: [box.press(key) for key in ["Home"] + ["ArrowRight"] * 5],
        page.locator(".sd-tree .sd-no").first.hover,
        lambda: page.evaluate("window.specdemo.race.motion.jump(.21)"),
    ):
        point()
        if not shown.count():
            box.locator(".sd-struck").hover()  # in slow motion
        cells = "×sax 50% / 10%<i>six</i> 50% / 0.4%↺six less / 50%"
        expect(shown).to_have_text(f"Candidates, draft / target:{cells}")
        page.mouse.move(0, 0)  # else what scrolls below the pointer is picked
        box.locator(".sd-right").first.tap()
        expect(shown).to_have_count(0)
    page.evaluate("window.specdemo.race.motion.jump(Infinity)")
    box.press("End")
    expect(page.locator(".sd-about")).to_contain_text("The n-gram lookup had no others.")
    expect(shown).to_have_count(0)


def test_a_run_that_was_stopped_is_compared_with_nothing(tab):
    run = made_up()
    baseline = dataclasses.replace(run.baseline, tokens=run.baseline.tokens[:3])
    open_run(tab.page, dataclasses.replace(run, identical=None, baseline=baseline).to_json())
    stopped = "0.40 s; the run without a draft was stopped."
    expect(tab.page.locator(".sd-caption")).to_contain_text(stopped)
    last_caption(tab.page)
    expect(tab.page.locator(".sd-tour-text")).to_contain_text(re.compile("^It loses where"))
    tab.press("Close")


def last_caption(page) -> None:
    page.get_by_role("button", name="How it works").click()
    for _ in range(4):
        page.get_by_role("button", name="Next").click()


def test_the_tour_calls_no_answers_the_same_that_the_rule_lets_differ(tab):
    settings = dataclasses.replace(made_up().settings, temperature=1.0, coupling="maximal")
    open_run(tab.page, dataclasses.replace(made_up(), settings=settings, identical=False).to_json())
    last_caption(tab.page)
    text = tab.page.locator(".sd-tour-text")
    expect(text).to_contain_text("This rule keeps the distribution")
    expect(text).not_to_contain_text("The answer is the same")
    tab.press("Close")


def test_a_race_plays_for_fifteen_seconds_or_at_the_speed_that_is_chosen(browser, url):
    page = browser.new_page()
    page.clock.install()
    page.goto(url)
    page.wait_for_function("window.specdemo?.race?.trace")
    open_run(page, made_up().to_json())
    page.clock.pause_at("2100-01-01")
    shown = "window.specdemo.race.motion.view"
    page.get_by_role("button", name="Slow", exact=True).click()
    page.clock.run_for(14_800)
    assert page.evaluate("window.specdemo.race.motion.playing")
    page.clock.run_for(400)
    assert not page.evaluate("window.specdemo.race.motion.playing")
    labels = {"1/4": "1/4 speed", "1/16": "1/16 speed", "1": "Real time"}
    for speed, seconds in {"1/4": 0.25, "1/16": 0.0625, "1": 1.0}.items():
        page.evaluate("window.specdemo.race.motion.jump(Infinity)")
        page.get_by_role("button", name=labels[speed], exact=True).click()
        page.clock.run_for(400)
        page.keyboard.press(" ")
        assert page.evaluate(shown) == pytest.approx(0.4 * seconds, abs=0.031 * seconds)
        clocks = page.locator(".sd-panes .sd-clock").all_inner_texts()
        assert clocks == [f"{min(0.4, page.evaluate(shown)):.2f} s"] * 2
        query = page.evaluate("window.specdemo.link()").split("?")[1]
        assert urlencode({"speed": speed}) in query
    assert page.evaluate("new URL(location).searchParams.get('speed')") == "1"
    page.close()


def test_the_chart_and_its_line_of_the_moment_follow_a_window_that_changes_behind_a_tab(page):
    page.wait_for_function(DRAWN)
    page.evaluate("window.specdemo.race.motion.goTo(2)")
    page.get_by_role("tab", name="Benchmark").click()
    page.set_viewport_size({"width": 900, "height": 1000})
    page.get_by_role("tab", name="Race").click()
    page.wait_for_function("""() => {
      const [chart, drawing, line] = ['.sd-chart', '.sd-chart .main-svg', '.sd-playhead'].map(
        name => document.querySelector(name).getBoundingClientRect());
      const { _size, xaxis } = document.querySelector('.sd-chart')._fullLayout;
      const moment = chart.x + _size.l + xaxis.d2p(window.specdemo.race.motion.view);
      return drawing.height === 225 && chart.height === drawing.height
        && chart.width - drawing.width < 1 && Math.abs(line.x - moment) < 2
        && Math.abs(line.y - chart.y - _size.t) < 2 && line.height === _size.h;
    }""")
    page.set_viewport_size(DESK["viewport"])


def test_for_engineers_the_costs_are_told_and_drawn_with_the_rounds(page):
    expect(page.locator(".sd-cost-sentence")).to_be_hidden()
    page.get_by_text("For engineers").click()
    expect(page.locator(".sd-cost-sentence")).to_have_text(
        "Checking 3 tokens took 1.1x as long as making one (1 such step)."
    )
    expect(page.locator(".sd-cost-chart .points path")).to_have_count(4)
    page.get_by_label("Price of a processor core").fill("3.6")
    saved = page.locator(".sd-saved")
    # 0.1 s for 7 tokens, at 3.6 an hour: a thousandth for a second.
    expect(saved).to_contain_text("14.29")
    expect(page.locator(".sd-energy")).to_have_text("Energy: not available here.")
    # Without a baseline, no step made one token.
    alone = dataclasses.replace(race_trace("1"), baseline=None, identical=None)
    open_run(page, alone.to_json())
    expect(saved).to_be_visible()
    expect(page.locator(".sd-curve")).to_be_hidden()
    expect(page.locator(".sd-headline")).to_be_visible()
    page.get_by_text("For engineers").click()


def test_the_tour_explains_the_race_on_show_in_five_captions(page):
    page.get_by_role("button", name="How it works").click()
    text, light = page.locator(".sd-tour-text"), page.locator(".sd-spot")
    expect(text).to_contain_text("Checking 3 tokens took 1.1x")
    for said, spot, shown in (
        ("In round 2 of this run", "sd-player", STEPS[3][0]),
        ("90 ms", "sd-player", STEPS[4][0]),
        ("It put “six” for “sax”.", "sd-pane-spec", STEPS[4][0]),
        ("A round gave 1.75", "sd-verdict", STEPS[-1][0]),
    ):
        page.get_by_role("button", name="Next").click()
        expect(text).to_contain_text(said)
        expect(light).to_have_class(re.compile(spot))
        assert drawn(page) == shown
        if said.startswith("In round"):
            expect(page.locator(".sd-time")).to_contain_text("round 2 of 4")
            expect(page.locator(".sd-tree .sd-now .sd-no").first).to_be_visible()
    page.get_by_role("button", name="Done").click()
    expect(light).to_have_count(0)


def test_the_tree_has_each_round_as_wide_as_it_took_above_the_steps_of_the_baseline(page):
    def widths(name: str) -> list[float]:
        boxes = page.locator(f".sd-tree {name}").all()
        return [box.bounding_box()["width"] for box in boxes[1:]]  # the first is the prompt's

    expect(page.locator(".sd-tree .sd-round")).to_have_count(5)
    rounds, steps = widths(".sd-round"), widths(".sd-step")
    assert len(rounds) == 4 and len(steps) == 7
    assert rounds == pytest.approx([rounds[0]] * 4, abs=1)
    assert steps == pytest.approx([0.8 * rounds[0]] * 7, abs=1)
    tree = page.locator(".sd-tree")
    tree.get_by_text("sven").hover()
    expect(page.locator(".sd-text-spec .sd-lit")).to_have_text("six")
    expect(page.locator(".sd-candidates")).to_contain_text("sax 50% / 10%")
    page.mouse.move(0, 0)


# Saved runs from strangers

NUMBERS = 0, -1, 1, 7, 1e-9, 1e-5, 0.999, 1e6, 1e9, 1e308, 2**31 - 1, 2**53, True, None
TEXTS = "", "__proto__", "constructor", "toString", "<b>", "x" * 900, "\u202e\u0000", "🦊" * 200
SHAPES = [], {}, [0.01] * 256, [1e-9] * 3, [3600.0] * 16, [ROUND] * 3, [PLAIN] * 900


def altered(chance: random.Random) -> str:
    """The saved run with one or two values replaced by extreme ones."""
    run = json.loads(SAVED)
    for _ in range(chance.randint(1, 2)):
        node = run
        while True:
            key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if not (isinstance(node[key], dict | list) and node[key] and chance.random() < 0.85):
                break
            node = node[key]
        node[key] = chance.choice(chance.choice([NUMBERS, NUMBERS, TEXTS, SHAPES]))
    return json.dumps(run)


DRAW = """envelopes => envelopes.map((envelope) => {
  let reads = 0, values = 0;
  const counted = value => typeof value !== 'object' || value === null ? value : new Proxy(value, {
    get: (target, name) => { reads++; return counted(Reflect.get(target, name)); } });
  const run = JSON.parse(envelope, (_, value) => { values++; return value; });
  const { race } = window.specdemo;
  race.receive(counted(run));
  race.motion.step(1);
  race.motion.step(1);
  race.motion.jump(Infinity);
  document.body.offsetHeight;
  return [reads, values];
})"""


def test_whatever_is_accepted_is_drawn_in_few_steps_and_harms_no_script(tab):
    """A thousand saved runs, each checked by the server's code and shown by the scripts, which read
    each of its values a few times."""
    chance, envelopes = random.Random(50), []
    for run in (SAVED, largest_run(), *(altered(chance) for _ in range(1000))):
        with contextlib.suppress(BadInput):
            envelopes.append(events.opened(run))
    assert len(envelopes) > 100, "most of the alterations are refused"
    for reads, values in tab.page.evaluate(DRAW, envelopes):
        assert reads < 5 * values  # 1.8 times
    assert tab.page.evaluate("Object.keys(Object.prototype).length") == 0
    assert tab.page.evaluate("'accepted' in {} || 'examined' in {}") is False
    assert tab.page.evaluate("document.querySelectorAll('*').length") < 5000
