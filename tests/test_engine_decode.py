"""Speculative decoding against autoregressive decoding on toy models: limits, stop tokens, drafters
good and bad, and what rounding can and cannot change."""

import dataclasses
from functools import partial
from itertools import product

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.engine import acceptance, constraint, decode
from specdemo.engine.forwards import Reply
from specdemo.engine.policy import Policy
from specdemo.engine.sampling import Sampling, choose

PROMPT = (1, 4, 2)
VOCABULARY = 9
seeds = st.integers(0, 10**6)


def table_of(seed: int) -> np.ndarray:
    return toy.random_table(np.random.default_rng(seed), VOCABULARY)


def run(table, *, limits, draft=None, prompt=PROMPT, **options):
    target = toy.sequence(prompt)
    decoding = toy.decoding(table, prompt, limits, target=target, **options)
    models = {"target": table, "draft": table if draft is None else draft}
    rounds, reason = toy.drive(decoding, models)
    return rounds, reason, target


def autoregressive(table, limits, sampling=toy.GREEDY, language=None) -> tuple[int, ...]:
    """Decoding spelled out."""
    tokens, answer = list(PROMPT), []
    for _ in range(min(limits.max_new_tokens, limits.context_limit - len(PROMPT))):
        row = toy.adjusted(table[tokens[-1]], sampling, PROMPT, answer, language)
        token = row.argmax() if sampling.greedy else choose(row, sampling, len(tokens))
        tokens.append(int(token))
        answer = tokens[len(PROMPT) :]
        if tokens[-1] in limits.stop_ids:
            break
    return tuple(answer)


def script(kind: str, truth: tuple[int, ...], length: int) -> toy.ScriptDrafter:
    """A drafter that proposes the true text, wrong tokens, random ones, or two right of three."""
    rng = np.random.default_rng(0)
    true = (*PROMPT, *truth)

    def right(context, position):
        return true[position] if position < len(true) else 0

    guess = {
        "right": right,
        "wrong": lambda context, position: (right(context, position) + 1) % VOCABULARY,
        "random": lambda context, position: int(rng.integers(VOCABULARY)),
        "half": lambda context, position: right(context, position) if position % 3 else 0,
    }
    return toy.ScriptDrafter(length, guess[kind])


def softmax(row: np.ndarray) -> np.ndarray:
    return np.exp(row) / np.exp(row).sum()


KINDS = st.sampled_from(["right", "wrong", "random", "half"])


SAMPLED = [Sampling(), Sampling(0.8), Sampling(1.2, top_p=0.8, top_k=6), Sampling(1.5)]
PENALTIES = [
    {},
    {"presence_penalty": 1.0, "logit_bias": ((3, 2.0), (1, -100.0))},
    {"frequency_penalty": -0.3, "min_p": 0.1},
    {"repetition_penalty": 1.5, "frequency_penalty": 0.4},
    {"repetition_penalty": 0.6},
]


@pytest.mark.parametrize(
    "kind", ["script", "model", "auto", "lookup", "prediction", "head", "eagle3", "translated"]
)
@settings(max_examples=40, deadline=None)
@given(seeds, st.sampled_from(SAMPLED), st.sampled_from(PENALTIES), st.data())
def test_output_is_autoregressive_decodings_to_the_token(kind, seed, sampling, penalties, data):
    """With constraints and penalties too, whatever ends it, and with the sequence left right."""
    sampling = dataclasses.replace(sampling, seed=seed, **penalties)
    table, length = table_of(seed), data.draw(st.none() | st.integers(1, 9))
    most, context = data.draw(st.integers(1, 25)), data.draw(st.integers(4, 30))
    stops = frozenset(data.draw(st.sets(st.integers(0, 8), max_size=3)))
    limits = decode.Limits(most, context, stops)
    languages = [None, None]
    if data.draw(st.booleans(), "constrained"):
        languages = [toy.Language(seed, VOCABULARY, limits.stop_ids) for _ in range(2)]
    expected = autoregressive(table, limits, sampling, languages[0])
    policy = Policy(fixed=length)
    near = table + toy.random_table(np.random.default_rng(seed + 1), VOCABULARY, 0.3)
    model = (toy.ToyHead if kind in ("head", "eagle3") else toy.ToyModel)(near)
    if kind == "script":
        drafter = script(data.draw(KINDS), expected, length or 4)
    else:
        drafter = toy.drafter(kind, policy, sampling, PROMPT, expected, model)
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans(), "masks are computed beside the thread while drafting too"):
            patch.setattr(constraint, "SLOW", -1.0)
        options = {"drafter": drafter, "draft": model, "language": languages[1]}
        rounds, reason, target = run(table, limits=limits, sampling=sampling, **options)
    assert toy.answer_ids(rounds) == expected
    assert target.tokens == [*PROMPT, *expected][:-1]
    ends = "length" if len(expected) == most else "context"
    assert reason == ("stop" if expected[-1] in limits.stop_ids else ends)
    forced = [one for round_ in rounds for one in round_.drafted if one.source == "grammar"]
    assert all(one.accepted for one in forced if one.target_probability is not None)
    assert all(one.target_probability in (None, 1.0) for one in forced)


def test_forced_tokens_are_drafted_without_a_draft_model_up_to_the_first_choice():
    class Counting(toy.Language):
        """Forces 1, 2, ... 5, and then lets 6 and 7 follow."""

        def mask(self):
            at = len(self.tokens)
            return np.isin(np.arange(VOCABULARY), [at + 1] if at < 5 else [6, 7])

    drafter = toy.drafter("lookup", Policy(fixed=8))
    limits = decode.Limits(6, 100)
    rounds, _, _ = run(table_of(1), drafter=drafter, limits=limits, language=Counting(0))
    assert [one.id for one in rounds[1].drafted] == [2, 3, 4, 5]
    assert {one.source for one in rounds[1].drafted} == {"grammar"}
    assert len(rounds) == 2 and rounds[1].emitted.id in (6, 7)


def test_a_right_draft_ends_in_a_bonus_and_a_wrong_one_in_a_correction():
    table, limits = table_of(5), decode.Limits(9, 100)
    truth = autoregressive(table, decode.Limits(20, 100))
    rounds, _, _ = run(table, drafter=script("right", truth, 3), limits=limits)
    assert [round_.emitted.kind for round_ in rounds] == ["first", "bonus", "bonus"]
    assert [round_.accepted for round_ in rounds] == [0, 3, 3]
    rounds, _, _ = run(table, drafter=script("wrong", truth, 3), limits=limits)
    assert {round_.emitted.kind for round_ in rounds[1:-1]} == {"correction"}
    assert all(token.target_probability is None for token in rounds[1].drafted[1:])


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [
        *product(["model", "head", "lookup"], [toy.GREEDY]),
        ("model", Sampling(1, coupling="maximal")),
    ],
)
def test_a_rejection_keeps_the_drafts_likeliest_tokens_with_both_probabilities(kind, sampling):
    table, model = table_of(5), toy.ToyHead(table_of(6))
    known = {"model": np.arange(VOCABULARY), "head": model.token_ids, "lookup": []}[kind]
    model = model if kind == "head" else toy.ToyModel(model.table)
    drafter = toy.drafter(kind, Policy(fixed=3), sampling, PROMPT, model=model)
    limits = decode.Limits(80, 100)
    rounds, _, _ = run(table, drafter=drafter, draft=model, limits=limits, sampling=sampling)
    last, kept = PROMPT[-1], []
    for round_ in rounds:
        *accepted, _ = last, *(token.id for token in round_.tokens)
        p, q = softmax(model.table[accepted[-1], known]), softmax(table[accepted[-1]])
        likeliest = sorted(((p, token) for p, token in zip(p, known, strict=True)), reverse=True)
        wanted = [(token, p, q[token]) for p, token in likeliest[:5] if p >= 0.01]
        if not round_.emitted or round_.emitted.kind != "correction":
            wanted = []
        shown = [(c.id, c.draft_probability, c.target_probability) for c in round_.candidates]
        assert shown == [pytest.approx(token) for token in wanted]
        kept += shown
        last = round_.tokens[-1].id
    assert bool(kept) == (kind != "lookup")


def test_a_stop_token_inside_an_accepted_draft_ends_the_answer_there():
    table = np.zeros((6, 6), np.float32)
    for token in range(6):
        table[token, (token + 1) % 6] = 5.0
    drafter = toy.ScriptDrafter(5, lambda context, position: position % 6)
    limits = decode.Limits(50, 100, frozenset({5}))
    rounds, reason, _ = run(table, drafter=drafter, limits=limits, prompt=(0, 1))
    assert toy.answer_ids(rounds) == (2, 3, 4, 5) and reason == "stop"
    assert rounds[-1].emitted is None
    assert [token.accepted for token in rounds[-1].drafted] == [True] * 3 + [False] * 2


def test_the_policy_learns_what_the_request_itself_took(monkeypatch):
    figures = []
    monkeypatch.setattr(toy, "Reply", partial(Reply, own=0.25))
    monkeypatch.setattr(Policy, "record_round", lambda self, *given: figures.append(given))
    run(table_of(0), limits=decode.Limits(3, 100))
    assert figures == [(0.001, 1, length, None, 0.25) for length in (5, 6)]


def test_no_room_for_an_answer_is_refused():
    with pytest.raises(ValueError, match="no room"):
        run(table_of(0), limits=decode.Limits(5, 3))


def test_leaving_early_keeps_the_sequence_consistent():
    table = table_of(5)
    truth = autoregressive(table, decode.Limits(20, 100))
    target = toy.sequence(PROMPT)
    decoding = toy.decoding(
        table, PROMPT, decode.Limits(20, 100), target=target, drafter=script("wrong", truth, 4)
    )
    decoding.send(None)
    request = decoding.send(None)
    target.tokens.extend(request.run.tokens)  # the forward ran, and its reply never came
    decoding.close()
    assert target.tokens == list(PROMPT)


# Rounding


def rows_of(rows: np.ndarray) -> acceptance.TargetRows:
    return acceptance.TargetRows(toy.logits_of(rows), [0] * 7)


def test_the_margin_is_that_of_the_token_after_the_accepted_ones():
    rows = np.array([[0, 3, 0], [0, 0, 0.25], [2, 0, 0]], np.float32)
    verified = acceptance.verify(rows_of(rows), toy.drafted(1, 2), toy.GREEDY)
    assert (verified.accepted, verified.token, verified.margin) == (2, 0, 2)
    rejected = acceptance.verify(rows_of(rows), toy.drafted(0, 2), toy.GREEDY)
    assert (rejected.accepted, rejected.token, rejected.margin) == (0, 1, 3)
    sampled = acceptance.verify(rows_of(rows), toy.drafted(1), Sampling(1))
    assert sampled.margin is None
