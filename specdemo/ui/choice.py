"""Which models a visitor may choose, what "auto" means here, and how a choice is opened."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdemo.errors import BadInput
from specdemo.models import ir, machine, registry
from specdemo.models.sources import WORKING_BYTES
from specdemo.settings import ModelChoice
from specdemo.ui.inputs import AUTO, MODELS, OWN
from specdemo.ui.service import Report

if TYPE_CHECKING:
    from specdemo.serving.client import RemoteSession
    from specdemo.session import Session


class Offer:
    """The choices of one server. `first` is what it answers with unasked. Where its pair is AUTO,
    `current` names the pair that this stands for now, `why` says why that one, and `later` is one
    that suits the machine better and is not here. On a server that is `shared` by strangers nobody
    may choose what would load or compile models anew: `fixed` names these inputs. `capacity` is
    what sessions are made for (`active`, `cache_mb`, `learn` of Session)."""

    def __init__(self, first: ModelChoice, shared: bool, **capacity: Any):
        self.first = first
        self.fixed: tuple[str, ...] = (*MODELS, "numerics") if shared else ()
        self.defaults = {**dataclasses.asdict(first), "pair": first.pair or OWN}
        self._capacity = capacity
        self.current, self.why, self.later = first.pair, "", None
        if first.pair == AUTO:
            found = registry.default_pair()
            self.current, self.later = found.pair.name, found.later
            self.why = "" if found.later else found.why.partition(": ")[2]

    def named(self, chosen: ModelChoice) -> ModelChoice:
        """`chosen` with AUTO replaced by the pair that it stands for."""
        return dataclasses.replace(chosen, pair=self.current) if chosen.pair == AUTO else chosen

    def resolve(self, chosen: ModelChoice) -> ModelChoice:
        """`chosen`, as `first` where it is the same. Raises BadInput for models that are not
        offered or cannot be opened: a wrong name must not unload the pair that is here."""
        if self.current and self.named(chosen).pair == self.current:
            chosen = dataclasses.replace(chosen, draft=chosen.draft or self.first.draft)
        if self.named(chosen) == self.named(self.first):
            return self.first
        if self.fixed:
            raise BadInput(
                f"This server is shared: its pair is {self.current}, and its devices and KV "
                "cache precision are its owner's to choose."
            )
        _pair(self.named(chosen))
        return chosen

    def adopt(self, pair: registry.Pair) -> None:
        """From now on AUTO stands for `pair`."""
        self.current, self.why = pair.name, ""

    def fetch(self, chosen: ModelChoice, report: Report) -> bool:
        """Fetch what is missing of the models. Whether there is memory to load them beside others.
        Raises SpecdemoError."""
        from specdemo.models.load import fetch_pair

        chosen = self.named(chosen)
        models = fetch_pair(_pair(chosen), chosen, lambda one: report(one.line))
        weights = sum(machine.file_size(one.folder / ir.WEIGHTS) for one in models)
        return machine.available_bytes() > weights + WORKING_BYTES

    def open_session(self, chosen: ModelChoice, report: Report) -> Session:
        return open_session(self.named(chosen), report, **self._capacity)

    def pairs(self) -> list[tuple[str, str]]:
        """Titles and names for the page's list, without looking at the machine."""
        offered = [
            ("The pair that suits this machine", AUTO),
            *((pair.title, pair.name) for pair in registry.PAIRS),
            (self.first.target or "Your own pair (name it below)", OWN),
        ]
        if self.fixed:
            return [one for one in offered if one[1] == self.defaults["pair"]]
        return offered[self.first.pair != AUTO :]

    def surveyed_pairs(self) -> list[tuple[str, str]]:
        """The list with how each pair stands on this machine. Looks at memory and disk."""
        from specdemo.models.progress import size

        facts = {AUTO: self.current}
        for found in registry.survey():
            pair = found.pair
            fact = "here already" if found.ready else f"{size(pair.download_bytes)} to download"
            if not found.fits:
                fact += f"; needs {size(pair.memory_bytes)} of memory, more than there is here"
            facts[pair.name] = "; ".join(filter(None, (fact, found.facts)))
        return [
            (f"{title} ({facts[name]})" if facts.get(name) else title, name)
            for title, name in self.pairs()
        ]


class RemoteOffer(Offer):
    """The one choice of a page in front of an engine elsewhere (`app.py --engine`): its pair.

    Raises RequestFailed when there is none, Busy while it is loading, BadInput for a URL that is
    none.
    """

    def __init__(self, url: str):
        from specdemo.serving.client import RemoteSession

        self._url = url
        with RemoteSession(url) as session:
            pair = session.info
        self._title = f"{pair.target} with {pair.draft or 'n-gram lookup'}, at {url}"
        super().__init__(ModelChoice(pair.name), shared=True)
        self.fixed = MODELS  # which numerics it has is the engine's to say

    def pairs(self) -> list[tuple[str, str]]:
        return [(self._title, self.current)]

    surveyed_pairs = pairs

    def open_session(self, chosen: ModelChoice, report: Report) -> RemoteSession:
        """The engine, whatever was chosen."""
        from specdemo.serving.client import RemoteSession

        return RemoteSession(self._url)


def open_session(chosen: ModelChoice, report: Report, **capacity: Any) -> Session:
    """Fetch what is missing of the models, compile them, and return their session. Takes seconds to
    hours. Raises SpecdemoError."""
    from specdemo.models.load import load_pair

    loaded = load_pair(_pair(chosen), choice=chosen, progress=lambda one: report(one.line))
    report("Compiling the models for this processor")
    from specdemo.session import Session

    return Session(loaded, **capacity)


def _pair(chosen: ModelChoice) -> registry.Pair:
    """The chosen pair, with messages in the page's words. Raises BadInput."""
    return registry.chosen_pair(chosen, lambda field: field.replace("_", " ").capitalize())
