"""Slow motion, the curve and the examples, on a page without models that shows a made-up run."""

from __future__ import annotations

import dataclasses
import json
from urllib.parse import urlencode

import pytest
from fakes import FakeSession, page_server

from specdemo.engine.rounds import DraftToken, EmittedToken, Round
from specdemo.pairs.choice import ModelChoice
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Baseline, BaselineToken, ForwardCosts, to_json
from specdemo.ui.layout import DOES_NOT_PAY
from specdemo.ui.service import Service

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

WORDS = "One two three four five six seven 8".split()
MILLISECONDS = 80, 88, 96, 112, 120, 136, 144, 160
"""Of a forward of 1, 2, ... tokens."""


def id_of(text: str) -> int:
    return WORDS.index(text.strip()) if text.strip() in WORDS else 90


def drafted(**accepted: bool | None):
    """Draft tokens by text: accepted, rejected, or None for one that was not examined."""
    return tuple(
        DraftToken(
            id_of(text), 0.5, None if right is None else 0.5, bool(right), "head", f" {text}"
        )
        for text, right in accepted.items()
    )


def made_up():
    """A run with every kind of token; rounds take 0.1 s, baseline tokens 0.09 s."""
    rounds = [
        ((), ("first", "One")),
        (drafted(two=True, three=True), ("bonus", " four")),
        (drafted(five=True, sax=False, sven=None), ("correction", " six")),
        ((), ("plain", " seven")),
        (drafted(eight=False), ("correction", " 8")),
    ]
    made = tuple(
        Round(draft, EmittedToken(id_of(text), kind, 0.5, text), 0.001, 0.09, 0.1 * at + 0.1)
        for at, (draft, (kind, text)) in enumerate(rounds)
    )
    tokens = [BaselineToken(at, 0.09 * at + 0.1, f" {word}") for at, word in enumerate(WORDS)]
    *_, trace = FakeSession().race("Count", Settings())
    return dataclasses.replace(
        trace,
        rounds=made,
        baseline=Baseline(tuple(tokens), 0.01, 0.2),
        identical=True,
        costs=ForwardCosts(tuple(ms / 1000 for ms in MILLISECONDS), 0.001),
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    service = Service(ModelChoice("embedded"), lambda pair, report: FakeSession())
    service.start()
    with page_server(service) as url:
        yield url + "/"


@pytest.fixture(scope="module")
def browser(chromium):
    with playwright.sync_playwright() as run:
        yield run.chromium.launch(executable_path=chromium, args=["--no-sandbox"])


@pytest.fixture
def opened(browser, url):
    """Opens the page with the made-up run on it; no message may appear on its console."""
    contexts, said = [], []

    def go(clock: bool = False, wanted: dict | None = None, **looks):
        contexts.append(
            browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **looks})
        )
        page = contexts[-1].new_page()
        page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        if clock:
            page.clock.install()
        page.goto(url + ("?" + urlencode(wanted) if wanted else ""))
        page.wait_for_function("window.specdemo?.race?.trace")
        page.evaluate(
            "async text => window.specdemo.receive(await window.specdemo.openRun(text))",
            to_json(made_up()),
        )
        return page

    yield go
    for context in contexts:
        context.close()
    assert said == []


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
    (
        f"{MORE} 8:wrong",
        "8 tokens in 4 steps of the target in 0.40 s; without a draft 7",
    ),
]


def test_each_step_draws_guesses_in_grey_and_then_the_verdict_on_them(opened):
    page = opened(wanted={"speed": "steps"})
    assert drawn(page) == STEPS[-1][0]
    caption = page.locator(".sd-caption")
    for looks, words in STEPS:
        page.keyboard.press("ArrowRight")
        assert drawn(page) == looks
        expect(caption).to_contain_text(words)
    for looks, _ in STEPS[-2::-1]:
        page.keyboard.press("ArrowLeft")
        assert drawn(page) == looks
    page.keyboard.press(" ")
    assert drawn(page) == STEPS[1][0]
    page.locator("#sd-question textarea").press("ArrowRight")
    assert drawn(page) == STEPS[1][0], "a key that somebody types with moved the race"


def test_a_race_plays_for_fifteen_seconds_or_at_the_speed_that_is_chosen(opened):
    page = opened(clock=True)
    page.clock.pause_at("2100-01-01")
    shown = "window.specdemo.race.motion.view"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(" ")
    page.clock.run_for(14_800)
    assert page.evaluate("window.specdemo.race.motion.playing")
    page.clock.run_for(400)
    assert not page.evaluate("window.specdemo.race.motion.playing")
    for speed, seconds in {"1/4": 0.25, "1/16": 0.0625, "1": 1.0}.items():
        page.evaluate("window.specdemo.race.motion.jump(Infinity)")
        page.get_by_role("button", name=speed, exact=True).click()
        page.clock.run_for(400)
        page.keyboard.press(" ")
        assert page.evaluate(shown) == pytest.approx(0.4 * seconds, abs=0.031 * seconds)
        clocks = page.locator(".sd-clock").all_inner_texts()
        assert clocks == [f"{min(0.4, page.evaluate(shown)):.2f} s"] * 2
        query = page.evaluate("window.specdemo.link()").split("?")[1]
        assert urlencode({"speed": speed}) in query
    assert page.evaluate("new URL(location).searchParams.get('speed')") == "1"


def test_with_reduced_motion_nothing_plays_and_the_race_goes_step_by_step(opened):
    page = opened(reduced_motion="reduce")
    expect(page.locator(".sd-speeds")).to_be_hidden()
    expect(page.locator(".sd-play")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    assert drawn(page) == STEPS[1][0]
    assert not page.evaluate("window.specdemo.race.motion.playing")


@pytest.mark.parametrize(
    ("size", "parts"),
    [((1280, 800), ("verdict", "racer-baseline", "chart")), ((390, 844), ("verdict", "headline"))],
)
def test_the_verdict_and_on_a_desk_the_chart_are_on_the_first_screen(opened, size, parts):
    width, height = size
    page = opened(viewport={"width": width, "height": height}, wanted={"speed": "steps"})
    for name in parts:
        box = page.locator(f".sd-{name}").bounding_box()
        assert box["y"] + box["height"] <= height, name
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_for_engineers_the_costs_are_told_and_drawn_with_the_rounds(opened):
    page = opened()
    expect(page.locator(".sd-cost-sentence")).to_be_hidden()
    page.get_by_text("For engineers").click()
    expect(page.locator(".sd-cost-sentence")).to_have_text(
        "Checking 3 tokens takes 1.1 times as long as making one."
    )
    expect(page.locator(".sd-cost-chart .points path")).to_have_count(4 + 1)
    slider, told = page.locator(".sd-rate-slider"), page.locator(".sd-rate-told")
    slider.fill("0")
    expect(told).to_have_text("At 0 % it would be 1.06 times slower.")
    slider.fill("100")
    expect(told).to_contain_text("times faster")
    page.get_by_label("Price of a processor core").fill("3.6")
    saved = page.locator(".sd-saved")
    # 0.1 s for 7 tokens, at 3.6 an hour: a thousandth for a second.
    expect(saved).to_contain_text("14.29")
    expect(saved).not_to_contain_text("Energy")  # nothing measures it


def test_how_it_works_is_a_walk_of_the_run_and_leads_back_to_it(opened):
    page = opened()
    picture = page.locator(".sd-header .sd-step")
    assert [one.split() for one in picture.all_inner_texts()] == [
        "1 Guess The draft guesses ahead five sax sven".split(),
        "2 Check The model checks in one step five ✓ sax ✗ sven".split(),
        "3 Keep The model adds one of its own five six".split(),
    ]
    page.get_by_role("tab", name="How it works").click()
    text = page.locator(".sd-station-text")
    expect(text).to_contain_text("Checking 3 tokens takes 1.1")
    for said in ("In round 3 of this run", "90 ms", "It put “six” for “sax”.", "A round gave 1.75"):
        page.get_by_role("button", name="Next").click()
        expect(text).to_contain_text(said)
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_role("button", name="Watch this round").click()
    expect(page.locator(".sd-text-spec")).to_be_visible()
    assert drawn(page) == STEPS[3][0]
    page.get_by_role("tab", name="How it works").click()
    page.get_by_role("button", name="Ask a question that gains little").click()
    expect(page.locator(".sd-status")).to_contain_text(f", pair fake: “{DOES_NOT_PAY}”")


def test_settings_that_differ_from_the_defaults_are_named_beside_their_title(opened):
    page = opened(wanted={"temperature": "0.5", "draft_tokens": "3"})
    expect(page.locator(".sd-differ")).to_have_text("draft length 3, temperature 0.5")


def test_a_run_of_an_earlier_version_opens_without_a_curve(opened):
    page = opened()
    old = json.loads(to_json(made_up()))
    del old["costs"]
    page.evaluate(
        "async text => window.specdemo.receive(await window.specdemo.openRun(text))",
        json.dumps(old),
    )
    page.get_by_text("For engineers").click()
    expect(page.locator(".sd-saved")).to_be_visible()
    expect(page.locator(".sd-curve")).to_be_hidden()
    expect(page.locator(".sd-headline")).to_be_visible()
