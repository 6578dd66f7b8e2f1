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
from urllib.parse import parse_qsl

import pytest
from fakes import FakeSession

from specdemo.engine.policy import MAX_DRAFT
from specdemo.errors import BadInput
from specdemo.models import registry
from specdemo.settings import ModelChoice, Settings
from specdemo.trace import (
    Baseline,
    PairInfo,
    Trace,
    from_json,
    to_json,
)
from specdemo.ui import choice, figures, inputs, page, runs, wording
from specdemo.ui.limits import Visitor
from specdemo.ui.service import Service

EMBEDDED = ModelChoice("embedded")


*_, TRACE = FakeSession().race("question " * 9, Settings())
"""Nine tokens at 0.01 s each, every other one an accepted draft token; the baseline took 0.02 s for
each."""


def changed(**changes) -> Trace:
    """That run with other fields."""
    return dataclasses.replace(TRACE, **changes)


def with_baseline(**changes) -> Baseline:
    return dataclasses.replace(TRACE.baseline, **changes)


# Words and figures


def test_a_faster_run_is_told_as_one_sentence_and_a_slower_one_says_why():
    words = wording.verdict(TRACE)
    assert (words.tone, words.headline, words.reason) == ("faster", "2.00 times faster", "")
    said = "8 tokens in 0.08 s instead of 0.16 s; acceptance rate 50%; both answers are identical."
    assert words.sentence == said
    tokens = TRACE.baseline.tokens
    quick = [dataclasses.replace(one, shown_at=one.shown_at / 4) for one in tokens]
    words = wording.verdict(changed(baseline=with_baseline(tokens=tuple(quick), shared_with=3)))
    assert (words.tone, words.headline) == ("slower", "2.00 times slower")
    assert "a round yielded 1.00 tokens and took as long as" in words.reason
    assert "shared with 3 other requests" in words.reason


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {},
            "Not identical: token 5 is 'question ', autoregressive 'other', margin 0.0125 logits.",
        ),
        ({"numerics": "fast"}, "With fast numerics"),
        ({"temperature": 0.7, "coupling": "maximal"}, "classic acceptance rule"),
    ],
)
def test_answers_that_differ_are_told_with_the_first_position_and_both_tokens(settings, said):
    shown = list(TRACE.baseline.tokens)
    shown[4] = dataclasses.replace(shown[4], id=99, text="other", margin=0.0125)
    differing = {"baseline": with_baseline(tokens=tuple(shown)), "identical": False}
    words = wording.verdict(changed(settings=Settings(**settings), **differing))
    assert said in words.identity and "the answers differ" in words.sentence


@pytest.mark.parametrize("rounds", [0, 1, 9])
def test_a_stopped_run_gets_words_and_figures_and_claims_no_comparison(rounds):
    given = {"rounds": TRACE.rounds[:rounds], "baseline": None, "identical": None}
    short = changed(finish_reason="cancelled", **given)
    words = wording.verdict(short)
    assert (words.tone, words.identity) == ("stopped", "") and words.sentence
    assert figures.of_run(short)["costs"] is None


def test_the_seconds_of_where_the_time_went_add_up_to_the_run():
    assert len(figures.of_run(TRACE)["costs"]["verify_ms"]) == MAX_DRAFT + 1
    spent = figures.seconds_spent(TRACE)
    assert sum(spent["speculative"].values()) == pytest.approx(0.01 + 0.088)
    assert sum(spent["baseline"].values()) == pytest.approx(0.01 + 0.16)


def test_every_source_is_told_with_what_the_target_examined_and_accepted():
    first, second, *others = TRACE.rounds
    [token] = second.drafted
    lookup = dataclasses.replace(token, source="lookup")
    unseen = dataclasses.replace(lookup, target_probability=None, accepted=False)
    round_ = dataclasses.replace(second, drafted=(lookup, unseen))
    found = figures.sources(changed(rounds=(first, round_, *others)))
    assert [tuple(one.values()) for one in found] == [("model", 7, 3), ("lookup", 1, 1)]


# Envelopes


def test_envelopes_do_not_grow_and_lose_no_round_when_every_other_one_is_skipped():
    channel, seen, sizes = runs.Channel(), 0, []
    rounds = TRACE.rounds * 300
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
    ],
)
def test_a_link_restores_question_and_settings_and_nothing_impossible_or_unsafe(query, restored):
    given = {name: str(value) for name, value in query.items()}
    found = inputs.from_link(given, ["embedded", inputs.OWN], DEFAULTS)
    assert found == {**DEFAULTS, **restored}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_new_tokens", 0, "max_new_tokens is 0; it must be"),
        ("draft_tokens", "many", "draft_tokens is 'many'; it must be"),
        ("temperature", float("nan"), "temperature is nan"),
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
    assert envelope["note"].startswith("Recorded on A processor, 2026-11-22: “question ")
    assert envelope["verdict"]["headline"] == "2.00 times faster"


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
    monkeypatch.setattr(registry, "default_pair", lambda: chosen)
    offer = choice.Offer(ModelChoice(inputs.AUTO), shared=True)
    assert offer.resolve(ModelChoice("dolly-3b")) == offer.first == ModelChoice(inputs.AUTO)
    assert (offer.current, offer.why) == ("dolly-3b", "the largest Dolly pair that fits.")


@pytest.mark.parametrize("shared", [True, False])
def test_a_pair_of_the_owners_own_is_what_the_page_starts_with(shared):
    offer = choice.Offer(ModelChoice(target="owner/model"), shared)
    wanted = inputs.models_of({"pair": offer.defaults["pair"], "target": "owner/model"})
    assert offer.resolve(wanted) == offer.first
    assert ("owner/model", inputs.OWN) in offer.pairs()


# Endpoints


def test_the_endpoint_for_programs_says_what_it_takes_and_what_it_gives():
    service = Service(EMBEDDED, lambda pair, report: FakeSession())
    blocks, _ = page.build(service, choice.Offer(EMBEDDED, shared=False))
    [(name, endpoint)] = blocks.get_api_info()["named_endpoints"].items()
    assert name == "/generate"
    pieces = endpoint["returns"][0]["type"]["properties"]
    assert pieces["delta"] == {"type": "string"} and pieces["done"] == {"type": "boolean"}
    asked = {one["parameter_name"]: one["type"] for one in endpoint["parameters"]}
    assert "request" not in asked and asked["max_new_tokens"] == {"type": "integer"}
