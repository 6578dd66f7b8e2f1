"""The page's pure parts: what is sent to the browser, what a trace says in words and figures, what a link restores."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time

import pytest

from specdemo.engine.trace import (
    Baseline,
    BaselineToken,
    Certificate,
    DraftToken,
    EmittedToken,
    NearTie,
    PairInfo,
    Round,
    Settings,
    Trace,
    summarize,
)
from specdemo.ui import controls, costs, figures, handlers, verdict, wire
from specdemo.ui.pump import Pump
from specdemo.ui.service import Service


def made_up_trace(rounds: int = 10, round_seconds: float = 0.02, plain_seconds: float = 0.01, drafted: int = 3) -> Trace:
    """A run in which each round drafts `drafted` tokens, of which all but the last are accepted."""
    made = [Round((), EmittedToken(1, "first", 0.5, "a"), 0.0, 0.05, 0.05)]
    for index in range(rounds):
        drafts = tuple(DraftToken(7, 0.9, 0.8 if place < drafted - 1 else 0.1, place < drafted - 1, "model", "b")
                       for place in range(drafted))
        made.append(Round(drafts, EmittedToken(8, "correction", 0.7, "c"), 0.001 * drafted, round_seconds - 0.004,
                          0.05 + (index + 1) * round_seconds))
    tokens = 1 + rounds * drafted
    plain = tuple(BaselineToken(1, 0.05 + i * plain_seconds, "a") for i in range(tokens))
    return Trace("question", 10, 0, PairInfo("embedded", "t", "d"), Settings(), 0.05, tuple(made), "length", 1.0, 0.01,
                 Certificate(True, tokens, None, 0.02), Baseline(plain, 0.05, 2.0), True)


def test_a_faster_run_is_told_as_one_sentence_with_its_figures():
    words = verdict.verdict(made_up_trace())
    assert words.tone == "faster"
    assert words.headline == "1.5 times faster"
    assert words.sentence == ("30 tokens in 0.20 s instead of 0.30 s; the draft guessed 67 % right; "
                              "both answers are identical.")
    assert "Certified" in words.identity


def test_a_slower_run_says_so_and_says_why():
    words = verdict.verdict(made_up_trace(round_seconds=0.06))
    assert words.tone == "slower"
    assert words.headline == "2.0 times slower"
    assert words.reason.startswith("Why: a round brought 3.00 tokens and took as long as 6.00 plain ones")


def test_a_near_tie_is_named_with_its_place_and_margin():
    trace = made_up_trace()
    tied = dataclasses.replace(trace.baseline, near_ties=(NearTie(4, 0.0125),))
    assert "at token 5 (margin 0.0125 logits)" in verdict.identity(dataclasses.replace(trace, baseline=tied))


def test_a_stopped_run_claims_no_comparison():
    trace = dataclasses.replace(made_up_trace(), finish_reason="cancelled", baseline=None, identical=None)
    words = verdict.verdict(trace)
    assert (words.tone, words.identity) == ("stopped", "")


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_too_short_to_compare_still_gets_words_and_figures(rounds):
    trace = dataclasses.replace(made_up_trace(), rounds=made_up_trace().rounds[:rounds], baseline=None, identical=None)
    assert verdict.verdict(trace).sentence
    assert len(figures.all_figures(trace)) == len(figures.ALL)


def test_the_race_figure_has_a_point_for_every_round_and_every_plain_token():
    trace = made_up_trace()
    ours, plain = figures.race(trace).data
    assert len(ours.x) == len(trace.rounds)
    assert ours.y[-1] == plain.y[-1] == 31
    assert plain.x[-1] == pytest.approx(0.30)


def test_the_time_saved_is_marked_in_the_race_figure():
    assert any("0.10 s saved" in note.text for note in figures.race(made_up_trace()).layout.annotations)


def test_the_bars_of_where_the_time_went_add_up_to_the_run():
    trace = made_up_trace()
    ours = sum(bar.x[0] for bar in figures.time_spent(trace).data)
    assert ours == pytest.approx(trace.prefill_seconds + summarize(trace).decode_seconds, rel=0.01)


def test_leviathans_equation_is_recovered_when_verifying_costs_one_plain_token():
    made = costs.Costs(plain=1.0, draft=0.1, verify_fixed=1.0, verify_token=0.0, acceptance=0.8, draft_length=4)
    assert costs.expected_speedup(made, 0.8, 4) == pytest.approx((1 - 0.8**5) / (0.2 * (4 * 0.1 + 1)))


def test_costs_are_those_of_the_trace():
    found = costs.measured_costs(made_up_trace())
    assert found.plain == pytest.approx(0.01)
    assert found.draft == pytest.approx(0.001)
    assert found.verify(3) == pytest.approx(0.016)


def test_an_envelope_does_not_grow_with_the_answer():
    channel = wire.Channel("run", 10_000, "question")
    sizes = []
    for round_ in made_up_trace(rounds=3000).rounds:
        channel.rounds.append(round_)
        if len(channel.rounds) % 3 == 0:
            sizes.append(len(channel.envelope("speculative")))
    assert max(sizes) < 1.1 * max(sizes[:20])


def test_envelopes_lose_no_round_when_every_other_one_is_skipped():
    channel, seen = wire.Channel("run", 100, "question"), 0
    rounds = made_up_trace(rounds=60).rounds
    for start in range(0, len(rounds), 3):
        channel.rounds += rounds[start : start + 3]
        data = json.loads(channel.envelope("speculative"))
        if start % 2 == 0:
            assert data["rounds_from"] <= seen
            seen = data["rounds_from"] + len(data["rounds"])
    assert seen >= len(rounds) - 3


def test_a_link_restores_question_and_settings():
    values = dict(zip(controls.NAMES, ("Why? & how = <b>", "embedded", 40, "5", "lookup", 0.7, 0.9, 40, 11, "fast"),
                      strict=True))
    from urllib.parse import parse_qsl

    query = dict(parse_qsl(controls.link_query(values)))
    assert controls.from_link(query, ["embedded"], dict.fromkeys(controls.NAMES)) == values


def test_a_link_with_nonsense_leaves_the_defaults():
    defaults = dict(zip(controls.NAMES, ("", "embedded", 100, "auto", "auto", 0, 1, 0, 0, "exact"), strict=True))
    query = {"pair": "none", "max_new_tokens": "1e99", "draft_tokens": "-3", "temperature": "nan", "top_p": "x",
             "top_k": "3.5", "seed": "", "numerics": "<script>"}
    assert controls.from_link(query, ["embedded"], defaults) == defaults


@pytest.mark.parametrize(("name", "value", "said"), [
    ("question", "  \n ", "the box is empty"),
    ("max_new_tokens", 0, "Maximum tokens should be a whole number from 1 to 2,000, not 0."),
    ("max_new_tokens", None, "not nothing"),
    ("draft_tokens", "many", "Draft length should be auto or a whole number from 1 to 64, not 'many'."),
    ("temperature", float("nan"), "Temperature should be a number from 0 to 5, not nan."),
    ("seed", -1, "Seed should be a whole number"),
    ("numerics", "best", "Numerics should be one of exact, fast, not 'best'."),
])
def test_an_impossible_setting_is_refused_in_one_sentence_that_names_it(name, value, said):
    values = dict(zip(controls.NAMES, ("Why?", "embedded", 40, "auto", "auto", 0, 1, 0, 0, "exact"), strict=True))
    with pytest.raises(controls.InputError) as error:
        controls.parse(**{**values, name: value})
    assert said in str(error.value)


def test_a_file_that_is_no_trace_gets_one_sentence(tmp_path):
    path = tmp_path / "notes.json"
    path.write_bytes(b"\xff\xfe not json")
    envelope, trace = handlers.open_trace(str(path))
    assert trace is None
    assert json.loads(envelope)["phase"] == "error"


def test_a_run_that_nobody_collects_any_more_is_stopped(monkeypatch):
    monkeypatch.setattr("specdemo.ui.pump.ABANDONED_AFTER", 0.05)
    stop = threading.Event()

    def endless():
        while not stop.wait(0.01):
            yield 0

    Pump(endless, stop)
    assert stop.wait(5)


def test_a_pump_hands_on_everything_in_order_and_then_the_failure():
    def broken():
        yield from range(100)
        raise ValueError("after a hundred")

    seen = []
    with pytest.raises(ValueError, match="after a hundred"):
        for batch in Pump(broken, threading.Event()).batches(0.01):
            seen += batch
    assert seen == list(range(100))


def test_the_page_imports_none_of_the_slow_libraries():
    code = ("import sys; from specdemo.ui import page, serve\n"
            "print([name for name in ('torch', 'transformers', 'openvino', 'plotly') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("arguments", "said"), [
    (["--pair", "nobody"], "--pair 'nobody' is not a pair"),
    (["--port", "x"], "--port 'x' should be a whole number"),
    (["--max-new-tokens", "0"], "--max-new-tokens '0' should be a whole number from 1"),
    (["--host", "no.such.host.invalid"], "--host 'no.such.host.invalid' is not an address"),
])
def test_a_bad_option_of_app_py_gets_one_sentence_and_exit_code_2(arguments, said):
    done = subprocess.run([sys.executable, "app.py", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


class SlowSession:
    """Stands for a session that takes as long to open as its test wants."""

    def __init__(self, name: str):
        self.info, self.closed = PairInfo(name, name, None), False

    def close(self) -> None:
        self.closed = True


def test_a_pair_that_nobody_waits_for_gives_way_while_it_loads():
    def opener(pair, report):
        while pair == "large":
            report("downloading", 0.1)
            time.sleep(0.005)
        return SlowSession(pair)

    service = Service("large", opener)
    service.start()
    *_, last = service.states("small")
    assert (last.kind, last.pair) == ("ready", "small")
    with service.session("small") as session:
        assert session.info.name == "small"


def test_a_pair_that_somebody_waits_for_is_loaded_before_another():
    opened, go = [], threading.Event()

    def opener(pair, report):
        opened.append(pair)
        go.wait(5)
        return SlowSession(pair)

    service, seen = Service("first", opener), []
    waiting = service.states("first")
    next(waiting)
    other = threading.Thread(target=lambda: seen.extend(service.states("second")))
    other.start()
    go.set()
    assert [state.kind for state in waiting][-1] == "ready"
    other.join(5)
    assert opened == ["first", "second"]
    assert (seen[-1].kind, seen[-1].pair) == ("ready", "second")
