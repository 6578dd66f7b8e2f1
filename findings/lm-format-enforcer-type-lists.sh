#!/bin/sh
# lm-format-enforcer 0.11.3: where `type` is a list, every other keyword is dropped, without a word: of a
# nullable string its longest length, of a nullable object its properties. With one type, or with the
# alternatives in `anyOf`, they are kept. Expected: kept.
# Seen on Linux, Python 3.11:
#   "abc" of at most 2 characters: string False, string or null True, anyOf False
#   {} without its required name: object False, object or null True, anyOf False
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet lm-format-enforcer==0.11.3
venv/bin/python - <<'EOF'
from lmformatenforcer import JsonSchemaParser


def taken(schema, text):
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


short = {"type": "string", "maxLength": 2}
named = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
seen = []
for words, schema, text in (
    ('"abc" of at most 2 characters:', short, '"abc"'),
    ("{} without its required name:", named, "{}"),
):
    kind = schema["type"]
    either = {"anyOf": [schema, {"type": "null"}]}
    forms = schema, schema | {"type": [kind, "null"]}, either
    seen.append([taken(form, text) for form in forms])
    one, listed, any_of = seen[-1]
    print(f"{words} {kind} {one}, {kind} or null {listed}, anyOf {any_of}")
raise SystemExit(seen != [[False, True, False]] * 2)
EOF
