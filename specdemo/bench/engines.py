"""What the audit asks of an engine, and the first engine that answers: ours."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal

from specdemo.engine.request import NextToken
from specdemo.errors import BadInput, RequestFailed
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.question import trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.text.templates import Message

Conversation = tuple[str, ...]
"""The user's message; or the user's, the assistant's, the user's, and so on."""

Tokens = tuple[int | str, ...]
"""An answer's tokens with the end token: ids, or their texts if an engine does not tell them."""

OWN_PROPERTIES = "/default"
"""The end of a method's name where the engine runs with its own properties, not our target's."""

Request = tuple[Conversation, Settings]
Drafter = Literal["auto", "model", "lookup", "none"]
Coupling = Literal["shared", "maximal"]
Outcomes = dict[Tokens, float]  # the probability of each beginning of an answer


class NotOffered(RequestFailed):
    """The engine does not have what the settings name."""


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

        def generate(request: Request) -> Tokens:
            conversation, settings = request
            return (*self.generate(conversation, settings, speculative),)

        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(generate, requests))

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
        methods = {"model": "draft head", "lookup": "n-gram lookup", "auto": "auto"}
        if session.loaded.draft:
            methods["model"] = "draft model"
        elif session.loaded.head_layers:
            methods["model"] = "EAGLE-3 head"
        if session.loaded.translation is not None and drafter != "lookup":
            self.couplings = ("shared",)
        self.method = methods[drafter]
        self.facts = {"numerics": session.info.numerics_found}
        self.context_limit = session.context_limit

    def generate(
        self, conversation: Conversation, settings: Settings, speculative: bool
    ) -> Sequence[int | str]:
        settings = replace(settings, drafter=self._drafter if speculative else "none")
        return trace_of(self._session.answer(messages(conversation), settings)).token_ids

    def text(self, tokens: Sequence[int | str]) -> str:
        return text_of(self._session.loaded, tokens)

    def prompt_tokens(self, conversation: Conversation) -> int:
        loaded = self._session.loaded
        return len(loaded.template.render_chat(messages(conversation), loaded.tokenizer))

    def outcomes(self, conversation: Conversation, settings: Settings, tokens: int) -> Outcomes:
        turns, ends = messages(conversation), self._session.loaded.stop_ids
        outcomes: Outcomes = {(): 1.0}
        for _ in range(tokens):
            longer: Outcomes = {}
            for prefix, chance in outcomes.items():
                if prefix and prefix[-1] in ends:
                    longer[prefix] = chance
                    continue
                ids = tuple(map(int, prefix))
                following = self._session.result_of(NextToken, turns, settings, ids)
                for token, share in zip(following.ids, following.probabilities, strict=True):
                    longer[*prefix, int(token)] = chance * float(share)
            outcomes = longer
        return outcomes


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
    drafters: tuple[Drafter, ...] = (drafter,)
    if drafter == "auto":
        drafters = ("model", "lookup", "auto") if session.info.draft else ("lookup", "auto")
    return [OwnEngine(session, drafter) for drafter in drafters]


def imported(name: str) -> AuditedEngine:
    """The engine that MODULE:CLASS makes without arguments. Raises BadInput."""
    module, _, attribute = name.partition(":")
    try:
        make: Callable[[], AuditedEngine] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BadInput(f"--peers {name} cannot be imported: {error}.") from error
    return make()
