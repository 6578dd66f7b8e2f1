"""A benchmark of a real pair: the contract of its JSON, its arithmetic, stopping, peers, page."""

from __future__ import annotations

import dataclasses
import json
import threading
from html.parser import HTMLParser

import pytest

from specdemo.bench import race
from specdemo.bench import report as reports
from specdemo.bench.costs import CostTable, VerifyCost, expected_speedup, expected_tokens
from specdemo.bench.energy import Meter
from specdemo.bench.html import page
from specdemo.bench.prompts import BenchPrompt
from specdemo.bench.race import PeerAnswer, Plan, Step, bench
from specdemo.bench.report import (
    Figures,
    Measured,
    PeerRow,
    Report,
    Row,
    Skipped,
    figures_of,
    peer_figures,
    to_json,
)
from specdemo.bench.tables import where
from specdemo.errors import RequestFailed
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import BaselineToken

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
PROMPTS = (
    BenchPrompt("one", "qa", "Why is the sky blue?"),
    BenchPrompt("two", HOSTILE, "Repeat: one two three one two three"),
    BenchPrompt(HOSTILE, "qa", HOSTILE),
)
SETTINGS = Settings(max_new_tokens=24, drafter="model", draft_tokens=3)


@dataclasses.dataclass
class FakePeer:
    """Answers with given tokens; after `fails_after` answers it fails."""

    name: str = "fake/speculative"
    variant: str = "K=2"
    tokens: tuple[int, ...] = (1, 2, 3)
    seconds: float = 0.5
    fails_after: int = 99
    settings: dict = dataclasses.field(default_factory=lambda: {"variant": "K=2"})
    asked: int = 0

    def answer(self, instruction, settings):
        self.asked += 1
        if self.asked > self.fails_after:
            raise RequestFailed("fake failed: no reason.")
        return PeerAnswer(self.tokens, self.seconds)


@pytest.fixture(scope="module")
def session(tiny_llama_pair):
    session = Session(tiny_llama_pair)
    yield session
    session.close()


@pytest.fixture(scope="module")
def events(session):
    plan = Plan(SETTINGS, repeats=2, sweep_prompts=1)
    return list(bench(session, PROMPTS, plan, peers=[FakePeer()]))


@pytest.fixture(scope="module")
def report(events) -> Report:
    return events[-1]


def test_a_row_follows_each_prompt_and_the_report_comes_last(events):
    assert [event.id for event in events if isinstance(event, Row)] == [
        prompt.id for prompt in PROMPTS
    ]
    assert isinstance(events[-1], Report)
    assert sum(isinstance(event, Report) for event in events) == 1


def test_steps_never_go_back_nor_past_their_total(events):
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert all(step.done < step.total == steps[0].total for step in steps)


def fields(names: str) -> set[str]:
    return set(names.split())


def test_json_has_the_fields_of_the_contract_and_no_others_in_rows_and_summary(report):
    data = json.loads(to_json(report))
    assert fields("machine versions pair settings rows summary peers") <= data.keys()
    row = fields(
        "id task tokens autoregressive_s speculative_s speedup acceptance_rate tokens_per_round "
        "identical"
    )
    assert all(one.keys() == row for one in data["rows"])
    assert data["summary"].keys() == fields(
        "speedup speedup_by_task worst_prompt_speedup autoregressive_tokens_per_s "
        "speculative_tokens_per_s acceptance_rate tokens_per_round identical prompts "
        "outside_inference_fraction cpu_seconds_per_token"
    )
    cpu = data["summary"]["cpu_seconds_per_token"]
    assert cpu.keys() == fields("autoregressive speculative")
    assert data["peers"]["fake/speculative"].keys() == fields("tokens_per_s settings identical")


def test_speedup_is_total_time_over_total_time(report):
    rows = report.rows
    assert all(row.identical for row in rows)
    total = sum(row.autoregressive_s for row in rows) / sum(row.speculative_s for row in rows)
    assert report.summary.speedup == pytest.approx(total)
    assert report.summary.worst_prompt_speedup == min(row.speedup for row in rows)
    assert rows[0].speedup == pytest.approx(rows[0].autoregressive_s / rows[0].speculative_s)


def test_task_speedups_are_totals_of_their_own_prompts(report):
    chosen = [row for row in report.rows if row.task == "qa"]
    total = sum(row.autoregressive_s for row in chosen) / sum(row.speculative_s for row in chosen)
    assert report.summary.speedup_by_task["qa"] == pytest.approx(total)


def test_time_is_split_into_drafting_verifying_and_outside(report):
    for detail in report.details.rows:
        figures = detail.figures
        assert figures.draft_s > 0
        assert figures.verify_s > 0
        # Medians over two repeats: parts and whole may come from different runs.
        assert figures.draft_s + figures.verify_s <= figures.speculative_s * 1.5


def test_sweep_has_the_adaptive_and_every_fixed_draft_length(report):
    assert [point.draft_tokens for point in report.details.sweep] == [None, *race.SWEEP]
    assert report.details.sweep_prompts == 1
    assert all(point.figures.speedup > 0 for point in report.details.sweep)


def test_a_prompt_that_cannot_be_used_is_skipped_with_a_reason(session):
    long = BenchPrompt("long", "qa", "x" * 5000)
    events = list(bench(session, [long, PROMPTS[0]], Plan(Settings(max_new_tokens=4))))
    kinds = [type(event) for event in events if not isinstance(event, Step)]
    assert kinds == [Skipped, Row, Report]
    assert "shorten it" in events[-1].details.skipped[0].reason


def test_stopping_ends_soon_with_a_report_of_the_finished_prompts(session):
    stop = threading.Event()
    events = []
    for event in bench(session, PROMPTS * 50, Plan(SETTINGS), stop=stop):
        events.append(event)
        if isinstance(event, Row):
            stop.set()
    assert isinstance(events[-1], Report)
    assert len(events[-1].rows) == 1
    assert events[-1].details.stopped


def test_stopping_before_the_first_prompt_still_gives_a_readable_report(session):
    stop = threading.Event()
    stop.set()
    *_, report = bench(session, PROMPTS, Plan(Settings(draft_tokens=None)), stop=stop)
    assert report.rows == ()
    assert json.loads(to_json(report))["settings"]["draft_tokens"] == "auto"
    assert report.summary.speedup is None
    assert "No prompt was finished" in page(report)


def test_closing_the_generator_leaves_the_session_usable(session):
    running_bench = bench(session, PROMPTS, Plan(SETTINGS))
    for event in running_bench:
        if isinstance(event, Row):
            break
    running_bench.close()
    *_, report = bench(session, PROMPTS[:1], Plan(SETTINGS))
    assert report.rows[0].identical


def test_sampled_answers_are_identical_too_with_the_shared_coupling(session):
    *_, report = bench(
        session, PROMPTS[:2], Plan(dataclasses.replace(SETTINGS, temperature=0.9, seed=3))
    )
    assert report.summary.identical is True


def test_a_row_that_is_not_identical_says_where_both_tokens_and_the_margin(session):
    *_, trace = session.race(PROMPTS[0].instruction, SETTINGS)
    tokens = list(trace.baseline.tokens)
    tokens[5] = BaselineToken(tokens[5].id + 1, tokens[5].shown_at, "other", 0.25)
    other = dataclasses.replace(trace.baseline, tokens=tuple(tokens))
    parted = dataclasses.replace(trace, baseline=other, identical=False)
    measured = Measured(PROMPTS[0], (trace, parted), (figures_of(trace), figures_of(parted)))
    assert measured.row.identical is False
    difference = measured.detail(None).difference
    assert (difference.position, difference.baseline_text) == (5, "other")
    said = where(difference)
    assert "token 6" in said
    assert "'other'" in said
    assert "0.25 logits" in said


def test_repeats_are_summed_up_by_medians():
    fast, middle, slow = (Figures(10, 10, 5, speculative_s=s) for s in (1.0, 2.0, 9.0))
    assert reports.medians([slow, fast, middle]).speculative_s == 2.0
    assert reports.total([slow, fast, middle]).speculative_s == 12.0


# Peers


def test_a_peer_is_identical_only_with_our_very_tokens(session):
    *_, trace = session.answer(PROMPTS[0].instruction, SETTINGS)
    right, wrong = (
        FakePeer(tokens=trace.token_ids),
        FakePeer("fake/other", tokens=(*trace.token_ids[:-1], 0)),
    )
    *_, report = bench(session, PROMPTS[:1], Plan(SETTINGS), peers=[right, wrong])
    assert report.peers["fake/speculative"].identical is True
    assert report.peers["fake/other"].identical is False
    assert report.peers["fake/other"].tokens_per_s == pytest.approx(
        (len(trace.token_ids) - 1) / 0.5
    )


def test_a_peer_that_fails_is_left_out_with_a_reason_and_the_bench_goes_on(session):
    *_, report = bench(
        session, PROMPTS[:2], Plan(SETTINGS), peers=[FakePeer(fails_after=1), FakePeer("fake/good")]
    )
    assert len(report.rows) == 2
    assert list(report.peers) == ["fake/good"]
    assert "no reason" in report.details.skipped[0].reason


def test_slow_variants_are_dropped_after_the_pilot_and_the_fastest_is_reported(
    session, monkeypatch
):
    monkeypatch.setattr(race, "PILOT_PROMPTS", 2)
    fast, slow = FakePeer(variant="fast", seconds=0.1), FakePeer(variant="slow", seconds=1.0)
    fast.settings = {"variant": "fast"}
    *_, report = bench(session, PROMPTS, Plan(Settings(max_new_tokens=3)), peers=[slow, fast])
    assert (slow.asked, fast.asked) == (3, 4)  # one of them to warm up
    assert report.peers["fake/speculative"].settings == {"variant": "fast"}


def test_a_variant_that_ran_fewer_prompts_is_not_the_one_reported():
    rows = [
        PeerRow("p", "few", "1", 10, 0.1, True),
        *(PeerRow("p", "all", str(i), 10, 1.0, False) for i in (1, 2)),
    ]
    figures = peer_figures(rows, {("p", "all"): {"variant": "all"}})
    assert figures["p"].settings == {"variant": "all"}
    assert figures["p"].tokens_per_s == pytest.approx(10.0)
    assert figures["p"].identical is False


# Costs and energy


def test_verification_costs_between_measured_sizes_lie_on_a_line_and_never_fall():
    verify = (VerifyCost(1, 1.0, 5), VerifyCost(3, 2.0, 5), VerifyCost(5, 1.8, 5))
    costs = CostTable(1.0, 0.1, verify)
    assert costs.verify_seconds(2) == pytest.approx(1.5)
    assert costs.verify_seconds(4) >= 1.8
    assert costs.verify_seconds(9) > 1.8


def test_expected_figures_are_leviathans():
    assert expected_tokens(0.8, 3) == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert expected_tokens(1.0, 4) == 5
    # Theorem 3.8 with cost coefficient c: (1 - a^(g+1)) / ((1 - a)(g c + 1))
    flat = CostTable(1.0, 0.1, (VerifyCost(1, 1.0, 9),))
    theorem = (1 - 0.7**6) / (0.3 * (5 * 0.1 + 1))
    assert expected_speedup(0.7, 5, flat) == pytest.approx(theorem)
    free = expected_speedup(0.7, 5, flat, draft_step=0.0)
    assert free == pytest.approx(expected_tokens(0.7, 5))


def test_energy_is_none_without_counters_and_counts_past_a_wrap_with_them(tmp_path):
    assert Meter(tmp_path).joules() is None
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, value in (
        ("name", "package-0"),
        ("max_energy_range_uj", "999999"),
        ("energy_uj", "900000"),
    ):
        (zone / name).write_text(f"{value}\n")
    meter = Meter(tmp_path)
    (zone / "energy_uj").write_text("100000\n")
    assert meter.joules() == pytest.approx(0.2)


# The page


class Attributes(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [
            value for name, value in attrs if name in ("src", "href", "srcset", "action")
        ]


@pytest.fixture(scope="module")
def html(report) -> str:
    return page(report)


def test_page_loads_nothing_from_anywhere(html):
    parser = Attributes()
    parser.feed(html)
    assert parser.links == []
    assert "link" not in parser.tags
    assert "Content-Security-Policy" in html


def test_page_escapes_what_prompts_bring(html):
    assert "<script>window.hacked" not in html
    assert "<img src=x" not in html
    assert "&lt;img src=x onerror" in html


def test_page_draws_every_figure_and_runs_no_foreign_script_in_a_browser(html, chromium, tmp_path):
    from playwright.sync_api import sync_playwright

    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            tab = browser.new_page()
            asked, errors = [], []
            tab.on("request", lambda request: asked.append(request.url))
            tab.on("pageerror", lambda error: errors.append(str(error)))
            tab.goto((tmp_path / "report.html").as_uri())
            tab.wait_for_function(
                "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 6"
            )
            assert tab.evaluate("window.hacked") is None
            assert tab.evaluate("document.querySelectorAll('.js-plotly-plot').length") == 6
            assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
            assert errors == []
        finally:
            browser.close()


def test_summary_without_rows_has_no_figures():
    summary = reports.summarize_rows((), ())
    assert (summary.speedup, summary.identical, summary.prompts) == (None, None, 0)
