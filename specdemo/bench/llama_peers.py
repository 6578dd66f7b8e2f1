"""llama.cpp on the GGUF file that the embedded target was made from, by llama-cpp-python: its
autoregressive decoding and its prompt lookup, with the interface of `bench.peers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from specdemo.errors import BadInput, MissingPackage, RequestFailed
from specdemo.models.embedded import SOURCE
from specdemo.models.load import LoadedPair
from specdemo.models.machine import processors
from specdemo.settings import Settings

LENGTHS = {"autoregressive": (None,), "prompt-lookup": (3, 5)}
"""The modes, and the draft lengths that bench tries with each."""


@dataclass(frozen=True, slots=True)
class LlamaPeer:
    """One opened model; see `bench.peers.Peer`."""

    name: str
    variant: str
    settings: dict[str, str]
    loaded: LoadedPair
    model: Any

    def answer(self, instruction: str, settings: Settings) -> tuple[tuple[int, ...], float]:
        """Token ids, with the stop token, and the seconds from the first to the last. Raises
        RequestFailed with what llama.cpp says."""
        ids = self.loaded.template.render(instruction, self.loaded.tokenizer)
        if settings.temperature > 0:
            self.model.set_seed(settings.seed)
        tokens: list[int] = []
        begun = ended = 0.0
        try:
            answer = self.model.generate(
                list(ids),
                temp=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                min_p=0.0,
            )
            for token in answer:
                tokens.append(token)
                ended = perf_counter()
                begun = begun or ended
                if token in self.loaded.stop_ids or len(tokens) == settings.max_new_tokens:
                    break
        except (RuntimeError, ValueError) as error:
            raise RequestFailed(f"{self.name} failed: {error}") from error
        return tuple(tokens), ended - begun


def open_all(loaded: LoadedPair, properties: dict[str, str]) -> tuple[list[LlamaPeer], list[str]]:
    """Both modes in every draft length; OpenVINO's `properties` say nothing here. Raises BadInput
    for a pair without a GGUF file, MissingPackage."""
    return [peer for mode in LENGTHS for peer in _open(loaded, mode, LENGTHS[mode])], []


def to_audit(
    loaded: LoadedPair, properties: dict[str, str], length: int
) -> dict[str, Callable[[], list[LlamaPeer]]]:
    """What opens each mode to audit; autoregressive decoding comes first."""
    return {
        f"llama-cpp/{mode}": partial(
            _open, loaded, mode, (None if mode == "autoregressive" else length,)
        )
        for mode in LENGTHS
    }


def _open(loaded: LoadedPair, mode: str, lengths: tuple[int | None, ...]) -> list[LlamaPeer]:
    try:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    except ImportError as error:
        raise MissingPackage(
            "--peers llama-cpp needs llama-cpp-python: pip install llama-cpp-python."
        ) from error
    gguf = Path(loaded.target_xml).with_name(SOURCE)
    if not gguf.is_file():
        raise BadInput(
            "--peers llama-cpp runs the GGUF file of the embedded pair: --pair embedded."
        )
    peers = []
    for length in lengths:
        threads = processors()
        draft = length and LlamaPromptLookupDecoding(num_pred_tokens=length)
        model = llama_cpp.Llama(
            str(gguf),
            n_ctx=loaded.context_limit,
            n_threads=threads,
            n_threads_batch=threads,
            draft_model=draft,
            logits_all=bool(length),
            verbose=False,
        )
        variant = f"K={length}" if length else "Q4_1"
        settings = {"variant": variant, "llama-cpp-python": llama_cpp.__version__}
        settings["threads"] = str(threads)
        peers.append(LlamaPeer(f"llama-cpp/{mode}", variant, settings, loaded, model))
    return peers
