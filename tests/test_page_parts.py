"""The page's parts without a browser: what is sent to it, what a trace says in words and figures,
inputs and links, the choice of models, and what is kept of runs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading

import pytest
from fakes import FakeSession

from specdemo.engine.rounds import DraftToken, EmittedToken, Round
from specdemo.errors import BadInput
from specdemo.settings import ModelChoice, Settings
from specdemo.trace import Baseline, BaselineToken, Certificate, PairInfo, Trace, summarize
from specdemo.ui import choice, envelopes, figures, handlers, inputs, wording
from specdemo.ui.runs import Finished, Running
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


def differing_trace(margin: float | None, **settings) -> Trace:
    """The made-up run, with another token of the baseline at position 4."""
    trace = made_up_trace()
    shown = list(trace.baseline.tokens)
    shown[4] = dataclasses.replace(shown[4], id=99, text="other", margin=margin)
    baseline = dataclasses.replace(trace.baseline, tokens=tuple(shown))
    return dataclasses.replace(
        trace, baseline=baseline, identical=False, settings=Settings(**settings)
    )


# Words


def test_a_faster_run_is_told_as_one_sentence_with_its_figures():
    words = wording.verdict(made_up_trace())
    assert (words.tone, words.headline, words.reason) == ("faster", "1.5 times faster", "")
    assert words.sentence == (
        "30 tokens in 0.20 s instead of 0.30 s; acceptance rate 67 %; both answers are identical."
    )
    assert words.identity.startswith("Identical: two independent runs")


def test_a_slower_run_says_so_and_says_why():
    words = wording.verdict(made_up_trace(round_seconds=0.06))
    assert (words.tone, words.headline) == ("slower", "2.0 times slower")
    assert words.reason.startswith(
        "Why: a round yielded 3.00 tokens and took as long as 6.00 tokens of the baseline"
    )


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (
            differing_trace(0.0125),
            "at token 5 the answer has “b”, the baseline chose “other”, by 0.0125 logits over the "
            "next best.",
        ),
        (differing_trace(None), "the baseline chose “other”."),
        (differing_trace(None, numerics="fast"), "fast numerics"),
        (differing_trace(None, temperature=0.7, coupling="maximal"), "classic acceptance rule"),
    ],
    ids=["margin", "sampled", "fast", "maximal"],
)
def test_answers_that_differ_are_told_with_the_first_position_and_both_tokens(trace, said):
    words = wording.verdict(trace)
    assert words.identity.startswith("Not identical: at token 5") and said in words.identity
    assert "the answers differ" in words.sentence


def test_an_answer_that_ends_before_its_baseline_is_not_called_identical():
    trace = made_up_trace()
    shorter = dataclasses.replace(trace.baseline, tokens=trace.baseline.tokens[:-3])
    cut = dataclasses.replace(trace, baseline=shorter, identical=False)
    assert wording.identity(cut) == "Not identical: one of the two runs ends after 28 tokens."


def test_a_certificate_is_told_only_where_there_is_no_baseline():
    compared = dataclasses.replace(made_up_trace(), certificate=Certificate(True, 31, None, 0.02))
    assert "pass" not in wording.identity(compared)
    alone = dataclasses.replace(compared, baseline=None, identical=None)
    assert wording.identity(alone) == (
        "Certified: one parallel pass over the finished answer chose the same 31 tokens."
    )
    broken = dataclasses.replace(alone, certificate=Certificate(False, 31, 4, 0.02))
    assert wording.identity(broken).endswith("chose another token at position 5.")


def test_a_run_on_a_shared_machine_says_so():
    quiet = made_up_trace()
    assert "shared with" not in wording.verdict(quiet).reason
    baseline = dataclasses.replace(quiet.baseline, shared_with=3)
    busy = dataclasses.replace(quiet, baseline=baseline)
    assert "shared with 3 other requests" in wording.verdict(busy).reason


def test_a_stopped_run_claims_no_comparison():
    stopped = {"finish_reason": "cancelled", "baseline": None, "identical": None}
    words = wording.verdict(dataclasses.replace(made_up_trace(), **stopped))
    assert (words.tone, words.identity) == ("stopped", "")


# Figures


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_too_short_to_compare_still_gets_words_and_figures(rounds):
    trace = made_up_trace()
    short = dataclasses.replace(trace, rounds=trace.rounds[:rounds], baseline=None, identical=None)
    assert wording.verdict(short).sentence
    assert len(figures.all_figures(short)) == len(figures.ALL)


def test_the_page_has_a_place_for_every_figure():
    from specdemo.ui import page

    assert len(figures.ALL) == page.CHARTS


def test_the_race_figure_has_every_round_every_baseline_token_and_the_time_saved():
    trace = made_up_trace()
    figure = figures.race(trace)
    ours, baseline = figure.data
    assert len(ours.x) == len(trace.rounds)
    assert ours.y[-1] == baseline.y[-1] == 31
    assert baseline.x[-1] == pytest.approx(0.30)
    assert any("0.10 s saved" in note.text for note in figure.layout.annotations)


def test_the_bars_of_where_the_time_went_add_up_to_the_run():
    trace = made_up_trace()
    ours = sum(bar.x[0] for bar in figures.time_spent(trace).data)
    assert ours == pytest.approx(trace.prefill_seconds + summarize(trace).decode_seconds, rel=0.01)


def test_the_what_if_figure_marks_this_run_at_its_acceptance_rate_and_draft_length():
    *_, star = figures.what_if(made_up_trace()).data
    assert star.x[0] == 3 and star.y[0] == pytest.approx(2 / 3)


# Envelopes


def test_an_envelope_does_not_grow_with_the_answer():
    channel, sizes = envelopes.Channel(), []
    for round_ in made_up_trace(rounds=3000).rounds:
        channel.add(round_)
        if len(channel.rounds) % 3 == 0:
            sizes.append(len(channel.envelope("speculative")))
    assert max(sizes) < 1.1 * max(sizes[:20])


def test_envelopes_lose_no_round_when_every_other_one_is_skipped():
    channel, seen = envelopes.Channel(), 0
    rounds = made_up_trace(rounds=60).rounds
    for start in range(0, len(rounds), 3):
        channel.rounds += rounds[start : start + 3]
        data = json.loads(channel.envelope("speculative"))
        if start % 2 == 0:
            assert data["rounds_from"] <= seen
            seen = data["rounds_from"] + len(data["rounds"])
    assert seen >= len(rounds) - 3


# Inputs and links

DEFAULTS = {
    "question": "",
    **dataclasses.asdict(Settings()),
    **dataclasses.asdict(EMBEDDED),
    "draft_tokens": "auto",
}


def test_a_link_restores_question_and_settings():
    wanted = {
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
    query = {name: str(value) for name, value in wanted.items()}
    assert inputs.from_link(query, ["embedded"], DEFAULTS) == {**DEFAULTS, **wanted}


def test_a_link_chooses_neither_a_device_nor_a_model_that_is_not_listed():
    query = {
        "pair": inputs.OWN,
        "target": "somebody/model",
        "draft": "/etc",
        "device": "GPU",
        "weight_format": "int4",
    }
    assert inputs.from_link(query, ["embedded", inputs.OWN], DEFAULTS) == DEFAULTS


def test_a_link_with_nonsense_leaves_the_defaults():
    query = {
        "pair": "none",
        "max_new_tokens": "1e99",
        "draft_tokens": "16",
        "temperature": "nan",
        "top_p": "x",
        "top_k": "3.5",
        "seed": "",
        "numerics": "<script>",
    }
    assert inputs.from_link(query, ["embedded"], DEFAULTS) == DEFAULTS


def test_every_draft_length_on_offer_is_a_setting():
    for length in inputs.DRAFT_LENGTHS:
        inputs.settings_of({"draft_tokens": length})


def test_sliders_have_the_limits_of_the_settings():
    assert inputs.limits("temperature") == {"minimum": 0, "maximum": 5}
    for value in inputs.limits("max_new_tokens").values():
        assert inputs.settings_of({"max_new_tokens": value}).max_new_tokens == value


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_new_tokens", 0, "max_new_tokens is 0; it must be at least 1"),
        ("max_new_tokens", None, "max_new_tokens is None"),
        ("draft_tokens", "many", "draft_tokens is 'many'; it must be a whole number or auto."),
        ("temperature", float("nan"), "temperature is nan"),
        ("seed", -1, "seed is -1"),
        ("numerics", "best", "numerics is 'best'; it must be 'exact' or 'fast'."),
    ],
)
def test_an_impossible_setting_is_refused_in_one_sentence_that_names_it(name, value, said):
    with pytest.raises(BadInput) as error:
        inputs.settings_of({**DEFAULTS, name: value})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kv_cache", "f8", "kv_cache is 'f8'"),
        ("device", "C\nPU", "device is"),
        ("pair", inputs.OWN, "Your own pair needs a target"),
    ],
)
def test_an_impossible_choice_of_models_is_refused_in_one_sentence(name, value, said):
    with pytest.raises(BadInput, match=said):
        inputs.models_of({**DEFAULTS, name: value})


# Saved and finished runs


def test_a_file_that_is_no_trace_gets_one_sentence(tmp_path):
    path = tmp_path / "notes.json"
    path.write_bytes(b"\xff\xfe not json")
    update = handlers.open_trace(str(path))
    assert update.trace is None
    assert json.loads(update.envelope)["phase"] == "error"


def test_finished_runs_are_found_again_and_the_oldest_make_room():
    trace, finished = made_up_trace(), Finished(max_runs=2)
    for run in ("a", "b", "c"):
        finished.put(run, trace)
    assert finished.get("a") is None
    assert finished.get("c") == trace


def test_finished_runs_are_bounded_in_bytes():
    finished = Finished(max_bytes=100)
    finished.put("a", made_up_trace())
    assert finished.get("a") is None


def test_a_second_run_of_a_session_stops_its_first_and_leaves_others_alone():
    running = Running()
    with running.run("tab", "race") as first, running.run("other tab", "race") as other:
        with running.run("tab", "race"):
            assert first.is_set() and not other.is_set()
        running.stop("tab", "benchmark")
        assert not other.is_set()
    assert other.is_set()


# Energy


class CountingMeter:
    """A meter that reads one joule more each time."""

    def __init__(self):
        self.read = 0

    def joules(self) -> float:
        self.read += 1
        return float(self.read)


class BlindMeter:
    def joules(self) -> None:
        return None


@pytest.mark.parametrize(("meter", "per_token"), [(CountingMeter, 4 / 12), (BlindMeter, None)])
def test_energy_is_counted_from_the_first_token_to_the_last_where_it_can_be_read(meter, per_token):
    energy = handlers.Energy(meter)
    for round_ in made_up_trace(rounds=4).rounds:
        energy.count(round_)
    assert energy.per_token == pytest.approx(per_token)


# Starting


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
        (["--port", "x"], "'--port': 'x' is not a valid integer"),
        (["--max-new-tokens", "0"], "'--max-new-tokens': 0 is not in the range"),
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
    given_up = threading.Event()

    def opener(pair, report):
        try:
            while pair == large:
                report("downloading", 0.1)
                given_up.wait(0.005)
        finally:
            given_up.set()
        return FakeSession(info=PairInfo(pair.pair, pair.pair, None))

    service = Service(large, opener)
    service.start()
    *_, last = service.states(small)
    assert (last.kind, last.pair) == ("ready", small)
    with service.session(small) as session:
        assert session.info.name == "small"


def test_a_pair_that_somebody_waits_for_is_loaded_before_another():
    first, second = ModelChoice("first"), ModelChoice("second")
    opened, go = [], threading.Event()

    def opener(pair, report):
        opened.append(pair)
        go.wait(5)
        return FakeSession()

    service, seen = Service(first, opener), []
    waiting = service.states(first)
    next(waiting)
    other = threading.Thread(target=lambda: seen.extend(service.states(second)))
    other.start()
    go.set()
    assert [state.kind for state in waiting][-1] == "ready"
    other.join(5)
    assert opened == [first, second]
    assert (seen[-1].kind, seen[-1].pair) == ("ready", second)


# The choice of models


def test_the_server_refuses_a_pair_of_the_visitors_own_where_it_offers_none(tmp_path):
    own = inputs.models_of({"pair": inputs.OWN, "target": "somebody/model"})
    closed, open_ = choice.Offer(EMBEDDED, False), choice.Offer(EMBEDDED, True)
    with pytest.raises(BadInput, match="not offered on this server"):
        closed.resolve(own)
    assert open_.resolve(own) == own
    assert inputs.OWN in dict(map(reversed, open_.pairs()))
    assert inputs.OWN not in dict(map(reversed, closed.pairs()))


def test_the_pair_taken_unasked_is_the_registrys_and_its_reason_is_kept(monkeypatch):
    from specdemo.models import registry

    why = "dolly-3b: the largest Dolly pair that fits."
    chosen = registry.Choice(registry.find_pair("dolly-3b"), why)
    monkeypatch.setattr(registry, "default_pair", lambda: chosen)
    offer = choice.Offer(ModelChoice(inputs.AUTO), False)
    assert offer.resolve(ModelChoice(inputs.AUTO)).pair == "dolly-3b"
    assert offer.why == "the largest Dolly pair that fits."


def test_the_list_of_pairs_says_what_fits_this_machine_and_what_is_here(monkeypatch):
    from specdemo.models import registry

    large = registry.find_pair("dolly-12b")
    there = [
        registry.Surveyed(registry.EMBEDDED, None, fits=True, ready=True),
        registry.Surveyed(large, None, fits=False, ready=False),
    ]
    monkeypatch.setattr(registry, "survey", lambda: there)
    titles = dict(map(reversed, choice.Offer(EMBEDDED, False).surveyed_pairs()))
    assert titles["embedded"].endswith("(here already)")
    assert titles["dolly-12b"].endswith(
        "(12.5 GB to download; needs 28.5 GB of memory, more than there is here)"
    )


# Endpoints


def test_the_endpoints_for_programs_say_what_they_take_and_what_they_give():
    from specdemo.ui import page

    service = Service(EMBEDDED, lambda pair, report: FakeSession())
    built = page.build(service, choice.Offer(EMBEDDED, False))
    endpoints = built.blocks.get_api_info()["named_endpoints"]
    assert set(endpoints) == {"/generate", "/compare", "/benchmark"}
    pieces, compared = (
        endpoints[name]["returns"][0]["type"]["properties"] for name in ("/generate", "/compare")
    )
    assert pieces["delta"] == {"type": "string"} and pieces["done"] == {"type": "boolean"}
    assert compared["speedup"] == {"oneOf": [{"type": "null"}, {"type": "number"}]}
    asked = {one["parameter_name"]: one["type"] for one in endpoints["/generate"]["parameters"]}
    assert "request" not in asked
    assert asked["drafter"] == {"enum": ["auto", "model", "lookup"]}
    assert asked["max_new_tokens"] == {"type": "integer"}
