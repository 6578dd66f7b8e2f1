#!/bin/sh
# outlines-core 0.2.14: the parts of `allOf` are written one after the other, without an error. Two limits
# of one string give two strings, two parts of an object two objects. Expected: both parts hold for one
# value, or an error as for `not`.
# Seen on Linux, Python 3.11:
#   answers: ['{"a":1}{"b":2}'] not: ['{"a":1,"b":2}']
#   not: ValueError
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet outlines-core==0.2.14
venv/bin/python - <<'EOF'
import json
import re

from outlines_core import json_schema


def part(name):
    return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}


expression = json_schema.build_regex_from_schema(json.dumps({"allOf": [part("a"), part("b")]}))
texts = '{"a":1}{"b":2}', '{"a":1,"b":2}'
matched = [text for text in texts if re.fullmatch(expression, text)]
print("answers:", matched, "not:", [text for text in texts if text not in matched])
try:
    json_schema.build_regex_from_schema(json.dumps({"not": {"type": "string"}}))
    refused = "taken"
except Exception as error:
    refused = type(error).__name__
print("not:", refused)
raise SystemExit(matched != [texts[0]])
EOF
