"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.text.stops import StopStrings, until_stop

TEXTS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


@given(st.lists(TEXTS, min_size=1, max_size=10), STOPS)
def test_a_text_in_pieces_ends_where_the_whole_text_does(pieces, strings):
    stops, shown, pushed = StopStrings(strings), "", ""
    any_stop = "|".join(strings) or "no stop"
    for piece in pieces:
        pushed += piece
        shown += stops.push(piece)
        expected = re.split(any_stop, pushed, maxsplit=1)[0]
        assert expected.startswith(shown), "what was shown is never taken back"
        if stops.found:
            break
    expected, *rest = re.split(any_stop, pushed, maxsplit=1)
    assert shown + stops.rest() == until_stop(pushed, strings) == expected
    assert stops.found == bool(rest)


@pytest.mark.parametrize(
    ("pieces", "strings", "shown"),
    [
        (["one ", "two"], [], ["one ", "two"]),
        (["one t", "wo"], ["two", "three"], ["one ", ""]),
        (["one t", "en"], ["two"], ["one ", "ten"]),
        (["stop"], ["stop", "st"], [""]),
    ],
)
def test_what_may_become_a_stop_string_is_held_back(pieces, strings, shown):
    stops = StopStrings(strings)
    assert [stops.push(piece) for piece in pieces] == shown
