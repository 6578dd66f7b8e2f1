"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.text.stops import StopStrings

TEXTS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


@given(st.lists(TEXTS, max_size=10), STOPS)
def test_a_text_in_pieces_ends_where_the_first_stop_string_begins(pieces, strings):
    stops, shown, whole = StopStrings(strings), "", ""
    for piece in pieces:
        whole += piece
        # Of the strings that are whole by now, the one that begins first.
        expected = min((whole.split(string)[0] for string in strings), key=len, default=whole)
        shown += stops.push(piece)
        assert expected.startswith(shown), "what was shown is never taken back"
        assert stops.found == (expected != whole)
        if stops.found:
            break
    else:
        expected = whole
    assert shown + stops.rest() == expected


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
