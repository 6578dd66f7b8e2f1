#!/bin/sh
# llguidance 1.9.1: an `enum` with an integer beyond 2**53 refuses that integer and accepts its even
# neighbour: the value has gone through a double. Expected: the text of the value.
# Seen on Linux, Python 3.11:
#   9007199254740993: False  9007199254740992: True
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet llguidance==1.9.1 numpy==2.4.6
venv/bin/python - <<'EOF'
import json

import llguidance
from llguidance import LLMatcher


class Bytes:
    """A tokenizer whose tokens are the bytes, and one end token."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>"]

    def __call__(self, text):
        return list(text)


tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def accepts(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    if matcher.is_error():
        return matcher.get_error().splitlines()[0]
    taken = matcher.try_consume_tokens(list(text.encode()))
    return taken == len(text.encode()) and matcher.is_accepting()


listed = 2**53 + 1
itself, neighbour = (accepts({"enum": [listed]}, str(value)) for value in (listed, listed - 1))
print(f"{listed}:", itself, f" {listed - 1}:", neighbour)
raise SystemExit((itself, neighbour) != (False, True))
EOF
