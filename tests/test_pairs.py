"""Pairs with several drafts, tuned; n-gram tables that grow; agreement; the embedded draft."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import gradio as gr
import pytest
from hub_server import Hub
from tiny_models import ir_folder

from specdemo import cli
from specdemo.bench.agreement import agreement
from specdemo.bench.prompts import BenchPrompt
from specdemo.engine.profile import Profile, TargetProfile
from specdemo.errors import BadInput
from specdemo.models import embedded, measured, ngrams, profiles, registry, sources
from specdemo.models.drafts import chosen_draft
from specdemo.models.load import load_pair
from specdemo.models.measured import Raced, Tuned
from specdemo.models.ngrams import LearningTable, NGramTable
from specdemo.models.registry import NO_DRAFT, Pair, chosen_pair, find_pair
from specdemo.models.sources import Source
from specdemo.session import Session
from specdemo.settings import ModelChoice, Settings

CHOICE = ModelChoice("dolly-3b")


def names(pair: str = "dolly-3b", choice: ModelChoice = CHOICE) -> list[str]:
    return [draft.name for draft in chosen_draft(find_pair(pair), choice)]


@pytest.fixture
def here(monkeypatch, tmp_path) -> set[str]:
    """The names of the models that are on this disk; their weights are as large as their name."""
    found: set[str] = {"dolly-v2-3b-int8-ov"}

    def folder(source: Source):
        folder = tmp_path / source.name
        folder.mkdir(exist_ok=True)
        (folder / "openvino_model.bin").write_bytes(b"w" * len(source.name))
        return folder if source.name in found else None

    monkeypatch.setattr(sources, "here", folder)
    monkeypatch.setattr(profiles, "of_pair", lambda target, draft, choice: Profile())
    return found


@pytest.fixture
def tiny_pair(tiny, monkeypatch) -> Pair:
    """A pair called tiny, of folders, with two drafts: one like the target, and the target."""
    folders = [Source(str(path), path.name, 0) for path in (tiny.dolly, tiny.pythia)]
    pair = Pair("tiny", "Tiny", 0, folders[0], (folders[1], folders[0]), rounded_from="tiny")
    monkeypatch.setattr(registry, "PAIRS", (pair,))
    return pair


# Which draft.


def test_where_no_draft_is_here_the_first_one_is_fetched(here):
    assert names() == ["pythia-70m"]
    here.add("pythia-1b-int4-ov")
    assert names() == ["pythia-1b-int4-ov"], "nothing is fetched beside a draft that is here"


def test_of_several_drafts_costs_and_the_acceptance_rates_seen_decide(here, monkeypatch):
    here |= {"pythia-70m", "pythia-1b-int4-ov"}
    measured.remember("steps", "dolly-v2-3b-int8-ov", (0.19, 0.19, 0.2, 0.21))
    measured.remember("steps", "pythia-70m", (0.007,))
    measured.remember("steps", "pythia-1b-int4-ov", (0.041,))
    assert names() == ["pythia-70m"]
    costs = {1: 0.19, 2: 0.19, 3: 0.2, 4: 0.21}
    seen = {
        "pythia-70m": Profile({}, 0.007, {"model": [(5.0, 50.0)]}),
        "pythia-1b-int4-ov": Profile(
            {"exact": TargetProfile((), None, costs)}, 0.041, {"model": [(40.0, 50.0)]}
        ),
    }
    monkeypatch.setattr(profiles, "of_pair", lambda target, draft, choice: seen[draft.name])
    assert names() == ["pythia-1b-int4-ov"]


@pytest.mark.parametrize(("winner", "used"), [("pythia-160m", ["pythia-160m"]), (NO_DRAFT, [])])
def test_what_tune_found_fastest_is_used_unless_another_is_asked_for(here, winner, used):
    here |= {"pythia-70m", "pythia-160m"}
    rows = [Raced(draft, speed, 1.0, 0.5, 0.2, 0.0) for draft, speed in ((winner, 2), ("x", 1))]
    measured.remember("tuned", "dolly-3b", Tuned("2026-01-01", tuple(rows)))
    assert names() == used
    asked = replace(CHOICE, draft="pythia-1b-int4-ov")
    pair = chosen_pair(asked)
    assert [draft.name for draft in chosen_draft(pair, asked)] == ["pythia-1b-int4-ov"]
    here.discard("pythia-160m")
    assert names() == (used and ["pythia-70m"]), "the winner was deleted"


def test_a_pairs_draft_is_one_of_its_own_or_any_other_model_or_none(tmp_path):
    pair = find_pair("dolly-3b")
    assert pair.with_draft("pythia-160m", "--x").drafts == (pair.drafts[1],)
    assert pair.with_draft(NO_DRAFT, "--x").drafts == ()
    assert pair.with_draft("EleutherAI/pythia-410m", "--x").draft.name == "EleutherAI/pythia-410m"
    with pytest.raises(BadInput, match="--x: the pair embedded has a draft of its own"):
        find_pair("embedded").with_draft("EleutherAI/pythia-410m", "--x")
    with pytest.raises(BadInput, match="needs target or pair"):
        chosen_pair(ModelChoice(draft="pythia-70m"))


def test_the_draft_that_a_server_was_started_with_is_kept_where_strangers_ask():
    from specdemo.ui.choice import Offer

    first = ModelChoice("dolly-3b", draft="pythia-160m")
    assert Offer(first, shared=True).resolve(ModelChoice("dolly-3b")) == first


def test_tune_races_every_draft_and_none_and_keeps_the_fastest(tiny_pair, capsys):
    assert cli.main(["tune", "tiny", "--limit", "1", "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    raced = [draft.name for draft in tiny_pair.drafts]
    assert [row["draft"] for row in said["rows"]] == [*raced, NO_DRAFT]
    assert [row["draft_seconds"] > 0 for row in said["rows"]] == [True, True, False]
    assert all(row["target_seconds"] > 0 for row in said["rows"])
    best = max(said["rows"], key=lambda row: row["speedup"])["draft"]
    assert said["winner"] == best == measured.read().tuned["tiny"].winner
    loaded = load_pair(tiny_pair)
    assert (loaded.info.draft or NO_DRAFT) == best


@pytest.mark.parametrize("shared", [False, True])
def test_the_page_races_drafts_for_its_owner_and_shows_the_table(tiny_pair, shared):
    from specdemo.ui import benchmark, choice, runs, service

    offer = choice.Offer(ModelChoice("tiny"), shared)
    served = service.Service(offer.first, offer.open_session)
    with gr.Blocks():
        tab = benchmark.Tab(served, runs.Running(), offer, {"pair": gr.Textbox()})
    request = SimpleNamespace(session_hash="one", client=None)
    seen = list(tab.run_tune(request, 1, "tiny"))
    tables = [one[tab.table] for one in seen if one.get(tab.table)]
    said = [one[tab.progress] for one in seen if tab.progress in one][-1]
    served.close()
    if shared:
        assert tables == [] and "its owner" in said
    else:
        assert tables[-1].count("<tr>") == 4 and "n-grams only" in tables[-1]
        assert "from now on" in said
    assert ("tiny" in measured.read().tuned) is not shared


def test_a_stopped_tune_keeps_nothing(tiny_pair):
    from specdemo.bench.tune import tune

    stop = threading.Event()
    stop.set()
    with pytest.raises(Exception, match="was stopped"):
        list(tune("tiny", lambda choice: Session(load_pair(tiny_pair)), prompts=1, stop=stop))
    assert measured.read().tuned == {}


def test_figures_of_another_kind_count_as_none(tmp_path):
    measured.remember("agreement", "a b", 0.5)
    assert measured.read().agreement == {"a b": 0.5}
    measured._path().write_text('{"tuned": 3}')
    assert measured.read() == measured.Figures()


# Agreement.


def test_agreement_is_whole_with_itself_and_less_for_fewer_bits(tiny_llama_pair, tiny_home):
    prompts = [BenchPrompt(str(at), "x", text) for at, text in enumerate(("one two", "hello"))]
    settings = Settings(max_new_tokens=24)
    same = agreement(tiny_llama_pair, tiny_llama_pair, prompts, settings)
    whole = {"prompts": 2, "tokens": 48, "agreed": 48, "identical": 2, "agreement": 1.0}
    assert same == whole
    rounded = ir_folder(tiny_home, "llama-target", "int4") / "openvino_model.xml"
    less = agreement(
        tiny_llama_pair, replace(tiny_llama_pair, target_xml=rounded), prompts, settings
    )
    assert 0.2 < less["agreement"] < 1 and less["identical"] < 2


def test_bench_keeps_an_agreement_and_pairs_shows_it(tiny_pair, capsys):
    options = ["--limit", "1", "--max-new-tokens", "8", "--json", "-"]
    assert cli.main(["bench", "--pair", "tiny", "--reference", "tiny", *options]) == 0
    assert json.loads(capsys.readouterr().out)["agreement"] == 1.0
    assert cli.main(["pairs"]) == 0
    assert "chooses as tiny on 100.0 %" in capsys.readouterr().out


# N-grams of the target's own text.


@pytest.mark.parametrize("vocabulary", [50_000, 150_000])
def test_a_table_learns_what_follows_and_comes_back_from_disk(tmp_path, vocabulary):
    big = vocabulary - 1
    table = LearningTable(tmp_path / "t.npz", vocabulary)
    assert table.guess([1, 2]) is None
    table.read([1, 2, big, 4, 1, 2, big])
    token, confidence = table.guess([1, 2])
    assert token == big and 0 < confidence < 1
    table.read([1, 2, big])
    assert table.guess([1, 2])[1] > confidence
    table.keep()
    again = LearningTable(tmp_path / "t.npz", vocabulary)
    assert again.guess([1, 2]) == table.guess([1, 2]) and again.guess([4]) == table.guess([4])
    for _ in range(6):
        again.read([1, 2, 7])
    assert again.guess([1, 2])[0] == 7


def test_a_table_gives_up_its_oldest_contexts_at_its_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(ngrams, "MOST_ENTRIES", 100)
    first = NGramTable(({5: (6, 200)}, {}, {}, {}))
    table = LearningTable(tmp_path / "t.npz", 1000, first)
    assert table.guess([5]) == first.guess([5])
    for start in range(0, 400, 4):
        table.read([start, start + 1, start + 2, start + 3])
    assert sum(map(len, table.known)) <= 110
    assert table.guess([398])[0] == 399 and table.guess([9]) is None
    assert first.known[0] == {5: (6, 200)}


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04broken", b"\x93NUMPY"])
def test_a_broken_table_counts_as_none(tmp_path, content):
    path = tmp_path / "t.npz"
    path.write_bytes(content)
    assert LearningTable(path, 100).guess([1]) is None


def test_finished_answers_are_learnt_and_change_no_token(tiny_llama_pair):
    asked = Settings(max_new_tokens=40, drafter="auto")
    with Session(tiny_llama_pair, learn=True) as session:
        *_, first = session.answer("one two", asked)
    with Session(tiny_llama_pair, learn=True) as session:
        *_, second = session.answer("one two", asked)
        *_, raced = session.race("one two", asked)
    with Session(tiny_llama_pair) as session:
        *_, without = session.answer("one two", asked)
    assert first.token_ids == second.token_ids == without.token_ids
    sources = [
        {token.source for one in trace.rounds for token in one.drafted}
        for trace in (second, raced, without)
    ]
    assert ["ngrams" in found for found in sources] == [True, False, False]


@pytest.mark.parametrize(
    ("shared", "asked", "learns"),
    [(True, None, False), (False, None, True), (True, True, True), (False, False, False)],
)
def test_a_server_that_strangers_share_learns_only_if_its_owner_says_so(
    monkeypatch, shared, asked, learns
):
    from specdemo.serving import backend, options

    session = Mock()
    monkeypatch.setattr("specdemo.models.load.load_pair", Mock())
    monkeypatch.setattr("specdemo.session.Session", session)
    chosen = options.ServeOptions("embedded", shared=shared, learn_ngrams=asked)
    backend.open_pair(chosen, print)
    assert session.call_args.kwargs["learn"] is learns


def test_an_answer_that_was_stopped_is_not_learnt(tiny_llama_pair):
    stop = threading.Event()
    with Session(tiny_llama_pair, learn=True) as session:
        for _ in session.answer("one two", Settings(max_new_tokens=200), stop=stop):
            stop.set()
    assert list(measured.machine.measured_folder().glob("*.npz")) == []


def test_a_table_made_in_advance_is_used_by_every_session(tiny, tmp_path, capsys):
    made = ["--only", "ngrams", "--tokens", "1000", "--out", str(tmp_path / "out")]
    assert cli.main(["train-draft", "--target", str(tiny.dolly), *made]) == 0
    assert "n-gram table" in capsys.readouterr().out
    pair = registry.own_pair(sources.source_of(str(tiny.dolly), "--model", "int8"), None)
    table = load_pair(pair).ngrams
    assert sum(map(len, table.known)) > 100
    assert ngrams.load(tmp_path / "out" / "ngrams.npz") == table
    refused = ["train-draft", "--target", "embedded", *made]
    assert cli.main(refused) == 2


# The embedded target as a draft.


@pytest.fixture
def smollm_hub(server, tmp_path, embedded_pair) -> Hub:
    """A Hub with a small model of the real vocabulary in place of SmolLM2-1.7B-Instruct."""
    from specdemo.models.neox import Shape, write_made_up

    folder = tmp_path / "made-up"
    write_made_up(Shape(hidden=64, layers=1, heads=2, vocabulary=49_152), 8, folder)
    tokenizer = embedded_pair.target_xml.parent / "tokenizer.json"
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (folder / "config.json").write_text('{"max_position_embeddings": 8192, "eos_token_id": 2}')
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "embedded").symlink_to(embedded_pair.target_xml.parent.parent)
    server.add_folder("AIFunOver/SmolLM2-1.7B-Instruct-openvino-4bit", folder)
    return server


def test_smollm2_needs_one_download_and_the_embedded_target_drafts(smollm_hub):
    pair = find_pair("smollm2-1.7b")
    assert not registry.is_ready(pair)
    loaded = load_pair(pair)
    assert {one.name for one in smollm_hub.served} >= {"openvino_model.bin", "tokenizer.json"}
    assert registry.is_ready(pair)
    assert loaded.draft_xml.samefile(embedded.fetch()[0].folder / "openvino_model.xml")
    assert (loaded.context_limit, loaded.stop_ids) == (8192, frozenset({2}))
    with Session(loaded) as session:
        *_, trace = session.race(
            "Say hello.", Settings(max_new_tokens=12, drafter="model", draft_tokens=2)
        )
    assert trace.identical and trace.pair.draft == "SmolLM2-135M-Instruct"
    assert any(token.source == "model" for one in trace.rounds for token in one.drafted)


def test_smollm2_and_drafts_are_named_by_pairs(capsys):
    assert cli.main(["pairs", "--json", "-"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["smollm2-1.7b"]["draft"] == "SmolLM2-135M-Instruct"
    assert rows["dolly-3b"]["drafts"] == ["pythia-70m", "pythia-160m", "pythia-1b-int4-ov"]
