#!/bin/sh
# lm-format-enforcer 0.11.3: the texts of an `enum` are not escaped. One that holds a line break is written
# with the line break itself, one with a quotation mark cannot be written at all. Expected: JSON.
# Seen on Linux, Python 3.11:
#   a line break: as itself True, escaped False
#   a quotation mark: as itself False, escaped False
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet lm-format-enforcer==0.11.3
venv/bin/python - <<'EOF'
import json

from lmformatenforcer import JsonSchemaParser


def taken(schema, text):
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


seen = []
for name, value in (("line break", "a\nb"), ("quotation mark", 'a"b')):
    schema = {"enum": [value, "c"]}
    seen.append([taken(schema, f'"{value}"'), taken(schema, json.dumps(value))])
    print(f"a {name}: as itself {seen[-1][0]}, escaped {seen[-1][1]}")
raise SystemExit(seen != [[True, False], [False, False]])
EOF
