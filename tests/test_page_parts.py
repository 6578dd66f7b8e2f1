"""The page's parts without a browser: what is sent to it, what a trace says in words and figures,
inputs and links, and the choice of models."""

import ast
import dataclasses
import json
import random
import re
import shlex
import sys
from collections.abc import Callable
from functools import reduce
from itertools import count
from operator import getitem
from pathlib import Path
from typing import get_args

import pytest
from helpers import at_pace, race_trace

from specdemo.bench.costs import predicted_speedups
from specdemo.engine.profile import Invariance, ModelProfile, Profile
from specdemo.engine.rounds import DraftToken, EmittedToken, Round, Source
from specdemo.errors import BadInput
from specdemo.machine import hardware, measured
from specdemo.pairs import embedded, registry
from specdemo.pairs.registry import ModelChoice, PairInfo
from specdemo.runs import race
from specdemo.runs.display import wall_clock
from specdemo.runs.race import on_show
from specdemo.runs.saved_run import from_json
from specdemo.runs.trace import BaselineToken, Trace, summarize
from specdemo.server.page import events, layout, model_menu, race_charts, wording
from specdemo.server.page.model_menu import ModelMenu
from specdemo.server.page.service import Service
from specdemo.server.page.web_app import RECORDED, Assets

EMBEDDED = ModelChoice("embedded")
PREDICTED_RUNS = Path(__file__).parent / "data" / "predicted_runs.json"

TRACE = race_trace(*["question "] * 9)
"""Nine tokens at 0.01 s each, every other one an accepted draft token; the baseline took 0.02 s for
each."""


def changed(baseline: dict | None = None, **changes) -> Trace:
    """That run with other fields, and other fields of its baseline."""
    other = dataclasses.replace(TRACE.baseline, **(baseline or {}))
    return dataclasses.replace(TRACE, **{"baseline": other, **changes})


# Words and figures


def test_a_faster_run_is_told_as_one_sentence_and_a_slower_one_says_why():
    words = wording.verdict(TRACE)
    assert words["headline"] == "2.00x" and words["tone"] == "unclear"
    assert words["qualifier"] == "in this race; at least 6 decide"
    unwatched = race._repeat(changed(watched=False))
    watched = wording.verdict(changed(repeats=[unwatched]))
    assert watched["qualifier"] == "in the one race that counts; at least 6 decide"
    said = "9 tokens in 0.08 s instead of 0.16 s, 0.08 s saved"
    assert words["sentence"] == f"{said}; acceptance rate 50%, 1.0 tokens a round."
    words = wording.verdict(at_pace(TRACE, 0.08, 0.04))
    assert words["headline"] == "0.50x" and words["tone"] == "unclear"
    assert "0.04 s lost" in words["sentence"]
    assert "1.00 tokens and takes as long as 2.00 tokens" in words["notes"][-1]


def test_a_run_that_drafted_in_few_rounds_says_in_how_many():
    few = [
        dataclasses.replace(one, drafted=one.drafted[: at < 3])
        for at, one in enumerate(TRACE.rounds)
    ]
    told = wording.verdict(changed(rounds=tuple(few)))["sentence"]
    assert told.endswith("; drafts in 2 of 8 rounds, 50% accepted.")


def test_answers_that_differ_are_amber_and_told_with_the_first_position_and_both_tokens():
    shown = list(TRACE.baseline.tokens)
    shown[4] = dataclasses.replace(shown[4], id=99, text="other", margin=0.0125)
    words = wording.verdict(changed({"tokens": tuple(shown)}, identical=False))
    said = "Not identical: token 5 is 'question ', autoregressive 'other', margin 0.0125 logits."
    assert words["identity"] == said and words["difference"] == 4
    assert (words["tone"], words["headline"]) == ("differ", "The answers differ")
    classic = dataclasses.replace(TRACE.settings, temperature=0.7, coupling="maximal")
    differing = changed({"tokens": tuple(shown)}, identical=False, settings=classic)
    expected = wording.verdict(differing)
    assert expected["tone"] == "neutral" and expected["qualifier"] == "as expected"
    longer = dataclasses.replace(differing, rounds=TRACE.rounds[:5])
    said = "5 tokens in 0.04 s instead of 9 tokens in 0.16 s: 10 ms a token instead of 20 ms"
    assert said in wording.verdict(longer)["sentence"]


@pytest.mark.parametrize("same", ["rounds", "steps", "baseline", "both", "no baseline"])
def test_a_saved_run_whose_times_are_equal_is_opened(same):
    def at_once(events: tuple) -> tuple:
        return tuple(dataclasses.replace(event, shown_at=0.01) for event in events)

    rounds, tokens = TRACE.rounds, TRACE.baseline.tokens
    if same in ("rounds", "both"):
        rounds = at_once(rounds)
    if same in ("baseline", "both"):
        tokens = at_once(tokens)
    trace = changed({"tokens": tokens}, rounds=rounds)
    if same in ("steps", "no baseline"):
        costs = (0.0, 1e-320)[same == "steps"]
        free = [dataclasses.replace(round_, verify_seconds=costs) for round_ in rounds]
        trace = dataclasses.replace(trace, rounds=tuple(free), baseline=None, identical=None)
    message = json.loads(events.opened(trace.to_json()))
    assert message["phase"] == "opened" and message["curve"] is None


def test_runs_that_draft_nothing_or_last_no_time_are_not_compared():
    undrafted = tuple(dataclasses.replace(one, drafted=()) for one in TRACE.rounds[::2])
    words = wording.verdict(changed(rounds=undrafted))
    assert (words["headline"], words["tone"]) == ("Nothing was drafted", "neutral")
    assert words["sentence"] == "5 tokens in 0.08 s and 0.16 s; nothing was drafted."
    assert words["races"] == [] and not any("round" in note for note in words["notes"])
    words = wording.verdict(at_pace(TRACE, 0.0011, 0.0017))
    assert (words["headline"], words["tone"]) == ("Too short to matter", "neutral")


def test_a_figure_that_no_draft_can_give_is_said_to_come_from_the_machine():
    for slow, told in ((0.16, True), (0.085, False)):
        words = wording.verdict(on_show([at_pace(TRACE, 0.08, slow, share=0.5)]))
        assert ("cannot give more than 1.0x" in " ".join(words["notes"])) == told


def test_the_chart_has_the_counted_races_as_bands_and_names_of_drafters_are_no_markup():
    races = on_show([TRACE, *(at_pace(TRACE, 1.0, slow) for slow in (1.8, 2.0, 2.2))])
    bands, lines = [], []
    for one in wall_clock(races.curves, True)["data"]:
        (bands if "fill" in one else lines).append(one)
    assert [one["name"] for one in lines] == ["autoregressive", "speculative"]
    assert max(bands[1]["x"]) == pytest.approx(2.2) and len(bands) == 2
    many = dataclasses.replace(races.repeats[0], tokens=[100_000] * 5)  # of a stranger's saved run
    [one, *_] = wall_clock(dataclasses.replace(races, repeats=(many,)).curves, True)["data"]
    assert len(one["x"]) == 2 * len(races.tokens), "as many as the answer has"
    [line] = race_charts.of_drafters({"<a href=x>&": ([0.0, 1.0], [1, 2])})["data"]
    assert line["name"] == "&lt;a href=x>&amp;"


FOX = [5, 6, 7, 8] * 12


@pytest.mark.parametrize(
    ("tokens", "loops"),
    [
        (FOX, True),
        ([1, 2, 3, *FOX[:30]], True),
        (list(range(40)), False),
        (list(range(24)) * 2, False),
        (list(range(25)) * 2, True),
        (list(range(20)) * 3, True),
        (list(range(200)) * 2, True),
        ([token for time in range(4) for token in (*range(20), 100 + time)], True),
        ([1, 1, 1, 2] + list(range(10, 40)), False),
    ],
)
def test_an_answer_that_repeats_itself_is_recognised(tokens, loops):
    assert wording.repeats_itself(tokens) == loops


def test_an_answer_that_loops_is_named_and_not_green_and_a_cut_one_is_named(monkeypatch):
    cut = "The answer was cut at 9 tokens, the maximum that was set."
    assert wording.verdict(TRACE)["notes"] == [cut]
    by_schema = dataclasses.replace(TRACE.settings, json_schema="{}")
    assert wording.verdict(changed(settings=by_schema))["notes"] == [cut, wording.UNFINISHED]
    monkeypatch.setattr(wording, "repeats_itself", lambda tokens: tokens == TRACE.token_ids)
    words = wording.verdict(on_show([TRACE, *(at_pace(TRACE, 1.0, 2.0) for _ in range(6))]))
    assert words["headline"] == "2.00x" and words["tone"] == "neutral"
    assert words["notes"] == [wording.LOOP, cut]


@pytest.mark.parametrize("rounds", [0, 1, 9])
@pytest.mark.parametrize("during", ["answer", "baseline"])
def test_a_stopped_run_gets_words_and_claims_no_comparison(rounds, during):
    given = {"rounds": TRACE.rounds[:rounds], "identical": None}
    if during == "answer":
        given |= {"baseline": None, "finish_reason": "cancelled"}
    words = wording.verdict(dataclasses.replace(TRACE, **given))
    assert (words["tone"], words["headline"]) == ("neutral", "Stopped")
    assert ("tokens/s" in words["sentence"]) == (rounds > 1) and "identity" not in words
    assert words["sentence"].count(";") == 1, "what was accepted is said once"


def test_where_reading_takes_a_tenth_the_time_from_the_question_on_is_told_for_both():
    assert wording.reading(changed(prefill_seconds=0.008)) == "", "8 ms of 90"
    rounds, tokens = (
        tuple(dataclasses.replace(one, shown_at=one.shown_at + 0.3) for one in events)
        for events in (TRACE.rounds, TRACE.baseline.tokens)
    )
    read = changed({"tokens": tokens}, rounds=rounds, prefill_seconds=0.3)
    said = "Including the prompt: 1.23x, 0.39 s instead of 0.48 s; "
    assert wording.reading(read) == f"{said}first token after 0.31 s, without drafts 0.32 s."
    assert wording.verdict(read)["headline"].startswith("2.00x")


def test_a_run_as_code_asks_the_same_whatever_is_in_the_question():
    question = 'it\'s "quoted" $(x) `y` \\ {page}\n中文'
    settings = dataclasses.replace(TRACE.settings, seed=7, min_p=0.1, numerics="fast")
    code = wording.program(changed(instruction=question, settings=settings))
    generate = ast.parse(code["python"]).body[-1].value.args[0]
    assert generate.args[0].value == question
    assert {one.arg: one.value.value for one in generate.keywords}["seed"] == 7
    page, note, command = code["curl"].split("\n", 2)
    assert page == "page={page}" and note == "# /generate has no min_p"
    [body] = [word for word in shlex.split(command) if word.startswith('{"')]
    assert json.loads(body) == {"instruction": question, "seed": 7, "numerics": "fast"}


def test_the_curve_tells_what_the_steps_of_this_run_cost():
    told = wording.curve(TRACE)
    # The rounds took 0.01 s and the baseline's tokens 0.02 s: no model does that.
    assert told["sentence"].startswith("The machine's speed changed") and told["predicted"] is None
    slow = changed(rounds=tuple(dataclasses.replace(r, verify_seconds=0.03) for r in TRACE.rounds))
    told = wording.curve(slow)
    half = "(half of 8 such steps took 1.5x to 1.5x)"
    assert told["sentence"] == f"Checking 2 tokens took 1.5x as long as making one {half}."
    [line, dots] = told["figure"]["data"]
    assert line["x"] == [1, 2] and line["y"] == pytest.approx([20.0, 30.0]) and len(dots["x"]) == 8
    # Each round drafts one token, of which half are accepted, and yields 1 instead of 1.5.
    rates = predicted_speedups([slow], [0.0, 0.5, 1.0])
    assert rates == pytest.approx([2.0, 3.0, 4.0]) and told["measured"] == pytest.approx(2.0)
    assert told["predicted"] is None, "it is not what was measured"
    assert wording.curve(changed(rounds=TRACE.rounds[:1])) is None
    assert wording.curve(dataclasses.replace(TRACE, baseline=None, identical=None)) is None


def test_the_speed_up_of_ten_embedded_runs_is_predicted_within_a_tenth():
    for kept in json.loads(PREDICTED_RUNS.read_text("utf-8")):
        trace = recorded_run(kept)
        summary = summarize(trace)
        [predicted] = predicted_speedups([trace], [summary.acceptance_rate])
        assert 0.9 < predicted / summary.speedup < 1.1, kept["question"]


def recorded_run(kept: dict) -> Trace:
    """A run that was recorded without its texts."""
    rounds = [Round((), EmittedToken(0, "first"), 0.0, 0.0, 0.0)]
    for sources, accepted, kind, *milliseconds in kept["rounds"]:
        tokens = [DraftToken(0, None, 0.5, at < accepted, of) for at, of in enumerate(sources)]
        seconds = (ms / 1000 for ms in milliseconds)
        rounds.append(Round(tuple(tokens), kind and EmittedToken(0, kind), *seconds))
    count, spent = kept["baseline"]
    shown = [BaselineToken(0, spent / 1000 * at / count) for at in range(count + 1)]
    return changed(
        {"tokens": tuple(shown)}, rounds=tuple(rounds), outside_seconds=kept["outside"] / 1000
    )


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("SmolLM2-135M-Instruct", "135 million weights: quick, often wrong."),
        ("qwen2.5-1.5b-int4", "1.5 billion weights: small, sometimes wrong."),
        ("dolly-v2-3b-int8-ov", "3 billion weights: small, sometimes wrong."),
        ("dolly-v2-12b-int8-ov", "dolly-v2-12b-int8-ov, 12 billion weights. Draft: "),
        ("gpt2-xl", "gpt2-xl. Draft: n-gram lookup (no draft model). We measure speed and"),
    ],
)
def test_the_page_says_what_the_live_model_is(target, line):
    assert line in wording.model_line(PairInfo("a pair", target, None))


# The choice of models


def test_true_is_no_number_and_a_pair_of_ones_own_needs_a_target():
    for name in ("max_new_tokens", "draft_tokens", "temperature", "top_p", "top_k", "seed"):
        with pytest.raises(BadInput, match=f"{name} is True; it must be a number"):
            model_menu.settings_of({name: True})
    with pytest.raises(BadInput, match="Your own pair needs a target"):
        model_menu.models_of({"pair": model_menu.OWN})


OTHER = {"pair": "gpt2-xl"}, {"pair": model_menu.OWN, "model": "a/model"}, {"kv_cache": "f16"}


@pytest.mark.parametrize("wanted", OTHER)
def test_where_strangers_share_a_server_nobody_makes_it_load_or_compile_models(wanted):
    chosen = model_menu.models_of({"pair": "embedded", **wanted})
    shared, private = ModelMenu(EMBEDDED, shared=True), ModelMenu(EMBEDDED, shared=False)
    with pytest.raises(BadInput, match="This server is shared: its pair is embedded"):
        shared.resolve(chosen)
    assert private.resolve(chosen) == chosen
    assert shared.resolve(EMBEDDED) == EMBEDDED
    assert [name for _, name in shared.pairs()] == ["embedded"]


def test_a_link_sets_what_a_model_does_and_on_a_shared_server_nothing_of_models():
    link = {"thinking": "true", "kv_cache": "f16", "device": "GPU", "model": "a/model"}
    private = {"thinking": True, "kv_cache": "f16"}
    assert ModelMenu(EMBEDDED, shared=False).from_link(link) == private
    assert ModelMenu(EMBEDDED, shared=True).from_link(link) == {}


def test_the_page_of_a_shared_server_shows_no_setting_that_it_would_refuse():
    service = Service(EMBEDDED, lambda pair, report: None)

    def shown(menu: ModelMenu) -> set[str]:
        blocks = layout.build(service, menu)
        looks = [one["props"] for one in blocks.get_config_file()["components"]]
        return {one["label"] for one in looks if one.get("label") and one.get("visible", True)}

    owners = {"Target", "Device", "Draft device", "KV cache precision", "Numerics"}
    assert owners <= shown(ModelMenu(EMBEDDED, shared=False))
    assert not owners & shown(ModelMenu(EMBEDDED, shared=True))


def test_the_pair_taken_unasked_is_the_registrys_and_its_reason_is_printed(monkeypatch, capsys):
    why = "dolly-3b: the largest Dolly pair that fits."
    chosen = registry.find_pair("dolly-3b"), why
    monkeypatch.setattr(registry, "default_pair", lambda: chosen)
    menu = ModelMenu(ModelChoice(model_menu.AUTO), shared=True)
    for name in (model_menu.AUTO, "dolly-3b"):
        assert menu.resolve(ModelChoice(name)) == menu.first == ModelChoice("dolly-3b")
    assert why in capsys.readouterr().err


def test_the_table_of_pairs_says_what_each_takes_and_its_expected_speed(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path))
    monkeypatch.setattr(hardware, "memory_bytes", lambda: 16_000_000_000)

    def cells(name: str) -> list[str]:
        [row] = [row for row in menu.table().split("<tr>") if f'value="{name}"' in row]
        return re.findall(r"<td>(.*?)</td>", row)

    menu = ModelMenu(EMBEDDED, shared=False)
    assert cells("dolly-3b")[1:] == ["pythia-70m", "8.1 GB", "2.9 GB", ""]
    assert cells("dolly-7b")[2:] == ["17.2 GB (more than here)", "7.3 GB", ""]
    flat = ModelProfile((), Invariance(16, 0.0, 2), dict.fromkeys((1, 8, 16), 0.01))
    about = {"machine": hardware.describe(), "target": f"{embedded.TARGET} 1"}
    about["devices"] = "CPU, CPU"
    measured.write("profile", about, Profile({"exact": flat}, ModelProfile(costs={1: 0.001})))
    # 2.78 GB take 131 ms, the draft's 0.07 GB take 3.3 ms: rounds of four are best.
    assert cells("dolly-3b")[4] == "7.7 to 13 tokens/s expected"


def test_a_hundred_visitors_who_open_the_page_at_once_cost_one_look_at_disk_and_memory(monkeypatch):
    menu, looked = ModelMenu(EMBEDDED, shared=True), []
    monkeypatch.setattr(menu, "table", lambda: looked.append(1) or "a table")
    assert [menu.survey for _ in range(100)] == ["a table"] * 100
    assert looked == [1]


def test_a_pair_of_the_owners_own_is_what_the_page_starts_with():
    menu = ModelMenu(ModelChoice(model="owner/model"), shared=True)
    wanted = model_menu.models_of({"pair": menu.defaults["pair"], "model": "owner/model"})
    assert menu.resolve(wanted) == menu.first
    assert menu.pairs() == [("owner/model", model_menu.OWN)]


def test_every_source_of_draft_tokens_has_a_name_on_the_page():
    assert set(events.SOURCES) == set(get_args(Source))


def test_recorded_races_are_small_identical_and_say_where_they_come_from():
    assets = Assets()
    names = [wording.recorded_name(trace) for trace in assets.races.values()]
    assert "Qwen2.5-Coder-1.5B: Why is the sky blue? Answer in three sentences." in names
    for file, trace in assets.races.items():
        origin = f" on {trace.machine}, {trace.created[:10]}. "
        assert trace.identical and origin in wording.origin(trace, "Recorded"), file
        assert (RECORDED / file).stat().st_size < 50_000, file


# Saved runs from strangers: what no run can be is refused, and reading one costs little


SAVED_TRACE = race_trace(*["one ", "two ", "three "] * 4)
RACES = [SAVED_TRACE, *(at_pace(SAVED_TRACE, 1.0, slow) for slow in (1.5, 1.6))]
SAVED = on_show(RACES).to_json()


RUN = json.loads(SAVED)
ROUND, DRAFT = RUN["rounds"][0], RUN["rounds"][1]["drafted"][0]
REJECTED = {**DRAFT, "accepted": False}
QUICK = [{**one, "shown_at": 0.01 + 1e-11 * at} for at, one in enumerate(RUN["rounds"])]
PLAIN = {**ROUND, "emitted": {"id": 1, "kind": "plain"}, "shown_at": 0.5}

IMPOSSIBLE = {
    "90,000 repeats": (["repeats"], [{"seconds": 1.0, "baseline_seconds": 1.5}] * 90_000),
    "more rounds than tokens": (["rounds"], [PLAIN] * 5000),
    "more tokens than an answer": (["rounds"], [{**PLAIN, "drafted": [DRAFT] * 60}] * 60),
    "a long draft": (["rounds", 1, "drafted"], [DRAFT] * 65),
    "many candidates": (["rounds", 2, "candidates"], [REJECTED] * 65),
    "a candidate of probability 2": (
        ["rounds", 2, "candidates"],
        [{**REJECTED, "draft_probability": 2.0}],
    ),
    "a long token": (["rounds", 0, "emitted", "text"], "x" * 1001),
    "logprobs of more tokens": (["rounds", 0, "logprobs"], [{"token": -1.0}] * 2),
    "many logprobs": (["rounds", 0, "logprobs"], [{"token": -1.0, "top": [[1, -1.0]] * 21}]),
    "a first token later": (["rounds", 3], ROUND),
    "an accepted token after a rejected one": (["rounds", 2, "drafted"], [REJECTED, DRAFT]),
    "an unknown source": (["rounds", 1, "drafted", 0, "source"], "__proto__"),
    "an unknown kind": (["rounds", 0, "emitted", "kind"], "constructor"),
    "a negative id": (["rounds", 0, "emitted", "id"], -1),
    "a probability of 2": (["rounds", 0, "emitted", "target_probability"], 2.0),
    "time that goes back": (["rounds", 2, "shown_at"], 0.001),
    "baseline time that goes back": (["baseline", "tokens", 2, "shown_at"], 0.001),
    "answers that differ, called identical": (["baseline", "tokens", 2, "id"], 77),
    "negative seconds": (["rounds", 1, "draft_seconds"], -1.0),
    "endless seconds": (["prefill_seconds"], 1e12),
    "a billion times faster": (["repeats", 0, "seconds"], 1e-12),
    "faster than any machine": (["rounds"], QUICK),
    "a negative count": (["shared_with"], -1),
    "a long machine": (["machine"], "x" * 10_000),
    "a long pair": (["pair", "name"], "x" * 10_000),
}


@pytest.mark.parametrize("problem", IMPOSSIBLE)
def test_what_no_run_can_be_is_refused_in_a_sentence(problem):
    (*path, key), value = IMPOSSIBLE[problem]
    run = json.loads(SAVED)
    reduce(getitem, path, run)[key] = value
    with pytest.raises(BadInput, match="The file is not a trace") as refusal:
        from_json(json.dumps(run))
    assert len(str(refusal.value)) < 300


def largest_run() -> str:
    """A saved run of about the most bytes that the page takes; no two drafts are alike."""
    chance, run = random.Random(1), json.loads(SAVED)
    fields = {"id": 1, "draft_probability": None, "target_probability": None, "accepted": False}
    sources = ["model", "head", "lookup", "grammar", "ngrams"]
    for number in range(1590):
        drafted = [{**fields, "source": chance.choice(sources)} for _ in range(15)]
        shown_at = 2.0 + number / 100
        told = {"emitted": {"id": 1, "kind": "correction"}, "shown_at": shown_at}
        run["rounds"].append({**ROUND, "drafted": drafted, **told})
    run["identical"] = False
    return json.dumps(run, separators=(",", ":"))


def calls_of(function: Callable, *arguments: object) -> int:
    """How many calls it takes, of Python's functions and of C's."""
    calls = count()
    sys.setprofile(lambda frame, event, _: event.endswith("call") and next(calls))
    try:
        assert function(*arguments)
    finally:
        sys.setprofile(None)
    return next(calls)


@pytest.mark.slow
def test_reading_the_largest_run_takes_few_calls_for_a_byte_and_its_curve_fewer():
    text = largest_run()
    assert 2_000_000 < len(text) < 2_500_000
    assert calls_of(events.opened, text) < 1.5 * len(text)  # 0.97
    assert calls_of(wording.curve, from_json(text)) < 0.3 * len(text)  # 0.17
