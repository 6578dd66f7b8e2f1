"""Speculative decoding against plain decoding on toy models: limits, stop tokens, drafters good and bad."""

from __future__ import annotations

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.engine import decode
from specdemo.engine.drafters import AutoDrafter, Lookup, Phrases, Reply
from specdemo.engine.policy import Lookahead
from specdemo.engine.model import Logits
from specdemo.engine.sampling import Sampling, draw_from
from specdemo.trace import Round

GREEDY = Sampling()
PROMPT = (1, 4, 2)


def run(table, *, drafter=None, limits, prompt=PROMPT, sampling=GREEDY):
    target = toy.sequence(prompt)
    decoding = decode.decode(
        decode.Prompt(prompt, toy.logits_after(table, prompt[-1:])),
        target=target,
        drafter=drafter,
        lookahead=Lookahead(),
        sampling=sampling,
        limits=limits,
    )
    rounds, reason = toy.drive(decoding, {"target": table})
    return rounds, reason, target


def plain_answer(table, limits, prompt=PROMPT, sampling=GREEDY):
    """Decoding spelled out."""
    tokens = list(prompt)
    budget = min(limits.max_new_tokens, limits.context_limit - len(prompt))
    for _ in range(budget):
        row = table[tokens[-1]]
        tokens.append(int(row.argmax()) if sampling.greedy else draw_from(row, sampling, len(tokens)))
        if tokens[-1] in limits.stop_ids:
            break
    return tuple(tokens[len(prompt) :])


def drafter_kinds(truth):
    """Scripted drafters around the true text: always right, always wrong, random, right until the third token."""
    rng = np.random.default_rng(0)
    true = (*PROMPT, *truth)

    def right(context, position):
        return true[position] if position < len(true) else 0

    return {
        "right": right,
        "wrong": lambda context, position: (right(context, position) + 1) % 9,
        "random": lambda context, position: int(rng.integers(9)),
        "half": lambda context, position: right(context, position) if position % 3 else 0,
    }


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["right", "wrong", "random", "half"]),
    st.integers(1, 9),
    st.integers(1, 25),
    st.integers(4, 25),
    st.sets(st.integers(0, 8), max_size=3),
)
def test_output_is_plain_decodings_to_the_token(seed, kind, length, max_new, context, stops):
    table = toy.random_table(np.random.default_rng(seed), 9)
    limits = decode.Limits(max_new, context, frozenset(stops))
    expected = plain_answer(table, limits)
    rounds, reason, target = run(table, drafter=toy.ScriptDrafter(length, drafter_kinds(expected)[kind]), limits=limits)
    assert toy.answer_ids(rounds) == expected
    assert target.tokens == [*PROMPT, *expected][:-1]
    if expected[-1] in stops:
        assert reason == "stop"
    else:
        assert reason == ("length" if len(expected) == max_new else "context")


def test_autoregressive_decoding_is_the_same_generator_without_a_drafter():
    table = toy.random_table(np.random.default_rng(5), 9)
    limits = decode.Limits(20, 100)
    rounds, _, _ = run(table, limits=limits)
    assert toy.answer_ids(rounds) == plain_answer(table, limits)
    assert [round_.emitted.kind for round_ in rounds] == ["first"] + ["plain"] * 19


def test_a_right_draft_ends_in_a_bonus_and_a_wrong_one_in_a_correction():
    table = toy.random_table(np.random.default_rng(5), 9)
    truth = plain_answer(table, decode.Limits(20, 100))
    right = toy.ScriptDrafter(3, drafter_kinds(truth)["right"])
    rounds, _, _ = run(table, drafter=right, limits=decode.Limits(9, 100))
    assert [round_.emitted.kind for round_ in rounds] == ["first", "bonus", "bonus"]
    assert [round_.accepted for round_ in rounds] == [0, 3, 3]
    wrong = toy.ScriptDrafter(3, drafter_kinds(truth)["wrong"])
    rounds, _, _ = run(table, drafter=wrong, limits=decode.Limits(9, 100))
    assert {round_.emitted.kind for round_ in rounds[1:-1]} == {"correction"}
    assert all(token.target_probability is None for token in rounds[1].drafted[1:])


def test_a_stop_token_inside_an_accepted_draft_ends_the_answer_there():
    table = np.zeros((6, 6), np.float32)
    for token in range(6):
        table[token, (token + 1) % 6] = 5.0
    drafter = toy.ScriptDrafter(5, lambda context, position: position % 6)
    rounds, reason, _ = run(table, drafter=drafter, limits=decode.Limits(50, 100, frozenset({5})), prompt=(0, 1))
    assert toy.answer_ids(rounds) == (2, 3, 4, 5) and reason == "stop"
    assert rounds[-1].emitted is None and [token.accepted for token in rounds[-1].drafted] == [True] * 3 + [False] * 2


def test_no_room_for_an_answer_is_refused():
    with pytest.raises(ValueError, match="no room"):
        run(toy.random_table(np.random.default_rng(0), 9), limits=decode.Limits(5, 3))


def test_leaving_early_keeps_the_sequence_consistent():
    table = toy.random_table(np.random.default_rng(5), 9)
    truth = plain_answer(table, decode.Limits(20, 100))
    target = toy.sequence(PROMPT)
    decoding = decode.decode(
        decode.Prompt(PROMPT, toy.logits_after(table, PROMPT[-1:])),
        target=target,
        drafter=toy.ScriptDrafter(4, drafter_kinds(truth)["wrong"]),
        lookahead=Lookahead(),
        sampling=GREEDY,
        limits=decode.Limits(20, 100),
    )
    decoding.send(None)
    request = decoding.send(None)
    target.tokens.extend(request.run.tokens)  # the forward ran, and then nobody came back
    decoding.close()
    assert target.tokens == list(PROMPT)


def test_following_a_certified_answer_reports_where_one_token_forwards_choose_otherwise():
    table = toy.random_table(np.random.default_rng(5), 9)
    truth = plain_answer(table, decode.Limits(12, 100))
    other = list(truth)
    other[4] = (other[4] + 1) % 9
    prompt = decode.Prompt(PROMPT, toy.logits_after(table, PROMPT[-1:]))
    rounds, _ = toy.drive(decode.follow(prompt, tuple(other), toy.sequence(PROMPT), GREEDY), {"target": table})
    assert toy.answer_ids(rounds) == tuple(other)
    assert rounds[4].drafted[0].id == truth[4] and not rounds[3].drafted


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.8]), st.integers(2, 7), st.integers(0, 11), st.integers(1, 8))
def test_the_certificate_finds_the_first_token_that_is_not_the_targets(seed, temperature, chunk, at, shift):
    table = toy.random_table(np.random.default_rng(seed), 9)
    sampling = Sampling(temperature=temperature, seed=seed)
    rounds, _, _ = run(table, limits=decode.Limits(12, 100), sampling=sampling)
    truth = toy.answer_ids(rounds)
    prompt = decode.Prompt(PROMPT, toy.logits_after(table, PROMPT[-1:]))

    def checked(answer):
        requests = decode.certify(prompt, answer, toy.sequence(PROMPT), sampling, chunk)
        reply = None
        while True:
            try:
                tokens = requests.send(reply).run.tokens
            except StopIteration as done:
                return done.value[0]
            reply = Reply(toy.logits_after(table, tokens), 0.0)

    assert checked(truth) is None
    wrong = list(truth)
    wrong[at] = (wrong[at] + shift) % 9
    assert checked(tuple(wrong)) == at


ROUNDING, COARSE = 5e-5, 5e-3


def guarded_answer(
    seed: int, guard: float, drafter, sampling: Sampling = GREEDY, rounding: float = ROUNDING
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What decoding gives where forwards of one token, and all that attend to what they wrote, round differently; and
    what it gives where none does. Half of the choices are near ties."""
    rng = np.random.default_rng(seed)
    table = toy.random_table(rng, 9)
    for row in table[: len(table) // 2]:
        first, second = np.argsort(row)[-2:]
        row[first] = row[second] - rng.uniform(0, 2 * ROUNDING)
    limits = decode.Limits(40, 100)
    truth = plain_answer(table, limits, sampling=sampling)
    target = toy.sequence(PROMPT)
    decoding = decode.decode(
        decode.Prompt(PROMPT, toy.logits_after(table, PROMPT[-1:])),
        target=target,
        drafter=drafter(truth),
        lookahead=Lookahead(),
        sampling=sampling,
        limits=limits,
        guard=guard,
    )
    rounded: set[int] = set()  # positions whose keys and values a one-token forward wrote
    rounds, reply = [], None
    while True:
        try:
            event = decoding.send(reply)
        except StopIteration:
            return toy.answer_ids(rounds), truth
        reply = None
        if isinstance(event, Round):
            rounds.append(event)
            continue
        start = target.length
        rounded = {at for at in rounded if at < start}
        if event.run.lone:
            rounded.add(start)
        target.tokens.extend(event.run.tokens)
        rows = table[list(event.run.tokens)]
        if rounded:
            rows = rows + rng.uniform(-rounding, rounding, rows.shape).astype(np.float32)
        reply = Reply(Logits.of(rows), 0.001)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([None, "right", "wrong", "random", "half"]))
def test_a_token_that_ran_by_itself_never_decides_a_near_tie(seed, kind):
    def drafter(truth):
        return None if kind is None else toy.ScriptDrafter(seed % 3, drafter_kinds(truth)[kind])

    answer, truth = guarded_answer(seed, 16 * ROUNDING, drafter)
    assert answer == truth


def test_without_the_guard_near_ties_flip():
    assert any(answer != truth for answer, truth in (guarded_answer(seed, 0.0, lambda _: None) for seed in range(20)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([None, "right", "wrong", "random", "half"]))
def test_a_token_that_ran_by_itself_never_decides_a_draw_either(seed, kind):
    def drafter(truth):
        return None if kind is None else toy.ScriptDrafter(seed % 3, drafter_kinds(truth)[kind])

    answer, truth = guarded_answer(seed, 16 * COARSE, drafter, Sampling(0.7, seed=seed), COARSE)
    assert answer == truth


def test_without_the_guard_draws_flip():
    answers = (guarded_answer(seed, 0.0, lambda _: None, Sampling(0.7, seed=seed), COARSE) for seed in range(20))
    assert any(answer != truth for answer, truth in answers)


def looked_up(context, limit=1):
    lookup = Lookup()
    lookup.read(context)
    found: list[int] = []
    while len(found) < limit and (guess := lookup.guess(found)) is not None:
        found.append(guess[0])
    return found


def test_lookup_proposes_what_followed_the_longest_repeated_ending():
    context = [1, 2, 3, 4, 9, 2, 3, 7, 8, 1, 2, 3]
    assert looked_up(context, 3) == [4, 9, 2]  # "1 2 3" matches longer than the later "2 3"
    assert looked_up([*context, 50], 3) == []


def test_lookup_runs_on_through_a_loop():
    assert looked_up([5, 6, 5, 6, 5], 6) == [6, 5, 6, 5, 6, 5]


def test_lookup_goes_on_from_a_token_that_somebody_else_drafted():
    lookup = Lookup()
    lookup.read([1, 2, 3, 7, 8, 9, 1])
    assert lookup.guess([])[0] == 2
    assert lookup.guess([7])[0] == 8 and lookup.guess([7, 8])[0] == 9


def test_phrases_look_at_the_text_and_the_draft_after_it():
    class Table:
        def guess(self, context):
            return (sum(context), 0.9) if len(context) > 1 else None

    phrases = Phrases(Table())
    assert phrases.guess([]) is None
    phrases.read([100, 1, 2, 3, 4])
    assert phrases.guess([]) == (10, 0.9) and phrases.guess([10]) == (19, 0.9)


def test_guessers_are_judged_where_they_were_asked_and_only_as_far_as_the_answer_followed():
    class Table:
        def guess(self, context):
            return (context[-1] + 1, 0.9)

    lookahead = Lookahead(fixed=3)
    auto = AutoDrafter([Phrases(Table())], lookahead)
    context = [1]

    def answered(*tokens):
        with pytest.raises(StopIteration) as proposed:
            next(auto.propose(context, 5))
        context.extend(tokens)
        return proposed.value.value.tokens

    assert answered(2, 9) == (2, 3, 4)
    before = lookahead.calibrated("phrases").total.seen
    assert answered(10) == (10, 11, 12)
    rate = lookahead.calibrated("phrases").total
    assert rate.seen == pytest.approx((before * 0.985 + 1) * 0.985 + 1)  # 2 right, 3 wrong, 4 never reached


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 59))
def test_lookup_index_agrees_with_searching_the_whole_text(text, prompt):
    lookup = Lookup()
    lookup.read(text[:prompt])
    for end in range(prompt + 1, len(text) + 1):
        context = text[:end]
        lookup.read(text[end - 1 : end])
        expected = None
        for size in range(min(7, end - 1), 0, -1):
            starts = [s for s in range(end - size) if context[s : s + size] == context[end - size :]]
            if starts:
                *earlier, token = [context[start + size] for start in starts]
                expected = (token, (trust(size, token, earlier) + 0.5) / 8)
                break
        assert lookup.guess([]) == expected


def trust(size, token, earlier):
    """A short match and what came after its earlier occurrences, the last of them last."""
    if size > 3:
        return size
    agreed = [said == token for said in reversed(earlier[-4:])]
    streak = agreed.index(False) if False in agreed else len(agreed)
    return min(max(size + 2 * min(streak, 2) - 2 * (False in agreed), 0), 7)


def test_lookup_trusts_what_always_came_after_a_token_and_doubts_what_did_not():
    def confidence(*text):
        lookup = Lookup()
        lookup.read(list(text))
        token, confidence = lookup.guess([])
        assert token == 2
        return confidence

    once, thrice = confidence(1, 2, 9, 1), confidence(1, 2, 9, 1, 2, 8, 1, 2, 7, 1)
    assert confidence(1, 3, 9, 1, 2, 8, 1) < once < thrice
