"""The prefix cache alone: what a request reuses of earlier texts, and how much is kept."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import BLOCK, ToyModel, logits_of

from specdemo.engine import prefixes
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.forwards import Prompt
from specdemo.engine.prefixes import PrefixCache

CHUNK, UNREAD = 3, 2
KEPT = st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=14), st.booleans()), max_size=8)
PREFIXES = st.sampled_from([(), (0,), (0, 1, 1, 0)])


class SharingModel(ToyModel):
    """Forks share their blocks."""

    fork = PagedModel.fork


def cache_of(texts, prefix=(), unread=UNREAD):
    cache = PrefixCache(SharingModel(), CHUNK, prefix, unread=unread)
    for text, is_prompt in texts:
        keep(cache, tuple(text), is_prompt)
    return cache


def keep(cache, text, is_prompt=False):
    sequence = cache.model.new_sequence()
    sequence.tokens = list(text)
    sequence.reserve(len(text) + 9)
    cache.keep(sequence, Prompt(text, logits_of(np.zeros((1, 1)))) if is_prompt else None)


def reused(cache, text, **options):
    """How many tokens of `text` are reused, and whether its Prompt is there."""
    sequence, prompt = cache.find(tuple(text), **options)
    assert sequence.tokens == list(text)[: sequence.length], "tokens of another text"
    assert prompt is None or prompt.tokens == tuple(text)
    length = sequence.length
    sequence.release()
    return length, prompt is not None


@settings(deadline=None, max_examples=200)
@given(kept=KEPT, prefix=PREFIXES, asked=st.lists(st.integers(0, 1), min_size=1, max_size=16))
def test_a_request_reuses_a_text_that_it_goes_on_from_and_whole_chunks_of_others(
    kept, prefix, asked
):
    cache, asked = cache_of(kept, prefix), tuple(asked)
    begin = len(prefix) if len(asked) > len(prefix) and asked[: len(prefix)] == prefix else 0
    most = max(len(asked) - UNREAD, begin)
    places = [0, *range(begin, most + 1, CHUNK)]
    texts = [(), *(tuple(text) for text, _ in kept)]
    known = [place for place in places if any(text[:place] == asked[:place] for text in texts)]
    whole = [min(len(text), most) for text in texts if text == asked[: len(text)]]
    if (list(asked), True) in kept:
        assert reused(cache, asked) == reused(cache, asked, any_length=False) == (len(asked), True)
    else:
        assert reused(cache, asked) == (max(known + whole), False)
        assert reused(cache, asked, any_length=False) == (max(known), False)


@settings(deadline=None)
@given(text=st.lists(st.integers(0, 1), min_size=9, max_size=24), is_prompt=st.booleans())
def test_a_guess_of_one_more_token_of_anothers_text_is_no_faster(text, is_prompt):
    cache, guesses = cache_of([(text, is_prompt)]), range(len(text))
    lengths = [reused(cache, [*text[:right], 2, 2, 2])[0] for right in guesses]
    assert lengths == [right // CHUNK * CHUNK for right in guesses]
    assert reused(cache, [*text, 2, 2, 2])[0] == len(text), "nor is the cache useless"


@settings(deadline=None)
@given(kept=KEPT, room=st.integers(0, 6), newest=st.integers(0, 2))
def test_kept_texts_hold_no_more_blocks_than_there_is_room_for(kept, room, newest):
    """Those that they share count once, and none is lost or held twice."""
    cache = cache_of(kept)
    pool, texts = cache.model.pool, {tuple(text): None for text, _ in kept if text}
    assert pool.used == len(cache.blocks()) == sum(-(-len(text) // BLOCK) for text in texts)
    for text in list(texts):
        sequence, _ = cache.find(text)
        sequence.tokens += [7] * (sequence.length % BLOCK)
        cache.keep(sequence)
    before = set(cache._texts)
    cache.make_room(room, newest)
    assert pool.used == len(cache.blocks())
    assert len(cache._texts) <= newest or max(pool.used, len(cache._texts)) <= room
    assert len(cache._texts) >= min(newest, len(before))
    cache.make_room(0)
    assert pool.used == 0


def test_the_newest_texts_are_kept_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(prefixes, "SPARE_TOKENS", 4 * BLOCK)
    cache = cache_of([((token,) * 2 * BLOCK, False) for token in range(5)])
    assert [*cache._texts] == [(token,) * 2 * BLOCK for token in (3, 4)]
    keep(cache, (5,) * 9 * BLOCK)
    assert cache.model.pool.used == 9, "that of the last request, whatever its length"
