"""The page's pure parts: what is sent to the browser, what a trace says in words and figures, what a link restores."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time

import pytest

from specdemo.trace import (
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
from specdemo.ui import choice, controls, costs, energy, figures, handlers, verdict, wire
from specdemo.ui.kept import Kept
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


def test_a_run_on_a_shared_machine_says_so():
    quiet = made_up_trace()
    assert "shared with" not in verdict.verdict(quiet).reason
    busy = dataclasses.replace(quiet, baseline=dataclasses.replace(quiet.baseline, shared_with=3))
    assert "shared with 3 other requests" in verdict.verdict(busy).reason


def test_a_stopped_run_claims_no_comparison():
    trace = dataclasses.replace(made_up_trace(), finish_reason="cancelled", baseline=None, identical=None)
    words = verdict.verdict(trace)
    assert (words.tone, words.identity) == ("stopped", "")


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_too_short_to_compare_still_gets_words_and_figures(rounds):
    trace = dataclasses.replace(made_up_trace(), rounds=made_up_trace().rounds[:rounds], baseline=None, identical=None)
    assert verdict.verdict(trace).sentence
    assert len(figures.all_figures(trace)) == len(figures.ALL)


def test_the_page_has_a_place_for_every_figure():
    from specdemo.ui import page

    assert len(figures.ALL) == page.CHARTS


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


VALUES = dict(zip(controls.NAMES, ("Why?", "embedded", 40, "auto", "auto", 0, 1, 0, 0, "exact", "shared", "CPU", "CPU",
                                   "auto", "", "", "int8"), strict=True))
"""Inputs of a run, as the page's components give them."""


def test_a_link_restores_question_and_settings():
    values = {**VALUES, "question": "Why? & how = <b>", "draft_tokens": "5", "drafter": "lookup", "temperature": 0.7,
              "top_p": 0.9, "top_k": 40, "seed": 11, "numerics": "fast", "coupling": "maximal", "kv_cache": "f16"}
    from urllib.parse import parse_qsl

    query = dict(parse_qsl(controls.link_query(values)))
    assert controls.from_link(query, ["embedded"], VALUES) == values


def test_a_link_chooses_neither_a_device_nor_a_model_that_is_not_listed():
    query = {"pair": controls.OWN, "target": "somebody/model", "draft": "/etc", "device": "GPU", "weight_format": "int4"}
    assert controls.from_link(query, ["embedded", controls.OWN], VALUES) == {**VALUES, "question": ""}


def test_a_link_with_nonsense_leaves_the_defaults():
    defaults = {**VALUES, "question": ""}
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
    ("coupling", "loose", "Acceptance rule should be one of shared, maximal, not 'loose'."),
    ("kv_cache", "f8", "KV cache precision should be one of auto, f32, f16, bf16, u8, not 'f8'."),
    ("device", "C\nPU", "Device should be a short line of text"),
    ("pair", controls.OWN, "Your own pair needs a target"),
])
def test_an_impossible_setting_is_refused_in_one_sentence_that_names_it(name, value, said):
    with pytest.raises(controls.InputError) as error:
        controls.parse(**{**VALUES, name: value})
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
    (["--device", "TPU"], "--device 'TPU' is not a device OpenVINO finds here"),
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


def test_the_server_refuses_a_pair_of_the_visitors_own_where_it_offers_none():
    own = controls.models(controls.OWN, target="somebody/model")
    with pytest.raises(controls.InputError, match="not offered on this server"):
        choice.Offer("embedded", allow_own_pair=False).resolve(own)
    assert choice.Offer("embedded", allow_own_pair=True).resolve(own) == own
    assert controls.OWN not in [one.value for one in choice.Offer("embedded", allow_own_pair=False).pairs()]


def test_the_pair_taken_unasked_is_the_catalogues_and_its_reason_is_kept(monkeypatch):
    from specdemo.models import catalogue, pairs

    chosen = catalogue.Choice(pairs.find_pair("dolly-3b"), "dolly-3b: the largest Dolly pair that fits.")
    monkeypatch.setattr(catalogue, "default_pair", lambda: chosen)
    offer = choice.Offer(None, allow_own_pair=False)
    assert offer.resolve(controls.models(controls.AUTO)).pair == "dolly-3b"
    assert offer.why == "the largest Dolly pair that fits."


def test_the_list_of_pairs_says_what_fits_this_machine_and_what_is_here(monkeypatch):
    from specdemo.models import catalogue, pairs

    there = [catalogue.Surveyed(pairs.EMBEDDED, None, fits=True, ready=True),
             catalogue.Surveyed(pairs.find_pair("dolly-12b"), None, fits=False, ready=False)]
    monkeypatch.setattr(catalogue, "survey", lambda: there)
    titles = {one.value: one.title for one in choice.Offer("embedded", allow_own_pair=False).surveyed_pairs()}
    assert titles["embedded"].endswith("(here already)")
    assert titles["dolly-12b"].endswith("(12.5 GB to download; needs 28.5 GB of memory, more than there is here)")


def test_kept_runs_are_found_again_and_the_oldest_make_room():
    trace, store = made_up_trace(), Kept(most_runs=2)
    for run in ("a", "b", "c"):
        store.put(run, trace)
    assert store.get("a") is None
    assert store.get("c") == trace


def test_kept_runs_are_bounded_in_bytes():
    store = Kept(most_bytes=100)
    store.put("a", made_up_trace())
    assert store.get("a") is None


class CountingMeter:
    """A meter that reads one joule more each time."""

    def __init__(self):
        self.read = 0

    def joules(self) -> float:
        self.read += 1
        return float(self.read)


def test_energy_is_counted_from_the_first_token_to_the_last():
    trace, tally = made_up_trace(rounds=4), energy.Tally(CountingMeter)
    assert list(tally.watch([*trace.rounds, trace])) == [*trace.rounds, trace]
    assert tally.joules == 4
    assert tally.per_token == pytest.approx(4 / 12)


def test_no_energy_is_shown_where_none_can_be_read():
    class Blind:
        def joules(self):
            return None

    tally = energy.Tally(Blind)
    list(tally.watch(made_up_trace().rounds))
    assert energy.figures(tally, energy.Tally(Blind)) is None


def test_the_endpoints_for_programs_say_what_they_take_and_what_they_give():
    from specdemo.ui import page

    service = Service(controls.Models("embedded"), lambda pair, report: SlowSession(str(pair)))
    built = page.build(service, choice.Offer("embedded", allow_own_pair=False))
    told = built.blocks.get_api_info()["named_endpoints"]
    assert set(told) == {"/generate", "/compare", "/benchmark"}
    pieces, compared = (told[name]["returns"][0]["type"]["properties"] for name in ("/generate", "/compare"))
    assert pieces["delta"] == {"type": "string"} and pieces["done"] == {"type": "boolean"}
    assert compared["speedup"] == {"oneOf": [{"type": "null"}, {"type": "number"}]}
    asked = {one["parameter_name"]: one["type"] for one in told["/generate"]["parameters"]}
    assert asked["drafter"] == {"enum": ["auto", "model", "lookup"]}
    assert asked["max_new_tokens"] == {"type": "integer"}


def test_the_title_is_in_the_html_of_the_page_and_in_nothing_else():
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import HTMLResponse, JSONResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from specdemo.ui.head import TITLE, Head

    document = "<html><head></head><body>\u00e9</body></html>"
    routes = [
        Route("/", lambda request: HTMLResponse(document), methods=["GET", "POST"]),
        Route("/other", lambda request: HTMLResponse(document)),
        Route("/json", lambda request: JSONResponse({"head": "</head>"})),
    ]
    client = TestClient(Starlette(routes=routes, middleware=[Middleware(Head)]))
    page = client.get("/")
    assert TITLE in page.text and page.text.endswith("<body>\u00e9</body></html>")
    assert int(page.headers["content-length"]) == len(page.content)
    assert client.get("/other").text == client.post("/").text == document
    assert client.get("/json").json() == {"head": "</head>"}
