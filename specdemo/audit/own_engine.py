"""This package's engine as an engine of the audit. Nothing else in this room knows it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from specdemo.audit.engines import (
    Answer,
    Case,
    Conversation,
    Outcomes,
    PairEngine,
    gguf_of,
    messages,
)
from specdemo.engine.pair_files import Checkpoint
from specdemo.engine.request import next_token
from specdemo.machine.hardware import on_torch
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.question import Question, trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Drafter, Settings
from specdemo.runs.trace import combined, summarize


class OwnEngine(PairEngine):
    """One drafter of a session. The same answer for a seed is promised with the shared coupling,
    the default."""

    name = "specdemo"
    offers = frozenset("seed self batch sampling end stop schema penalties context".split())
    parallel = 8

    def __init__(self, session: Session, drafter: Drafter):
        self.loaded, self._session, self._drafter = session.loaded, session, drafter
        head = "EAGLE-3 head" if self.loaded.head_layers else "draft head"
        model = "draft model" if self.loaded.draft else head
        self.method = {"model": model, "lookup": "n-gram lookup"}.get(drafter, drafter)
        if self.loaded.translation is None or drafter == "lookup":
            self.couplings = ("shared", "maximal")
        self.facts = {"numerics": session.info.numerics_found}
        self.context_limit = session.context_limit

    def generate(self, conversation: Conversation, settings: Settings, speculative: bool) -> Answer:
        settings = replace(settings, drafter=self._drafter if speculative else "none")
        return trace_of(self._session.ask(Question(messages(conversation), settings))).token_ids

    def self_drafted(self, cases: Sequence[Case]) -> tuple[int, int]:
        itself: dict[str, Any] = {"draft": self.loaded.target, "draft_device": self.loaded.device}
        itself |= {"head": None, "head_layers": (), "draft_token_ids": None, "translation": None}
        with type(self._session)(replace(self.loaded, **itself), background=False) as session:
            figures = combined(
                summarize(trace_of(session.ask(question)))
                for question in (
                    Question(messages(prompt), replace(how, drafter="model"))
                    for prompt, how in cases
                )
            )
        return figures.examined, figures.accepted  # what follows an end token was not examined

    def outcomes(self, conversation: Conversation, settings: Settings, tokens: int) -> Outcomes:
        question = Question(messages(conversation), replace(settings, drafter="none"))
        outcomes: Outcomes = {(): 1.0}
        for _ in range(tokens):
            longer: Outcomes = {}
            for prefix, chance in outcomes.items():
                if prefix and prefix[-1] in self.loaded.stop_ids:
                    longer[prefix] = chance
                    continue
                work = partial(next_token, answer=tuple(map(int, prefix)))
                following = self._session.submit(question, work).result()
                for token, share in zip(following.ids, following.probabilities, strict=True):
                    longer[*prefix, int(token)] = chance * float(share)
            outcomes = longer
        return outcomes


def own_engines(session: Session, drafter: Drafter) -> list[OwnEngine]:
    """Each drafter of the session, or the one named."""
    drafters: tuple[Drafter, ...] = (drafter,)
    if drafter == "auto":
        drafters = ("model", "lookup", "auto") if session.info.draft else ("lookup", "auto")
    return [OwnEngine(session, drafter) for drafter in drafters]


def checkpoint(model: Path | Checkpoint | None) -> Checkpoint | None:
    """What transformers loads in place of `model`; None for IR that is not of a GGUF file."""
    if isinstance(model, Checkpoint):
        return model
    file = gguf_of(model)
    return Checkpoint(file) if file else None


def torch_models(
    loaded: LoadedPair, target: Checkpoint, draft: Checkpoint | None, dtype: str
) -> tuple[Any, Any]:
    """Target and draft model, if any: modules of transformers, loaded as this package's engine
    loads them, on the processor where the pair has IR in their place."""
    from specdemo.engine.backends.torch_model import load_module, properties

    device, draft_device = (
        device if on_torch(device) else "torch:cpu"
        for device in (loaded.device, loaded.draft_device)
    )
    module = load_module(target, device, dtype)
    fast = dict(properties(draft_device, exact=False))
    return module, draft and load_module(draft, draft_device, fast["dtype"])
