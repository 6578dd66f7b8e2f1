#!/bin/sh
# llguidance 1.9.1 refuses a schema that says `uniqueItems: false`, which demands nothing and is the
# keyword's own default. Expected: compiled as if it were absent.
# Seen on Linux, Python 3.11:
#   Unimplemented keys: ["uniqueItems"]
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


said = accepts({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}, "[1]")
print(said)
raise SystemExit("uniqueItems" not in str(said))
EOF
