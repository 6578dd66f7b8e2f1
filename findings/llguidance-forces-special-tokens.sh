#!/bin/sh
# llguidance 1.9.1 on a tokenizer whose special token is spelled like a property: the text that the schema
# forces becomes that special token, which decoding then leaves out, so that the name is lost. A mask would
# never have let the model choose it. Expected: ordinary tokens for the letters.
# Seen on Linux, Python 3.11:
#   forced: ['{', '"', 'think', '"', ':']  decoded: {"":
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet llguidance==1.9.1 tokenizers==0.22.2 numpy==2.4.6
venv/bin/python - <<'EOF'
import json

import llguidance
from llguidance import LLMatcher
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate(alphabet)}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(["<eos>", "think"])
end, special = map(tokenizer.token_to_id, ("<eos>", "think"))
schema = {"type": "object", "properties": {"think": {"type": "integer"}}}
schema |= {"required": ["think"], "additionalProperties": False}
compact = {"whitespace_flexible": False}
grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=compact)
matcher = LLMatcher(llguidance.LLTokenizer(tokenizer.to_str(), eos_token=end), grammar)
forced = matcher.compute_ff_tokens()
print("forced:", [tokenizer.id_to_token(id) for id in forced], " decoded:", tokenizer.decode(forced))
raise SystemExit(special not in forced)
EOF
