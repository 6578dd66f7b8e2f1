"""Other engines on the same models and prompts, for `bench` and `audit` to compare with.

An engine is a function of `ENGINES`, which says how it can run a pair; its package is imported only
when it is asked for. docs/reference/benchmark.md says what each of them runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov

from specdemo.engine.checkpoint import Checkpoint
from specdemo.errors import BadInput, MissingPackage, ModelError, RequestFailed
from specdemo.models.embedded import SOURCE
from specdemo.models.load import LoadedPair
from specdemo.models.machine import available_bytes, processors
from specdemo.settings import Settings
from specdemo.terminal import say

LENGTHS = {"autoregressive": (None,), "speculative": (2, 3, 5), "prompt-lookup": (3, 5)}
"""The modes, and the draft lengths that bench tries with each."""

LOOKUP_NGRAM = 3

MEMORY_PER_WEIGHT_BYTE = 1.6
"""Of a compiled pipeline of OpenVINO GenAI, over the size of its weights on disk: measured 1.2 to
1.5."""

Answer = tuple[tuple[int, ...], float]
"""Token ids, with the stop token, and the seconds from the first to the last."""

Generate = Callable[[int | None, list[int], Settings], Answer]
"""(draft length, the prompt's token ids, settings)."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A pipeline with one draft length. Of the variants of one name the report takes the
    fastest."""

    name: str
    variant: str
    settings: dict[str, str]
    loaded: LoadedPair
    generate: Callable[[list[int], Settings], Answer]

    def answer(self, instruction: str, settings: Settings) -> Answer:
        """Raises RequestFailed with what the engine says."""
        ids = self.loaded.template.render(instruction, self.loaded.tokenizer)
        try:
            return self.generate(list(ids), settings)
        except (RuntimeError, ValueError, AttributeError, TypeError) as error:
            raise RequestFailed(f"{self.name} failed: {_last_line(error)}") from error


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One way of an engine to run a pair; `name` is ENGINE/MODE, `memory` in bytes what it will
    need. Not in memory until `load` is called, which may raise ModelError."""

    loaded: LoadedPair
    mode: str
    name: str
    variant: str
    settings: dict[str, str]
    load: Callable[[], Generate]
    memory: float = 0.0

    def open(self, lengths: Sequence[int | None]) -> list[Peer]:
        generate = self.load()
        variants = {f"K={length}" if length else self.variant: length for length in lengths}
        return [
            Peer(
                self.name,
                variant,
                {"variant": variant, **self.settings},
                self.loaded,
                partial(generate, length),
            )
            for variant, length in variants.items()
        ]


def pipelines(
    engines: Iterable[str], loaded: LoadedPair, properties: dict[str, str]
) -> list[Pipeline]:
    """All pipelines of these engines, with our target's `properties`. Raises BadInput for a pair
    that an engine cannot run, MissingPackage."""
    return [one for engine in engines for one in ENGINES[engine](loaded, properties)]


def open_all(found: Sequence[Pipeline]) -> list[Peer]:
    """Every pipeline with every draft length, as far as memory allows; what is left out is said on
    stderr."""
    room = 0.9 * available_bytes()
    peers = []
    for pipeline in found:
        if pipeline.memory > room:
            say(
                f"{pipeline.name} ({pipeline.variant}) was left out: it needs about "
                f"{pipeline.memory / 1e9:.1f} GB of memory and {room / 1e9:.1f} GB are free.",
                sys.stderr,
            )
            continue
        peers += pipeline.open(LENGTHS[pipeline.mode])
        room -= pipeline.memory
    return peers


def to_audit(found: Sequence[Pipeline], length: int) -> dict[str, Callable[[], list[Peer]]]:
    """What opens the first pipeline of each mode, so that one at a time is in memory;
    autoregressive decoding comes first."""
    opening: dict[str, Callable[[], list[Peer]]] = {}
    for pipeline in found:
        if pipeline.name.endswith(pipeline.mode):
            lengths = (None,) if pipeline.mode == "autoregressive" else (length,)
            opening.setdefault(pipeline.name, partial(pipeline.open, lengths))
    return opening


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()[:200]


def genai_pipelines(loaded: LoadedPair, properties: dict[str, str]) -> list[Pipeline]:
    """OpenVINO GenAI on the same IR files: each mode with our target's `properties`, then
    (`/default`) with the plugin's own."""
    if isinstance(loaded.target_xml, Checkpoint) or isinstance(loaded.draft_xml, Checkpoint):
        raise BadInput(
            "--peers openvino-genai runs IR; this pair is on a torch device: choose --peers "
            "transformers, or devices of OpenVINO's."
        )
    ways = [(mode, "PA") for mode in LENGTHS if mode != "speculative" or loaded.draft_xml]
    found = []
    for suffix, wanted in (("", properties), ("/default", {})):
        # Where our target runs with the plugin's own properties, both sets are the same.
        for mode, backend in [*ways, ("autoregressive", "SDPA")] if wanted or suffix else ():
            weights = [loaded.target_xml, *([loaded.draft_xml] if mode == "speculative" else [])]
            size = sum(xml.with_suffix(".bin").stat().st_size for xml in weights)
            found.append(
                Pipeline(
                    loaded,
                    mode,
                    f"openvino-genai/{mode}{suffix}",
                    f"{backend} backend",
                    wanted,
                    partial(_load_genai, loaded, mode, wanted, backend),
                    MEMORY_PER_WEIGHT_BYTE * size,
                )
            )
    return found


def _load_genai(
    loaded: LoadedPair, mode: str, properties: dict[str, str], backend: str
) -> Generate:
    import openvino_genai

    options: dict[str, Any] = {}
    try:
        if mode == "speculative":
            options["draft_model"] = openvino_genai.draft_model(
                str(loaded.draft_xml.parent), loaded.draft_device, **properties
            )
        elif mode == "prompt-lookup":
            options["prompt_lookup"] = True
        else:
            options["ATTENTION_BACKEND"] = backend
        pipeline = openvino_genai.LLMPipeline(
            str(loaded.target_xml.parent), loaded.device, **properties, **options
        )
    except RuntimeError as error:
        raise ModelError(f"openvino-genai cannot open this pair: {_last_line(error)}") from error

    def generate(length: int | None, ids: list[int], settings: Settings) -> Answer:
        """Seconds are those of GenAI's own metrics."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = settings.max_new_tokens
        config.stop_token_ids = set(loaded.stop_ids)
        config.do_sample = settings.temperature > 0
        if config.do_sample:
            config.temperature = settings.temperature
            config.top_p = settings.top_p
            config.rng_seed = settings.seed
            if settings.top_k:
                config.top_k = settings.top_k
        if length is not None:
            config.num_assistant_tokens = length
            if mode == "prompt-lookup":
                config.max_ngram_size = LOOKUP_NGRAM
        prompt = np.array([ids], np.int64)
        inputs = openvino_genai.TokenizedInputs(ov.Tensor(prompt), ov.Tensor(np.ones_like(prompt)))
        result = pipeline.generate(inputs, config)
        times = result.perf_metrics.raw_metrics.m_new_token_times  # milliseconds
        return tuple(result.tokens[0]), (times[-1] - times[0]) / 1e3 if len(times) else 0.0

    return generate


def llama_pipelines(loaded: LoadedPair, properties: dict[str, str]) -> list[Pipeline]:
    """llama.cpp on the GGUF file of the embedded target; the `properties` say nothing here."""
    try:
        import llama_cpp
    except ImportError as error:
        raise MissingPackage(
            "--peers llama-cpp needs llama-cpp-python: pip install llama-cpp-python."
        ) from error
    if not Path(loaded.target_xml).with_name(SOURCE).is_file():
        raise BadInput(
            "--peers llama-cpp runs the GGUF file of the embedded pair: --pair embedded."
        )
    settings = {"llama-cpp-python": llama_cpp.__version__, "threads": str(processors())}
    return [
        Pipeline(
            loaded,
            mode,
            f"llama-cpp/{mode}",
            "Q4_1",
            settings,
            partial(_load_llama, loaded, drafts),
        )
        for mode, drafts in (("autoregressive", False), ("prompt-lookup", True))
    ]


def _load_llama(loaded: LoadedPair, drafts: bool) -> Generate:
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    model = Llama(
        str(Path(loaded.target_xml).with_name(SOURCE)),
        n_ctx=loaded.context_limit,
        n_threads=processors(),
        n_threads_batch=processors(),
        logits_all=drafts,
        verbose=False,
    )

    def generate(length: int | None, ids: list[int], settings: Settings) -> Answer:
        model.draft_model = length and LlamaPromptLookupDecoding(num_pred_tokens=length)
        if settings.temperature > 0:
            model.set_seed(settings.seed)
        tokens: list[int] = []
        times: list[float] = []
        for token in model.generate(
            ids, temp=settings.temperature, top_k=settings.top_k, top_p=settings.top_p, min_p=0.0
        ):
            tokens.append(token)
            times.append(perf_counter())
            if token in loaded.stop_ids or len(tokens) == settings.max_new_tokens:
                break
        return tuple(tokens), times[-1] - times[0]

    return generate


def transformers_pipelines(loaded: LoadedPair, properties: dict[str, str]) -> list[Pipeline]:
    """transformers on the same checkpoints; all modes share one copy of the weights, in the type of
    our target's `properties`. A draft model on no torch device is left out."""
    if not isinstance(loaded.target_xml, Checkpoint):
        raise BadInput(
            f"--peers transformers runs checkpoints; --device {loaded.device} runs IR: choose "
            "--device torch:cpu or another of torch's."
        )
    from specdemo.engine import torch_model

    target = torch_model.load_module(loaded.target_xml, loaded.device, properties["dtype"])
    drafts = {mode: None for mode in LENGTHS if mode != "speculative"}
    if isinstance(loaded.draft_xml, Checkpoint):
        fast = dict(torch_model.properties(loaded.draft_device, exact=False))
        draft = torch_model.load_module(loaded.draft_xml, loaded.draft_device, fast["dtype"])
        drafts["speculative"] = draft
    elif loaded.draft_xml is not None:
        why = "the draft model is on no torch device; name one with --draft-device."
        say(f"transformers/speculative was left out: {why}", sys.stderr)
    dtype = str(target.dtype)
    settings = {"dtype": dtype, "device": str(target.device)}
    variant = dtype.removeprefix("torch.")
    return [
        Pipeline(
            loaded,
            mode,
            f"transformers/{mode}",
            variant,
            settings,
            lambda draft=draft: partial(_generate, loaded, target, draft),
        )
        for mode, draft in drafts.items()
    ]


def _generate(
    loaded: LoadedPair,
    target: Any,
    draft: Any,
    length: int | None,
    ids: list[int],
    settings: Settings,
) -> Answer:
    """Seconds begin after the first round, whose tokens count all the same: in the peer's
    favour."""
    import torch

    options: dict[str, Any] = {"do_sample": settings.temperature > 0}
    if settings.temperature:
        options |= {"temperature": settings.temperature, "top_p": settings.top_p}
        options["top_k"] = settings.top_k  # 0: all
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


ENGINES = {
    "openvino-genai": genai_pipelines,
    "llama-cpp": llama_pipelines,
    "transformers": transformers_pipelines,
}
