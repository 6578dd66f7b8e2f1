#!/bin/sh
# outlines-core 0.2.14: where an answer could end, it can only be continued by a token after which it could
# end again. The comma of `[a-z]+(, [a-z]+)*` is never offered, nor the point of a JSON number: unless one
# token holds the whole continuation, lists have one item and numbers no fraction. So it is since 0.2.11 at
# the latest. Expected: all tokens after which the expression can still be matched.
# Seen on Linux, Python 3.11:
#   offered after 'a' of [a-z]+(, [a-z]+)*: comma False, letters True, end True
#   offered after '1' of a JSON number: point False, digits True, end True
#   the same inside of an array: point True
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet outlines-core==0.2.14
venv/bin/python - <<'EOF'
import json

from outlines_core import Guide, Index, Vocabulary, json_schema

END = 999
vocabulary = Vocabulary(END, {chr(byte): [byte] for byte in range(32, 127)})  # a token a character


def offered(expression, text):
    guide = Guide(Index(expression, vocabulary))
    for byte in text.encode():
        guide.advance(byte)
    return set(guide.get_tokens())


number = json.dumps({"type": "number"})
after_item = offered("[a-z]+(, [a-z]+)*", "a")
after_digit = offered(json_schema.build_regex_from_schema(number), "1")
array = json.dumps({"type": "array", "items": {"type": "number"}})
inside = offered(json_schema.build_regex_from_schema(array), "[1")
comma, point = ord(","), ord(".")
print(f"offered after 'a' of [a-z]+(, [a-z]+)*: comma {comma in after_item},", end=" ")
print(f"letters {ord('a') in after_item}, end {END in after_item}")
print(f"offered after '1' of a JSON number: point {point in after_digit},", end=" ")
print(f"digits {ord('0') in after_digit}, end {END in after_digit}")
print("the same inside of an array: point", point in inside)
missing = comma not in after_item and point not in after_digit
raise SystemExit(not (missing and point in inside and {ord("a"), END} <= after_item))
EOF
