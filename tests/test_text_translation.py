"""A draft model with another vocabulary: its text in the target's tokens, and the other way."""

import json
from pathlib import Path

import pytest
import tiny_models
from tokenizers import Tokenizer as Library
from tokenizers import decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from specdemo.text.tokenizer import Tokenizer
from specdemo.text.translation import TextTranslation

TEXT = (
    "user\nWhat is fission, and what is fusion?\nassistant\nFission splits a heavy nucleus; café, "
    "naïve, 日本語 and 👍 fusion joins two light ones.\n\n  Both release energy: unbelievable.\n"
    "def add(a, b):\n    return a + b\n"
)
KINDS = ("neox", "bytes", "pieces")


def write_pieces(folder: Path) -> None:
    """A vocabulary as SentencePiece makes them: a space before every text."""
    library = Library(BPE(byte_fallback=True, fuse_unk=True))
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    library.normalizer = normalizers.Sequence(marks)
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("▁", "merged_with_next"), pre_tokenizers.Punctuation()]
    )
    own = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=own, show_progress=False)
    library.train_from_iterator("".join([*tiny_models.TRAINING_TEXT, TEXT]).split("\n"), trainer)
    folder.mkdir()
    content = json.loads(library.to_str()) | {"added_tokens": [], "pre_tokenizer": None}
    (folder / "tokenizer.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, Tokenizer]:
    home = tmp_path_factory.mktemp("tokenizers")
    tiny_models.write_neox_tokenizer(home / "neox", dolly=True)
    tiny_models.write_byte_tokenizer(home / "bytes")
    write_pieces(home / "pieces")
    return {kind: Tokenizer(home / kind / "tokenizer.json") for kind in KINDS}


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("draft", KINDS)
def test_the_draft_model_reads_the_text_as_its_own_tokenizer_writes_it(tokenizers, target, draft):
    own, other = tokenizers[target], tokenizers[draft]
    ids = own.encode(TEXT)
    translation = TextTranslation(own, other)
    waited = 0
    for end in range(1, len(ids) + 1):
        tokens_read, text = translation.read(ids[:end]), own.decode(ids[:end])
        if text.endswith("\ufffd") or not text:
            waited += 1
            assert tokens_read is None
        else:
            assert tokens_read == other.encode(text, bos=True)
    assert waited or target == "pieces"


@pytest.mark.parametrize("draft", KINDS)
def test_a_long_text_is_encoded_once_or_not_drafted_for(tokenizers, draft, monkeypatch):
    target, other = tokenizers["bytes"], tokenizers[draft]
    text, lengths, inner = "Both release energy, unbelievable. " * 40, [], other.encode
    monkeypatch.setattr("specdemo.text.translation.LONGEST", 400)
    monkeypatch.setattr(
        other, "encode", lambda text, **own: lengths.append(len(text)) or inner(text, **own)
    )
    request, ids = TextTranslation(target, other), target.encode(text)
    tokens_read = [request.read(ids[:end]) for end in range(1, len(ids) + 1)]
    assert sum(lengths) < (100_000 if draft == "pieces" else 60_000)
    assert tokens_read[-1] == (None if draft == "pieces" else inner(text, bos=True))


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("draft", KINDS)
@pytest.mark.parametrize("whole_words", [True, False])
def test_the_draft_models_text_becomes_the_targets_tokens(tokenizers, target, draft, whole_words):
    own, other = tokenizers[target], tokenizers[draft]
    ids, whole = own.encode(TEXT), other.encode(TEXT)
    translation = TextTranslation(own, other)
    right = wrong = 0
    for end in range(1, len(ids)):
        read = translation.read(ids[:end])
        if read is None or whole[: len(read)] != read:
            continue  # the draft model's boundary is not one of the target's
        for count in (0, 1, 2, 3, 5, 8):
            drafted = whole[len(read) : len(read) + count]
            translated = translation.translate(drafted, whole_words)
            tokens = [token for token, _ in translated]
            assert sum(begun for _, begun in translated) <= len(drafted)
            assert "\ufffd" not in own.decode(tokens)
            same = tokens == ids[end : end + len(tokens)]
            right, wrong = right + same, wrong + (not same)
    assert right > 150
    assert not (wrong and whole_words)


def test_the_last_word_waits_only_where_words_must_be_whole(tokenizers):
    target, draft = tokenizers["neox"], tokenizers["bytes"]
    translation = TextTranslation(target, draft)
    translation.read(target.encode("Both release"))
    drafted = draft.encode(" energy")
    assert translation.translate(drafted, True) == []
    [(token, begun)] = translation.translate(drafted, False)
    assert target.decode([token]) == " energy" and begun == 7
    assert translation.translate([*drafted, *draft.encode(".")], True) == [(token, 7)]


def test_the_end_of_an_answer_is_the_end_for_the_target_too(tokenizers):
    target, draft = tokenizers["bytes"], tokenizers["neox"]
    end = draft.token_id("<|endoftext|>")
    for own, expected in ((target, []), (draft, [(end, 1)])):
        translation = TextTranslation(own, draft)
        translation.read(own.encode("Both"))
        translated = translation.translate([*draft.encode(" energy\n"), end, 5, 6], True)
        assert own.decode([token for token, _ in translated]) == " energy\n"
        assert translated[len(own.encode(" energy\n")) :] == expected


def test_bytes_that_do_not_end_a_character_wait(tokenizers):
    target, draft = tokenizers["neox"], tokenizers["bytes"]
    translation = TextTranslation(target, draft)
    translation.read(target.encode("Hi"))
    drafted = draft.encode(" 👍")
    for count in range(1, len(drafted)):
        [(token, _)] = translation.translate(drafted[:count], False)
        assert target.decode([token]) == " "
    translated = [token for token, _ in translation.translate(drafted, False)]
    assert target.decode(translated) == " 👍"
