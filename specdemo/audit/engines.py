"""What the audit asks of an engine."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pkgutil import resolve_name
from typing import Any

from specdemo.errors import BadInput, SpecdemoError
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Coupling, Settings
from specdemo.text.templates import Message

Conversation = tuple[str, ...]
"""The user's message; or the user's, the assistant's, the user's, and so on."""

Tokens = tuple[int | str, ...]
"""An answer's tokens with the end token: ids, or their texts if an engine does not give ids."""

Case = tuple[Conversation, Settings]
Outcomes = dict[Tokens, float]  # the probability of each beginning of an answer

OWN_PROPERTIES = "/default"
"""The end of a method's name where the engine runs with its own properties, not our target's."""


class NotOffered(SpecdemoError):
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

    def generate_many(self, cases: Sequence[Case], speculative: bool) -> list[Tokens]:
        """Answers of requests that are active at once, which "batch" needs."""
        with ThreadPoolExecutor(len(cases)) as pool:
            answers = [pool.submit(self.generate, *case, speculative) for case in cases]
            return [tuple(answer.result()) for answer in answers]

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


class PairEngine(AuditedEngine):
    """An engine that is given the token ids of the prompts of a loaded pair."""

    loaded: LoadedPair

    def prompt(self, conversation: Conversation) -> list[int]:
        turns = messages(conversation)
        return list(self.loaded.template.render_chat(turns, self.loaded.tokenizer))

    def prompt_tokens(self, conversation: Conversation) -> int:
        return len(self.prompt(conversation))

    def text(self, tokens: Sequence[int | str]) -> str:
        ids = [int(token) for token in tokens]
        return self.loaded.tokenizer.decode([id for id in ids if id not in self.loaded.stop_ids])


def messages(conversation: Conversation) -> list[Message]:
    """The messages of user and assistant in turn."""
    roles = ("user", "assistant")
    return [Message(roles[turn % 2], text) for turn, text in enumerate(conversation)]


def imported(name: str) -> AuditedEngine:
    """The engine that MODULE:CLASS makes without arguments. Raises BadInput."""
    try:
        make: Callable[[], AuditedEngine] = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"--peers {name} cannot be imported: {error}.") from error
    return make()
