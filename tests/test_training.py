"""Making a draft for a tiny target: it learns, survives being killed, and the embedded draft is put together exactly."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from specdemo.training import corpus, evaluate
from specdemo.training.corpus import Conversation
from specdemo.training.settings import TrainSettings
from specdemo.models.errors import BadChoice

VOCABULARY, LAYERS = 96, 3


def write_target(folder: Path) -> None:
    """A GPT-NeoX checkpoint with a byte-level tokenizer.

    Its initial weights are made larger, so that the next token depends clearly on the text, and on little of it.
    """
    import torch
    from tiny_models import special
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(5)
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPTNeoXForCausalLM(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "mlp" in name and weights.dim() > 1:
                weights.mul_(6)
            if name.startswith("embed_out"):
                weights.mul_(12)
                weights[0] = 0  # the end token is never likely
    model.save_pretrained(folder)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<|endoftext|>": 0} | {chr(33 + i): 1 + i for i in range(VOCABULARY - 2)} | {"Ġ": VOCABULARY - 1}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [special(0, "<|endoftext|>")]
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"})
    )


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """So small a model gains nothing from a second one, and on a busy machine each would wait for the other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    write_target(folder)
    return folder


def write(target: Path, work: Path, path: Path) -> None:
    """Let the target write, or go on with, a little text: short prompts only, for its tokens are single bytes."""
    from specdemo.training import prompts
    from specdemo.training.target import open_target
    from specdemo.training.text import write_text

    short = functools.partial(prompts.instruction, mix={"sum": 1, "question": 1})
    opened = open_target(str(target), work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "instruction", short)
        write_text(opened, opened.writer("cpu"), path, tokens=6000, limit=40, seed=3, report=lambda _: None)


@pytest.fixture(scope="module")
def text(target, tmp_path_factory) -> Path:
    """Conversations that the target writes once for all tests of this file."""
    folder = tmp_path_factory.mktemp("text")
    write(target, folder, folder / "text.jsonl")
    return folder / "text.jsonl"


def settings(target: Path, text: Path, out: Path, **changes) -> TrainSettings:
    values = {"layers": 1, "passes": 12, "batch_tokens": 1024, "parts": 2, "device": "cpu", "head_tokens": VOCABULARY}
    return TrainSettings(str(target), out, text=text, **(values | changes))


COMMAND = """
import sys
from pathlib import Path
from specdemo.training.run import train_draft
from test_training import settings
target, text, out = map(Path, sys.argv[1:])
train_draft(settings(target, text, out, checkpoint_seconds=0.0), lambda progress: print(progress.line, flush=True))
"""


def start(target: Path, text: Path, out: Path) -> subprocess.Popen:
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent), str(here), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(target), str(text), str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def trained(target, text, tmp_path_factory):
    """One uninterrupted run."""
    from specdemo.training.run import train_draft

    out = tmp_path_factory.mktemp("trained") / "draft"
    return train_draft(settings(target, text, out))


@pytest.fixture
def no_export(monkeypatch):
    """The IR of one run is enough: making it takes longer than training these."""
    from specdemo.training import export

    monkeypatch.setattr(export, "export_draft", lambda *_: None)


def test_training_raises_agreement_clearly(trained):
    assert trained.after.agreement > trained.before.agreement + 0.2
    assert trained.after.tokens_per_round[3] > trained.before.tokens_per_round[3] + 0.3


def test_the_draft_is_a_decoder_with_tokenizer_and_card(trained):
    from specdemo.models import ir

    ir.check_decoder(trained.folder)
    assert (trained.folder / "tokenizer.json").is_file()
    card = json.loads((trained.folder / "card.json").read_text(encoding="utf-8"))
    assert card["after"]["agreement"] == pytest.approx(trained.after.agreement)
    assert f"{trained.after.agreement:.3f}" in (trained.folder / "README.md").read_text(encoding="utf-8")


def test_a_killed_run_resumes_to_the_same_draft(target, text, trained, no_export, tmp_path):
    import torch

    out = tmp_path / "draft"
    first = start(target, text, out)
    for line in first.stdout:
        if line.startswith("Training: ") and int(line.split("%")[0].split()[-1]) >= 40:
            break
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert (out / "work" / "state.pt").is_file()
    from specdemo.training.run import train_draft

    again = train_draft(settings(target, text, out))
    assert again.resumed
    assert again.steps == trained.steps
    assert again.after == trained.after
    weights = [torch.load(folder / "work" / "state.pt")["averages"] for folder in (out, trained.folder)]
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


def test_soft_labels_reach_more_acceptance_than_the_untrained_draft(target, text, no_export, tmp_path):
    from specdemo.training.run import train_draft

    result = train_draft(settings(target, text, tmp_path / "draft", labels="soft", passes=6))
    assert result.after.tv_acceptance > result.before.tv_acceptance + 0.1


def test_a_target_that_runs_as_ir_is_asked_as_ir(embedded_pair):
    from specdemo.trace import Settings
    from specdemo.session import Session
    from specdemo.training import teacher

    question = "Name three colours."
    session = Session(embedded_pair)
    *_, trace = session.answer(question, Settings(max_new_tokens=24))
    session.close()
    prompt = tuple(embedded_pair.template.render(question, embedded_pair.tokenizer))
    asked = teacher.IRTeacher(embedded_pair.target_xml)
    targets = asked.targets(prompt, trace.token_ids)
    assert targets.tokens.shape == targets.probabilities.shape == (len(trace.token_ids), teacher.TOP)
    assert tuple(targets.tokens[:, 0]) == trace.token_ids
    assert (np.diff(targets.probabilities, axis=1) <= 0).all()
    assert (targets.probabilities.sum(1, dtype=np.float64) <= 1.005).all()
    emitted = [one.emitted.target_probability for one in trace.rounds if one.emitted]
    places = np.cumsum([len(one.tokens) for one in trace.rounds])[: len(emitted)] - 1
    assert targets.probabilities[places, 0] == pytest.approx(emitted, abs=2e-3)


def test_soft_labels_are_asked_for_with_the_whole_prompt(tmp_path):
    from specdemo.training import teacher

    asked = []

    class Listening:
        def targets(self, prompt, answer):
            asked.append((prompt, answer))
            return teacher.Targets(np.zeros((len(answer), 2), np.int32), np.ones((len(answer), 2), np.float16))

    said = Conversation("", True, tuple(range(200)), (1, 2, 3))
    lesson = corpus.lesson(said, prompt_tokens=8)
    soft = teacher.soft_labels(Listening(), [said], [lesson], 640, tmp_path / "kept", lambda _: None)
    assert asked == [(said.prompt, lesson.answer)]
    assert len(soft.of([0]).tokens) == len(corpus.make_batch([lesson], 640).labels)
    teacher.soft_labels(Listening(), [said], [lesson], 640, tmp_path / "kept", lambda _: None)
    assert len(asked) == 1, "what is on disk is not asked for again"


def test_text_goes_on_after_a_kill_with_the_same_conversations(target, text, tmp_path):
    path = tmp_path / "text.jsonl"
    lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:70]) + lines[70][:20], encoding="utf-8")
    write(target, tmp_path, path)
    assert path.read_text(encoding="utf-8") == text.read_text(encoding="utf-8")


def test_another_setting_does_not_continue_an_earlier_run(target, text, trained):
    from specdemo.training.run import train_draft

    with pytest.raises(BadChoice, match="another passes"):
        train_draft(settings(target, text, trained.folder, passes=5))


def test_rounds_are_counted_as_greedy_decoding_would_emit_them():
    hit = np.array([True, True, False, True, False, False, True])
    assert evaluate.rounds(hit, 2) == [2, 1, 0, 1]
    assert evaluate.tokens_per_round([hit], 2) == 7 / 4
    assert evaluate.acceptance_by_position([hit], 2) == (3 / 4, 1 / 3)


def test_a_loop_is_cut_and_what_lookup_guesses_weighs_little():
    answer = (1, 2, 3, 4, 5, 6) * 8
    lesson = corpus.lesson(Conversation("", True, (9,), answer))
    assert len(lesson.answer) == len(lesson.weights) == 6 + corpus.LONGEST_MATCH + corpus.LOOP
    assert lesson.weights[:8] == (1.0,) * 8
    assert max(lesson.weights[8:]) < 0.2


def test_lookup_knows_all_of_a_prompt_of_which_training_reads_the_end():
    prompt = (1, 2, 3, 4, 5, *range(100, 200))
    lesson = corpus.lesson(Conversation("", True, prompt, (7, 1, 2, 3, 4)), prompt_tokens=10)
    assert lesson.prompt == prompt[-10:]
    assert lesson.weights[:3] == (1.0,) * 3 and max(lesson.weights[3:]) < 0.2
    batch = corpus.make_batch([lesson, Conversation("", True, (8,), (9,))], 640)
    assert batch.tokens.shape == (2, 15)
    assert batch.weights.tolist() == pytest.approx([*lesson.weights, 1.0])


def test_written_conversations_come_back_without_weights(tmp_path):
    said = Conversation("sum", True, (1, 2), (3, 4))
    corpus.write(tmp_path / "text.jsonl", [corpus.lesson(said)])
    assert corpus.read(tmp_path / "text.jsonl") == [said]


def test_phrases_guess_the_usual_continuation_and_come_back_from_disk(tmp_path):
    from specdemo.training.phrases import count_phrases
    from specdemo.models.embedded_draft import phrases

    said = [
        Conversation("", True, (9, 9, 9, 9), (1, 2, 3, 1, 2, 4)),
        Conversation("", True, (9, 9, 9, 9), (5, 2, 4)),
    ] * 3
    table = count_phrases(said)
    assert table.guess([2])[0] == 4
    assert table.guess([9, 9, 1, 2])[0] == 3
    assert table.guess([77]) is None
    assert 0 < table.guess([2])[1] < 1
    table.save(tmp_path / "phrases.npz")
    again = phrases.load(tmp_path / "phrases.npz")
    for context in ([2], [9, 9, 1, 2], [1, 2], [77], [9, 9, 9, 9]):
        assert again.guess(context) == table.guess(context)


def test_batches_hold_every_conversation_once_a_pass():
    conversations = [Conversation("", True, (1,) * (1 + i % 7), (2,) * (1 + i % 5)) for i in range(100)]
    seen, order = [], corpus.batches(conversations, tokens=64, longest=16, seed=0, pool=32)
    while len(seen) < len(conversations):
        seen += next(order)
    assert sorted(seen) == list(range(100))


def test_the_embedded_draft_is_the_same_file_each_time(tmp_path):
    gguf = pytest.importorskip("gguf")
    embedded_draft = pytest.importorskip("specdemo.models.embedded_draft")
    own = gguf.GGUFReader(embedded_draft._LAYERS)
    width = len(next(tensor for tensor in own.tensors if tensor.name == "output_norm.weight").data)
    target = tmp_path / "target.gguf"
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_block_count(30)
    writer.add_string("general.name", "stands in for the wheel's")
    writer.add_tensor("token_embd.weight", np.ones((8, width), np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = [tmp_path / "first.gguf", tmp_path / "second.gguf"]
    for file in files:
        embedded_draft.build_draft_gguf(target, file)
        time.sleep(0.01)
    assert files[0].read_bytes() == files[1].read_bytes()
    made = gguf.GGUFReader(files[0])
    blocks = {tensor.name.split(".")[1] for tensor in made.tensors if tensor.name.startswith("blk.")}
    assert int(made.fields["llama.block_count"].parts[-1][0]) == len(blocks)
    assert made.fields["general.name"].contents() == "stands in for the wheel's"
    theirs = {tensor.name: bytes(tensor.data) for tensor in own.tensors}
    for tensor in made.tensors:
        expected = theirs.get(tensor.name, np.ones((8, width), np.float32).tobytes())
        assert bytes(tensor.data) == expected, tensor.name


def test_the_embedded_drafts_head_tokens_are_ids_without_repetition():
    embedded_draft = pytest.importorskip("specdemo.models.embedded_draft")
    tokens = embedded_draft.head_tokens()
    assert tokens.dtype == np.int64
    assert len(np.unique(tokens)) == len(tokens) <= 49_152
