"""OpenVINO GenAI on the same IR files and prompts: the engine that bench and audit compare with.

Imports openvino_genai only when it is asked for; nothing here decodes anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import openvino as ov

from specdemo.engine.checkpoint import Checkpoint
from specdemo.errors import BadInput, ModelError, RequestFailed
from specdemo.models.load import LoadedPair
from specdemo.models.machine import available_bytes
from specdemo.settings import Settings

LENGTHS = {"autoregressive": (None,), "speculative": (2, 3, 5), "prompt-lookup": (3, 5)}
"""The modes, and the draft lengths that bench tries with each."""

LOOKUP_NGRAM = 3

MEMORY_PER_WEIGHT_BYTE = 1.6
"""Of a compiled pipeline, over the size of its weights on disk: measured 1.2 to 1.5."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One pipeline with one draft length (None: it drafts nothing), fed our prompt's token ids.
    Among the variants of one name the report takes the fastest."""

    name: str
    variant: str
    settings: dict[str, str]
    loaded: LoadedPair
    pipeline: Any
    length: int | None

    def answer(self, instruction: str, settings: Settings) -> tuple[tuple[int, ...], float]:
        """Token ids, with the stop token, and the seconds from the first to the last by the peer's
        own clock. Raises RequestFailed with what GenAI says."""
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = settings.max_new_tokens
        config.stop_token_ids = set(self.loaded.stop_ids)
        config.do_sample = settings.temperature > 0
        if config.do_sample:
            config.temperature = settings.temperature
            config.top_p = settings.top_p
            config.rng_seed = settings.seed
            if settings.top_k:
                config.top_k = settings.top_k
        if self.length is not None:
            config.num_assistant_tokens = self.length
            if "prompt-lookup" in self.name:
                config.max_ngram_size = LOOKUP_NGRAM
        ids = self.loaded.template.render(instruction, self.loaded.tokenizer)
        inputs = openvino_genai.TokenizedInputs(
            ov.Tensor(np.array([ids], np.int64)), ov.Tensor(np.ones((1, len(ids)), np.int64))
        )
        try:
            result = self.pipeline.generate(inputs, config)
        except RuntimeError as error:
            raise RequestFailed(f"{self.name} failed: {_last_line(error)}") from error
        times = result.perf_metrics.raw_metrics.m_new_token_times  # milliseconds
        seconds = (times[-1] - times[0]) / 1e3 if len(times) > 1 else 0.0
        return tuple(result.tokens[0]), seconds


def open_all(loaded: LoadedPair, properties: dict[str, str]) -> tuple[list[Peer], list[str]]:
    """Every pipeline that memory allows: with our target's `properties`, then (`/default`) with
    the plugin's own. Gives the peers, and one sentence for each pipeline left out.

    Raises ModelError when one cannot be opened, BadInput for a pair that is no IR.
    """
    _require_ir(loaded)
    room = 0.9 * available_bytes()
    peers: list[Peer] = []
    left_out: list[str] = []
    ways = [*((mode, "PA") for mode in _modes(loaded)), ("autoregressive", "SDPA")]
    for suffix, wanted in (("", properties), ("/default", {})):
        # Where our target runs with the plugin's own properties, both sets are the same.
        for mode, backend in ways if wanted or suffix else ():
            weights = [loaded.target_xml, *([loaded.draft_xml] if mode == "speculative" else [])]
            size = sum(xml.with_suffix(".bin").stat().st_size for xml in weights)
            needed = MEMORY_PER_WEIGHT_BYTE * size
            if needed > room:
                left_out.append(
                    f"openvino-genai/{mode}{suffix} ({backend} backend) was left out: it needs "
                    f"about {needed / 1e9:.1f} GB of memory and {room / 1e9:.1f} GB are free."
                )
                continue
            peers += _open(loaded, mode, LENGTHS[mode], wanted, suffix, backend)
            room -= needed
    return peers, left_out


def to_audit(
    loaded: LoadedPair, properties: dict[str, str], length: int
) -> dict[str, Callable[[], list[Peer]]]:
    """What opens each pipeline to audit, so that one at a time is in memory; autoregressive
    decoding comes first. Raises BadInput for a pair that is no IR."""
    _require_ir(loaded)
    return {
        f"openvino-genai/{mode}": partial(
            _open, loaded, mode, (None if mode == "autoregressive" else length,), properties
        )
        for mode in _modes(loaded)
    }


def _require_ir(loaded: LoadedPair) -> None:
    if isinstance(loaded.target_xml, Checkpoint) or isinstance(loaded.draft_xml, Checkpoint):
        raise BadInput(
            "--peers openvino-genai runs IR; this pair is on a torch device: choose --peers "
            "transformers, or devices of OpenVINO's."
        )


def _modes(loaded: LoadedPair) -> list[str]:
    return [mode for mode in LENGTHS if mode != "speculative" or loaded.draft_xml]


def _open(
    loaded: LoadedPair,
    mode: str,
    lengths: Sequence[int | None],
    properties: dict[str, str],
    suffix: str = "",
    backend: str = "PA",
) -> list[Peer]:
    """Compile a pipeline; a peer for each of its draft lengths. Raises ModelError with what
    OpenVINO GenAI says."""
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
    name = f"openvino-genai/{mode}{suffix}"
    variants = {f"K={length}" if length else f"{backend} backend": length for length in lengths}
    return [
        Peer(name, variant, {"variant": variant, **properties}, loaded, pipeline, length)
        for variant, length in variants.items()
    ]


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
