#!/bin/sh
# llguidance 1.9.1: where other names are allowed, a listed name may be written again with an escape, and
# its value is then checked as that of another name. Elsewhere this grammar refuses escapes of letters.
# Expected: `ab` must be an integer, however it is spelled.
# Seen on Linux, Python 3.11:
#   ab: False  the same name with an escape: True  the escape in a string: False
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


schema = {"type": "object", "properties": {"ab": {"type": "integer"}}}
plain, spelled = accepts(schema, '{"ab": "x"}'), accepts(schema, '{"\\u0061b": "x"}')
text = accepts({"type": "string"}, '"\\u0061"')
print("ab:", plain, " the same name with an escape:", spelled, " the escape in a string:", text)
raise SystemExit((plain, spelled, text) != (False, True, False))
EOF
