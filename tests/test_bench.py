"""A benchmark of a real pair: the contract of its JSON, its arithmetic, stopping, peers, page."""

from __future__ import annotations

import dataclasses
import json
import statistics
import threading
from collections.abc import Collection

import pytest

from specdemo.bench import race
from specdemo.bench import report as reports
from specdemo.bench.costs import CostTable, VerifyCost, expected_speedup, expected_tokens
from specdemo.bench.energy import Meter
from specdemo.bench.html import page
from specdemo.bench.prompts import BenchPrompt
from specdemo.bench.race import Plan, Step, bench
from specdemo.bench.report import PeerRow, Report, Row, Skipped, to_json
from specdemo.errors import RequestFailed
from specdemo.settings import Settings
from specdemo.terminal import where
from specdemo.trace import BaselineToken, Summary, combined, summarize

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
PROMPTS = (
    BenchPrompt("one", "qa", "Why is the sky blue?"),
    BenchPrompt("two", HOSTILE, "Repeat: one two three one two three"),
    BenchPrompt(HOSTILE, "qa", HOSTILE),
)
SETTINGS = Settings(max_new_tokens=24, drafter="model", draft_tokens=3)


@dataclasses.dataclass
class FakePeer:
    """Answers with given tokens; fails for the seeds and the instructions in `failing`."""

    name: str = "fake/speculative"
    variant: str = "K=2"
    tokens: tuple[int, ...] = (1, 2, 3)
    seconds: float = 0.5
    failing: Collection = ()
    settings: dict = dataclasses.field(default_factory=lambda: {"variant": "K=2"})
    asked: int = 0

    def answer(self, instruction, settings):
        self.asked += 1
        if instruction in self.failing or settings.seed in self.failing:
            raise RequestFailed("fake failed: no reason.")
        return self.tokens, self.seconds


@pytest.fixture(scope="module")
def events(session):
    plan = Plan(SETTINGS, repeats=2, sweep_prompts=1)
    return list(bench(session, PROMPTS, plan, peers=[FakePeer()]))


@pytest.fixture(scope="module")
def report(events) -> Report:
    return events[-1]


def test_a_row_follows_each_prompt_and_the_report_comes_last(events):
    rows = [event.id for event in events if isinstance(event, Row)]
    assert rows == [prompt.id for prompt in PROMPTS]
    assert [event for event in events if isinstance(event, Report)] == [events[-1]]
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert all(step.done < step.total == steps[0].total for step in steps)


def test_json_has_the_fields_of_the_contract_and_no_others_in_rows_and_summary(report):
    data = json.loads(to_json(report))
    assert set("machine versions pair settings rows summary peers".split()) <= data.keys()
    for place, fields in (
        (
            data["rows"][0],
            "id task tokens autoregressive_s speculative_s speedup acceptance_rate "
            "tokens_per_round identical",
        ),
        (
            data["summary"],
            "speedup speedup_by_task worst_prompt_speedup autoregressive_tokens_per_s "
            "speculative_tokens_per_s acceptance_rate tokens_per_round identical prompts "
            "outside_inference_fraction cpu_seconds_per_token",
        ),
        (data["summary"]["cpu_seconds_per_token"], "autoregressive speculative"),
        (data["peers"]["fake/speculative"], "tokens_per_s settings identical"),
    ):
        assert list(place) == fields.split()


def test_speedups_are_total_time_over_total_time(report):
    def speedup(rows):
        seconds = [(row.autoregressive_s, row.speculative_s) for row in rows]
        plain, speculative = map(sum, zip(*seconds, strict=True))
        return pytest.approx(plain / speculative)

    rows, summary = report.rows, report.summary
    assert all(row.identical for row in rows)
    assert summary.speedup == speedup(rows)
    assert summary.speedup_by_task["qa"] == speedup([row for row in rows if row.task == "qa"])
    assert summary.worst_prompt_speedup == min(row.speedup for row in rows)
    assert rows[0].speedup == speedup(rows[:1])


def test_time_is_split_into_drafting_verifying_and_outside(report):
    for figures in (detail.figures for detail in report.details.rows):
        # Medians over two repeats: parts and whole may come from different runs.
        assert 0 < figures.draft_seconds + figures.verify_seconds <= figures.decode_seconds * 1.5
        assert figures.draft_seconds > 0


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
    assert len(events[-1].rows) == 1
    assert events[-1].details.stopped


def test_stopping_before_the_first_prompt_still_gives_a_readable_report(session):
    stop = threading.Event()
    stop.set()
    *_, report = bench(session, PROMPTS, Plan(Settings(draft_tokens=None)), stop=stop)
    assert report.rows == ()
    assert json.loads(to_json(report))["settings"]["draft_tokens"] == "auto"
    summary = report.summary
    assert (summary.speedup, summary.identical, summary.prompts) == (None, None, 0)
    assert "No prompt was finished" in page(report)


def test_a_row_that_is_not_identical_says_where_both_tokens_and_the_margin(session):
    *_, trace = session.race(PROMPTS[0].instruction, SETTINGS)
    tokens = list(trace.baseline.tokens)
    tokens[5] = BaselineToken(tokens[5].id + 1, tokens[5].shown_at, "other", 0.25)
    other = dataclasses.replace(trace.baseline, tokens=tuple(tokens))
    parted = dataclasses.replace(trace, baseline=other, identical=False)
    row = reports.row_of(PROMPTS[0], [trace, parted], summarize(trace))
    assert row.identical is False
    said = where(parted.difference)
    assert all(part in said for part in ("token 6", "'other'", "0.25 logits"))


@pytest.mark.parametrize(("by", "seconds"), [(sum, 12.0), (statistics.median_low, 2.0)])
def test_repeats_are_summed_up_by_medians_and_prompts_by_sums(by, seconds):
    runs = [Summary(10, 5, 9, decode_seconds=s) for s in (9.0, 1.0, 2.0)]
    assert combined(runs, by).decode_seconds == seconds


# Peers


def test_a_peer_is_identical_only_with_our_very_tokens(session):
    *_, trace = session.answer(PROMPTS[0].instruction, SETTINGS)
    ids = trace.token_ids
    peers = [FakePeer(tokens=ids), FakePeer("fake/other", tokens=(*ids[:-1], 0))]
    *_, report = bench(session, PROMPTS[:1], Plan(SETTINGS), peers=peers)
    assert report.peers["fake/speculative"].identical is True
    assert report.peers["fake/other"].identical is False
    assert report.peers["fake/other"].tokens_per_s == pytest.approx((len(ids) - 1) / 0.5)


def test_a_peer_that_fails_is_left_out_with_a_reason_and_the_bench_goes_on(session):
    peers = [FakePeer(failing=[PROMPTS[0].instruction]), FakePeer("fake/good")]
    *_, report = bench(session, PROMPTS[:2], Plan(SETTINGS), peers=peers)
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
    [figures] = reports.peer_figures(rows, {("p", "all"): {"variant": "all"}}).values()
    assert figures.settings == {"variant": "all"}
    assert figures.tokens_per_s == pytest.approx(10.0)
    assert figures.identical is False


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
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("999999\n")
    (zone / "energy_uj").write_text("900000\n")
    meter = Meter(tmp_path)
    (zone / "energy_uj").write_text("100000\n")
    assert meter.joules() == pytest.approx(0.2)


# The page


def test_page_draws_every_figure_and_loads_and_runs_nothing_foreign(report, chromium, tmp_path):
    from playwright.sync_api import sync_playwright

    html = page(report)
    assert "Content-Security-Policy" in html and "&lt;img src=x onerror" in html
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
            assert tab.evaluate("document.querySelectorAll('[src],[href],[action]').length") == 0
            assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
            assert errors == []
        finally:
            browser.close()
