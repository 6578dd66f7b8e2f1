"""The page in a real browser, on the embedded pair: one server and one Chromium for all tests."""

from __future__ import annotations

import base64
import json
import threading
import time
import zlib
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from fakes import FakeSession, page_server

from specdemo.bench.load_test import started
from specdemo.bench.report import WAYS
from specdemo.pairs.choice import ModelChoice, PairInfo
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace, to_json
from specdemo.ui import benchmark
from specdemo.ui.layout import BOOK
from specdemo.ui.service import Service
from specdemo.ui.wording import NOTICEABLE

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

PATIENCE = 120_000
"""Milliseconds to wait for anything: the machine may be busy with something else."""

expect.set_options(timeout=PATIENCE)

TROUBLE = "error", "warning"
LINK_HAS = """([name, value]) =>
  new URLSearchParams(window.specdemo.link().split('?')[1]).get(name) === value"""
"""Whether the page's link has the value: what the page knows of its inputs."""


def packed(data: bytes) -> str:
    """What a link to a run has in its fragment."""
    deflate = zlib.compressobj(wbits=-15)
    return base64.urlsafe_b64encode(deflate.compress(data) + deflate.flush()).decode().strip("=")


@pytest.fixture(scope="module")
def url(embedded_pair):
    """Address of a server started as a user starts it."""
    with started("app.py", HF_HUB_OFFLINE="1", SPECDEMO_RACE_SECONDS="0") as server:
        yield server.url + "/"


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
        self.before = None  # the run that was shown when a question was asked
        self.page.on(
            "console", lambda one: self.errors.append(one.text) if one.type in TROUBLE else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.add(request.url))
        self.page.set_default_timeout(PATIENCE)
        if "=" in query and "#" not in query:
            query += "&speed=steps"  # nothing plays by itself
        self.page.goto(url + ("?" + query if query else ""))
        self.page.wait_for_function("window.specdemo?.race")
        if "max_new_tokens=" in query:
            wanted = query.split("max_new_tokens=")[1].split("&")[0]
            self.page.wait_for_function(LINK_HAS, arg=["max_new_tokens", wanted])

    def ask(self, question: str) -> None:
        self.before = self.page.evaluate("window.specdemo.race.run")
        self.page.fill("#sd-question textarea", question)
        self.page.get_by_role("button", name="Run", exact=True).click()

    def finished(self) -> dict:
        """Waits for the end of the run; gives the trace that the script holds."""
        self.page.wait_for_function(
            """before => {
              const { root: { dataset }, run } = window.specdemo.race;
              return dataset.phase === 'error' || run !== before && dataset.settled === run;
            }""",
            arg=self.before,
        )
        assert self.page.evaluate("document.querySelector('.sd-state .sd-error').textContent") == ""
        return self.page.evaluate("window.specdemo.race.trace")

    def open_file(self, path: Path) -> None:
        self.before = self.page.evaluate("window.specdemo.race.run")
        self.page.locator(".sd-open").set_input_files(path)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def kept(self, button: str, path: Path) -> Path:
        """What a button lets a visitor download."""
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name=button).click()
        download.value.save_as(path)
        return path

    def link(self) -> str:
        """The link that "Copy a link" shows."""
        self.page.get_by_role("button", name="Copy a link to this run").click()
        expect(self.page.locator(".sd-link-text")).not_to_have_value("")
        return self.page.input_value(".sd-link-text")

    def axe_finds_nothing(self) -> None:
        self.page.get_by_role("button", name="Settings").click()
        self.page.get_by_text("For engineers").click()
        axe = resources.files("axe_playwright_python").joinpath("axe.min.js")
        self.page.evaluate(axe.read_text(encoding="utf-8"))
        for name in ("Race", "Benchmark", "How it works"):
            tab = self.page.get_by_role("tab", name=name)
            tab.click()
            expect(tab).to_have_attribute("aria-selected", "true")
            if name == "Benchmark":
                expect(self.page.locator(".sd-bench-charts .bartext")).to_have_count(4)
            if name == "How it works":
                self.page.get_by_role("button", name="3 Check").click()
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
    expect(tokens.first).to_have_class("sd-tok sd-own")
    assert all("96 tokens" in one for one in tab.page.locator(".sd-pace").all_inner_texts())
    expect(tab.page.locator(".sd-strip .sd-round")).to_have_count(len(trace["rounds"]))
    assert tab.text(".sd-text-baseline").split() == tab.text(".sd-text-spec").split()
    assert trace["identical"] is True
    assert "Identical: two independent runs" in tab.text(".sd-identity")
    shifts = tab.page.evaluate("window.shifts")
    assert sum(shift[0] for shift in shifts) < 0.02, shifts
    drawn = tab.page.get_attribute(".sd-chart", "aria-label")
    assert drawn.count("96 tokens in") == 2
    tab.page.get_by_text("For engineers").click()
    expect(tab.page.locator(".sd-who")).to_contain_text("target model itself")
    assert len(trace["costs"]["target"]) == 16
    expect(tab.page.locator(".sd-cost-sentence")).to_contain_text("times as long as making one")
    expect(tab.page.locator(".sd-predicted")).not_to_have_text("-")


def test_an_example_answers_as_json_until_its_chip_is_removed(visit):
    tab = visit("max_new_tokens=60")
    tab.page.get_by_role("button", name="As JSON").click()
    tab.page.wait_for_function(LINK_HAS, arg=["json_schema", json.dumps(BOOK)])
    tab.before = tab.page.evaluate("window.specdemo.race.run")
    tab.page.get_by_role("button", name="Run", exact=True).click()
    trace = tab.finished()
    assert tab.text(".sd-text-spec").startswith('{"title": "') and trace["identical"]
    forced = [one for round_ in trace["rounds"] for one in round_["drafted"] if one["accepted"]]
    forced = [one for one in forced if one["source"] == "grammar"]
    assert forced
    tab.page.locator(".sd-text-spec .sd-right").first.click()
    expect(tab.page.locator(".sd-about")).to_contain_text("forced by the grammar")
    chip = tab.page.get_by_role("button", name="JSON ✕")
    expect(chip).to_be_visible()
    chip.click()
    tab.page.wait_for_function(LINK_HAS, arg=["json_schema", ""])
    expect(chip).to_be_hidden()


def test_stop_ends_a_run_at_once_and_the_next_question_is_answered(visit):
    tab = visit("max_new_tokens=400")
    tab.ask("Write a long story about a lighthouse keeper")
    tab.page.wait_for_selector(".sd-text-spec .sd-tok:not(.sd-later)")
    tab.page.get_by_role("button", name="Stop", exact=True).click()
    since = time.monotonic()
    stopped = tab.finished()
    assert time.monotonic() - since < 20
    assert stopped["summary"]["tokens"] < 400 or stopped["baseline"] is None
    expect(tab.page.locator(".sd-headline")).to_have_text("Stopped")
    tab.ask("What is two plus two?")
    assert tab.finished()["instruction"] == "What is two plus two?"


HOSTILE = (
    '<img src=x onerror="window.hacked=1">|<script>window.hacked=1</script>|**bold**|$x^2$|\\(a\\)|'
    "{{value}}|${window.hacked=1}|`code`|\u0000\u001b[31m|\u202edesrever|&lt;|\n# heading"
).split("|")


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


def test_a_saved_run_replays_at_its_true_speed_and_its_text_never_becomes_markup(saved, tmp_path):
    page = saved.page
    again = json.loads(saved.kept("Download this run", tmp_path / "kept.json").read_text("utf-8"))
    assert again == json.loads(to_json(hostile_trace()))
    shown = page.evaluate("document.querySelector('.sd-text-spec').textContent")
    assert all(text in shown for text in HOSTILE)
    assert page.locator(".sd-view img, .sd-text script, .sd-text b").count() == 0
    assert page.evaluate("window.hacked") is None
    page.locator(".sd-seek").fill("0")
    expect(page.locator(".sd-text-spec .sd-tok:not(.sd-later)")).to_have_count(1)
    since = time.monotonic()
    page.get_by_role("button", name="1", exact=True).click()
    page.wait_for_function("document.querySelector('.sd-time').textContent.startsWith('0.48 s')")
    expect(page.locator(".sd-play")).to_contain_text("Replay")
    assert time.monotonic() - since > 0.45


def test_a_link_restores_every_setting_and_with_a_run_its_result_in_a_fresh_browser(visit):
    wanted = {
        "max_new_tokens": 7,
        "draft_tokens": 3,
        "drafter": "lookup",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.02,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "seed": 11,
        "numerics": "fast",
        "coupling": "maximal",
    }
    tab = visit(urlencode(wanted))
    tab.page.get_by_role("button", name="Settings").click()
    tab.page.get_by_label("Drafter", exact=True).click()
    tab.page.get_by_role("option", name="model", exact=True).click()
    tab.page.wait_for_function(LINK_HAS, arg=["drafter", "model"])
    tab.ask("Why & how?")
    raced = tab.finished()["settings"]
    assert {name: raced[name] for name in wanted} == {**wanted, "drafter": "model"}
    assert raced["json_schema"] == ""
    other = visit(tab.link().split("?", 1)[1], viewport={"width": 1280, "height": 1000})
    other.finished()
    assert other.text(".sd-text-spec") == tab.text(".sd-text-spec")
    expect(other.page.locator(".sd-headline")).to_have_text(tab.text(".sd-headline"))


@pytest.fixture
def fake():
    """Another server, whose models load when `ready` is set; they are made up."""
    ready = threading.Event()

    def opener(pair, report):
        report("Compiling the models")
        ready.wait(60)
        return FakeSession()

    service = Service(ModelChoice("embedded"), opener)
    service.start()
    with page_server(service) as url:
        yield SimpleNamespace(url=url + "/", ready=ready)
        ready.set()


def test_a_recorded_race_plays_while_models_load_and_run_pressed_at_once_is_answered(browser, fake):
    tab = Visit(browser.new_context(), fake.url, "")
    tab.page.wait_for_function("window.specdemo.race.motion.playing")
    assert tab.page.evaluate("performance.getEntriesByName('sd-play')[0].startTime") > 0
    expect(tab.page.locator(".sd-status")).to_contain_text("Recorded on")
    question = tab.page.input_value("#sd-question textarea")
    assert question in tab.text(".sd-status")
    tab.before = tab.page.evaluate("window.specdemo.race.run")
    tab.page.get_by_role("button", name="Run", exact=True).click()
    expect(tab.page.locator(".sd-status")).to_have_text(
        "Compiling the models. Your question is next."
    )
    expect(tab.page.locator(".sd-text-spec .sd-tok:not(.sd-later)")).not_to_have_count(0)
    fake.ready.set()
    assert tab.finished()["instruction"] == question
    tab.close()


def test_a_link_to_a_run_opens_on_a_server_that_never_saw_it(browser, visit, saved, fake):
    other = Visit(browser.new_context(), fake.url, "#" + saved.link().split("#")[1])
    assert other.finished()["instruction"] == HOSTILE[1]
    assert other.page.evaluate("window.hacked") is None
    assert other.page.locator(".sd-view img, .sd-text script").count() == 0
    other.close()


@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("7VdLb9s4EP4r", "the link is damaged or was cut off"),
        (packed(b"0" * 20_000_000), "larger than 2.5 MB"),
        (packed(b"0" * 99_000_000), "the link is damaged or was cut off"),
        (packed(b'{"schema": 1}'), "is missing."),
    ],
    ids=["cut off", "large", "a bomb", "no trace"],
)
def test_a_link_that_holds_no_run_says_so_in_one_sentence(visit, fragment, said):
    tab = visit("#run=" + fragment)
    expect(tab.page.locator(".sd-state .sd-error")).to_contain_text(said)
    expect(tab.page.locator(".sd-status")).to_contain_text("Recorded on")


def test_a_token_tells_by_keyboard_and_pointer_what_the_draft_thought(saved):
    saved.page.locator(".sd-text-spec").focus()
    for _ in range(2):
        saved.page.keyboard.press("ArrowRight")
    about = saved.page.locator(".sd-about")
    said = (
        "accepted draft token, number 1 of 1 by draft model, in round 2; draft 50 %, target 50 %."
    )
    expect(about).to_contain_text(said)
    saved.page.locator(".sd-text-spec .sd-wrong").first.hover()
    expect(about).to_contain_text("In place of")


def test_with_reduced_motion_the_result_is_there_and_no_frames_are_asked_for(browser, url):
    context = browser.new_context(reduced_motion="reduce")
    context.add_init_script("""window.asked = 0;
      const real = requestAnimationFrame;
      window.requestAnimationFrame = draw => { window.asked++; return real(draw); };""")
    tab = Visit(context, url)

    def asked() -> int:
        tab.page.evaluate("window.asked = 0")
        tab.page.wait_for_timeout(500)
        return tab.page.evaluate("window.asked")

    assert any(asked() == 0 for _ in range(60)), "something asks for frames for ever"
    expect(tab.page.locator(".sd-headline")).to_be_visible()
    tab.close()


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "color_scheme": "dark"}
DESK = {"viewport": {"width": 1280, "height": 1000}, "has_touch": True, "color_scheme": "light"}
DARK = DESK | {"color_scheme": "dark"}
SHIFTS = """() => new Promise((resolve) => {
  const name = ({ node }) => (node?.className || node?.nodeName) + '';
  new PerformanceObserver(list => resolve(list.getEntries().filter(one => !one.hadRecentInput)
    .map(one => [one.value, ...one.sources.map(name)])))
    .observe({ type: 'layout-shift', buffered: true });
  setTimeout(() => resolve([]), 1000);   // there was none
})"""


@pytest.mark.parametrize("looks", [PHONE, DESK, DARK], ids=["phone in the dark", "desk", "dark"])
def test_a_phone_and_a_desk_show_everything_and_axe_finds_nothing(visit, looks):
    tab = visit("", **looks)
    tab.page.wait_for_function("document.querySelector('.sd-plot')?.dataset.run")
    tab.page.wait_for_timeout(1500)
    shifts = tab.page.evaluate(SHIFTS)
    assert sum(shift[0] for shift in shifts) < 0.02, shifts
    tab.page.goto(tab.url + "?max_new_tokens=12&speed=steps")
    tab.page.wait_for_function("window.specdemo?.race")
    tab.page.wait_for_function(LINK_HAS, arg=["max_new_tokens", "12"])
    assert tab.page.evaluate("document.body.classList.contains('dark')") == (looks is not DESK)
    tab.ask("What is a rainbow?")
    tab.finished()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= looks["viewport"]["width"]
    tab.page.locator(".sd-text-spec .sd-tok").first.tap()
    expect(tab.page.locator(".sd-about")).to_contain_text("first token")
    tab.page.locator(".sd-about").tap()  # a sheet on the phone, which a tap closes
    tab.axe_finds_nothing()


def test_the_benchmark_runs_on_the_page_and_its_files_can_be_kept(visit, tmp_path):
    tab = visit("max_new_tokens=8")
    tab.page.get_by_role("tab", name="Benchmark").click()
    recorded = json.loads(benchmark.RECORDED.read_text("utf-8"))
    ours = [f"{row[f'{way}_s']:.2f} s" for way in WAYS for row in recorded["lengths"]]
    expect(tab.page.locator(".sd-bench-charts .bartext")).to_have_count(len(ours))
    told = tab.page.locator(".sd-bench-charts .bartext").all_text_contents()
    assert sorted(one.split("  ")[0] for one in told) == sorted(ours)
    expect(tab.page.locator(".sd-bench-sentence")).to_contain_text(f"commit {recorded['commit']}")
    tab.page.get_by_role("button", name="Run the benchmark").click()
    rows = tab.page.get_by_role("region", name="Prompts").locator("tbody tr")
    expect(rows).to_have_count(10)
    tab.page.get_by_role("button", name="Stop the benchmark").click()
    expect(tab.page.get_by_role("button", name="Run the benchmark")).to_be_visible()
    report = json.loads(tab.kept("JSON", tmp_path / "json").read_text("utf-8"))
    assert len(report["rows"]) == 10 and all(row["speedups"] for row in report["rows"])
    assert tab.kept("CSV", tmp_path / "csv").read_text("utf-8").count("\n") == 11


QUESTIONS = (
    "What is a rainbow?",
    "Name three animals",
    "Say hello",
    "Count from one to ten",
    "What is 2 + 2?",
    "Write a line of Python",
    "Where is Paris?",
    "Repeat: a fox, a fox, a fox, a fox",
    "¿Qué es la luna?",
    "List the days of the week",
)
SHOWN = """() => ({
  lines: document.querySelector('.sd-chart').data.map(({ name, x, y }) =>
    [name, x.at(-1) - x[0], y.at(-1) - y[0]]),
  gap: document.querySelector('.sd-chart').layout.annotations?.[0]?.text ?? '',
  headline: document.querySelector('.sd-headline').textContent,
  tone: document.querySelector('.sd-verdict').dataset.tone,
  sentence: document.querySelector('.sd-sentence').textContent,
  notes: document.querySelector('.sd-notes').textContent,
  clocks: [...document.querySelectorAll('.sd-clock')].map(node => node.textContent),
  bars: [...document.querySelectorAll('.sd-bar')].map(node => node.getBoundingClientRect().width),
  dots: document.querySelectorAll('.sd-dot:not(.sd-hollow)').length,
})"""


def test_ten_questions_asked_twice_the_headline_says_what_the_chart_shows(browser, embedded_pair):
    with started("app.py", HF_HUB_OFFLINE="1", SPECDEMO_RACE_SECONDS="0.2") as server:
        tab = Visit(browser, server.url + "/", "max_new_tokens=16")
        for question in QUESTIONS * 2:
            tab.ask(question)
            tab.finished()
            tab.page.wait_for_function(
                "document.querySelector('.sd-plot').dataset.run === window.specdemo.race.run"
            )
            shown = SimpleNamespace(**tab.page.evaluate(SHOWN))
            told = f"{question}: {shown}"
            seconds = {name: spent for name, spent, _ in shown.lines}
            spent = [seconds["speculative"], seconds["autoregressive"]]
            paces = [tokens / spent for _, spent, tokens in shown.lines]
            races = [fast / slow for slow, fast in zip(paces[::2], paces[1::2], strict=True)]
            assert shown.clocks == [f"{one:.2f} s" for one in spent], told
            assert " instead of ".join(shown.clocks) in shown.sentence, told
            assert shown.bars[1] / shown.bars[0] == pytest.approx(spent[1] / spent[0], rel=0.03)
            if shown.gap:
                assert ("saved" in shown.gap) == (spent[1] > spent[0]), told
            if shown.headline == "Not counted":
                assert not shown.dots and shown.tone == "unclear", told
                continue
            assert shown.dots == len(races), told
            loops = "repeats itself" in shown.notes
            least, most = round(min(races), 2), round(max(races), 2)
            alike = len(races) == 1 and abs(races[0] - 1) <= NOTICEABLE
            if least > 1 and not alike:
                assert shown.headline == f"{races[-1]:.2f} times faster", told
                assert shown.tone == ("neutral" if loops else "faster"), told
            elif most < 1 and not alike:
                assert shown.headline == f"{1 / races[-1]:.2f} times slower", told
                assert shown.tone == "slower", told
            else:
                assert (shown.headline, shown.tone) == ("No clear difference", "unclear"), told
        tab.close()


def test_with_the_keyboard_alone_a_question_is_asked_and_its_race_is_watched(visit):
    tab = visit("max_new_tokens=12")
    press, focus = tab.page.keyboard.press, "document.activeElement"

    def tab_to(selector: str) -> None:
        for _ in range(60):
            press("Tab")
            if tab.page.evaluate(f"{focus}.matches({json.dumps(selector)})"):
                return
        raise AssertionError(f"no way to {selector} by Tab")

    tab_to("#sd-question textarea")
    ring = tab.page.evaluate(f"[getComputedStyle({focus}).outlineStyle, {focus}.value]")
    assert ring == ["solid", "What is the water cycle?"]
    press("Control+A")
    tab.page.keyboard.type("Name three animals")
    tab.before = tab.page.evaluate("window.specdemo.race.run")
    press("Enter")
    tab.finished()
    tab_to(".sd-back")
    for _ in range(3):  # the last rounds may have one token each
        press("Enter")
    expect(tab.page.locator(".sd-later").first).to_be_attached()
    tab_to(".sd-text-spec")
    press("ArrowRight")
    expect(tab.page.locator(".sd-about")).to_contain_text("first token")
    tab_to(".sd-engineers summary")
    press("Enter")
    expect(tab.page.locator(".sd-who")).to_be_visible()


def test_gradio_client_gets_a_streamed_answer_and_one_sentence_for_bad_input(url):
    from gradio_client import Client
    from gradio_client.exceptions import AppError

    client = Client(url, verbose=False)
    parts = list(client.submit("Explain why the sky is blue", 60, api_name="/generate"))
    assert len(parts) > 1 and parts[-1]["done"] and parts[-1]["tokens"] == 60
    assert "".join(part["delta"] for part in parts) == parts[-1]["text"]
    with pytest.raises(AppError, match="max_new_tokens is 0; it must be"):
        client.predict("Hello", 0, api_name="/generate")
