#!/bin/sh
# outlines-core 0.2.14: the pattern of a string is put between quotation marks as it is. `^yes|no$` then
# matches a quotation mark and yes without its end, `^[^<>]*$` matches the end of the string and whatever
# follows it. Expected: JSON, of the schema or an error.
# Seen on Linux, Python 3.11:
#   ^yes|no$ gives "yes, which is JSON: False
#   ^[^<>]*$ gives {"name": "x", "admin": "y"}, valid by the schema: False
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet outlines-core==0.2.14 jsonschema==4.26.0
venv/bin/python - <<'EOF'
import json

from jsonschema import Draft202012Validator
from outlines_core import Guide, Index, Vocabulary, json_schema

vocabulary = Vocabulary(999, {chr(byte): [byte] for byte in range(32, 127)})  # a token a character


def given(schema, text):
    """Whether an answer may be this text."""
    guide = Guide(Index(json_schema.build_regex_from_schema(json.dumps(schema)), vocabulary))
    for byte in text.encode():
        if byte not in guide.get_tokens():
            return False
        guide.advance(byte)
    return guide.is_finished()


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


choice = {"type": "string", "pattern": "^yes|no$"}
name = {"type": "string", "pattern": "^[^<>]*$"}
person = {"type": "object", "properties": {"name": name}, "required": ["name"]}
person["additionalProperties"] = False
cut, more = '"yes', '{"name": "x", "admin": "y"}'
seen = given(choice, cut), given(person, more)
valid = Draft202012Validator(person).is_valid(json.loads(more))
print("^yes|no$", "gives" if seen[0] else "refuses", f"{cut}, which is JSON:", is_json(cut))
print("^[^<>]*$", "gives" if seen[1] else "refuses", f"{more}, valid by the schema:", valid)
raise SystemExit(not all(seen))
EOF
