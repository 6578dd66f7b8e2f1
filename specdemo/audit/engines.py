"""What the audit asks of an engine, and other engines on the models of a pair
(docs/reference/benchmark.md). A function of each of `ADAPTERS` yields the ways in which its engine
can run a pair, for `bench` and for the audit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np

from specdemo.convert.model_files import SOURCE
from specdemo.errors import BadInput, MissingPackage, RequestFailed, SpecdemoError, install
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Coupling, Settings
from specdemo.text.templates import Chat, Message

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

Conversation = tuple[str, ...]
"""The user's message; or the user's, the assistant's, the user's, and so on."""

Tokens = tuple[int | str, ...]
"""An answer's tokens with the end token: ids, or their texts if an engine does not give ids."""

Answer = Sequence[int | str]
"""As Tokens, of an engine that may give a list."""

Margins = tuple[float, float] | None
"""The logit of one token minus that of another: in a forward of one token, and in one of many
tokens. None, or numbers that are not finite, if not known."""

Case = tuple[Conversation, Settings]
Outcomes = dict[Tokens, float]  # the probability of each beginning of an answer

OWN_PROPERTIES = "/default"
"""The end of a method's name where the engine runs with its own properties, not our target's."""


class NotOffered(SpecdemoError):
    """The engine does not have what the settings name."""


class AuditedEngine:
    """One way in which an engine drafts, beside its own autoregressive decoding."""

    name = "engine"
    method = "speculative decoding"
    offers: frozenset[str] = frozenset()  # of properties.PROPERTIES, beside "greedy" and "repeat"
    facts: dict[str, Any] = {}  # how the engine was set up, for the report
    context_limit: int | None = None
    couplings: tuple[Coupling, ...] = ("shared",)  # each is sampled; other engines ignore it
    parallel = 1  # requests that `generate_many` takes, each with settings of its own
    repeated: Sequence[str] = ()  # messages of calls that failed, and succeeded when repeated

    def generate(self, conversation: Conversation, settings: Settings, speculative: bool) -> Answer:
        """The answer's tokens. Raises RequestFailed."""
        raise NotImplementedError

    def generate_many(self, cases: Sequence[Case], speculative: bool) -> list[Tokens]:
        """Answers of requests that are active at once, which "batch" needs."""
        with ThreadPoolExecutor(len(cases)) as pool:
            answers = [pool.submit(self.generate, *case, speculative) for case in cases]
            return [tuple(answer.result()) for answer in answers]

    def text(self, tokens: Answer) -> str:
        """The text of an answer's tokens, without an end token."""
        return "".join(map(str, tokens))

    def prompt_tokens(self, conversation: Conversation) -> int:
        """The length of the prompt, which "context" needs."""
        raise NotImplementedError

    def margins(self, conversation: Conversation, tokens: Tokens, pair: Tokens) -> Margins:
        """Those of the `pair` after the answer's `tokens`."""
        return None

    def self_drafted(self, cases: Sequence[Case]) -> tuple[int, int]:
        """The draft tokens of all answers with the target as its own draft model, and how many were
        accepted, which "self" needs. Raises RequestFailed or NotOffered."""
        raise NotImplementedError

    def outcomes(self, conversation: Conversation, settings: Settings, tokens: int) -> Outcomes:
        """The exact probability of each beginning of `tokens` tokens. Empty if not known: then
        draws are compared with those of autoregressive decoding."""
        return {}

    def close(self) -> None:
        """Release the models."""


class PairEngine(AuditedEngine):
    """An engine that is given the token ids of the prompts of a loaded pair."""

    loaded: LoadedPair

    def prompt(self, conversation: Conversation) -> list[int]:
        chat = Chat(messages(conversation))
        return list(self.loaded.template.render_chat(chat, self.loaded.tokenizer))

    def prompt_tokens(self, conversation: Conversation) -> int:
        return len(self.prompt(conversation))

    def text(self, tokens: Answer) -> str:
        ids = [int(token) for token in tokens]
        return self.loaded.tokenizer.decode([id for id in ids if id not in self.loaded.stop_ids])


def messages(conversation: Conversation) -> list[Message]:
    """The messages of user and assistant in turn."""
    roles = ("user", "assistant")
    return [Message(roles[turn % 2], text) for turn, text in enumerate(conversation)]


def imported(name: str) -> Callable[[], AuditedEngine]:
    """The class MODULE:CLASS, which makes an engine without arguments. Raises BadInput."""
    try:
        make: Callable[[], AuditedEngine] = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"--peers {name} cannot be imported: {error}.") from error
    return make


ADAPTERS = {
    "openvino-genai": "genai_peer:genai",
    "llama-cpp": "llama_peer:llama",
    "transformers": "transformers_peers:transformers",
    "optimum-intel": "transformers_peers:optimum",
}
LENGTHS = {"speculative": (2, 3, 5), "prompt-lookup": (3, 5), "draft-simple": (3, 8)}
"""The draft lengths that bench tries, by method; other methods have none, or choose their own."""

AUTOREGRESSIVE = "autoregressive"
LOOKUP_NGRAM = 3
ALL_OFFERED = frozenset({"sampling", "end", "stop", "schema", "penalties", "context"})
Prompts = list[list[int]]
TimedAnswers = list[tuple[tuple[int, ...], float]]
"""Token ids with the stop token, and the seconds from the first token to the last."""

Generate = Callable[[Prompts, Settings], TimedAnswers]
"""Answers prompts at once."""

SelfDrafted = Callable[[Prompts, Settings], tuple[int, int]]
"""Draft tokens of the answers to these prompts, one at a time, and how many were accepted."""

Logits = Callable[[list[int], list[int], int], np.ndarray]
"""The logits, float32 [vocabulary], after a prompt and the first tokens of its answer. The last
forward runs as many tokens as the third argument. NaN where the engine does not tell a logit."""


@dataclass(eq=False, kw_only=True)
class Peer(PairEngine):
    """One way in which an engine runs a pair, by one method."""

    loaded: LoadedPair
    name: str  # of the engine
    method: str
    variant: str  # distinguishes ways of the same method
    properties: dict[str, str]
    load: _lru_cache_wrapper[Generate]  # makes the pipeline at its first call
    offers: frozenset[str]
    logits: Logits
    length: int | None = None  # of a draft; ways with another one share the pipeline
    baseline: Peer | None = None  # the engine's autoregressive way
    self_draft: SelfDrafted | None = None
    repeated: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.self_draft:
            self.offers |= {"self"}
        if self.length:
            self.variant = f"K={self.length}"
        self.facts = {"variant": self.variant, **self.properties}
        self.context_limit = self.loaded.context_limit

    @property
    def title(self) -> str:
        return f"{self.name}/{self.method}"

    def answers(self, conversations: Sequence[Conversation], settings: Settings) -> TimedAnswers:
        """Answers of requests that are active at once. A call that fails is repeated once. Raises
        RequestFailed with the engine's message."""
        try:
            return self._answers(conversations, settings)
        except RequestFailed as failure:
            answers = self._answers(conversations, settings)
            self.repeated.append(str(failure))
            return answers

    def _answers(self, conversations: Sequence[Conversation], settings: Settings) -> TimedAnswers:
        settings = replace(settings, draft_tokens=self.length)
        with self._failures():
            if settings.logit_bias:
                raise NotOffered(f"{self.name} is not asked with logit_bias here.")
            return self.load()(list(map(self.prompt, conversations)), settings)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except NotOffered:
            raise
        except Exception as error:
            raise RequestFailed(f"{self.title} failed: {reason(error)}") from error

    def generate(self, conversation: Conversation, settings: Settings, speculative: bool) -> Answer:
        [answer] = self.generate_many([(conversation, settings)], speculative)
        return answer

    def generate_many(self, cases: Sequence[Case], speculative: bool) -> list[Tokens]:
        way = self if speculative or self.baseline is None else self.baseline
        conversations, settings = [conversation for conversation, _ in cases], cases[0][1]
        return [tokens for tokens, _ in way.answers(conversations, settings)]

    def margins(self, conversation: Conversation, tokens: Tokens, pair: Tokens) -> Margins:
        prompt, ids = self.prompt(conversation), list(map(int, tokens))
        first, second = map(int, pair)
        try:
            short, long = (self.logits(prompt, ids, width) for width in (1, 8))
        except Exception:  # the difference counts, also if the engine has crashed by now
            return None
        return float(short[first] - short[second]), float(long[first] - long[second])

    def self_drafted(self, cases: Sequence[Case]) -> tuple[int, int]:
        assert self.self_draft
        with self._failures():
            return self.self_draft([self.prompt(prompt) for prompt, _ in cases], cases[0][1])

    def close(self) -> None:
        for way in filter(None, (self, self.baseline)):
            way.load.cache_clear()


def reason(error: Exception) -> str:
    """The line of an engine's message that says why: OpenVINO's come after the places in its
    sources, others' before signatures."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith(("Exception from ", "Check '"))]
    return (reasons[:1] or lines[-1:] or [repr(error)])[0][:200]


def peers_of(engine: str, loaded: LoadedPair, properties: dict[str, str]) -> Iterator[Peer]:
    """All ways of the engine, with our target's `properties`, each with every draft length of its
    method. Raises BadInput for a pair that the engine cannot run, MissingPackage."""
    for way in resolve_name(f"specdemo.audit.{ADAPTERS[engine]}")(loaded, properties):
        for length in LENGTHS.get(way.method.removesuffix(OWN_PROPERTIES), (None,)):
            yield replace(way, length=length)


def audited(peers: Sequence[Peer], length: int) -> Iterator[AuditedEngine]:
    """Each method of an engine's `peers` with this draft length, beside the autoregressive one with
    the same properties: those of our target, or the engine's own."""
    ways = {peer.method: peer for peer in reversed(peers)}
    for method, way in reversed(ways.items()):
        suffix = OWN_PROPERTIES if method.endswith(OWN_PROPERTIES) else ""
        baseline = ways[AUTOREGRESSIVE + suffix]
        if way is not baseline:
            baseline = replace(baseline, repeated=way.repeated)
            yield replace(way, baseline=baseline, length=way.length and length)


def require_ir(loaded: LoadedPair, engine: str) -> Path:
    """The target's IR. Raises BadInput if a model of the pair is a checkpoint."""
    if not isinstance(loaded.target, Path) or not isinstance(loaded.draft, Path | None):
        raise BadInput(f"--peers {engine} runs IR; on torch devices choose transformers.")
    return loaded.target


def gguf_of(model: object) -> Path | None:
    """The GGUF file from which an IR was converted; None for other models."""
    file = model.with_name(SOURCE) if isinstance(model, Path) else None
    return file if file and file.is_file() else None


def require_package(module: str, engine: str, extra: str) -> None:
    if find_spec(module) is None:
        raise MissingPackage(f"--peers {engine} needs it: run {install(extra)}.")


def hf_tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def sampling_options(settings: Settings, unlimited: int) -> dict[str, Any]:
    """Options that GenAI and transformers share; `unlimited` is the top-k for all tokens."""
    options: dict[str, Any] = {"max_new_tokens": settings.max_new_tokens}
    options["repetition_penalty"] = settings.repetition_penalty
    if not settings.temperature:
        return options | {"do_sample": False}
    options |= {"temperature": settings.temperature, "top_p": settings.top_p}
    options |= {"min_p": settings.min_p} if settings.min_p else {}
    return options | {"do_sample": True, "top_k": settings.top_k or unlimited}
