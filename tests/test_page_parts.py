"""The page's parts without a browser: what is sent to it, what a trace says in words and figures,
inputs and links, the choice of models, and what is kept of runs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock
from urllib.parse import parse_qsl

import pytest
from fakes import FakeSession

from specdemo.engine.policy import MAX_DRAFT
from specdemo.engine.rounds import DraftToken, EmittedToken, Round
from specdemo.errors import BadInput
from specdemo.models import registry
from specdemo.settings import ModelChoice, Settings
from specdemo.trace import (
    Baseline,
    BaselineToken,
    Certificate,
    PairInfo,
    Trace,
    from_json,
    summarize,
    to_json,
)
from specdemo.ui import choice, figures, inputs, page, runs, wording
from specdemo.ui.limits import Visitor
from specdemo.ui.service import Service

EMBEDDED = ModelChoice("embedded")


def made_up_trace(
    rounds: int = 10, round_seconds: float = 0.02, baseline_seconds: float = 0.01, drafted: int = 3
) -> Trace:
    """A run in which each round drafts `drafted` tokens, of which all but the last are accepted."""
    made = [Round((), EmittedToken(1, "first", 0.5, "a"), 0.0, 0.05, 0.05)]
    for index in range(rounds):
        drafts = tuple(
            DraftToken(7, 0.9, 0.8 if accepted else 0.1, accepted, "model", "b")
            for accepted in [True] * (drafted - 1) + [False]
        )
        emitted = EmittedToken(8, "correction", 0.7, "c")
        shown_at = 0.05 + (index + 1) * round_seconds
        made.append(Round(drafts, emitted, 0.001 * drafted, round_seconds - 0.004, shown_at))
    ids = [token.id for one in made for token in one.tokens]
    shown = tuple(BaselineToken(id, 0.05 + at * baseline_seconds, "a") for at, id in enumerate(ids))
    return Trace(
        instruction="question",
        prompt_tokens=10,
        prompt_reused=0,
        pair=PairInfo("embedded", "t", "d"),
        settings=Settings(),
        prefill_seconds=0.05,
        rounds=tuple(made),
        finish_reason="length",
        cpu_seconds=1.0,
        outside_seconds=0.01,
        baseline=Baseline(shown, 0.05, 2.0),
        identical=True,
    )


TRACE = made_up_trace()


def changed(**changes) -> Trace:
    """The made-up run with other fields."""
    return dataclasses.replace(TRACE, **changes)


def with_baseline(**changes) -> Baseline:
    return dataclasses.replace(TRACE.baseline, **changes)


# Words


def test_a_faster_run_is_told_as_one_sentence_and_a_slower_one_says_why():
    words = wording.verdict(TRACE)
    assert (words.tone, words.headline, words.reason) == ("faster", "1.5 times faster", "")
    assert words.sentence == (
        "30 tokens in 0.20 s instead of 0.30 s; acceptance rate 67 %; both answers are identical."
    )
    words = wording.verdict(made_up_trace(round_seconds=0.06))
    assert (words.tone, words.headline) == ("slower", "2.0 times slower")
    assert "a round yielded 3.00 tokens and took as long as 6.00 tokens" in words.reason


@pytest.mark.parametrize(
    ("margin", "settings", "said"),
    [
        (0.0125, {}, "has “b”, the baseline chose “other”, by 0.0125 logits over the next best."),
        (None, {}, "the baseline chose “other”."),
        (None, {"numerics": "fast"}, "fast numerics"),
        (None, {"temperature": 0.7, "coupling": "maximal"}, "classic acceptance rule"),
    ],
)
def test_answers_that_differ_are_told_with_the_first_position_and_both_tokens(
    margin, settings, said
):
    shown = list(TRACE.baseline.tokens)
    shown[4] = dataclasses.replace(shown[4], id=99, text="other", margin=margin)
    baseline = with_baseline(tokens=tuple(shown))
    words = wording.verdict(
        changed(baseline=baseline, identical=False, settings=Settings(**settings))
    )
    assert words.identity.startswith("Not identical: at token 5") and said in words.identity
    assert "the answers differ" in words.sentence


ALONE = {"baseline": None, "identical": None}


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (changed(certificate=Certificate(True, 31, None, 0.02)), "Identical: two independent runs"),
        (
            changed(baseline=with_baseline(tokens=TRACE.baseline.tokens[:-3]), identical=False),
            "Not identical: one of the two runs ends after 28 tokens.",
        ),
        (
            changed(certificate=Certificate(True, 31, None, 0.02), **ALONE),
            "Certified: one parallel pass over the finished answer chose the same 31 tokens.",
        ),
        (
            changed(certificate=Certificate(False, 31, 4, 0.02), **ALONE),
            "Not certified: one parallel pass over the finished answer chose another token at "
            "position 5.",
        ),
    ],
    ids=["identical", "shorter", "certified", "not certified"],
)
def test_identity_is_of_two_runs_and_a_certificate_is_told_only_without_a_baseline(trace, said):
    assert wording.identity(trace).startswith(said)


def test_a_run_on_a_shared_machine_says_so_and_a_stopped_one_claims_no_comparison():
    busy = changed(baseline=with_baseline(shared_with=3))
    assert "shared with 3 other requests" in wording.verdict(busy).reason
    words = wording.verdict(changed(finish_reason="cancelled", **ALONE))
    assert (words.tone, words.identity) == ("stopped", "")


# Figures


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_too_short_to_compare_still_gets_words_and_figures(rounds):
    short = changed(rounds=TRACE.rounds[:rounds], **ALONE)
    assert wording.verdict(short).sentence
    assert figures.of_run(short)["costs"] is None


def test_the_seconds_of_where_the_time_went_add_up_to_the_run():
    spent = figures.seconds_spent(TRACE)
    ours = TRACE.prefill_seconds + summarize(TRACE).decode_seconds
    assert sum(spent["speculative"].values()) == pytest.approx(ours, rel=0.01)
    assert sum(spent["baseline"].values()) == pytest.approx(0.05 + 0.30)


def test_every_source_is_told_with_what_the_target_examined_and_accepted():
    first, second, *others = TRACE.rounds
    lookup = tuple(dataclasses.replace(token, source="lookup") for token in second.drafted)
    unseen = dataclasses.replace(lookup[-1], target_probability=None)
    round_ = dataclasses.replace(second, drafted=(*lookup, unseen))
    found = figures.sources(changed(rounds=(first, round_, *others)))
    assert [tuple(one.values()) for one in found] == [("model", 27, 18), ("lookup", 3, 2)]


def test_a_run_and_other_machines_give_cost_tables_of_the_same_shape():
    ours = figures.of_run(TRACE)["costs"]
    assert ours["plain_ms"] == pytest.approx(10) and ours["verify_ms"][3] == pytest.approx(16)
    assert ours["draft_step_ms"] == pytest.approx(1)
    for table in figures.machines().values():
        assert set(ours) <= set(table) and table["processor"]
        assert len(table["verify_ms"]) == len(ours["verify_ms"]) == MAX_DRAFT + 1


# Envelopes


def test_envelopes_do_not_grow_and_lose_no_round_when_every_other_one_is_skipped():
    channel, seen, sizes = runs.Channel(), 0, []
    rounds = made_up_trace(rounds=3000).rounds
    for start in range(0, len(rounds), 3):
        channel.rounds += rounds[start : start + 3]
        text = channel.envelope("speculative")
        sizes.append(len(text))
        if start % 2 == 0:
            data = json.loads(text)
            assert data["rounds_from"] <= seen
            seen = data["rounds_from"] + len(data["rounds"])
    assert seen >= len(rounds) - 3
    assert max(sizes) < 1.1 * max(sizes[:20])


# Inputs and links

DEFAULTS = {
    "question": "",
    **dataclasses.asdict(Settings()),
    **dataclasses.asdict(EMBEDDED),
    "draft_tokens": "auto",
}


WANTED = {
    "question": "Why? & how = <b>",
    "max_new_tokens": 40,
    "draft_tokens": "5",
    "drafter": "lookup",
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "seed": 11,
    "numerics": "fast",
    "coupling": "maximal",
    "kv_cache": "f16",
}
NONSENSE = (
    "pair=none&target=somebody/model&draft=/etc&device=GPU&weight_format=int4&max_new_tokens=1e99&"
    "draft_tokens=16&temperature=nan&top_p=x&top_k=3.5&seed=&numerics=<script>"
)


@pytest.mark.parametrize(
    ("query", "restored"),
    [
        (WANTED, WANTED),
        (dict(parse_qsl(NONSENSE, keep_blank_values=True)), {}),
        ({"pair": inputs.OWN}, {}),
    ],
)
def test_a_link_restores_question_and_settings_and_nothing_impossible_or_unsafe(query, restored):
    given = {name: str(value) for name, value in query.items()}
    found = inputs.from_link(given, ["embedded", inputs.OWN], DEFAULTS)
    assert found == {**DEFAULTS, **restored}


def test_what_the_page_offers_is_a_setting():
    assert inputs.limits("temperature") == {"minimum": 0, "maximum": 5}
    lengths = [("draft_tokens", length) for length in inputs.DRAFT_LENGTHS]
    ends = [("max_new_tokens", end) for end in inputs.limits("max_new_tokens").values()]
    for name, value in lengths + ends:
        inputs.settings_of({name: value})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_new_tokens", 0, "max_new_tokens is 0; it must be at least 1"),
        ("max_new_tokens", None, "max_new_tokens is None"),
        ("draft_tokens", "many", "draft_tokens is 'many'; it must be a whole number or auto."),
        ("temperature", float("nan"), "temperature is nan"),
        ("seed", -1, "seed is -1"),
        ("numerics", "best", "numerics is 'best'; it must be 'exact' or 'fast'."),
        ("kv_cache", "f8", "kv_cache is 'f8'"),
        ("device", "C\nPU", "device is"),
        ("pair", inputs.OWN, "Your own pair needs a target"),
    ],
)
def test_an_impossible_input_is_refused_in_one_sentence_that_names_it(name, value, said):
    read = inputs.settings_of if name in inputs.SETTINGS else inputs.models_of
    with pytest.raises(BadInput, match=said):
        read({**DEFAULTS, name: value})


# Runs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (to_json(TRACE)[:-9], "The file is not JSON"),
        ("[1]", "The file is not a trace"),
        (7, "text"),
    ],
)
def test_what_is_no_trace_gets_one_sentence(text, said):
    envelope = json.loads(runs.opened(text))
    assert envelope["phase"] == "error" and said in envelope["note"]


def test_an_opened_run_says_what_was_asked_where_and_when():
    asked = changed(machine="A processor, x86_64", created="2026-11-22T10:00:00+00:00")
    envelope = json.loads(runs.opened(to_json(asked)))
    assert envelope["note"] == "Recorded on A processor, 2026-11-22: “question”"
    assert envelope["verdict"]["headline"] == "1.5 times faster"


def test_the_recorded_race_is_of_a_named_machine_and_finished():
    trace = from_json(page.RECORDED.read_bytes())
    assert trace.machine and trace.created and trace.identical
    assert trace.pair.name == "embedded"


def test_a_second_run_of_a_session_stops_its_first_and_leaves_others_alone():
    running = runs.Running()
    with running.run("tab", "race") as first, running.run("other tab", "race") as other:
        with running.run("tab", "race"):
            assert first.is_set() and not other.is_set()
        running.stop("tab", "benchmark")
        assert not other.is_set()
    assert other.is_set()


# Energy


@pytest.mark.parametrize(
    ("readings", "joules"),
    [((1.0, 2.0, 3.0, 4.0), {"speculative": 1.0, "plain": 1.0}), ((None,) * 4, None)],
)
def test_energy_is_counted_from_the_first_token_to_the_last_where_it_can_be_read(readings, joules):
    def meter():
        return Mock(joules=Mock(side_effect=readings))

    session = FakeSession()
    session.meter = meter
    service = Service(EMBEDDED, lambda pair, report: session)
    asked = Visitor(), "one two three four five", EMBEDDED, Settings()
    *_, envelope = runs.run(service, runs.Running(), *asked)
    assert json.loads(envelope)["joules"] == joules


# Starting


@pytest.mark.slow
def test_the_page_imports_none_of_the_slow_libraries():
    code = (
        "import sys; from specdemo.ui import page, server\n"
        "slow = 'torch', 'transformers', 'openvino', 'plotly'\n"
        "print([name for name in slow if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pair", "nobody"], "--pair 'nobody' is not a pair"),
        (["--port", "x"], "--port is 'x'; it must be a whole number"),
        (["--max-new-tokens", "0"], "--max-new-tokens is '0'; it must be at least 1"),
        (["--device", "TPU"], "--device 'TPU' is not a device OpenVINO finds here"),
        (["--host", "no.such.host.invalid"], "--host 'no.such.host.invalid' is not an address"),
    ],
)
def test_a_bad_option_of_app_py_gets_one_sentence_and_exit_code_2(arguments, said):
    command = [sys.executable, "app.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_pair_that_nobody_waits_for_gives_way_while_it_loads():
    large, small = ModelChoice("large"), ModelChoice("small")

    def opener(pair, report):
        while pair == large:
            report("downloading")
            time.sleep(0.005)
        return FakeSession(info=PairInfo(pair.pair, pair.pair, None))

    service = Service(large, opener)
    service.start()
    *_, last = service.states(small)
    assert (last.kind, last.pair) == ("ready", small)
    with service.session(small, Visitor()) as session:
        assert session.info.name == "small"


def test_a_pair_that_somebody_waits_for_is_loaded_before_another():
    first, second = ModelChoice("first"), ModelChoice("second")
    opened, go = [], threading.Event()

    def opener(pair, report):
        opened.append(pair)
        go.wait(5)
        return FakeSession()

    service = Service(first, opener)
    waiting = service.states(first)
    next(waiting)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: list(service.states(second)))
        go.set()
        assert list(waiting)[-1].kind == "ready"
        last = other.result()[-1]
    assert opened == [first, second] and (last.kind, last.pair) == ("ready", second)


# The choice of models


@pytest.mark.parametrize(
    "wanted",
    [
        {"pair": "gpt2-xl"},
        {"pair": inputs.OWN, "target": "somebody/model"},
        {"kv_cache": "f16"},
        {"device": "AUTO"},
        {"draft_device": "HETERO"},
    ],
)
def test_where_strangers_share_a_server_nobody_makes_it_load_or_compile_models(wanted):
    chosen = inputs.models_of({"pair": "embedded", **wanted})
    shared, private = choice.Offer(EMBEDDED, shared=True), choice.Offer(EMBEDDED, shared=False)
    with pytest.raises(BadInput, match="This server is shared: its pair is embedded"):
        shared.resolve(chosen)
    assert private.resolve(chosen) == chosen
    assert shared.resolve(EMBEDDED) == EMBEDDED
    assert [name for _, name in shared.pairs()] == ["embedded"]
    assert inputs.OWN in dict(map(reversed, private.pairs()))


def test_the_page_of_a_shared_server_shows_no_setting_that_it_would_refuse():
    service = Service(EMBEDDED, lambda pair, report: FakeSession())

    def shown(offer: choice.Offer) -> set[str]:
        blocks, _ = page.build(service, offer)
        looks = [one["props"] for one in blocks.get_config_file()["components"]]
        return {one["label"] for one in looks if one.get("label") and one.get("visible", True)}

    owners = {"Device", "Draft device", "KV cache precision", "Numerics"}
    assert owners <= shown(choice.Offer(EMBEDDED, shared=False))
    assert not owners & shown(choice.Offer(EMBEDDED, shared=True))


def test_the_pair_taken_unasked_is_the_registrys_and_its_reason_is_kept(monkeypatch):
    why = "dolly-3b: the largest Dolly pair that fits."
    chosen = registry.Choice(registry.find_pair("dolly-3b"), why)
    monkeypatch.setattr(registry, "default_pair", lambda fetch: chosen)
    offer = choice.Offer(ModelChoice(inputs.AUTO), shared=True)
    assert offer.resolve(ModelChoice("dolly-3b")) == offer.first == ModelChoice(inputs.AUTO)
    assert (offer.current, offer.why) == ("dolly-3b", "the largest Dolly pair that fits.")


@pytest.mark.parametrize("shared", [True, False])
def test_a_pair_of_the_owners_own_is_what_the_page_starts_with(shared):
    offer = choice.Offer(ModelChoice(target="owner/model"), shared)
    wanted = inputs.models_of({"pair": offer.defaults["pair"], "target": "owner/model"})
    assert offer.resolve(wanted) == offer.first
    assert ("owner/model", inputs.OWN) in offer.pairs()


def test_the_list_of_pairs_says_what_fits_this_machine_and_what_is_here(monkeypatch):
    large = registry.find_pair("dolly-12b")
    there = [
        registry.Surveyed(registry.EMBEDDED, fits=True, ready=True),
        registry.Surveyed(large, fits=False, ready=False),
    ]
    monkeypatch.setattr(registry, "survey", lambda: there)
    titles = dict(map(reversed, choice.Offer(EMBEDDED, shared=False).surveyed_pairs()))
    assert titles["embedded"].endswith("(here already)")
    assert titles["dolly-12b"].endswith(
        "(12.5 GB to download; needs 28.5 GB of memory, more than there is here)"
    )


# Endpoints


def test_the_endpoints_for_programs_say_what_they_take_and_what_they_give():
    service = Service(EMBEDDED, lambda pair, report: FakeSession())
    blocks, _ = page.build(service, choice.Offer(EMBEDDED, shared=False))
    endpoints = blocks.get_api_info()["named_endpoints"]
    assert set(endpoints) == {"/generate", "/compare", "/benchmark"}
    pieces = endpoints["/generate"]["returns"][0]["type"]["properties"]
    assert pieces["delta"] == {"type": "string"} and pieces["done"] == {"type": "boolean"}
    asked = {one["parameter_name"]: one["type"] for one in endpoints["/generate"]["parameters"]}
    assert "request" not in asked
    assert asked["drafter"] == {"enum": ["auto", "model", "lookup"]}
    assert asked["max_new_tokens"] == {"type": "integer"}
