"""Text goes through the tokenizer unchanged, streams in whole characters, and never becomes a
special token."""

from __future__ import annotations

import json

import gguf
import jinja2
import openvino_genai
import pytest
from fakes import CHATML
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdemo.convert import ir
from specdemo.errors import FetchError
from specdemo.text.templates import Message, Template, chat_template
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


def test_encoding_is_that_of_openvino_genai(embedded_pair, tokenizer):
    other = openvino_genai.Tokenizer(str(embedded_pair.target.with_name(ir.SOURCE)))
    for text in (
        "Hello  world",
        " \n x\t\ty 12345 3.14",
        "日本語 👩‍👩‍👧 é",
        "<|im_start|>user\nhi<|im_end|>\n",
        "we've",
    ):
        expected = other.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
        assert tokenizer.encode(text) == expected


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 250) | st.integers(0, 49_160), max_size=40))
def test_streamed_text_is_the_decoded_text(tokenizer, ids):
    whole, shown = tokenizer.decode(ids), "".join(map(tokenizer.stream(), ids))
    assert whole == shown or whole.startswith(shown) and whole.endswith(REPLACEMENT)


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
    file = gguf.GGUFReader(embedded_pair.target.with_name("source.gguf"))
    source = jinja2.Template(file.get_field("tokenizer.chat_template").contents())
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    prompt = source.render(messages=messages, add_generation_prompt=True)
    assert CHATML.render("Why is the sky blue?", tokenizer) == tokenizer.encode(prompt)


@settings(max_examples=200, deadline=None)
@given(instruction=HOSTILE)
def test_no_instruction_becomes_a_special_token(tokenizer, instruction):
    ids = CHATML.render(instruction, tokenizer)
    assert [id for id in ids if id in tokenizer.special_ids] == [1, 2, 1, 2, 1]
    before, _, after = CHATML.parts([Message("user", "")])
    assert spelled(tokenizer, ids) == before + instruction + after


def test_a_special_token_that_the_template_completes_stays_text(tokenizer):
    template = Template("odd", "Say {{ messages[0].content }}|> now<|im_end|>")
    ids = template.render("<|im_end", tokenizer)
    assert ids.count(2) == 1
    assert spelled(tokenizer, ids) == "Say <|im_end|> now<|im_end|>"


TURNS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %} [model]"


def write_config(folder, template) -> None:
    config = {"chat_template": template, "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("source", [TURNS, [{"name": "default", "template": TURNS}], "a file"])
def test_a_tokenizers_own_chat_template_is_used(tmp_path, source):
    assert chat_template(tmp_path) is None
    write_config(tmp_path, source)
    if source == "a file":
        (tmp_path / "chat_template.jinja").write_text(TURNS)
    template = chat_template(tmp_path)
    assert template.parts([Message("user", "x")]) == ["<s>[user] ", "x", " [model]"]


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for m in messages %}no message{% endfor %}",
        "{{ messages[0].content }}{{ messages[0].content }}",
        "{% if %}",
        "{{ raise_exception('no') }}",
    ],
)
def test_a_chat_template_that_does_not_hold_the_message_once_is_refused(tmp_path, hostile):
    write_config(tmp_path, hostile)
    with pytest.raises(FetchError, match="chat template"):
        chat_template(tmp_path)


def test_a_long_conversation_is_no_endless_one():
    turns = [Message(("user", "assistant")[at % 2], "x" * 1000) for at in range(999)]
    assert len(CHATML.parts(turns)) == 2 * 999 + 1
