#!/bin/sh
# llguidance 1.9.1: the pattern `^[^"]$` accepts the string of one quotation mark, which JSON writes as
# backslash and quote. Other characters of a negated class are kept out. Expected: refused.
# Seen on Linux, Python 3.11:
#   quotation mark: True  letter: False
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


quote = accepts({"type": "string", "pattern": '^[^"]$'}, json.dumps('"'))
letter = accepts({"type": "string", "pattern": "^[^a]$"}, json.dumps("a"))
print("quotation mark:", quote, " letter:", letter)
raise SystemExit((quote, letter) != (True, False))
EOF
