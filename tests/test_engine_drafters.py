"""N-gram lookup and n-gram tables: what they propose, and how it is judged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.engine.drafters import AdaptiveDrafter, Lookup, Ngrams
from specdemo.engine.policy import Policy
from specdemo.engine.sampling import Sampling


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


def test_lookup_goes_on_from_a_token_of_another_source():
    lookup = Lookup()
    lookup.read([1, 2, 3, 7, 8, 9, 1])
    assert lookup.guess([])[0] == 2
    assert lookup.guess([7])[0] == 8 and lookup.guess([7, 8])[0] == 9


def test_an_ngram_table_looks_at_the_text_and_the_draft_after_it():
    class Table:
        def guess(self, context):
            return (sum(context), 0.9) if len(context) > 1 else None

    ngrams = Ngrams(Table())
    assert ngrams.guess([]) is None
    ngrams.read([100, 1, 2, 3, 4])
    assert ngrams.guess([]) == (10, 0.9) and ngrams.guess([10]) == (19, 0.9)


def test_proposals_are_counted_as_far_as_the_answer_followed_the_draft():
    class Table:
        def guess(self, context):
            return context[-1] + 1, 0.9

    policy = Policy(fixed=3)
    drafter = AdaptiveDrafter([Ngrams(Table())], policy, Sampling())
    counted = []
    policy.accepted("ngrams").saw = lambda confidence, accepted: counted.append(accepted)
    context = [1]

    def answered(*tokens):
        with pytest.raises(StopIteration) as proposed:
            next(drafter.propose(context, 5))
        context.extend(tokens)
        return proposed.value.value.tokens

    assert answered(2, 9) == (2, 3, 4)
    assert answered(10) == (10, 11, 12)
    assert counted == [True, False], "2 was right, 3 wrong, 4 never reached"


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
            starts = [
                s for s in range(end - size) if context[s : s + size] == context[end - size :]
            ]
            if starts:
                *earlier, token = [context[start + size] for start in starts]
                expected = (token, (weight(size, token, earlier) + 0.5) / 8)
                break
        assert lookup.guess([]) == expected


def weight(size, token, earlier):
    """The length of match that a short one is worth, by what followed the occurrence before."""
    if size > 3 or not earlier:
        return size
    return min(size + 3, 7) if earlier[-1] == token else max(size - 2, 0)


def test_lookup_is_surer_of_what_followed_before_and_less_sure_of_what_did_not():
    def confidence(*text):
        lookup = Lookup()
        lookup.read(list(text))
        token, confidence = lookup.guess([])
        assert token == 2
        return confidence

    once, often = confidence(1, 2, 9, 1), confidence(1, 2, 9, 1, 2, 8, 1, 2, 7, 1)
    assert confidence(1, 3, 9, 1, 2, 8, 1) < once < often
