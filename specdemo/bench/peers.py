"""OpenVINO GenAI on the same IR files and prompts: the engine that bench and audit compare with.

Imports openvino_genai only when it is asked for; nothing here decodes anything itself.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from specdemo.bench.race import PeerAnswer
from specdemo.errors import MissingPackage, ModelError, RequestFailed
from specdemo.models.load import LoadedPair
from specdemo.models.machine import available_bytes
from specdemo.settings import Settings

NAMES = ("openvino-genai",)
LOOKUP_NGRAM = 3

MEMORY_PER_WEIGHT_BYTE = 1.6
"""Of a compiled pipeline, over the size of its weights on disk: measured 1.2 to 1.5."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to build a pipeline, and the draft lengths to try with it."""

    mode: str
    variant: str = ""
    lengths: tuple[int | None, ...] = (None,)


AUTOREGRESSIVE = Kind("autoregressive", "PA backend")
SPECULATIVE = Kind("speculative", lengths=(2, 3, 5))
LOOKUP = Kind("prompt-lookup", lengths=(3, 5))
KINDS = (AUTOREGRESSIVE, SPECULATIVE, LOOKUP, Kind("autoregressive", "SDPA backend"))


@dataclass(frozen=True, slots=True)
class GenaiPeer:
    """One pipeline with one draft length (None: it drafts nothing), fed our prompt's token ids."""

    name: str
    variant: str
    settings: dict[str, str]
    genai: Any
    loaded: LoadedPair
    pipeline: Any
    length: int | None

    def answer(self, instruction: str, settings: Settings) -> PeerAnswer:
        """Answer, timed by the peer's own clock. Raises RequestFailed with what GenAI says."""
        ids = self.loaded.template.render(instruction, self.loaded.tokenizer)
        inputs = self.genai.TokenizedInputs(
            ov.Tensor(np.array([ids], np.int64)), ov.Tensor(np.ones((1, len(ids)), np.int64))
        )
        try:
            result = self.pipeline.generate(inputs, self._config(settings))
        except RuntimeError as error:
            raise RequestFailed(f"{self.name} failed: {_last_line(error)}") from error
        tokens = tuple(result.tokens[0])
        times = result.perf_metrics.raw_metrics.m_new_token_times  # milliseconds
        seconds = (times[-1] - times[0]) / 1e3 if len(times) > 1 else 0.0
        return PeerAnswer(tokens, seconds)

    def _config(self, settings: Settings) -> Any:
        config = self.genai.GenerationConfig()
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
            if LOOKUP.mode in self.name:
                config.max_ngram_size = LOOKUP_NGRAM
        return config


class Genai:
    """OpenVINO GenAI with our target's and draft's IR. A context: it makes the draft's folder
    complete by links where the draft has no tokenizer of its own.

    Raises MissingPackage without openvino-genai, ModelError where the target has no tokenizer IR.
    """

    def __init__(self, loaded: LoadedPair):
        try:
            import openvino_genai
        except ImportError as error:
            raise MissingPackage(
                "--peers openvino-genai needs the package openvino-genai; install requirements.txt."
            ) from error
        self._genai = openvino_genai
        self._loaded = loaded
        self._target_folder = loaded.target_xml.parent
        if not (self._target_folder / "openvino_tokenizer.xml").is_file():
            raise ModelError(
                "--peers openvino-genai needs openvino_tokenizer.xml beside the target model's IR."
            )
        self._links: Path | None = None

    def __enter__(self) -> Genai:
        return self

    def __exit__(self, *error: object) -> None:
        if self._links:
            shutil.rmtree(self._links, ignore_errors=True)

    def open_all(self, properties: dict[str, str]) -> tuple[list[GenaiPeer], list[str]]:
        """Every pipeline that memory allows: with our target's `properties`, then (`/default`) with
        the plugin's own. Gives the peers, and one sentence for each pipeline left out.

        Raises ModelError when one cannot be opened.
        """
        room = 0.9 * available_bytes()
        peers: list[GenaiPeer] = []
        left_out: list[str] = []
        for suffix, wanted in (("", properties), ("/default", {})):
            # Where our target runs with the plugin's own properties, both sets are the same.
            for kind in self._kinds() if wanted or suffix else ():
                needed = self._memory(kind)
                if needed > room:
                    left_out.append(
                        f"openvino-genai/{kind.mode}{suffix} {kind.variant} was left out: it needs "
                        f"about {needed / 1e9:.1f} GB of memory and {room / 1e9:.1f} GB are free."
                    )
                    continue
                peers += self.open(kind, wanted, suffix)
                room -= needed
        return peers, left_out

    def to_audit(
        self, properties: dict[str, str], length: int
    ) -> dict[str, Callable[[], list[GenaiPeer]]]:
        """What opens each pipeline to audit, so that one at a time is in memory; autoregressive
        decoding comes first."""
        drafting = [k for k in self._kinds() if k in (SPECULATIVE, LOOKUP)]
        kinds = [AUTOREGRESSIVE, *(replace(kind, lengths=(length,)) for kind in drafting)]
        return {
            f"openvino-genai/{kind.mode}": partial(self.open, kind, properties) for kind in kinds
        }

    def open(self, kind: Kind, properties: dict[str, str], suffix: str = "") -> list[GenaiPeer]:
        """Compile a pipeline; a peer for each of its draft lengths. Raises ModelError with what
        OpenVINO GenAI says."""
        name = f"openvino-genai/{kind.mode}{suffix}"
        options: dict[str, Any] = {}
        if kind.mode == "speculative":
            folder = str(self._draft_folder())
            options["draft_model"] = self._genai.draft_model(
                folder, self._loaded.draft_device, **properties
            )
        elif kind.mode == "prompt-lookup":
            options["prompt_lookup"] = True
        else:
            options["ATTENTION_BACKEND"] = kind.variant.split()[0]
        try:
            pipeline = self._genai.LLMPipeline(
                str(self._target_folder), self._loaded.device, **properties, **options
            )
        except RuntimeError as error:
            raise ModelError(
                f"openvino-genai cannot open this pair: {_last_line(error)}"
            ) from error
        peers = []
        for length in kind.lengths:
            variant = kind.variant or f"K={length}"
            settings = {"variant": variant, **properties}
            peers.append(
                GenaiPeer(name, variant, settings, self._genai, self._loaded, pipeline, length)
            )
        return peers

    def _kinds(self) -> tuple[Kind, ...]:
        return tuple(k for k in KINDS if k is not SPECULATIVE or self._loaded.draft_xml)

    def _memory(self, kind: Kind) -> float:
        weights = self._loaded.target_xml.with_suffix(".bin").stat().st_size
        if kind is SPECULATIVE:
            weights += self._loaded.draft_xml.with_suffix(".bin").stat().st_size
        return MEMORY_PER_WEIGHT_BYTE * weights

    def _draft_folder(self) -> Path:
        folder = self._loaded.draft_xml.parent
        if (folder / "openvino_tokenizer.xml").is_file():
            return folder
        if self._links is None:
            self._links = Path(tempfile.mkdtemp(prefix="specdemo-genai-"))
            for source in [*folder.iterdir(), *self._target_folder.glob("openvino_*tokenizer.*")]:
                if source.is_file():
                    (self._links / source.name).symlink_to(source.resolve())
        return self._links


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
