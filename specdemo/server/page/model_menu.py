"""The inputs of a run: their names on the page and in links, how values become settings, and which
models a visitor may choose. What is allowed is decided by `specdemo.runs.settings`."""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, get_type_hints

from specdemo.convert import model_files
from specdemo.errors import BadInput, naming
from specdemo.machine import disk, hardware
from specdemo.machine.terminal import Report, size
from specdemo.options import parse
from specdemo.pairs import registry
from specdemo.pairs.hub import WORKING_BYTES
from specdemo.pairs.loading import fetch_pair
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.settings import Settings
from specdemo.server.metrics import announce

if TYPE_CHECKING:
    from specdemo.runs.session import Session

AUTO, OWN = "auto", "own"
"""Values of `pair` that name no pair: the one that suits the machine, and the visitor's own."""

SURVEY_SECONDS = 5.0

TITLES = "Pair", "Good for", "Draft", "Memory", "Download", "Speed"
CAPTION = "Expected tokens/s: without drafts, and at 50 % acceptance."

OFF_PAGE = ("logit_bias", "ignore_eos", "stop")
"""Settings of the command line and the API that have no input on the page."""

SETTINGS = tuple(field.name for field in fields(Settings) if field.name not in OFF_PAGE)
MODELS = tuple(field.name for field in fields(ModelChoice))

HELP = {f.name: f.metadata["help"] for kind in (Settings, ModelChoice) for f in fields(kind)}
KINDS = get_type_hints(Settings) | get_type_hints(ModelChoice)


def settings_of(values: Mapping[str, Any]) -> Settings:
    """The settings among `values`. Raises BadInput."""
    return parse(Settings, {name: values[name] for name in SETTINGS if name in values})


def models_of(values: Mapping[str, Any]) -> ModelChoice:
    """The models among `values`; the visitor's own pair has no name. Raises BadInput. Whether the
    models exist is checked when they are opened."""
    chosen = parse(ModelChoice, {name: values[name] for name in MODELS if name in values})
    if chosen.pair != OWN:
        return replace(chosen, model="", assistant_model="", weight_format="auto")
    if not chosen.model:
        message = "Your own pair needs a target: a folder here or a Hub repository (owner/name)."
        raise BadInput(message, "model")
    return replace(chosen, pair="")


class ModelMenu:
    """The models that one server offers. `first` is its default, and what AUTO stands for. `later`
    suits the machine better but is not here; it replaces `first` once it is opened. Where strangers
    share the server, they may not change the inputs `fixed`, which would load or compile models.
    `capacity` are arguments of Session."""

    def __init__(self, first: ModelChoice, shared: bool, **capacity: Any):
        self.first, self.later, self._capacity = first, None, capacity
        self._surveyed = -SURVEY_SECONDS, ""
        self.fixed: tuple[str, ...] = (*MODELS, "numerics") if shared else ()
        self.defaults = {**asdict(first), "pair": first.pair or OWN}
        if first.pair == AUTO:
            pair, why = registry.default_pair()
            self.first, self.later = replace(first, pair=pair.name), registry.pair_to_fetch(pair)
            announce(f"pair {why}", sys.stderr)

    def resolve(self, chosen: ModelChoice) -> ModelChoice:
        """`chosen`, with AUTO replaced by the pair that it stands for. Raises BadInput for models
        that are not offered and for wrong names, which must not unload the pair that is here."""
        if not (chosen.pair or chosen.model):  # asked before the page has its inputs
            return self.first
        if chosen.pair and chosen.pair in (AUTO, self.first.pair):
            first = self.first
            chosen = replace(chosen, pair=first.pair, assistant_model=first.assistant_model)
        if chosen != self.first:
            if self.fixed:
                raise BadInput(
                    f"This server is shared: its pair is {self.first.pair or self.first.model}, "
                    "and its devices and KV cache precision are its owner's to choose."
                )
            _pair(chosen)
        return chosen

    def from_link(self, query: Mapping[str, str]) -> dict[str, Any]:
        """The values of inputs that a link sets, by name, without invalid ones. Devices and a
        visitor's own pair are not taken from a link: a click must not run models of a stranger."""
        values: dict[str, Any] = {}
        if "question" in query:
            values["question"] = query["question"]
        if query.get("pair") in {name for _, name in self.pairs()} - {OWN}:
            values["pair"] = query["pair"]
        for name in {*SETTINGS, "kv_cache", "thinking"} & query.keys() - {*self.fixed}:
            kind = Settings if name in SETTINGS else ModelChoice
            with suppress(BadInput):
                values[name] = getattr(parse(kind, {name: query[name]}), name)
        if "draft_tokens" in values:
            values["draft_tokens"] = str(values["draft_tokens"] or AUTO)
        return values

    def fetch(self, chosen: ModelChoice, report: Report) -> bool:
        """Fetch missing files of the models. Returns whether there is memory to load the models
        beside those in memory now. Raises SpecdemoError."""
        models = fetch_pair(_pair(chosen), report)
        weights = sum(disk.file_size(model.folder / model_files.WEIGHTS) for model in models)
        return hardware.available_bytes() > weights + WORKING_BYTES

    def open_session(self, chosen: ModelChoice, report: Report) -> Session:
        """The session of the models, as `session.open_session` gives it."""
        from specdemo.runs.session import open_session

        session = open_session(_pair(chosen), report, **self._capacity)
        if self.later and chosen.pair == self.later.name:
            self.first = replace(self.first, pair=chosen.pair)
        return session

    @property
    def survey(self) -> str:
        """`table`, at most SURVEY_SECONDS old: each takes 0.1 s of the processor, and many
        visitors may ask."""
        if monotonic() - self._surveyed[0] > SURVEY_SECONDS:
            self._surveyed = monotonic(), self.table()
        return self._surveyed[1]

    def pairs(self) -> list[tuple[str, str]]:
        """(title, name) of each offered pair, for the page's list."""
        auto = self.defaults["pair"] == AUTO
        offered = [("The pair that suits this machine", AUTO)] if auto else []
        offered += [(f"{pair.title}: {pair.use}", pair.name) for pair in registry.PAIRS]
        offered.append((self.defaults["model"] or "Your own pair (name it below)", OWN))
        if self.fixed:
            offered = [item for item in offered if item[1] == self.defaults["pair"]]
        return offered

    def table(self) -> str:
        """The pairs as HTML, each with a button: what it takes of this disk and memory, and the
        speed expected or measured here."""
        rows = ["".join(f'<th scope="col">{title}</th>' for title in TITLES)]
        for pair in registry.PAIRS:
            memory = size(pair.memory_bytes) + ("" if pair.fits else " (more than here)")
            disk = "on this disk" if pair.is_here() else size(pair.download_bytes)
            draft = pair.draft.name if pair.draft else "n-gram lookup"
            speed = pair.read_facts() or pair.read_expected_speed()
            button = f'<button type="button" value="{pair.name}">{pair.title}</button>'
            cells = map(html.escape, (pair.use, draft, memory, disk, speed))
            rows.append(f'<th scope="row">{button}</th><td>{"</td><td>".join(cells)}</td>')
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><caption>{CAPTION}</caption>{body}</table>"


def _pair(chosen: ModelChoice) -> registry.Pair:
    """The chosen pair, with messages in the page's words. Raises BadInput."""
    with naming(lambda field: field.replace("_", " ").capitalize()):
        return registry.chosen_pair(chosen)
