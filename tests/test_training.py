"""Making a draft head for a tiny target: it learns, survives interruptions, and drafts."""

import json
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import load_own
from tiny_models import _save_pair, write_byte_tokenizer

from specdemo import cli
from specdemo.convert import exporting, heads
from specdemo.errors import BadInput, FetchError, SpecdemoError
from specdemo.machine import disk, measured
from specdemo.machine.measured import DraftResult, TuningResult
from specdemo.machine.terminal import Progress
from specdemo.pairs import embedded
from specdemo.pairs.loading import chosen_draft
from specdemo.pairs.registry import choice_of, chosen_pair
from specdemo.runs.answer_run import AnswerRun
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.training import data, steps
from specdemo.training.data import Conversation
from specdemo.training.recipe import TrainSettings


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """A second thread gains nothing for so small a model."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def network():
    """Imports torch, which is needed by what `make check` leaves out alone."""
    return import_module("specdemo.training.network")


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    """IR of a GPT-NeoX whose next token depends clearly on the text: its weights are large."""
    folder = tmp_path_factory.mktemp("target")
    config = {"vocab_size": 256, "hidden_size": 48, "intermediate_size": 96}
    config |= {"num_hidden_layers": 3, "num_attention_heads": 4, "eos_token_id": 300}
    _save_pair("GPTNeoX", [config] * 2, folder, folder / "draft", sharpness=8.0, noise=0.0)
    write_byte_tokenizer(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "_NEEDED", ("no_such_package",))  # no child process
        exporting.export(folder, folder / "ir", "int8")
    return folder / "ir"


@pytest.fixture(scope="module")
def train(target, tmp_path_factory):
    """Trains a small head into a folder, with short instructions, for a token is a byte."""
    sizes = {"tokens": 2000, "answer_tokens": 40, "width": 32, "chains": 256, "passes": 12}
    measured = tmp_path_factory.mktemp("measured")

    def train(out: Path, **changes) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data, "MIX", {"sum": 1, "own": 1})
            patch.setattr(data, "GROUP", 32)
            patch.setattr(disk, "measured_folder", lambda: measured)
            chosen = {"target": str(target), "out": out, "device": "cpu"} | sizes | changes
            steps.train_draft(TrainSettings(**chosen))

    return train


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory) -> Path:
    """The folder of one uninterrupted run."""
    out = tmp_path_factory.mktemp("trained") / "draft"
    train(out)
    return out


def test_a_target_needs_fewer_forwards_with_the_head_that_was_made_for_it(target, trained):
    with Session(load_own(target, trained)) as session:
        how = Settings(max_new_tokens=60, drafter="model", draft_tokens=3)
        questions = "What is 13 plus 44?", "What is 61 minus 4?"
        traces = [[*session.ask(Question(text, how, baseline=True))][-1] for text in questions]
    assert all(trace.identical for trace in traces)
    rounds = [round_ for trace in traces for round_ in trace.rounds]
    assert {token.source for round_ in rounds for token in round_.drafted} == {"head"}
    assert len(rounds) < 0.8 * sum(len(trace.token_ids) for trace in traces)


def test_tune_races_a_head_that_was_made_and_later_runs_take_what_was_fastest(
    target, trained, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(AnswerRun, "share", 1.0)
    monkeypatch.setattr(disk, "measured_folder", lambda: tmp_path)
    monkeypatch.chdir(trained.parent)
    options = f"--assistant-model {trained.name} --limit 1 --json -".split()
    assert cli.main(["tune", str(target), *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["draft"] for row in report["rows"]] == [str(trained), "none"]
    monkeypatch.chdir(tmp_path)
    pair = chosen_pair(choice_of(str(target)))
    for winner, used in ((str(trained), [str(trained)]), (str(tmp_path / "deleted"), [])):
        rows = (DraftResult(winner, 1.0, 1.0, 0.5, 0.2, 0.1),)
        measured.write("tuned", pair.subject, TuningResult("2026-11-23", rows))
        assert [draft.repo for draft in chosen_draft(pair)] == used


def test_a_head_starts_from_an_earlier_one(train, trained, tmp_path, monkeypatch):
    text, write = trained / "work" / "text", data.write_conversations
    name = "write_conversations"
    monkeypatch.setattr(data, name, lambda loaded, _, *more: write(loaded, text, *more))
    train(tmp_path / "again", start=trained / "head.npz", passes=0.01)
    train(tmp_path / "new", passes=0.01)
    agreements = [
        json.loads((folder / "card.json").read_bytes())["held_back"]["agreement"]
        for folder in (tmp_path / "new", tmp_path / "again", trained)
    ]
    assert agreements[1] > 0.9 * agreements[2] > agreements[0]
    monkeypatch.setattr(data, name, "nothing is written before --start is checked")
    with pytest.raises(BadInput, match="a head of another size"):
        train(tmp_path / "other", start=embedded.DRAFT / "head.npz")


def test_a_head_that_was_trained_on_is_mixed_with_the_one_it_started_from(tmp_path, network):
    import torch

    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(60, 64)).astype(np.float32) for _ in range(2)]
    states = rng.normal(size=(400, 193)).astype(np.float16)
    ends = np.full(400, 400)
    rows = data.Rows(states, rng.integers(0, 60, 400), np.ones(400, np.float32), ends)
    made = {"target": "embedded", "out": tmp_path, "width": 64, "chains": 64, "passes": 1.0}
    begun = network.HeadNetwork(*tables, rows, TrainSettings(**made))
    heads.HeadWeights(begun.quantized(rows), begun.frequent).save(tmp_path / "head.npz")
    settings = TrainSettings(**made, start=tmp_path / "head.npz")
    first = network.first_weights(settings, 64)
    trained_head = network.HeadNetwork(*tables, rows, settings)
    network.train(trained_head, rows, np.arange(400), settings, tmp_path / "state.pt")
    trained = torch.load(tmp_path / "state.pt")["weights"][len(first) : 2 * len(first)]
    for (name, mixed), weights in zip(trained_head.weights.items(), trained, strict=True):
        assert not torch.equal(weights, first[name])
        torch.testing.assert_close(mixed.detach(), (weights + first[name]) / 2)


def test_the_card_says_how_often_the_head_is_right(trained):
    card = json.loads((trained / "card.json").read_bytes())
    assert card["held_back"]["agreement"] > 0.3
    assert set(card["held_back"]["by_kind"]) == {"own", "sum"}
    recipe = card["recipe"]["tokens"]
    assert recipe <= card["text"]["answer_tokens"] < recipe + 40, "no answer more than it takes"


def test_a_run_that_is_interrupted_in_each_step_ends_with_the_same_head(
    train, trained, tmp_path, monkeypatch, network
):
    class Interrupted(Exception):
        pass

    def interrupt(module, name: str, after: int) -> None:
        """The call number `after` of a function of the module fails."""
        whole, calls = getattr(module, name), []

        def once(*arguments):
            calls.append(1)
            if len(calls) == after:
                raise Interrupted
            return whole(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, once)
            with pytest.raises(Interrupted):
                train(tmp_path / "draft", checkpoint_seconds=0.0)

    interrupt(data, "instruction", 70)
    interrupt(np, "save", 1)
    interrupt(network, "_loss", 20)
    monkeypatch.setattr(data, "_opened", "there is nothing left to write or to read")
    train(tmp_path / "draft")
    again, whole = (heads.load(folder / "head.npz") for folder in (tmp_path / "draft", trained))
    assert np.array_equal(again.tokens, whole.tokens)
    for name, weights in whole.weights.items():
        assert np.array_equal(again.weights[name].values, weights.values)


def test_instructions_of_every_kind_are_drawn_again_by_their_number():
    answers = ["It was red; so they said: yes. " * 20, "End of a text. " * 30]
    made = [data.instruction(number, answers, "Why?") for number in range(300)]
    assert {kind for kind, _ in made} == set(data.MIX)
    assert made == [data.instruction(number, answers, "Why?") for number in range(300)]
    assert not any("{" in text or "  " in text for _, text in made)
    unread = {data.instruction(number, [])[0] for number in range(300)}
    assert unread == {"prose", "sum", "translation"}


def test_some_instructions_are_what_the_target_writes_in_a_users_place(target):
    loaded = load_own(target)
    model = data._opened(loaded)
    first, again = (data._write_instructions(loaded, model, range(40)) for _ in range(2))
    assert first == again
    assert sorted(first) == [n for n in range(40) if data.instruction(n, (), "Why?")[1] == "Why?"]
    assert 4 < len(first) < 24 and len(set(first.values())) > len(first) // 2
    assert all(len(text) <= data.INSTRUCTION_TOKENS for text in first.values())
    assert model.pool.used == 0


@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
def test_a_step_of_training_is_that_of_torchs_muon_which_rounds(shape, network):
    import torch

    ours, theirs = (torch.ones(shape, requires_grad=True) for _ in range(2))
    optimizer = network.Muon([ours], torch.float32)
    rounded = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    for seed in range(5):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step(0.01)
        rounded.step()
    assert (ours - 1).abs().max() > 0.01
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)


def test_held_back_instructions_are_greedy_and_never_learned():
    conversations = [Conversation("", n % 3 > 0, str(n % 40), "", (1,)) for n in range(200)]
    held_back, learned = steps._split(conversations)
    instructions = np.array([conversation.instruction for conversation in conversations])
    assert held_back.any() and all(conversations[n].greedy for n in np.flatnonzero(held_back))
    assert not set(instructions[held_back]) & set(instructions[learned])


def test_what_lookup_proposes_weighs_little():
    weights = data.lookup_weights((1, 2, 3, 4, 5), (7, 1, 2, 3, 4, 9)).tolist()
    assert weights == pytest.approx([1, 1, 1, 0.15, 0.15, 0.5])


def test_a_users_own_conversations_and_instructions_are_learned(train, tmp_path, monkeypatch):
    reports: list[Progress] = []
    monkeypatch.setattr(data, "progress_bar", lambda: nullcontext(reports.append))
    rows = '{"u": "Who?", "a": "Nobody knows."}\n' * 40 + '{"u": "When?"}\n\n{"u": "Where?"}\n'
    (tmp_path / "own.jsonl").write_text(rows)
    (tmp_path / "wrong.jsonl").write_text("[]")
    with pytest.raises(BadInput, match="line 1 is not"):  # the same folder may be named again
        train(tmp_path / "draft", text=tmp_path / "wrong.jsonl", tokens=1000, passes=1)
    train(tmp_path / "draft", text=tmp_path / "own.jsonl", tokens=1000, passes=1)
    first = next(step for step in reports if step.text == "Writing text")
    assert first.done > 40, "answers that are written at once progress together"
    answered = (tmp_path / "draft/work/text/0000000.jsonl").read_text().splitlines()
    kinds = [(row["kind"], row["instruction"]) for row in map(json.loads, answered[:3])]
    assert kinds[:2] == [("asked", "When?"), ("asked", "Where?")] and kinds[2][0] != "asked"
    card = json.loads((tmp_path / "draft" / "card.json").read_bytes())
    assert card["text"]["conversations"] == 40 + 1000 // 40  # answers of 40 tokens
    assert card["text"]["given"] == "own.jsonl"
    kept = json.loads((tmp_path / "draft/work/settings.json").read_bytes())
    assert kept["target_weights"], "another model in the same folder is seen"
    states = tmp_path / "draft/work/text/0000000.npy"
    of_writing = np.load(states)
    states.unlink()
    (tmp_path / "own.jsonl").write_text(rows + '{"u": "How?"}')
    train(tmp_path / "draft", text=tmp_path / "own.jsonl", tokens=1500, passes=1)
    added = (tmp_path / "draft/work/text/0000025.jsonl").read_text().splitlines()
    assert [json.loads(row)["instruction"] for row in added].count("How?") == 1
    (tmp_path / "own.jsonl").write_text(rows.replace("When?", "Why?"))
    with pytest.raises(BadInput, match="no longer has the instruction When"):
        train(tmp_path / "draft", text=tmp_path / "own.jsonl", tokens=1500, passes=1)
    np.testing.assert_allclose(np.load(states), of_writing, rtol=0.05, atol=0.2)
    states = sum(len(np.load(path)) for path in (tmp_path / "draft/work").glob("*/*.npy"))
    grown = json.loads((tmp_path / "draft" / "card.json").read_bytes())["text"]["answer_tokens"]
    assert states == grown > card["text"]["answer_tokens"]


def test_states_are_those_of_the_text_as_it_is_now(tiny_llama_pair, tmp_path):
    path, folder = tmp_path / "own.jsonl", tmp_path / "states"
    folder.mkdir()
    kept = []
    for question in ("Who?", "Who?", "Why?"):
        path.write_text(json.dumps({"u": question, "a": "Nobody knows."}))
        groups, _ = data.read_conversations(path, folder, tiny_llama_pair)
        [file] = groups
        kept.append(file.is_file())
        file.write_bytes(b"")
    assert kept == [False, True, False] and list(folder.iterdir()) == [file]


def test_texts_that_the_context_cannot_hold_are_left_out_and_named(
    tiny_llama_pair, tmp_path, caplog
):
    rows = [{"u": "Who?"}, {"u": "Say it. " * 4000}, {"u": "When?", "a": "Now. "}]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    groups, asked = data.read_conversations(tmp_path / "own.jsonl", tmp_path, tiny_llama_pair)
    [[given]] = groups.values()
    assert (given.instruction, asked) == ("When?", ["Who?"])
    assert "the instruction 'Say it. " in caplog.text and "is left out" in caplog.text


def test_a_target_that_the_hub_cannot_give_is_named_before_a_missing_torch(
    tmp_path, capsys, monkeypatch
):
    unreachable = FetchError("nobody/nothing cannot be fetched")
    monkeypatch.setattr("specdemo.pairs.hub.read_listing", Mock(side_effect=unreachable))
    monkeypatch.setattr(steps, "require_device", Mock(side_effect=SpecdemoError("no torch")))
    target = ["--target", "nobody/nothing"]
    assert cli.main(["train-draft", *target, "--out", str(tmp_path / "out")]) == 1
    assert "nobody/nothing" in capsys.readouterr().err


def test_a_run_is_not_continued_with_another_model_in_the_targets_folder(tmp_path):
    settings = TrainSettings(target="./model", out=tmp_path / "draft")
    work = settings.out / "work"
    for revision in ("", "one"):
        steps._open_work(settings, work, revision)
    (work / "text").mkdir()
    for revision in ("", "one"):
        steps._open_work(settings, work, revision)
    with pytest.raises(BadInput, match="other settings .target_weights one"):
        steps._open_work(settings, work, "two")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "5"], "--tokens"),
        (["--device", "gpu"], "--device"),
        (["--target", "./nowhere"], "is no folder or GGUF file here"),
        (["--target", "embedded", "--weight-format", "int4"], "--weight-format is for"),
        (["--start", "HERE/file"], "not a head.npz"),
        (["--start", "TRAINED/head_tokens.npy"], "not a head.npz"),
        (["--out", "HERE"], "is no earlier run"),
        (["--out", "HERE/file"], "file cannot be written: Not a directory"),
        (["--out", "TRAINED"], "a run with other settings"),
        (["--text", "HERE/file"], "line 1 is not"),
    ],
)
def test_what_cannot_work_is_one_sentence(options, message, target, trained, tmp_path, capsys):
    (tmp_path / "file").write_text("{}\n")
    places = {"HERE": str(tmp_path), "HERE/file": str(tmp_path / "file"), "TRAINED": str(trained)}
    places |= {f"TRAINED/{path.name}": str(path) for path in trained.iterdir()}
    options = [places.get(option, option) for option in options]
    where = ["--target", str(target), "--out", str(tmp_path / "out")]
    assert cli.main(["train-draft", *where, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_misspelt_target_is_named_before_a_missing_torch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(steps, "require_device", Mock(side_effect=SpecdemoError("no torch")))
    assert cli.main(["train-draft", "--target", "./nowhere", "--out", str(tmp_path / "out")]) == 2
    assert "--target" in capsys.readouterr().err


def test_a_disk_that_is_too_small_is_named_before_text_is_written(
    target, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: Mock(free=1_000_000))
    assert cli.main(["train-draft", "--target", str(target), "--out", str(tmp_path / "out")]) == 1
    assert "The text with the target's states needs" in capsys.readouterr().err
