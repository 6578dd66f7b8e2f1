"""Which models a visitor may choose, what "auto" means here, and how a choice is opened."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.settings import ModelChoice
from specdemo.ui.inputs import AUTO, MODELS, OWN
from specdemo.ui.service import Report

if TYPE_CHECKING:
    from specdemo.models.registry import Pair
    from specdemo.serving.client import RemoteSession
    from specdemo.session import Session

ENGINE_PATIENCE = 900.0
"""Seconds to wait, at the start, for an engine elsewhere that is still loading its model."""


class Offer:
    """The choices of one server. `first` is what it starts with: its pair is AUTO to take the one
    that suits the machine; `why` then says why that one. On a server that is `shared` by strangers
    nobody may choose what would load or compile models anew: `fixed` names these inputs."""

    def __init__(self, first: ModelChoice, shared: bool):
        self._first = first
        self.fixed: tuple[str, ...] = (*MODELS, "numerics") if shared else ()
        self._lock = threading.Lock()
        self._default = "" if first.pair == AUTO else first.pair
        self.defaults = dataclasses.asdict(first)
        self.why = ""

    def first(self) -> ModelChoice:
        """What the server loads before anybody has asked. The first call may ask the network, for
        two seconds at most."""
        with self._lock:
            if not self._default:
                from specdemo.models import registry

                choice = registry.default_pair()
                self._default = choice.pair.name
                self.why = choice.why.partition(": ")[2] or choice.why
        return dataclasses.replace(self._first, pair=self._default)

    def resolve(self, chosen: ModelChoice) -> ModelChoice:
        """`chosen` with AUTO replaced. Raises BadInput for models that are not offered or cannot be
        opened: a wrong name must not unload the pair that is here."""
        if chosen.pair == AUTO:
            chosen = dataclasses.replace(chosen, pair=self.first().pair)
        if self.fixed and chosen != self.first():
            raise BadInput(
                f"This server is shared: its pair is {self.first().pair}, and its devices and KV "
                "cache precision are its owner's to choose."
            )
        _pair(chosen)
        return chosen

    def pairs(self) -> list[tuple[str, str]]:
        """Titles and names for the page's list, without looking at the machine."""
        from specdemo.models.registry import PAIRS

        offered = [(pair.title, pair.name) for pair in PAIRS]
        if self._first.pair == AUTO:
            offered.insert(0, ("The pair that suits this machine", AUTO))
        if self.fixed:
            return [one for one in offered if one[1] == self._first.pair]
        return [*offered, ("Your own pair (name it below)", OWN)]

    def surveyed_pairs(self) -> list[tuple[str, str]]:
        """The list with how each pair stands on this machine. Looks at memory and disk."""
        from specdemo.models.progress import size
        from specdemo.models.registry import survey

        facts = {AUTO: self._default}
        for found in survey():
            pair = found.pair
            fact = "here already" if found.ready else f"{size(pair.download_bytes)} to download"
            if not found.fits:
                fact += f"; needs {size(pair.memory_bytes)} of memory, more than there is here"
            facts[pair.name] = fact
        return [
            (f"{title} ({facts[name]})" if facts.get(name) else title, name)
            for title, name in self.pairs()
        ]


class RemoteOffer(Offer):
    """The one choice of a page in front of an engine elsewhere (`app.py --engine`): its pair.

    Waits for an engine that is still loading. Raises RequestFailed when there is none, BadInput for
    a URL that is none.
    """

    def __init__(self, url: str):
        from specdemo.serving.client import RemoteSession

        self._url = url
        since = time.monotonic()
        while True:
            try:
                with RemoteSession(url) as session:
                    pair = session.info
                break
            except Busy as error:
                if time.monotonic() - since > ENGINE_PATIENCE:
                    words = f"is still not ready after {ENGINE_PATIENCE:g} s."
                    raise RequestFailed(f"The engine at {url} {words}") from error
                print(f"The engine at {url}: {error}", file=sys.stderr, flush=True)
                time.sleep(3)
        self._title = f"{pair.target} with {pair.draft or 'n-gram lookup'}, at {url}"
        super().__init__(ModelChoice(pair.name), shared=True)
        self.fixed = MODELS  # which numerics it has is the engine's to say

    def resolve(self, chosen: ModelChoice) -> ModelChoice:
        if chosen.pair != self._default:
            raise BadInput(
                f"This page asks the engine at {self._url}; its only pair is {self._default}."
            )
        return self.first()

    def pairs(self) -> list[tuple[str, str]]:
        return [(self._title, self._default)]

    surveyed_pairs = pairs

    def open_session(self, chosen: ModelChoice, report: Report) -> RemoteSession:
        """The engine, whatever was chosen."""
        from specdemo.serving.client import RemoteSession

        report(f"Reaching the engine at {self._url}", None)
        return RemoteSession(self._url)


def open_session(chosen: ModelChoice, report: Report, **capacity: Any) -> Session:
    """Fetch what is missing of the models, compile them, and return their session, made for
    `capacity` (`active`, `cache_mb`, `exclusive` of Session). Takes seconds to hours. Raises
    SpecdemoError."""
    from specdemo.models.load import load_pair

    progress = lambda one: report(one.line, one.fraction)  # noqa: E731
    loaded = load_pair(_pair(chosen), choice=chosen, progress=progress)
    report("Compiling the models for this processor", None)
    from specdemo.session import Session

    return Session(loaded, **capacity)


def _pair(chosen: ModelChoice) -> Pair:
    """The chosen pair, with messages in the page's words. Raises BadInput."""
    from specdemo.models.registry import chosen_pair

    return chosen_pair(chosen, lambda field: field.replace("_", " ").capitalize())
