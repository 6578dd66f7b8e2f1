"""What n-gram lookup proposes, when a draft model is asked, and one with another vocabulary, which
says in tokens of its own what the target says: its weights are the target's in another order."""

import dataclasses
import json
import shutil
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tiny_models import ir_folder, save_tokenizer
from tokenizers import Tokenizer as Library
from tokenizers import decoders
from tokenizers.models import BPE
from toy import ToyModel, sequence, source

from specdemo.audit.own_engine import OwnEngine
from specdemo.audit.properties import Plan, Subject, cell_of
from specdemo.convert import exporting, model_files
from specdemo.engine.cost_model import CostModel
from specdemo.engine.drafts.draft_sources import DraftRequest
from specdemo.engine.drafts.drafter import EXPLORE_ROUNDS, AdaptiveDrafter
from specdemo.engine.drafts.lookup import ORDERS, NgramTable
from specdemo.engine.drafts.model_drafters import LOOKAHEAD
from specdemo.engine.policy import Policy
from specdemo.engine.rounds import Proposal
from specdemo.engine.sampling import Sampling
from specdemo.errors import BadInput
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import summarize
from specdemo.text.tokenizer import Tokenizer
from specdemo.text.translation import TextTranslation

CHARACTERS = [chr(code) for code in (*range(32, 127), *range(0x4E00, 0x4E00 + 161))]
PROMPT = "Count from one to five. "
WANTED = Settings(max_new_tokens=32, drafter="model", draft_tokens=3)


def asked(policy=None, sampling=None):
    return DraftRequest((), 1000, sampling or Sampling(), policy or Policy())


def table_of(text):
    table = NgramTable()
    table.read(text)
    return table


@pytest.mark.parametrize(
    ("text", "drafted", "tokens"),
    [
        # "1 2 3" matches longer than the later "2 3".
        ([1, 2, 3, 4, 9, 2, 3, 7, 8, 1, 2, 3], [[], [4], [4, 9], [50]], [4, 9, 2, None]),
        # It goes on from tokens of another source.
        ([1, 2, 3, 7, 8, 9, 1], [[], [7], [7, 8]], [2, 8, 9]),
    ],
)
def test_lookup_proposes_what_followed_the_longest_repeated_ending(text, drafted, tokens):
    table = table_of(text)
    found = [table.find([*text, *after]) for after in drafted]
    assert [match and match[0] for match in found] == tokens


def test_proposals_are_counted_as_far_as_the_answer_followed_the_draft():
    policy = Policy(fixed=3)
    successor = source("lookup").open(asked(policy))
    successor._table.find = lambda text, mask: (text[-1] + 1, ORDERS, True)
    drafter = AdaptiveDrafter([successor], policy)
    counted = []
    policy.accepted("lookup").record = lambda confidence, accepted: counted.append(accepted)
    context = [1]

    def answered(*tokens):
        with pytest.raises(StopIteration) as proposed:
            next(drafter.propose(context, 5))
        context.extend(tokens)
        return proposed.value.value.tokens

    assert answered(2, 9) == [2, 3, 4]
    assert answered(10) == [10, 11, 12]
    assert counted == [True, False], "2 was right, 3 wrong, 4 never reached"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 59))
def test_lookup_agrees_with_a_search_of_the_whole_text(text, prompt):
    table = table_of(text[:prompt])
    for end in range(max(prompt, 1), len(text) + 1):
        table.read(text[:end])
        assert table.find(text[:end]) == searched(text[:end])


def searched(text):
    """What followed the longest repeated ending, its length, and whether twice in a row."""
    for n in range(ORDERS, 0, -1):
        ends = [end for end in range(n, len(text)) if text[end - n : end] == text[-n:]]
        if ends:
            *_, before, last = None, *(text[end] for end in ends)
            return last, n, before == last
    return None


def test_lookup_proposes_the_token_that_is_allowed_after_the_longest_ending():
    table = table_of([2, 3, 5, 1, 2, 3, 7, 9, 3, 6, 1, 2])
    assert table.find([1, 2, 3]) == (7, 3, False)
    assert table.find([1, 2, 3], np.arange(8) == 6) == (6, 1, False)
    assert table.find([1, 2, 3], np.arange(8) == 5) is None


def costs(first, row):
    model = CostModel()
    model.learn({size: first + size * row for size in range(1, 17)})
    return model


def opened(name, request):
    model = ToyModel()
    model.costs = costs(0.1, 0.01)
    return source(name, model).open(request)


def asking(read=()):
    """A drafter whose draft model has read these tokens, and its policy."""
    policy = Policy(costs=costs(1.0, 0.01))
    model = opened("model", asked(policy))
    model.sequence = sequence(read)
    return AdaptiveDrafter([model], policy), policy, model


@pytest.mark.parametrize(("acceptance", "pays"), [(0.95, False), (0.2, True)])
def test_a_draft_model_is_not_asked_where_the_ngrams_are_right_anyway(acceptance, pays):
    drafter, policy, model = asking((1, 2))
    looked_up = Proposal(3, "lookup", 0.5, acceptance)
    assert drafter._pays(model, policy.plan(), [1, 2], [9], 1.0, looked_up) == pays


@pytest.mark.parametrize("looked_up", [None, Proposal(3, "lookup", 0.5, 0.1)])
def test_a_draft_model_is_not_asked_where_no_draft_of_its_would_be_verified(looked_up):
    """However unlikely the tokens that cost nothing are: at four users a third of the rounds took a
    draft step for nothing."""
    drafter, policy, model = asking((1, 2))
    assert drafter._pays(model, policy.plan(), [1, 2], [], 1.0, looked_up)
    policy.costs.learn({1: 1.0, 2: 2.5, 16: 20.0})
    assert not drafter._pays(model, policy.plan(), [1, 2], [], 1.0, looked_up)


def test_a_source_that_seems_too_dear_is_asked_once_in_a_while():
    drafter, policy, model = asking((0, 1, 2, 3))
    model.costs.learn({1: 60.0})
    asked_in = []
    for number in range(2 * EXPLORE_ROUNDS + 3):
        if drafter._pays(model, policy.plan(), [0, 1, 2, 3, 4], [], 1.0, None):
            asked_in.append(number)
            policy.accepted(model.name).unasked = 0
        policy.record_round(1.0, 1)
    assert asked_in == [EXPLORE_ROUNDS, 2 * EXPLORE_ROUNDS]


def test_rounds_that_share_a_forward_count_as_one_until_a_source_is_asked():
    _, policy, model = asking()
    rates = policy.accepted(model.name)
    policy.answering |= set(range(8))
    for _ in range(8):
        policy.record_round(1.0, 1)
    assert rates.unasked == pytest.approx(1.0)


def test_a_draft_model_reads_a_text_once_it_would_have_saved_as_much():
    drafter, policy, model = asking((0, 1, 2, 3))
    context = list(range(500))
    reading = model.catch_up(context, [])
    assert reading == pytest.approx(4.95, rel=0.05)
    few, many = (policy.plan(tokens_left=tokens) for tokens in (2, 50))
    asked_in = [drafter._pays(model, many, context, [], 1.0, None) for _ in range(9)]
    # With drafts a token takes a small part of the second that it takes without.
    assert asked_in.index(True) in (5, 6)
    assert not drafter._pays(model, few, context, [], 1.0, None), "for an answer that ends soon"
    assert drafter._pays(model, few, [0, 1, 2, 3, 4], [], 1.0, None), "what it has read"


# Another vocabulary


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
        target=target / model_files.MODEL,
        draft=draft / model_files.MODEL,
        tokenizer=own,
        translation=partial(TextTranslation, own, other),
    )


def answers(session, settings, prompt=PROMPT):
    *_, trace = session.ask(Question(prompt, settings))
    *_, expected = session.ask(Question(prompt, dataclasses.replace(settings, drafter="none")))
    return trace, expected


@pytest.mark.parametrize("length", [1, 3, 8])
def test_what_it_drafts_in_its_own_tokens_is_accepted_in_the_targets(translated_pair, length):
    """Its cache follows the accepted text: the prompt is read once, then only what was added."""
    settings = dataclasses.replace(WANTED, draft_tokens=length)
    with Session(translated_pair) as session:
        session.prepare()
        model = session.engine.draft.runner
        model.forward = Mock(wraps=model.forward)
        trace, expected = answers(session, settings)
    assert trace.token_ids == expected.token_ids
    assert {token.source for round_ in trace.rounds for token in round_.drafted} == {"model"}
    assert summarize(trace).acceptance_rate > 0.95
    assert summarize(trace).tokens_per_round > 1 + 0.9 * length * 0.8
    read = [len(run.tokens) for call in model.forward.call_args_list for run in call.args[0]]
    assert len(read) > 10 and read[0] >= len(PROMPT)
    assert max(read[1:]) <= LOOKAHEAD + length


def test_it_is_not_asked_where_it_does_not_pay(translated_pair):
    with Session(translated_pair) as session:
        session.prepare()
        target = session.engine.target("exact").model.costs
        draft = session.engine.draft.runner.costs
        target.learn({1: 1.0, 16: 1.0})
        target.record = draft.record = Mock()  # whatever the machine does meanwhile
        for seconds, drafted in ((10.0, False), (1e-7, True)):
            draft.learn({1: seconds, 16: seconds})
            adaptive = dataclasses.replace(WANTED, draft_tokens=None)
            *_, trace = session.ask(Question(PROMPT, adaptive))
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
