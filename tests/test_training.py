"""Making a draft for a tiny target: it learns, survives being killed, and its files are exact."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_models import write_byte_tokenizer, write_llama_pair

from specdemo.errors import BadInput
from specdemo.training import corpus, evaluate, prompts
from specdemo.training.command import TrainSettings
from specdemo.training.corpus import Conversation
from specdemo.training.run import train_draft


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """A second thread gains nothing for so small a model."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    """A GPT-NeoX checkpoint whose next token depends clearly on the text: its weights are large."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    folder = tmp_path_factory.mktemp("target")
    sizes = {"vocab_size": 256, "hidden_size": 48, "intermediate_size": 96}
    layers = {"num_hidden_layers": 3, "num_attention_heads": 4}
    torch.manual_seed(5)
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, **layers, bos_token_id=0, eos_token_id=0))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "mlp" in name and weights.dim() > 1:
                weights.mul_(6)
        head = model.get_output_embeddings().weight
        head.mul_(12)
        head[0] = 0  # the end token is never likely
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def write(target: Path, work: Path, path: Path) -> None:
    """Let the target write, or go on with, a little text; short prompts, for a token is a byte."""
    from specdemo.training.generate import write_text
    from specdemo.training.target import open_target

    opened = open_target(str(target), work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "MIX", {"sum": 1, "question": 1})
        write_text(opened, opened.writer("cpu"), path, 6000, limit=40, seed=3)


@pytest.fixture(scope="module")
def text(target, tmp_path_factory) -> Path:
    """Conversations that the target writes once for all tests of this file."""
    folder = tmp_path_factory.mktemp("text")
    write(target, folder, folder / "text.jsonl")
    return folder / "text.jsonl"


HEAD = {"kind": "head", "width": 32, "batch_tokens": 512, "passes": 8}


def settings(target: Path, text: Path, out: Path, **changes) -> TrainSettings:
    values = {"layers": 1, "passes": 12, "batch_tokens": 1024, "parts": 2, "device": "cpu"}
    return TrainSettings(target=str(target), out=out, text=text, **values | changes)


@pytest.fixture(scope="module")
def draft(tmp_path_factory) -> Path:
    """The folder of one uninterrupted run."""
    return tmp_path_factory.mktemp("trained") / "draft"


@pytest.fixture(scope="module")
def trained(target, text, draft):
    return train_draft(settings(target, text, draft))


@pytest.fixture
def no_export(monkeypatch):
    """The IR of one run is enough: making it takes longer than training these."""
    from specdemo.training import export

    monkeypatch.setattr(export, "export_draft", lambda *_: None)


def test_training_raises_agreement_clearly(trained):
    assert trained.after.agreement > trained.before.agreement + 0.2
    assert trained.after.tokens_per_round[3] > trained.before.tokens_per_round[3] + 0.3


def test_the_draft_is_a_decoder_with_tokenizer_and_card(trained, draft):
    from specdemo.models import ir, ngrams

    ir.check_decoder(draft)
    assert (draft / "tokenizer.json").is_file()
    assert sorted(np.load(draft / "head_tokens.npy")) == list(range(256))
    assert ngrams.load(draft / "ngrams.npz").guess([1])
    card = json.loads((draft / "card.json").read_text(encoding="utf-8"))
    assert card["after"]["agreement"] == trained.after.agreement
    assert card["recipe"]["labels"] == "hard"
    readme = (draft / "README.md").read_text(encoding="utf-8")
    assert f"**{trained.after.agreement:.3f}** after" in readme
    assert f"| sum | {trained.before.by_kind['sum']:.3f} |" in readme


KILLED = """
import os, signal, sys
from pathlib import Path
from specdemo.training import distil
from specdemo.training.run import train_draft
from test_training import settings
gradients, calls = distil._gradients, []
def killed(*arguments):
    calls.append(1)
    if len(calls) == 2 * 20 + 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return gradients(*arguments)
distil._gradients = killed
target, text, out = map(Path, sys.argv[1:])
train_draft(settings(target, text, out, checkpoint_seconds=0.0))
"""


def test_a_killed_run_resumes_to_the_same_draft(
    target, text, trained, draft, no_export, tmp_path, monkeypatch
):
    import torch

    from specdemo.training import distil

    out, here = tmp_path / "draft", Path(__file__).parent
    paths = os.pathsep.join([str(here.parent), str(here), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED, str(target), str(text), str(out)]
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    calls = []
    gradients = distil._gradients
    monkeypatch.setattr(
        distil, "_gradients", lambda *arguments: calls.append(1) or gradients(*arguments)
    )
    again = train_draft(settings(target, text, out))
    assert len(calls) == 2 * (trained.progress.steps - 20)
    assert again.after == trained.after
    weights = [torch.load(folder / "work" / "state.pt")["averages"] for folder in (out, draft)]
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


@pytest.fixture(scope="module")
def head(target, text, tmp_path_factory):
    """The folder of a draft head, and the result of the run that made it."""
    out = tmp_path_factory.mktemp("head") / "head"
    return out, train_draft(settings(target, text, out, **HEAD))


def test_a_head_proposes_chains_of_the_tokens_that_its_target_gives(head, target, text):
    import openvino as ov

    from specdemo.models import heads, ir
    from specdemo.training import states
    from specdemo.training.target import open_target

    out, result = head
    assert result.after.agreement > result.before.agreement + 0.2
    assert result.after.by_position[1] > 0.3
    network = ov.Core().compile_model(out / ir.HEAD, "CPU")
    tokens = np.load(out / heads.TOKENS)
    opened = open_target(str(target), out)
    read = states.of(opened, opened.load(), "cpu", states.whole_layers(3))
    right = []
    for one in corpus.read(text)[::16]:
        hidden = read(one.prompt, one.answer)[:, :-1].astype(np.float32)
        state = np.zeros((len(one.answer) - 2, 32), np.float32)
        for depth in range(2):
            given = np.array(one.answer[depth : len(state) + depth])
            found = network({"hidden": hidden[:-2], "state": state, "token": given})
            state = found["next_state"]
            likeliest = tokens[found["logits"].argmax(1)]
            right.append(likeliest == one.answer[depth + 1 : len(state) + depth + 1])
    assert np.concatenate(right).mean() > 0.3


def test_an_interrupted_head_resumes_to_the_same_weights(head, target, text, tmp_path, monkeypatch):
    from specdemo.models import heads
    from specdemo.training import head as training
    from specdemo.training import states

    class Interrupted(Exception):
        pass

    calls = []
    gradients = training._gradients

    def once(*arguments):
        calls.append(1)
        if len(calls) == 30:
            raise Interrupted
        return gradients(*arguments)

    chosen = settings(target, text, tmp_path / "head", checkpoint_seconds=0.0, **HEAD)
    with monkeypatch.context() as patch:
        patch.setattr(training, "_gradients", once)
        with pytest.raises(Interrupted):
            train_draft(chosen)
    monkeypatch.setattr(states, "of", lambda *_: "there is nothing left to read")
    train_draft(chosen)
    again, whole = (
        heads.load(folder / "head.npz").weights for folder in (tmp_path / "head", head[0])
    )
    assert all(np.array_equal(again[name].values, whole[name].values) for name in whole)


def test_soft_labels_reach_more_acceptance_than_the_untrained_draft(
    target, text, no_export, tmp_path
):
    result = train_draft(settings(target, text, tmp_path / "draft", labels="soft", passes=6))
    assert result.after.tv_acceptance > result.before.tv_acceptance + 0.1
    assert "when sampling" in (tmp_path / "draft" / "README.md").read_text(encoding="utf-8")


def test_the_states_of_ir_times_its_output_matrix_are_its_answer(embedded_pair, tmp_path):
    from specdemo.models import heads
    from specdemo.session import Session
    from specdemo.settings import Settings
    from specdemo.training import states
    from specdemo.training.target import open_target

    question = "Name three colours."
    with Session(embedded_pair) as session:
        *_, trace = session.answer(question, Settings(max_new_tokens=24))
    prompt = tuple(embedded_pair.template.render(question, embedded_pair.tokenizer))
    target = open_target("embedded", tmp_path)
    rows = states.of(target, None, "cpu", states.THIRDS)(prompt, trace.token_ids)
    _, output = heads.tables(embedded_pair.target_xml)
    width = output.shape[1]
    assert rows.shape == (len(trace.token_ids), 3 * width + 1)
    logits = rows[:, :width].astype(np.float32) @ output.T
    assert (logits.argmax(1) == trace.token_ids).mean() > 0.9
    sums = np.exp(logits - rows[:, -1:]).sum(1)
    assert sums.mean() == pytest.approx(1, abs=0.05)  # bf16 where the processor has it


def test_a_gguf_target_continues_prompts_the_same_in_any_batch(embedded_pair, tmp_path):
    from specdemo.training.target import Request, open_target

    target = open_target("embedded", tmp_path)
    prompts = ["Name three colours.", "What is 3 plus 4?", "Who wrote Hamlet?"]
    requests = [
        Request(tuple(target.template.render(one, target.tokenizer)), 12, 0.0, 0) for one in prompts
    ]
    write = target.writer("cpu")
    together = write(requests)
    assert together == [write([request])[0] for request in requests]
    assert all(0 < len(answer) <= 12 for answer in together)


def test_states_are_read_once_and_with_the_whole_prompt(tmp_path):
    from specdemo.training import states

    asked = []

    def read(prompt, answer):
        asked.append((prompt, answer))
        return np.arange(2 * len(answer)).reshape(-1, 2).astype(np.float16)

    said = [
        Conversation("", True, tuple(range(200)), (1, 2, 3)),
        Conversation("", True, (1,), (4,)),
    ]
    for _ in range(2):
        found = states.read_all(read, said, tmp_path / "kept")
    assert sorted(asked) == sorted((one.prompt, one.answer) for one in said)
    lesson = replace(corpus.lesson(said[0], prompt_tokens=8), states=found[0])
    batch = corpus.make_batch([lesson], 640)
    assert batch.states.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_text_goes_on_after_a_kill_with_the_same_conversations(target, text, tmp_path):
    path = tmp_path / "text.jsonl"
    lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:70]) + lines[70][:20], encoding="utf-8")
    write(target, tmp_path, path)
    assert path.read_text(encoding="utf-8") == text.read_text(encoding="utf-8")


def test_a_seed_always_gives_the_same_instructions():
    answers = ["It was red; so they said: yes. " * 20, "End of a text. " * 30]
    made = [prompts.instruction(1, index, texts) for index in range(300) for texts in ([], answers)]
    assert {one.kind for one in made} == set(prompts.MIX)
    text = "\n".join(f"{one.kind} {one.text} {one.opening}" for one in made)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "881d5e6b6f3e3cde"


def test_settings_that_cannot_work_are_bad_input(target, text, trained, draft, tmp_path):
    with pytest.raises(BadInput, match="another passes"):
        train_draft(settings(target, text, draft, passes=5))
    with pytest.raises(BadInput, match="--layers 4: the target has 3"):
        train_draft(settings(target, text, tmp_path / "draft", layers=4))


def test_the_command_names_an_option_that_cannot_be_used(capsys, tmp_path):
    from specdemo import cli

    assert cli.main(["train-draft", "--target", "x", "--out", "y", "--tokens", "5"]) == 2
    assert "--tokens" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert cli.main(["train-draft", "--target", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "is no earlier run" in capsys.readouterr().err


def test_held_back_prompts_are_greedy_and_never_trained_on():
    from specdemo.training.run import split

    said = [Conversation("", index % 3 > 0, (index % 40,), (1,)) for index in range(200)]
    held, train = split([*said, Conversation("", True, (99,), ())])
    assert held and all(one.greedy for one in held)
    assert not {one.prompt for one in held} & {one.prompt for one in train}
    assert all(one.answer for one in train)


def test_rounds_are_counted_as_greedy_decoding_would_emit_them():
    hit = np.array([True, True, False, True, False, False, True])
    hits = evaluate.chains(hit, 2)
    assert evaluate.rounds(hits) == [2, 1, 0, 1]
    assert evaluate.tokens_per_round([hits]) == 7 / 4
    assert evaluate.acceptance_by_position([hits]) == (3 / 4, 1 / 3)


def test_a_loop_is_cut_and_what_lookup_guesses_weighs_little():
    answer = (1, 2, 3, 4, 5, 6) * 8
    lesson = corpus.lesson(Conversation("", True, (9,), answer))
    assert len(lesson.answer) == len(lesson.weights) == 6 + corpus.LONGEST_MATCH + corpus.LOOP
    assert lesson.weights[:8] == (1.0,) * 8
    assert max(lesson.weights[8:]) < 0.2


def test_lookup_knows_all_of_a_prompt_of_which_training_reads_the_end(tmp_path):
    prompt = (1, 2, 3, 4, 5, *range(100, 200))
    lesson = corpus.lesson(Conversation("", True, prompt, (7, 1, 2, 3, 4)), prompt_tokens=10)
    assert lesson.prompt == prompt[-10:]
    assert lesson.weights[:3] == (1.0,) * 3 and max(lesson.weights[3:]) < 0.2
    batch = corpus.make_batch([lesson, Conversation("", True, (8,), (9,))], 640)
    assert batch.tokens.shape == (2, 15)
    assert batch.labels.tolist() == [7, 1, 2, 3, 4, 9]
    assert batch.weights[batch.answered].tolist() == pytest.approx([*lesson.weights, 1.0])
    corpus.write(tmp_path / "text.jsonl", [lesson])
    [again] = corpus.read(tmp_path / "text.jsonl")
    assert (again.prompt, again.answer, again.weights) == (lesson.prompt, lesson.answer, ())


def test_an_ngram_table_proposes_the_usual_continuation_and_comes_back_from_disk(tmp_path):
    from specdemo.models import ngrams
    from specdemo.training.export import count_ngrams

    said = [
        Conversation("", True, (9, 9, 9, 9), (1, 2, 3, 1, 2, 4)),
        Conversation("", True, (9, 9, 9, 9), (5, 2, 4)),
    ] * 3
    table = count_ngrams(said, 100)
    assert table.guess([2])[0] == 4
    assert table.guess([9, 9, 1, 2])[0] == 3
    assert table.guess([77]) is None
    assert 0 < table.guess([2])[1] < 1
    table.save(tmp_path / "ngrams.npz")
    again = ngrams.load(tmp_path / "ngrams.npz")
    for context in ([2], [9, 9, 1, 2], [1, 2], [77], [9, 9, 9, 9]):
        assert again.guess(context) == table.guess(context)


def test_batches_hold_every_conversation_once_a_pass(monkeypatch):
    monkeypatch.setattr(corpus, "POOL", 32)
    said = [Conversation("", True, (1,) * (1 + i % 7), (2,) * (1 + i % 5)) for i in range(100)]
    seen, order = [], corpus.batches(said, tokens=64, longest=16, seed=0)
    while len(seen) < len(said):
        members = next(order)
        assert len(members) * max(len(said[i]) for i in members) <= 64
        seen += members
    assert sorted(seen) == list(range(100))


def test_a_drafts_layers_and_its_targets_tensors_make_one_gguf_file(tmp_path):
    from transformers import LlamaForCausalLM

    from specdemo.models import gguf_files
    from specdemo.training.export import write_layers

    write_llama_pair(tmp_path / "target", tmp_path / "llama")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "llama")
    layers = [tmp_path / "layers.gguf", tmp_path / "again.gguf"]
    for path in layers:
        write_layers(model, path)
    assert layers[0].read_bytes() == layers[1].read_bytes()
    own = {tensor.name: tensor for tensor in gguf.GGUFReader(layers[0]).tensors}
    assert len(own) == 2 * 9 + 1
    made = gguf.quants.dequantize(own["blk.1.attn_q.weight"].data, gguf.GGMLQuantizationType.Q8_0)
    weight = model.model.layers[1].self_attn.q_proj.weight.detach().numpy()
    # Heads of 16 rows: GGUF keeps the two of a rotary pair together, torch half a head apart.
    assert made[:4] == pytest.approx(weight[[0, 8, 1, 9]], abs=0.01)

    target = tmp_path / "target.gguf"
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_block_count(30)
    writer.add_string("general.name", "stands in for the wheel's")
    for name in ("token_embd.weight", "blk.0.attn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones((8, 64) if "embd" in name else 64, np.float32))
    gguf_files.close(writer)
    gguf_files.write_draft(
        gguf_files.read(target), gguf_files.read(layers[0]), tmp_path / "draft.gguf"
    )
    whole = gguf.GGUFReader(tmp_path / "draft.gguf")
    assert whole.fields["llama.block_count"].contents() == 2
    assert whole.fields["general.name"].contents() == "stands in for the wheel's"
    expected = {name: bytes(tensor.data) for name, tensor in own.items()}
    expected["token_embd.weight"] = np.ones((8, 64), np.float32).tobytes()
    assert {tensor.name: bytes(tensor.data) for tensor in whole.tensors} == expected
