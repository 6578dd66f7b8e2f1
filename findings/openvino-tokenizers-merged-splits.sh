#!/bin/sh
# OpenVINO Tokenizers 2026.4.1: of pre-tokenizers that split at blanks and merge them with the word before or
# after, converted ones repeat or lose text where blanks follow each other, as in indented code. Single
# blanks come out alike. Expected: the tokens of the original.
# Seen on Linux, Python 3.11:
#   merged_with_previous, 'abab abab': alike
#   merged_with_previous, '  abab  abab ': original Ġ Ġ abab Ġ Ġ abab Ġ | converted Ġ Ġ Ġ abab Ġ abab Ġ Ġ abab Ġ
#   merged_with_next, 'abab abab': alike
#   merged_with_next, '  abab  abab ': original Ġ Ġ abab Ġ Ġ abab Ġ | converted Ġ abab Ġ abab Ġ
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet openvino-tokenizers==2026.4.1.0 transformers==5.5.4 tokenizers==0.22.2
venv/bin/python - <<'EOF'
import openvino as ov
from openvino_tokenizers import convert_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def tokens(behavior, text):
    """Of the original, and of the converted tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: id for id, letter in enumerate([*alphabet, "ab", "abab"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "ab")]))
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(" ", behavior)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    names = {"eos_token": "<eos>", "pad_token": "<eos>"}
    converted = convert_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names))
    ids = ov.compile_model(converted, "CPU")([text])["input_ids"][0].tolist()
    return tokenizer.encode(text).tokens, list(map(tokenizer.id_to_token, ids))


alike = []
for behavior in ("merged_with_previous", "merged_with_next"):
    for text in ("abab abab", "  abab  abab "):
        original, converted = tokens(behavior, text)
        alike.append(original == converted)
        both = "original", *original, "| converted", *converted
        print(f"{behavior}, {text!r}:", *(("alike",) if alike[-1] else both))
raise SystemExit(alike != [True, False] * 2)
EOF
