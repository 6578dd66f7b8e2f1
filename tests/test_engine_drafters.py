"""N-gram lookup blended with an n-gram table: what it proposes, and how it is judged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import logits_of, sequence

from specdemo.engine.drafters import AdaptiveDrafter
from specdemo.engine.logits_drafter import LogitsDrafter
from specdemo.engine.lookup import DOUBT, LEAST_LOGIT, MOST_LOGIT, ORDERS, RECENCY, Guess, Lookup
from specdemo.engine.messages import Proposal
from specdemo.engine.model_drafters import ModelDrafter
from specdemo.engine.policy import Policy
from specdemo.engine.sampling import Sampling


class Table:
    """Says the sum of the context, from two tokens on."""

    def guess(self, context):
        return (sum(context), 0.9) if len(context) > 1 else None


def lookup_after(text):
    lookup = Lookup()
    lookup.read(list(text))
    return lookup


def looked_up(text, limit=1):
    lookup = lookup_after(text)
    found: list[int] = []
    while len(found) < limit and (guess := lookup.guess(found)) is not None:
        found.append(guess.token)
    return found


def test_lookup_proposes_what_followed_the_longest_repeated_ending():
    text = [1, 2, 3, 4, 9, 2, 3, 7, 8, 1, 2, 3]
    assert looked_up(text, 3) == [4, 9, 2]  # "1 2 3" matches longer than the later "2 3"
    assert looked_up([*text, 50], 3) == []


def test_lookup_goes_on_from_a_token_of_another_source():
    lookup = lookup_after([1, 2, 3, 7, 8, 9, 1])
    assert lookup.guess([]).token == 2
    assert lookup.guess([7]).token == 8 and lookup.guess([7, 8]).token == 9


def test_a_draft_model_proposes_nothing_beyond_its_context():
    drafter = ModelDrafter(sequence(), Policy(), Sampling(), reach=5)
    lengths = {}
    for known in (2, 5, 6, 9):
        drafter.start(list(range(known)), None)
        lengths[known] = drafter.depth
    assert lengths[2] == 4 and lengths[5] == 1  # the fourth proposal follows five tokens
    assert lengths[6] <= 0 and lengths[9] <= 0


def test_proposals_are_counted_as_far_as_the_answer_followed_the_draft():
    class Successor(Lookup):
        def guess(self, drafted, mask=None):
            return Guess([*self._ending, *drafted][-1] + 1, 0.9)

    policy = Policy(fixed=3)
    drafter = AdaptiveDrafter({"lookup": Successor()}, policy)
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
def test_lookup_agrees_with_blending_over_the_whole_text(text, prompt):
    lookup = lookup_after(text[:prompt])
    for end in range(max(prompt, 1), len(text) + 1):
        lookup.read(text[max(prompt, end - 1) : end])
        chances = blended(text[:end])
        guess = lookup.guess([])
        if not chances:
            assert guess is None
            continue
        logit = LEAST_LOGIT + guess.confidence * (MOST_LOGIT - LEAST_LOGIT)
        best = max(chances.values())
        assert chances[guess.token] == pytest.approx(best, abs=0.01)
        assert 0 < guess.confidence <= 1
        if guess.confidence < 1:
            assert 1 / (1 + math.exp(-logit)) == pytest.approx(best, abs=0.01)


def blended(text):
    """p_n(t) = (c_n(t) + DOUBT p_{n-1}(t)) / (sum of c_n + DOUBT), from the shortest context on."""
    chances = dict.fromkeys(text, 0.0)
    known = False
    for n in range(1, ORDERS + 1):
        counts: dict[int, float] = {}
        for end in range(n, len(text)):
            if text[end - n : end] == text[len(text) - n :]:
                counts = {token: count * RECENCY for token, count in counts.items()}
                counts[text[end]] = counts.get(text[end], 0.0) + 1
        if not counts:
            break
        known = True
        whole = sum(counts.values()) + DOUBT
        chances = {t: (counts.get(t, 0.0) + DOUBT * p) / whole for t, p in chances.items()}
    return chances if known else {}


def test_a_context_forgets_what_followed_it_long_ago():
    lookup = lookup_after([token for at in range(40) for token in (1, 100 + at)])
    assert len(lookup._after[1,]) < 15


def test_a_draft_model_is_not_asked_where_the_ngrams_are_right_anyway():
    policy = Policy()
    policy.costs.learn({size: 1.0 + size / 100 for size in range(1, 17)})
    policy.draft.learn({1: 0.1})
    drafter = AdaptiveDrafter({"lookup": Lookup()}, policy)
    drafter.model = ModelDrafter(None, policy, Sampling())
    drafter.model.catch_up = lambda context, drafted: 0.0

    def pays(acceptance):
        looked_up = Proposal(3, "lookup", 0.5, acceptance)
        return drafter._model_pays(policy.plan(), [1, 2], [9], 1.0, looked_up)

    assert not pays(0.95)
    assert pays(0.2)


def test_what_a_trimmed_head_was_drawn_from_is_known_whatever_the_order_of_its_tokens():
    sampling = Sampling(temperature=1.0, coupling="maximal")
    rows = np.log(np.array([[0.5, 0.2, 0.3]], np.float32))
    proposed = LogitsDrafter(Policy(), sampling, np.array([28, 260, 7])).choose(
        logits_of(rows), [1] * 5, []
    )
    chances = [proposed.distribution.probability(token) for token in (28, 260, 7)]
    assert chances == pytest.approx([0.5, 0.2, 0.3], abs=1e-6)
    assert proposed.probability == proposed.distribution.probability(proposed.token)


def test_a_draft_model_reads_a_text_only_where_the_rest_of_the_answer_pays_for_it():
    policy = Policy()
    policy.costs.learn({size: 1.0 + size / 100 for size in range(1, 17)})
    policy.draft.learn({size: 0.1 + size / 100 for size in range(1, 17)})
    drafter = AdaptiveDrafter({}, policy, ModelDrafter(sequence((0, 1, 2, 3)), policy, Sampling()))
    context = list(range(500))
    assert drafter.model.catch_up(context, []) == pytest.approx(4.95, rel=0.05)
    assert drafter._model_pays(policy.plan(most=50), context, [], 1.0, None)
    assert not drafter._model_pays(policy.plan(most=5), context, [], 1.0, None)
