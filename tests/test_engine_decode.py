"""Speculative decoding against autoregressive decoding on toy models: limits, stop tokens, drafters
good and bad, and what rounding can and cannot change."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_sampling import FILTERS

from specdemo.engine import acceptance, constraint, decode
from specdemo.engine.acceptance import adjustment
from specdemo.engine.decode import Guard
from specdemo.engine.messages import Draft
from specdemo.engine.policy import Policy
from specdemo.engine.sampling import MAX_MARGIN, Sampling, choose

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
        token = row.argmax() if sampling.greedy else choose(row, sampling, len(tokens))[0]
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
    limits = decode.Limits(
        most, context, frozenset(data.draw(st.sets(st.integers(0, 8), max_size=3)))
    )
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
    rounds, _, _ = run(
        table, drafter=drafter, draft=model, limits=decode.Limits(80, 100), sampling=sampling
    )
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


@settings(max_examples=400, deadline=None)
@given(
    seeds,
    st.integers(2, 400),
    st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0]),
    st.just(0.0) | st.floats(0.3, 30),
    FILTERS,
    st.sampled_from([MAX_MARGIN, 1.0]),
)
def test_a_choice_holds_for_all_logits_nearer_than_half_its_margin(
    seed, vocabulary, penalty, temperature, filters, most
):
    """The margin is in logits of the model, which a repetition penalty stretches."""
    rng = np.random.default_rng(seed)
    sampling = Sampling(temperature, seed=seed, repetition_penalty=penalty, **filters)
    context = rng.integers(0, vocabulary, 8).tolist()
    adjust = adjustment(sampling, context[:4])
    row = (rng.normal(size=vocabulary) * rng.choice([0.3, 4])).astype(np.float32)

    def verified(row: np.ndarray) -> acceptance.Verification:
        rows = acceptance.TargetRows(toy.logits_of(row[None]), context, adjust)
        return acceptance.verify(rows, Draft(), sampling, max_margin=most)

    chosen = verified(row)
    margin = chosen.min_margin
    assert margin >= 0
    assert temperature or penalty != 1 or chosen.margin == margin > 0
    against = np.ones(vocabulary)
    against[chosen.token] = -1
    uniform = rng.uniform(-1, 1, (2, vocabulary))
    reach = 0.49 * margin
    for change in (against, *rng.choice([-1, 1], (5, vocabulary)), *uniform):
        moved = (row + reach * change).astype(np.float32)
        # Below that the logits' own precision decides.
        assert reach < 5e-5 * max(temperature, 1) or verified(moved).token == chosen.token


def test_the_smallest_margin_is_that_of_the_closest_choice():
    rows = np.array([[0, 3, 0], [0, 0, 0.25], [2, 0, 0]], np.float32)
    verified = acceptance.verify(rows_of(rows), toy.drafted(1, 2), toy.GREEDY)
    assert (verified.accepted, verified.token) == (2, 0)
    assert (verified.margin, verified.min_margin) == (2, 0.25)
    rejected = acceptance.verify(rows_of(rows), toy.drafted(0, 2), toy.GREEDY)
    assert rejected.min_margin == 3, "rows after a rejection decide nothing"


class RoundingModel(toy.ToyModel):
    """Forwards of one unpadded token, and all that attend to what those wrote, differ by up to
    `rounding` logits."""

    def __init__(self, table: np.ndarray, rounding: float, seed: int):
        super().__init__(table)
        self.rounding = rounding
        self.rng = np.random.default_rng(seed)
        self.written: set[int] = set()
        """Positions whose keys and values an unpadded forward of one token wrote."""

    def forward(self, batch):
        [run] = batch
        start = run.sequence.length
        self.written = {at for at in self.written if at < start}
        if run.unpadded and len(run.tokens) == 1:
            self.written.add(start)
        [logits] = super().forward(batch)
        if not self.written:
            return [logits]
        noise = self.rng.uniform(-self.rounding, self.rounding, logits.rows.shape)
        self._last = [toy.logits_of(logits.rows + noise.astype(np.float32))]
        return self._last


ROUNDING = {"greedy": 5e-5, "sampled": 2e-2}
SAMPLINGS = {
    "greedy": [{}, {"repetition_penalty": 0.5}],
    "sampled": [
        {"temperature": 0.7},
        {"temperature": 0.9, "top_p": 0.8, "top_k": 6},
        {"temperature": 0.9, "min_p": 0.1, "repetition_penalty": 1.8},
    ],
}


def with_and_without_rounding(kind, options, seed, guarded, drafter=None):
    """What decoding gives on a RoundingModel, and what it gives where nothing rounds. Half of the
    greedy choices, and half of the tokens at the filters' edges, are nearly ties."""
    rounding = ROUNDING[kind]
    rng = np.random.default_rng(seed)
    table = table_of(seed)
    for row in table[: VOCABULARY // 2]:
        order = np.argsort(row)
        for lower, upper in ((order[-2], order[-1]), (order[2], order[3])):
            row[lower] = row[upper] - rng.uniform(0, 2 * rounding)
    sampling = Sampling(seed=seed, **options)
    limits = decode.Limits(40, 100)
    truth = autoregressive(table, limits, sampling)
    decoding = toy.decoding(
        table,
        PROMPT,
        limits,
        drafter=drafter and script(drafter, truth, seed % 3),
        sampling=sampling,
        guard=Guard(2.01 * rounding if guarded else 0.0),
    )
    rounds, _ = toy.drive(decoding, {"target": RoundingModel(table, rounding, seed)})
    return toy.answer_ids(rounds), truth


@pytest.mark.parametrize("kind", ROUNDING)
@settings(max_examples=80, deadline=None)
@given(data=st.data(), seed=seeds, drafter=st.none() | KINDS)
def test_a_guard_of_twice_the_rounding_keeps_every_choice(kind, data, seed, drafter):
    options = data.draw(st.sampled_from(SAMPLINGS[kind]))
    answer, truth = with_and_without_rounding(kind, options, seed, True, drafter)
    assert answer == truth


@pytest.mark.parametrize(
    ("kind", "options"), [(kind, options) for kind in SAMPLINGS for options in SAMPLINGS[kind]]
)
def test_without_the_guard_close_choices_flip(kind, options):
    pairs = [with_and_without_rounding(kind, options, seed, False) for seed in range(20)]
    assert any(answer != truth for answer, truth in pairs)


@pytest.mark.parametrize(("two", "unpadded"), [(0.9, False), (1.1, True)])
def test_a_guarded_single_token_is_padded_where_two_rows_are_faster(two, unpadded):
    table, policy = table_of(0), Policy()
    policy.costs.learn({1: 1.0, 2: two, 4: 2.0})
    decoding = toy.decoding(table, PROMPT, decode.Limits(4, 100), policy=policy, guard=Guard(1e-3))
    model = RoundingModel(table, 0.0, 0)
    toy.drive(decoding, {"target": model})
    assert bool(model.written) == unpadded
