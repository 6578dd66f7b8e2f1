"""A draft model with another vocabulary. Its weights are the target's with the rows of another
order, so that it says what the target says, in its own tokens."""

from __future__ import annotations

import dataclasses
import json
import shutil
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import ir_folder, save_tokenizer
from tokenizers import Tokenizer as Library
from tokenizers import decoders
from tokenizers.models import BPE

from specdemo.audit.own_engine import OwnEngine
from specdemo.audit.properties import Plan, Subject, cell_of
from specdemo.convert import exporting, ir
from specdemo.engine.drafts.model_drafters import LOOKAHEAD
from specdemo.errors import BadInput
from specdemo.pairs import registry
from specdemo.pairs.loading import load_pair
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import summarize
from specdemo.text.tokenizer import Tokenizer
from specdemo.text.translation import TextTranslation

pytestmark = pytest.mark.slow
CHARACTERS = [chr(code) for code in (*range(32, 127), *range(0x4E00, 0x4E00 + 161))]
PROMPT = "Count from one to five. "
WANTED = Settings(max_new_tokens=32, drafter="model", draft_tokens=3)


def write_characters(folder, order) -> None:
    """A tokenizer with a token for each of CHARACTERS, in this order."""
    library = Library(BPE({CHARACTERS[index]: id for id, index in enumerate(order)}, []))
    library.decoder = decoders.Fuse()
    save_tokenizer(folder, library, "PreTrainedTokenizerFast")


@pytest.fixture(scope="module")
def folders(tiny_home, tmp_path_factory):
    """Folders of the target and of its draft model."""
    home, order = tmp_path_factory.mktemp("translated"), np.random.default_rng(0).permutation(256)
    tensors = load_file(tiny_home / "llama-target" / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = np.ascontiguousarray(tensors[name][order])
    source, draft, target = home / "source", home / "draft", home / "target"
    source.mkdir()
    save_file(tensors, source / "model.safetensors")
    config = json.loads((tiny_home / "llama-target" / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config))
    exporting.export(source, draft, "int8")
    shutil.copytree(ir_folder(tiny_home, "llama-target", "int8"), target)
    write_characters(target, range(256))
    write_characters(draft, order)
    return target, draft


@pytest.fixture(scope="module")
def translated_pair(folders, tiny_llama_pair):
    target, draft = folders
    own, other = (Tokenizer(folder / "tokenizer.json") for folder in folders)
    return dataclasses.replace(
        tiny_llama_pair,
        target=target / ir.MODEL,
        draft=draft / ir.MODEL,
        tokenizer=own,
        translation=partial(TextTranslation, own, other),
    )


def answers(session, settings, prompt=PROMPT):
    *_, trace = session.ask(Question(prompt, settings))
    *_, expected = session.ask(Question(prompt, dataclasses.replace(settings, drafter="none")))
    return trace, expected


@pytest.mark.parametrize("length", [1, 3, 8])
def test_what_it_drafts_in_its_own_tokens_is_accepted_in_the_targets(translated_pair, length):
    settings = dataclasses.replace(WANTED, draft_tokens=length)
    with Session(translated_pair) as session:
        trace, expected = answers(session, settings)
    assert trace.token_ids == expected.token_ids
    assert {one.source for round_ in trace.rounds for one in round_.drafted} == {"model"}
    assert summarize(trace).acceptance_rate > 0.95
    assert summarize(trace).tokens_per_round > 1 + 0.9 * length * 0.8


def test_its_cache_follows_the_accepted_text(translated_pair):
    """The prompt is read once, then only what was added: never the text again."""
    read = []
    with Session(translated_pair) as session:
        session.prepare()
        model = session.engine.draft.runner
        inner = model.forward

        def noting(batch):
            read.extend(len(run.tokens) for run in batch)
            return inner(batch)

        model.forward = noting
        list(session.ask(Question(PROMPT * 2, WANTED)))
    assert len(read) > 10 and read[0] >= len(PROMPT * 2)
    assert max(read[1:]) <= LOOKAHEAD + WANTED.draft_tokens


def test_it_is_not_asked_where_it_does_not_pay(translated_pair):
    with Session(translated_pair) as session:
        session.prepare()
        for seconds, drafted in ((1.0, False), (1e-7, True)):
            session.engine.draft.runner.costs.learn({1: seconds, 16: seconds})
            *_, trace = session.ask(
                Question(PROMPT, dataclasses.replace(WANTED, draft_tokens=None))
            )
            assert any(round_.drafted for round_ in trace.rounds) == drafted


def test_a_text_that_its_cache_could_not_hold_is_answered_without_it(translated_pair):
    short = dataclasses.replace(translated_pair, draft_context=len(PROMPT) + 6)
    with Session(short) as session:
        trace, expected = answers(session, WANTED)
    drafted = [bool(round_.drafted) for round_ in trace.decoding_rounds]
    assert trace.token_ids == expected.token_ids
    assert drafted[0] and not drafted[-1]


def test_the_maximal_coupling_is_refused_in_a_sentence(translated_pair):
    settings = dataclasses.replace(WANTED, temperature=0.7, coupling="maximal")
    with Session(translated_pair) as session:
        with pytest.raises(BadInput, match="another vocabulary than the target; the maximal"):
            next(session.ask(Question(PROMPT, settings)))
        assert list(session.ask(Question(PROMPT, dataclasses.replace(settings, drafter="lookup"))))
        assert list(session.ask(Question(PROMPT, dataclasses.replace(settings, temperature=0.0))))


def test_it_is_audited_with_the_shared_coupling(translated_pair):
    plan = Plan((), WANTED, 40, ["sampling"])
    with Session(translated_pair) as session:
        cell = cell_of("sampling", Subject(OwnEngine(session, "model")), plan)
    assert not cell.failures and set(cell.p_values) == {"shared"}
    assert cell.p_value > 0.001


def test_a_pair_of_two_vocabularies_is_loaded_with_a_translation(folders):
    target, draft = map(str, folders)
    for assistant, translated in ((draft, True), (target, False)):
        choice = ModelChoice(model=target, assistant_model=assistant)
        loaded = load_pair(registry.chosen_pair(choice))
        assert (loaded.translation is not None) == translated
