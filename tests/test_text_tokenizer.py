"""Text goes through the tokenizer unchanged, streams in whole characters, and never becomes a
special token."""

import json
from pathlib import Path

import pytest
import tokenizers
from helpers import CHATML
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, normalizers
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Metaspace, Split, WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from specdemo.errors import BadInput, FetchError
from specdemo.text import tokenizer as tokenizer_file
from specdemo.text.tokenizer import REPLACEMENT, StopStrings, TextStream, Tokenizer

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)
UNSPEAKABLE = "\x04\x06\x13\x14\x16\x1d"  # SmolLM2's vocabulary has no token for these
SPEAKABLE = {"exclude_categories": ["Cs"], "exclude_characters": UNSPEAKABLE}
TEXT = st.text(st.characters(max_codepoint=0x3FFFF, **SPEAKABLE))
SPECIAL = ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "\n", " ", "  ", "<|endoftext|>", "é"]
HOSTILE = st.lists(st.sampled_from(SPECIAL) | TEXT, max_size=8).map("".join)


@pytest.fixture(scope="session")
def tokenizer(embedded_pair) -> Tokenizer:
    return embedded_pair.tokenizer


def saved(made: tokenizers.Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer of the library as ours, from a file in `folder`."""
    made.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder / "tokenizer.json")


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of `ids` with special tokens written out."""
    return tokenizer._parsing.decode(ids, skip_special_tokens=False)


LONG = {"id": "a", "ids": [0] * 99, "tokens": ["a"] * 99}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("normalizer", normalizers.Sequence([normalizers.Replace("e", "e" * 10)] * 6)),
        ("normalizer", normalizers.Replace(Regex(""), "e" * 40)),
        ("decoder", decoders.Sequence([decoders.Replace("e", "ee")] * 6)),
        ("post_processor", TemplateProcessing(["$A"] * 40)),
        ("post_processor", TemplateProcessing(["a", "$A"], special_tokens=[LONG])),
    ],
)
def test_a_tokenizer_that_makes_texts_much_longer_is_refused(tmp_path, name, part):
    made = tokenizers.Tokenizer(BPE({"a": 0, "e": 1}, []))
    setattr(made, name, part)
    with pytest.raises(FetchError, match=f"has a {name} that makes texts [0-9,]+ times as long"):
        saved(made, tmp_path)


MERGED, LETTERS = [f"ab{number}" for number in range(300)], list(map(chr, range(100, 200)))


@pytest.mark.parametrize(
    ("texts", "count", "ids"),
    [
        (LETTERS + MERGED, 160, [*range(10), *range(100, 250)]),
        (MERGED + LETTERS, 160, [*range(150), *range(300, 310)]),
        (MERGED[:50] + LETTERS, 100, [*range(50), *range(50, 100)]),
        (MERGED[:50] + LETTERS, 1000, [*range(150)]),
    ],
    ids=["characters first", "characters last", "few merges", "small"],
)
def test_frequent_tokens_are_the_first_merges_and_the_first_characters(tmp_path, texts, count, ids):
    vocabulary = {text: id for id, text in enumerate(texts)}
    made = tokenizers.Tokenizer(WordLevel(vocabulary, "d"))
    assert saved(made, tmp_path).frequent_ids(count) == ids


@settings(max_examples=300, deadline=None)
@given(text=TEXT)
@example("  two leading, two trailing  ")
@example("\n\n\ttabs and\r\nnewlines \n")
@example("日本語 👩‍👩‍👧 e\u0301 é a\u00a0b\ufeff\u200b")
@example("<|im_end|> is only text here")
def test_any_text_comes_back_unchanged(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def made(folder: Path, words: list[str], pre_tokenizer: object, decoder: object) -> Tokenizer:
    """A tokenizer of the bytes, `words`, an added token, and a special one."""
    whole = tokenizers.Tokenizer(BPE({word: id for id, word in enumerate(BYTES + words)}, []))
    whole.pre_tokenizer, whole.decoder = pre_tokenizer, decoder
    whole.add_tokens([AddedToken("an added one")])
    whole.add_special_tokens([AddedToken("<s>", special=True)])
    return saved(whole, folder)


@pytest.fixture(scope="session", params=["embedded", "sentencepiece", "metaspace"])
def any_tokenizer(request, tmp_path_factory) -> Tokenizer:
    """Of each kind by which text becomes tokens."""
    folder, words = tmp_path_factory.mktemp("vocabulary"), ["\u2581world", "\u2581", "a", "\u00e9"]
    if request.param == "embedded":
        return request.getfixturevalue("tokenizer")
    if request.param == "metaspace":
        return made(folder, words, Metaspace(), decoders.Metaspace())
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    steps.append(decoders.Strip(" ", 1, 0))
    return made(folder, words, None, decoders.Sequence(steps))


# Bytes of characters that are whole, cut and wrong, words, special tokens, and any others.
IDS = st.one_of(
    st.sampled_from(
        [10, 32, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, *range(256, 262)]
    ),
    st.integers(0, 250),
    st.integers(0, 49_160),
)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(IDS, max_size=60), before=st.integers(0, 60), special=st.booleans())
@example(ids=[256, 10, 0xF0, 0x9F, 256], before=0, special=False)  # the issue of DecodeStream
@example(ids=[256, 256], before=1, special=False)
@example(ids=[10, 49_160, 0xC3], before=0, special=False)  # an id beyond the vocabulary
def test_streamed_text_is_the_decoded_text(any_tokenizer, ids, before, special):
    prompt = any_tokenizer.decode(ids[:before], special=special).removesuffix(REPLACEMENT)
    whole = any_tokenizer.decode(ids, special=special)
    stream = TextStream(any_tokenizer, before=ids[:before], special=special)
    pieces = [stream.push(id) for id in ids[before:]]
    text = "".join(pieces) + stream.rest()
    if before == 0:
        assert text == whole
        shown = ""
        for piece in pieces:
            shown += piece
            assert whole.startswith(shown), "what was shown is never taken back"
    elif whole.startswith(prompt):
        assert text == whole[len(prompt) :]


def test_a_replacement_character_that_ends_the_prompt_is_no_part_of_the_answer(any_tokenizer):
    character = any_tokenizer.encode(REPLACEMENT) or [0xEF, 0xBF, 0xBD]
    letter = any_tokenizer.token_id("a")
    stream = TextStream(any_tokenizer, before=[letter, *character])
    assert stream.push(letter) + stream.rest() == "a"


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.lists(TEXT | st.text("ab \u2581", min_size=9), max_size=30).map("".join))
@example(text="0" * 200)  # without byte tokens unknown characters are dropped
def test_only_a_text_that_exceeds_the_context_is_refused(any_tokenizer, monkeypatch, text):
    monkeypatch.setattr("specdemo.text.tokenizer.PIECE", 20)
    monkeypatch.setattr(any_tokenizer, "context", 8)
    ids = any_tokenizer.encode(text, limited=False)
    try:
        assert any_tokenizer.encode(text) == any_tokenizer.encode_marked(text)[0] == ids
    except BadInput as error:
        assert len(ids) > 8 and error.code == "context_length_exceeded"
    beginning = any_tokenizer.encode_beginning(text)
    assert len(beginning) > 8 or beginning == any_tokenizer.encode(text, special=False)


@pytest.mark.parametrize("text", ["a;b!", "<|im_end|>", " ", "\u0378", "abc"])
def test_a_text_far_beyond_the_context_is_never_encoded_at_once(tokenizer, monkeypatch, text):
    lengths, encoding = [], tokenizer_file._encoding

    def counted(library, text, *bos):
        lengths.append(len(text))
        return encoding(library, text, *bos)

    monkeypatch.setattr(tokenizer_file, "_encoding", counted)
    monkeypatch.setattr(tokenizer, "context", 2048)
    with pytest.raises(BadInput, match="prompt is too long: more than 2048 tokens"):
        tokenizer.encode(text * 10**6)
    with pytest.raises(BadInput, match="reads fewer than 2048"):
        CHATML.render(text * 10**6, tokenizer)
    assert max(lengths) <= tokenizer_file.PIECE and sum(lengths) < 10**6


def test_beyond_a_long_context_only_a_few_more_tokens_are_encoded(tokenizer, monkeypatch):
    for name, value in (("PIECE", 100), ("SPARE_TOKENS", 60)):
        monkeypatch.setattr(tokenizer_file, name, value)
    monkeypatch.setattr(tokenizer, "context", 200)
    assert len(tokenizer.encode(" a" * 250)) == 250
    with pytest.raises(BadInput, match="more than 200 tokens"):
        tokenizer.encode(" a" * 350)


def test_a_tokenizer_file_that_takes_too_much_memory_is_not_parsed(tmp_path):
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(tokenizer_file.MAX_BYTES + 1)
    with pytest.raises(FetchError, match="more than 40 MB, too much for its kind"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_text_on_which_the_tokenizer_panics_is_refused_in_a_sentence(tmp_path):
    split = Split(tokenizers.Regex("(e+)+$|b"), "isolated")
    with pytest.raises(BadInput, match="tokenizer fails on this text .*retry-limit"):
        made(tmp_path, [], split, None).encode("e" * 40 + "x")


def test_the_token_of_unknown_characters_is_special_only_where_it_is_spelled(tmp_path):
    made = tokenizers.Tokenizer(WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    made.pre_tokenizer = WhitespaceSplit()
    made.add_special_tokens([AddedToken("<unk>", special=True)])
    assert saved(made, tmp_path).encode_marked("a b <unk>") == ([1, 0, 0], [0])


def test_special_tokens_are_parsed_only_where_they_are_wanted(tokenizer):
    assert tokenizer.encode("<|im_end|>") == [2]
    assert 2 not in tokenizer.encode("<|im_end|>", special=False)
    assert tokenizer.decode([2]) == ""
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"
    assert tokenizer.vocabulary_size == 49_152


def test_a_damaged_tokenizer_is_one_sentence(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(FetchError, match=r"is not a tokenizer that can be read \(Exp"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_part_of_a_newer_tokenizers_file_is_passed_over(tmp_path, tokenizer):
    path, content = tmp_path / "tokenizer.json", json.loads(tokenizer._parsing.to_str())
    path.write_text(json.dumps(content | {"new_part": {}}))
    assert Tokenizer(path).encode("Some text.") == tokenizer.encode("Some text.")
    path.write_text(json.dumps(content | {"normalizer": {"type": "New"}}))
    with pytest.raises(FetchError, match=r"tokenizer that can be read \(data did not match"):
        Tokenizer(path)


def test_the_chat_prompt_is_the_one_the_model_was_trained_on(tokenizer, embedded_pair):
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = ("system", system), ("user", "Why is the sky blue?")
    prompt = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    ids = tokenizer.encode(prompt + "<|im_start|>assistant\n")
    for template in (embedded_pair.template, CHATML):
        assert template.render("Why is the sky blue?", tokenizer) == ids


@given(st.lists(st.text("ab", max_size=30), max_size=10), STOPS)
@example(["one t", "wo"], ["two", "three"])
@example(["stop"], ["stop", "st"])
def test_a_text_is_shown_up_to_what_may_become_the_first_stop_string(pieces, strings):
    stops, shown, text = StopStrings(strings), "", ""
    for piece in pieces:
        text += piece
        # Of the strings that are complete by now, the one that begins first.
        expected = min((text.split(string)[0] for string in strings), key=len, default=text)
        ended = expected != text
        ends = range(len(text) + 1)
        held = (end for end in ends if any(s.startswith(text[end:]) for s in strings))
        shown += stops.push(piece)
        assert (shown, stops.ended) == (expected if ended else text[: next(held, None)], ended)
        if ended:
            break
    assert shown + stops.rest() == (expected if pieces else "")
