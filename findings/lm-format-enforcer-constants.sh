#!/bin/sh
# lm-format-enforcer 0.11.3: with `const` that is a number or a boolean nothing can be written. The error is
# logged only, and the token that ends an answer is the one that is allowed: the answer is empty, or an
# object stops before that value. A `const` of text and an `enum` of one number work. Expected: the value.
# Seen on Linux, Python 3.11:
#   after '{"version":' with an enum: ['1', ' ']
#   after '{"version":' with a const: ['END']
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet lm-format-enforcer==0.11.3
venv/bin/python - <<'EOF'
import logging

from lmformatenforcer import JsonSchemaParser, TokenEnforcer
from lmformatenforcer.tokenenforcer import TokenEnforcerTokenizerData

logging.disable()
CHARACTERS = [chr(code) for code in range(32, 127)]  # a token each
END = len(CHARACTERS)


def decode(ids):
    return "".join(CHARACTERS[id] for id in ids if id < END)


regular = [(id, character, False) for id, character in enumerate(CHARACTERS)]
tokenizer = TokenEnforcerTokenizerData(regular, decode, END, False, END + 1)


def allowed(value, text):
    schema = {"type": "object", "properties": {"version": value}, "required": ["version"]}
    enforcer = TokenEnforcer(tokenizer, JsonSchemaParser(schema))
    ids = [CHARACTERS.index(character) for character in text]
    for count in range(len(ids) + 1):
        tokens = enforcer.get_allowed_tokens(ids[:count]).allowed_tokens
    return sorted({"END" if id == END else CHARACTERS[id] for id in tokens}, reverse=True)


text = '{"version":'
with_enum, with_const = allowed({"enum": [1]}, text), allowed({"const": 1}, text)
print(f"after {text!r} with an enum:", with_enum)
print(f"after {text!r} with a const:", with_const)
raise SystemExit("1" not in with_enum or with_const != ["END"])
EOF
