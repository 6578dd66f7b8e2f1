"""A benchmark of a scripted session: the contract of its JSON, its arithmetic, stopping, peers."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Collection
from types import SimpleNamespace

import pytest
from fakes import FakeSession

from specdemo.bench.costs import CostTable, expected_speedup, expected_tokens
from specdemo.bench.energy import Meter
from specdemo.bench.prompts import BenchPrompt
from specdemo.bench.race import Step, bench
from specdemo.bench.report import Report, Row, Skipped, to_json
from specdemo.errors import RequestFailed
from specdemo.settings import Settings
from specdemo.trace import Summary

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
PROMPTS = (
    BenchPrompt("one", "qa", "Why is the sky blue today and not green?"),
    BenchPrompt("two", HOSTILE, "Repeat: one two three one two three"),
    BenchPrompt(HOSTILE, "qa", f"{HOSTILE} and some more words"),
)
SETTINGS = Settings(max_new_tokens=24)


@dataclasses.dataclass
class FakePeer:
    """Answers with given tokens; fails for the seeds and the instructions in `failing`."""

    name: str = "fake/speculative"
    variant: str = "K=2"
    tokens: tuple[int, ...] = (1, 2, 3)
    seconds: float = 0.5
    failing: Collection = ()

    @property
    def settings(self):
        return {"variant": self.variant}

    def answer(self, instruction, settings):
        if instruction in self.failing or settings.seed in self.failing:
            raise RequestFailed("fake failed: no reason.")
        return self.tokens, self.seconds

    def close(self):
        pass


def report_of(prompts=PROMPTS, session=None, **more) -> Report:
    *_, report = bench(session or FakeSession(), prompts, SETTINGS, **more)
    return report


@pytest.fixture(scope="module")
def events():
    return list(bench(FakeSession(), PROMPTS, SETTINGS, repeats=2, peers=[FakePeer()]))


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
    assert data["settings"]["draft_tokens"] == "auto" and data["pair"]["target"] == "fake target"
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


def test_speedups_are_total_time_over_total_time():
    runs = [Summary(decoded=1, decode_seconds=s, baseline_decoded=1) for s in (1.0, 3.0)]
    runs = [dataclasses.replace(one, baseline_decode_seconds=4.0) for one in runs]
    head = report_of(PROMPTS[:1])
    rows = tuple(dataclasses.replace(head.rows[0], figures=one) for one in runs)
    report = dataclasses.replace(head, rows=rows)
    assert report.total.speedup == report.speedup_by_task["qa"] == 2.0, "not the mean, 2.67"
    assert report.worst_prompt_speedup == pytest.approx(4 / 3)


def test_a_prompt_that_cannot_be_used_is_skipped_with_a_reason():
    empty = SimpleNamespace(id="empty", task="qa", instruction=" ")
    events = list(bench(FakeSession(), [empty, PROMPTS[0]], SETTINGS))
    kinds = [type(event) for event in events if not isinstance(event, Step)]
    assert kinds == [Skipped, Row, Report]
    assert "is empty" in events[-1].skipped[0].reason


def test_stopping_ends_soon_with_a_report_of_the_finished_prompts():
    stop = threading.Event()
    for event in bench(FakeSession(), PROMPTS * 50, SETTINGS, stop=stop):
        if isinstance(event, Row):
            stop.set()
    assert len(event.rows) == 1 and event.stopped
    report = report_of(stop=stop, peers=[FakePeer()])
    summary = json.loads(to_json(report))["summary"]
    assert [summary[name] for name in ("speedup", "identical", "prompts")] == [None, None, 0]
    assert "No prompt was finished" in report.page()


def test_a_row_that_is_not_identical_says_where_both_tokens_and_the_margin():
    session = FakeSession()
    session.differs_at = 5
    [row] = report_of(PROMPTS[:1], session=session).rows
    assert row.identical is False
    assert all(part in row.difference for part in ("token 6", "'other '", "0.25 logits"))


# Peers


def test_a_peer_is_identical_only_with_our_very_tokens():
    ids = tuple(range(1, 10))
    peers = [FakePeer(tokens=ids), FakePeer("fake/other", tokens=(*ids[:-1], 0))]
    found = report_of(PROMPTS[:1], peers=peers).peers
    assert found["fake/speculative"]["identical"] is True
    assert found["fake/other"]["identical"] is False
    assert found["fake/other"]["tokens_per_s"] == pytest.approx(8 / 0.5)


@pytest.mark.parametrize("failing", [0, 3])
def test_a_peer_that_fails_is_left_out_with_a_reason_and_the_bench_goes_on(failing):
    prompts = [BenchPrompt(str(at), "qa", f"Question {at}") for at in range(4)]
    peers = [FakePeer(failing=[prompts[failing].instruction]), FakePeer("fake/good")]
    report = report_of(prompts, peers=peers)
    assert len(report.rows) == 4 and list(report.peers) == ["fake/good"]
    assert "no reason" in report.skipped[0].reason


def test_the_fastest_variant_of_a_peer_is_reported():
    fast, slow = FakePeer(variant="fast", seconds=0.1), FakePeer(variant="slow", seconds=1.0)
    [found] = report_of(peers=[slow, fast]).peers.values()
    assert found["settings"] == {"variant": "fast"}
    assert found["tokens_per_s"] == pytest.approx(20)


# Costs and energy


def test_verification_costs_between_measured_sizes_lie_on_a_line_and_never_fall():
    costs = CostTable(1.0, 0.1, {1: 1.0, 3: 2.0, 5: 1.8})
    assert costs.verify_seconds(2) == pytest.approx(1.5)
    assert costs.verify_seconds(4) >= 1.8
    assert costs.verify_seconds(9) > 1.8


def test_expected_figures_are_leviathans():
    assert expected_tokens(0.8, 3) == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert expected_tokens(1.0, 4) == 5
    # Theorem 3.8 with cost coefficient c: (1 - a^(g+1)) / ((1 - a)(g c + 1))
    flat = CostTable(1.0, 0.1, {1: 1.0})
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

    html = report.page()
    assert "Content-Security-Policy" in html and "&lt;img src=x onerror" in html
    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        asked, errors = [], []
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto((tmp_path / "report.html").as_uri())
        drawn = "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4"
        tab.wait_for_function(drawn)
        assert tab.evaluate("window.hacked") is None
        assert tab.evaluate("document.querySelectorAll('.js-plotly-plot').length") == 4
        assert tab.evaluate("document.querySelectorAll('[src],[href],[action]').length") == 0
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert errors == []
        browser.close()
