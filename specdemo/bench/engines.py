"""What the audit asks of an engine, and engines that answer: ours, and any peer of `bench`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal

from specdemo.bench.peers import NotOffered as NotOffered
from specdemo.bench.peers import Peer
from specdemo.engine.request import NextToken
from specdemo.errors import BadInput
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.question import trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.text.templates import Message

Conversation = tuple[str, ...]
"""The user's message; or the user's, the assistant's, the user's, and so on."""

Tokens = tuple[int | str, ...]
"""An answer's tokens with the end token: ids, or their texts if an engine does not tell them."""

Request = tuple[Conversation, Settings]
Drafter = Literal["auto", "model", "lookup", "none"]
Coupling = Literal["shared", "maximal"]
Outcomes = dict[Tokens, float]  # the probability of each beginning of an answer


class AuditedEngine:
    """One way in which an engine drafts, beside its own autoregressive decoding. `offers` names the
    properties (properties.PROPERTIES) that it has beside "greedy" and "repeat"."""

    name = "engine"
    method = "speculative decoding"
    offers: frozenset[str] = frozenset()
    facts: dict[str, Any] = {}  # how the engine was set up, for the report
    context_limit: int | None = None
    couplings: tuple[Coupling, ...] = ("shared",)  # each is sampled; other engines ignore it
    parallel = 1  # requests that `generate_many` takes, each with settings of its own

    def generate(
        self, conversation: Conversation, settings: Settings, speculative: bool
    ) -> Sequence[int | str]:
        """The answer's tokens. Raises RequestFailed."""
        raise NotImplementedError

    def generate_many(self, requests: Sequence[Request], speculative: bool) -> list[Tokens]:
        """Answers of requests that are active at once, which "batch" needs."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(
                pool.map(lambda one: (*self.generate(one[0], one[1], speculative),), requests)
            )

    def text(self, tokens: Sequence[int | str]) -> str:
        """The text of an answer's tokens, without an end token."""
        return "".join(map(str, tokens))

    def prompt_tokens(self, conversation: Conversation) -> int:
        """The length of the prompt, which "context" needs."""
        raise NotImplementedError

    def margins(
        self, conversation: Conversation, tokens: Tokens, pair: Tokens
    ) -> tuple[float, float] | None:
        """The logit of the first token of `pair` minus that of the second after the answer's
        `tokens`: in a forward of one token, and in one of many tokens. None if not known."""
        return None

    def outcomes(self, conversation: Conversation, settings: Settings, tokens: int) -> Outcomes:
        """The exact probability of each beginning of `tokens` tokens. Empty if not known: then
        draws are compared with those of autoregressive decoding."""
        return {}

    def close(self) -> None:
        """Release the models."""


class OwnEngine(AuditedEngine):
    """This package's engine: one drafter of a session. The same answer for a seed is promised with
    the shared coupling, the default."""

    name = "specdemo"
    offers = frozenset("seed batch sampling end stop schema penalties context".split())
    couplings: tuple[Coupling, ...] = ("shared", "maximal")
    parallel = 8

    def __init__(self, session: Session, drafter: Drafter):
        self._session, self._drafter = session, drafter
        drafts = {"model": "draft head", "lookup": "n-gram lookup", "auto": "auto"}
        if session.loaded.draft:
            drafts["model"] = "draft model"
        elif session.loaded.head_layers:
            drafts["model"] = "EAGLE-3 head"
        if session.loaded.translation is not None and drafter != "lookup":
            self.couplings = ("shared",)
        self.method = drafts[drafter]
        self.facts = {"numerics": session.info.numerics_found}
        self.context_limit = session.context_limit

    def generate(
        self, conversation: Conversation, settings: Settings, speculative: bool
    ) -> Sequence[int | str]:
        asked = replace(settings, drafter=self._drafter if speculative else "none")
        return trace_of(self._session.answer(messages(conversation), asked)).token_ids

    def text(self, tokens: Sequence[int | str]) -> str:
        return text_of(self._session.loaded, tokens)

    def prompt_tokens(self, conversation: Conversation) -> int:
        loaded = self._session.loaded
        return len(loaded.template.render_chat(messages(conversation), loaded.tokenizer))

    def outcomes(self, conversation: Conversation, settings: Settings, tokens: int) -> Outcomes:
        turns, ends = messages(conversation), self._session.loaded.stop_ids
        whole: Outcomes = {(): 1.0}
        for _ in range(tokens):
            longer: Outcomes = {}
            for prefix, chance in whole.items():
                if prefix and prefix[-1] in ends:
                    longer[prefix] = chance
                    continue
                ids = tuple(map(int, prefix))
                after = self._session.result_of(NextToken, turns, settings, ids)
                for token, share in zip(after.ids, after.probabilities, strict=True):
                    longer[*prefix, int(token)] = chance * float(share)
            whole = longer
        return whole


class PeerEngine(AuditedEngine):
    """A peer of `bench` beside the autoregressive decoding of the same engine."""

    def __init__(self, speculative: Peer, baseline: Peer):
        self._ways = baseline, speculative
        self.name, self.method, *_ = speculative.name.split("/")
        self.offers = speculative.offers
        self.facts = speculative.settings
        self.context_limit = speculative.loaded.context_limit

    def generate(
        self, conversation: Conversation, settings: Settings, speculative: bool
    ) -> Sequence[int | str]:
        [(tokens, _)] = self._ways[speculative].answers([messages(conversation)], settings)
        return tokens

    def generate_many(self, requests: Sequence[Request], speculative: bool) -> list[Tokens]:
        prompts = [messages(conversation) for conversation, _ in requests]
        answers = self._ways[speculative].answers(prompts, requests[0][1])
        return [tokens for tokens, _ in answers]

    def text(self, tokens: Sequence[int | str]) -> str:
        return text_of(self._ways[0].loaded, tokens)

    def prompt_tokens(self, conversation: Conversation) -> int:
        return len(self._ways[0].ids(messages(conversation)))

    def margins(
        self, conversation: Conversation, tokens: Tokens, pair: Tokens
    ) -> tuple[float, float] | None:
        logits = self._ways[0].logits
        if logits is None:
            return None
        prompt = self._ways[0].ids(messages(conversation))
        first, second = map(int, pair)
        rows = (logits(prompt, [int(token) for token in tokens], width) for width in (1, 8))
        one, many = (float(row[first] - row[second]) for row in rows)
        return one, many

    def close(self) -> None:
        for peer in self._ways:
            peer.close()


def messages(conversation: Conversation) -> list[Message]:
    """The messages of user and assistant in turn."""
    roles = ("user", "assistant")
    return [Message(roles[turn % 2], text) for turn, text in enumerate(conversation)]


def text_of(loaded: LoadedPair, tokens: Sequence[int | str]) -> str:
    """The text of token ids; of the end tokens it has none."""
    ids = [int(token) for token in tokens]
    return loaded.tokenizer.decode([id for id in ids if id not in loaded.stop_ids])


def own_engines(session: Session, drafter: Drafter) -> list[AuditedEngine]:
    """Each drafter of the session, or the one named."""
    every: tuple[Drafter, ...] = "model", "lookup", "auto"
    drafters = every[not session.info.draft :] if drafter == "auto" else (drafter,)
    return [OwnEngine(session, one) for one in drafters]


def peer_engines(peers: Iterable[Peer], length: int) -> Iterator[AuditedEngine]:
    """Each mode of the peers with this draft length, beside the engine's autoregressive mode."""
    baselines: dict[str, Peer] = {}
    modes: dict[str, Peer] = {}
    ways = list(peers)
    for peer in [way for way in ways if not way.name.endswith("/default")] or ways:
        engine, mode, *_ = peer.name.split("/")
        if mode == "autoregressive":
            baselines.setdefault(engine, peer)
        else:
            modes.setdefault(peer.name, replace(peer, length=peer.length and length))
    for name, peer in modes.items():
        yield PeerEngine(peer, baselines[name.split("/")[0]])


def imported(name: str) -> AuditedEngine:
    """The engine that MODULE:CLASS makes without arguments. Raises BadInput."""
    module, _, attribute = name.partition(":")
    try:
        make: Callable[[], AuditedEngine] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BadInput(f"--peers {name} cannot be imported: {error}.") from error
    return make()
