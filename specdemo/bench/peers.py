"""Other engines on the same models and prompts (docs/reference/benchmark.md). A function of each of
`ENGINES` yields the ways in which its engine can run a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specdemo.errors import MissingPackage, RequestFailed
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Settings
from specdemo.text.templates import Message

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

ENGINES = {
    "openvino-genai": "genai_peer.genai",
    "llama-cpp": "llama_peer.llama",
    "transformers": "transformers_peers.transformers",
    "optimum-intel": "transformers_peers.optimum",
}
LENGTHS = {"speculative": (2, 3, 5), "prompt-lookup": (3, 5), "draft-simple": (3, 8)}
"""The draft lengths that bench tries, by mode; other modes have none, or choose their own."""

LOOKUP_NGRAM = 3
PENALTIES = "presence", "frequency"
ALL_OFFERED = frozenset({"sampling", "end", "stop", "schema", "penalties", "context"})
Answer = tuple[tuple[int, ...], float]  # token ids with the stop token, seconds from first to last
Generate = Callable[[int | None, list[list[int]], Settings], list[Answer]]
"""Answers prompts at once, with this draft length."""

Logits = Callable[[list[int], list[int], int], np.ndarray]
"""The logits, float32 [vocabulary], after a prompt and the first tokens of its answer, of which as
many as the last argument says are in the last forward."""


class NotOffered(RequestFailed):
    """The engine does not have what the settings name."""


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """One way in which an engine runs a pair. `name`: ENGINE/MODE. `kind` distinguishes peers of
    the same name. `load` makes the pipeline at its first call. `length`: the draft length.
    `offers` and `logits` are for the audit."""

    loaded: LoadedPair
    name: str
    kind: str
    properties: dict[str, str]
    load: _lru_cache_wrapper[Generate]
    length: int | None = None
    offers: frozenset[str] = frozenset()
    logits: Logits | None = None

    @property
    def settings(self) -> dict[str, str]:
        variant = f"K={self.length}" if self.length else self.kind
        return {"variant": variant, **self.properties}

    def answer(self, instruction: str, settings: Settings) -> Answer:
        """The peer's answer. Raises RequestFailed with the engine's message."""
        [answer] = self.answers([[Message("user", instruction)]], settings)
        return answer

    def ids(self, messages: Sequence[Message]) -> list[int]:
        return list(self.loaded.template.render_chat(messages, self.loaded.tokenizer))

    def answers(
        self, conversations: Sequence[Sequence[Message]], settings: Settings
    ) -> list[Answer]:
        """Answers of requests that are active at once. Raises as `answer`."""
        prompts = [self.ids(messages) for messages in conversations]
        try:
            return self.load()(self.length, prompts, settings)
        except NotOffered:
            raise
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
        module, function = ENGINES[engine].split(".")
        ways = getattr(import_module(f"specdemo.bench.{module}"), function)
        for way in ways(loaded, properties):
            for length in LENGTHS.get(way.name.split("/")[1], (None,)):
                yield replace(way, length=length)


def hf_tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def require_package(module: str, engine: str, extra: str) -> None:
    if find_spec(module) is None:
        raise MissingPackage(f"--peers {engine} needs it: run `pip install -e .[{extra}]`.")


def sampling_options(settings: Settings, unlimited: int) -> dict[str, Any]:
    """Options that GenAI and transformers share; `unlimited` is the top-k for all tokens."""
    if not settings.temperature:
        return {"do_sample": False}
    options = {"temperature": settings.temperature, "top_p": settings.top_p}
    return {"do_sample": True, "top_k": settings.top_k or unlimited, **options}
