"""Which models a visitor may choose, what "auto" means on this machine, and how a choice is opened. Draws nothing."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdemo.ui.controls import AUTO, OWN, InputError, Models
from specdemo.models.pairs import PAIRS, Pair, find_pair, own_pair

if TYPE_CHECKING:
    from specdemo.session import Session


@dataclass(frozen=True, slots=True)
class Offered:
    """A line of the page's list of pairs: the value and what is read."""

    value: str
    title: str


class Offer:
    """The choices of one server. `asked` is the pair its user named, None to take the one that suits the machine;
    `devices` are the OpenVINO devices that the page starts with, target and draft, `kv_cache` the cache's precision."""

    def __init__(
        self,
        asked: str | None,
        allow_own_pair: bool,
        devices: tuple[str, str] = ("CPU", "CPU"),
        kv_cache: str = "auto",
    ):
        self.asked, self.allow_own_pair, self.devices, self.kv_cache = asked, allow_own_pair, devices, kv_cache
        self._lock = threading.Lock()
        self._default: str | None = asked
        self.why = ""

    @property
    def default(self) -> str:
        """The name of the pair to take unasked. The first call may ask the network, for two seconds at most."""
        with self._lock:
            if self._default is None:
                from specdemo.models import catalogue

                choice = catalogue.default_pair()
                self._default, self.why = choice.pair.name, choice.why.partition(": ")[2] or choice.why
            return self._default

    def resolve(self, models: Models) -> Models:
        """`models` with "auto" replaced. Raises InputError for a pair of the visitor's own where that is not allowed,
        BadChoice for a model or a device that cannot be: a slip of the pen must not unload the pair that is here."""
        if models.pair == OWN and not self.allow_own_pair:
            raise InputError("Pairs of your own are not offered on this server; choose one from the list.")
        _pair(models)
        _check_devices(models)
        return dataclasses.replace(models, pair=self.default) if models.pair == AUTO else models

    def first(self) -> Models:
        """What the server loads before anybody has asked."""
        return Models(self.default, *self.devices, self.kv_cache)

    def pairs(self) -> list[Offered]:
        """The list without looking at the machine: names and titles."""
        offered = [Offered(pair.name, pair.title) for pair in PAIRS]
        if self.asked is None:
            offered.insert(0, Offered(AUTO, "The pair that suits this machine"))
        return offered + ([Offered(OWN, "Your own pair (name it below)")] if self.allow_own_pair else [])

    def surveyed_pairs(self) -> list[Offered]:
        """The list with what stands against or for each pair here. Looks at memory and disk, not at the network."""
        from specdemo.models.catalogue import survey

        facts = {found.pair.name: standing(found.pair, found.fits, found.ready) for found in survey()}
        known = {AUTO: f": {self._default}" if self._default else ""}
        return [
            Offered(one.value, one.title + (f" ({facts[one.value]})" if one.value in facts else known.get(one.value, "")))
            for one in self.pairs()
        ]


def standing(pair: Pair, fits: bool, ready: bool) -> str:
    """How a pair stands on this machine, for the list: "here already", "3.4 GB to download, needs 8.7 GB: too large"."""
    where = "here already" if ready else f"{_size(pair.download_bytes)} to download"
    return where if fits else f"{where}; needs {_size(pair.memory_bytes)} of memory, more than there is here"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def devices() -> list[str]:
    """OpenVINO's devices here. Imports OpenVINO, which takes a moment."""
    from specdemo.models import machine

    return machine.devices()


def open_session(models: Models, report: Callable[[str, float | None], None], **capacity) -> Session:
    """Fetch what is missing of `models`, compile it, and return its session, made for `capacity` (arguments of Session:
    `visitors`, `cache_mb`, `exclusive`). Slow; raises ZooError for the visitor."""
    from specdemo.models.load import load_pair

    _check_devices(models)
    pair = _pair(models)
    loaded = load_pair(pair, progress=lambda progress: report(progress.line, progress.fraction))
    report("Compiling the models for this processor", None)
    from specdemo.session import Session

    return Session(dataclasses.replace(
        loaded, device=models.device, draft_device=models.draft_device, kv_cache=models.kv_cache), **capacity)


def _pair(models: Models) -> Pair | None:
    """The pair that is named, None for "auto". Asks neither disk nor network more than whether a folder is there."""
    from specdemo.models.models import source_of

    if models.pair == AUTO:
        return None
    if models.pair != OWN:
        return find_pair(models.pair, option="Pair")
    target = source_of(models.target, "Target", models.weight_format)
    return own_pair(target, source_of(models.draft, "Draft", models.weight_format) if models.draft else None)


def _check_devices(models: Models) -> None:
    from specdemo.models.machine import require_device

    require_device(models.device, "Device")
    require_device(models.draft_device, "Draft device")
