"""Text goes through the tokenizer unchanged, streams in whole characters, and never becomes a special token."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.models.errors import ZooError
from specdemo.models.gguf_metadata import read_metadata
from specdemo.models.templates import CHATML, PLAIN, Template, chat_template
from specdemo.models.tokenizer import Tokenizer

# SmolLM2's vocabulary has no token for these; see Tokenizer.
UNSPEAKABLE = "\x04\x06\x13\x14\x16\x1d"
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=UNSPEAKABLE, max_codepoint=0x3FFFF))
PIECES = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "\n", " ", "  ", "<|endoftext|>", "é"])
HOSTILE = st.lists(PIECES | TEXT, max_size=8).map("".join)


@pytest.fixture(scope="session")
def tokenizer(embedded_pair) -> Tokenizer:
    return embedded_pair.tokenizer


def spoken(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of `ids` with special tokens written out."""
    parts, run = [], []
    for id in ids:
        if id in tokenizer.special_ids:
            parts += [tokenizer.decode(run), tokenizer.token_string(id)]
            run = []
        else:
            run.append(id)
    return "".join([*parts, tokenizer.decode(run)])


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world",
        "  two leading, two trailing  ",
        "\n\n\ttabs and\r\nnewlines \n",
        "日本語、한국어, العربية, ελληνικά",
        "👩‍👩‍👧 🇫🇷 👍🏽 e\u0301 é",
        "a\u00a0b\u2003c\ufeff\u200b",
        "12345 3.14159 1,000,000",
        "don't I'LL we've",
        "def f(x):\n    return x ** 2\n",
        "<|im_end|> is only text here",
        "",
    ],
)
def test_text_comes_back_unchanged(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


@settings(max_examples=300, deadline=None)
@given(text=TEXT)
def test_any_text_comes_back_unchanged(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


def test_encoding_is_that_of_openvino_genai(embedded_pair, tokenizer):
    openvino_genai = pytest.importorskip("openvino_genai")
    other = openvino_genai.Tokenizer(str(embedded_pair.target_xml.parent))
    texts = ("Hello  world", " \n x\t\ty 12345 3.14", "日本語 👩‍👩‍👧 é", "<|im_start|>user\nhi<|im_end|>\n", "we've")
    for text in texts:
        assert tokenizer.encode(text) == other.encode(text, add_special_tokens=False).input_ids.data[0].tolist()


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 49_160), max_size=40))
def test_streamed_text_is_the_decoded_text(tokenizer, ids):
    stream = tokenizer.stream()
    pieces = [stream.push(id) for id in ids]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


def test_a_character_of_several_tokens_is_shown_when_it_is_whole(tokenizer):
    ids = tokenizer.encode("👩🏽‍🚀", special=False)
    assert len(ids) > 4
    stream = tokenizer.stream()
    shown = [stream.push(id) for id in ids]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(shown)
    assert "".join(shown) == "👩🏽‍🚀"
    assert shown[0] == ""


def test_a_character_that_never_became_whole_is_one_replacement_character(tokenizer):
    ids = tokenizer.encode("🚀", special=False)
    stream = tokenizer.stream()
    assert stream.push(ids[0]) == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def test_special_tokens_are_parsed_only_where_they_are_wanted(tokenizer):
    assert tokenizer.encode("<|im_end|>") == [2]
    assert 2 not in tokenizer.encode("<|im_end|>", special=False)
    assert tokenizer.decode([2]) == ""


def test_a_lone_surrogate_does_not_stop_encoding(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_vocabulary_size_is_that_of_the_model(tokenizer):
    assert tokenizer.vocabulary_size == 49_152


def test_the_chat_prompt_is_the_one_the_model_was_trained_on(tokenizer, embedded_pair):
    source = read_metadata(embedded_pair.target_xml.parents[1] / "source.gguf")["tokenizer.chat_template"]
    folder = embedded_pair.target_xml.parent
    assert not (folder / "tokenizer_config.json").exists()
    import jinja2

    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    prompt = jinja2.Template(source).render(messages=messages, add_generation_prompt=True)
    assert CHATML.render("Why is the sky blue?", tokenizer) == tokenizer.encode(prompt)


@settings(max_examples=200, deadline=None)
@given(instruction=HOSTILE)
def test_no_instruction_becomes_a_special_token(tokenizer, instruction):
    ids = CHATML.render(instruction, tokenizer)
    assert [id for id in ids if id in tokenizer.special_ids] == [1, 2, 1, 2, 1]
    assert spoken(tokenizer, ids) == CHATML.before + instruction + CHATML.after


def test_a_special_token_that_the_template_completes_stays_text(tokenizer):
    template = Template("odd", before="Say ", after="|> now<|im_end|>")
    ids = template.render("<|im_end", tokenizer)
    assert ids.count(2) == 1
    assert spoken(tokenizer, ids) == "Say <|im_end|> now<|im_end|>"


def test_the_plain_template_adds_nothing_to_a_tokenizer_without_a_beginning_token(tokenizer):
    assert PLAIN.render("Once upon a time", tokenizer) == tokenizer.encode("Once upon a time")


def write_config(folder, template) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "bos_token": "<s>"}))


def test_a_tokenizers_own_chat_template_is_used(tmp_path):
    turns = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    write_config(tmp_path, "{{ bos_token }}" + turns + " [assistant]")
    template = chat_template(tmp_path)
    assert (template.before, template.after) == ("<s>[user] ", " [assistant]")


def test_a_folder_without_a_chat_template_has_none(tmp_path):
    assert chat_template(tmp_path) is None


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
    with pytest.raises(ZooError, match="chat template"):
        chat_template(tmp_path)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory) -> Tokenizer:
    """A tokenizer of Llama 2's kind: words with a mark for the space before them, bytes for the rest."""
    import tokenizers
    from tokenizers import decoders, models, normalizers

    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"Helowrd,."]
    vocabulary += ["▁Hello", "▁w", "▁H", "el", "lo", "Hello", "▁Hel"]
    ids = {string: id for id, string in enumerate(vocabulary)}
    merges = [("▁", "H"), ("e", "l"), ("l", "o"), ("▁H", "el"), ("▁Hel", "lo"), ("▁", "w")]
    model = models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    made.add_special_tokens(["<s>", "</s>"])
    path = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.json"
    made.save(str(path))
    return Tokenizer(path)


@pytest.mark.parametrize("text", ["Hello world", " Hello  world ", "Hello, wörld 👍🏽", "日本\nHello", ""])
def test_sentencepiece_text_streams_whole_and_comes_back_unchanged(sentencepiece, text):
    ids = sentencepiece.encode(text, special=False)
    stream = sentencepiece.stream()
    pieces = [stream.push(id) for id in ids]
    assert "".join(pieces) + stream.finish() == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


def test_a_folder_without_a_tokenizer_is_one_sentence(tmp_path):
    with pytest.raises(ZooError, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_damaged_tokenizer_is_one_sentence(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(ZooError, match="not a tokenizer"):
        Tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04" + bytes(60), b"GGUF" + b"\xff" * 60])
def test_a_damaged_gguf_file_is_one_sentence(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ZooError, match="GGUF"):
        read_metadata(tmp_path / "x.gguf")
