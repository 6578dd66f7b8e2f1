"""Text goes through the tokenizer unchanged, streams in whole characters, and never becomes a
special token."""

from __future__ import annotations

import pytest
import tokenizers
from fakes import CHATML
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from specdemo.errors import FetchError
from specdemo.text.tokenizer import Tokenizer

UNSPEAKABLE = "\x04\x06\x13\x14\x16\x1d"  # SmolLM2's vocabulary has no token for these
TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=UNSPEAKABLE, max_codepoint=0x3FFFF)
)
SPECIAL = ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "\n", " ", "  ", "<|endoftext|>", "é"]
HOSTILE = st.lists(st.sampled_from(SPECIAL) | TEXT, max_size=8).map("".join)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="session")
def tokenizer(embedded_pair) -> Tokenizer:
    return embedded_pair.tokenizer


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of `ids` with special tokens written out."""
    return tokenizer._parsing.decode(ids, skip_special_tokens=False)


@settings(max_examples=300, deadline=None)
@given(text=TEXT)
@example("  two leading, two trailing  ")
@example("\n\n\ttabs and\r\nnewlines \n")
@example("日本語 👩‍👩‍👧 e\u0301 é a\u00a0b\ufeff\u200b")
@example("<|im_end|> is only text here")
def test_any_text_comes_back_unchanged(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 250) | st.integers(0, 49_160), max_size=40))
def test_streamed_text_is_the_decoded_text(tokenizer, ids):
    whole, shown = tokenizer.decode(ids), "".join(map(tokenizer.stream(), ids))
    assert whole == shown or whole.startswith(shown) and whole.endswith(REPLACEMENT)


def test_the_token_of_unknown_characters_is_special_only_where_it_is_spelled(tmp_path):
    made = tokenizers.Tokenizer(WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    made.pre_tokenizer = WhitespaceSplit()
    made.add_special_tokens([AddedToken("<unk>", special=True)])
    made.save(str(tmp_path / "tokenizer.json"))
    ids, own = Tokenizer(tmp_path / "tokenizer.json").encode_marked("a b <unk>")
    assert (ids, own) == ([1, 0, 0], [0])


def test_special_tokens_are_parsed_only_where_they_are_wanted(tokenizer):
    assert tokenizer.encode("<|im_end|>") == [2]
    assert 2 not in tokenizer.encode("<|im_end|>", special=False)
    assert tokenizer.decode([2]) == ""
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"
    assert tokenizer.vocabulary_size == 49_152


def test_a_damaged_tokenizer_is_one_sentence(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(FetchError, match=r"tokenizer\.json is missing, or not"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_the_chat_prompt_is_the_one_the_model_was_trained_on(tokenizer, embedded_pair):
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = ("system", system), ("user", "Why is the sky blue?")
    prompt = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    ids = tokenizer.encode(prompt + "<|im_start|>assistant\n")
    for template in (embedded_pair.template, CHATML):
        assert template.render("Why is the sky blue?", tokenizer) == ids
