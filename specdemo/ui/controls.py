"""The settings panel: its components, their limits and help, and the link that restores them. Decides nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from specdemo.trace import Settings

DRAFT_TOKENS = ["auto", *(str(k) for k in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16))]
DRAFTERS = ["auto", "model", "lookup"]
NUMERICS = ["exact", "fast"]
COUPLINGS = ["shared", "maximal"]
KV_CACHES = ["auto", "f32", "f16", "bf16", "u8"]
WEIGHT_FORMATS = ["int8", "int4", "fp16"]
AUTO, OWN = "auto", "own"
"""Two choices of pair beside the names in `zoo.pairs`: the one that suits the machine, and one the visitor names."""

LONGEST_ANSWER = 2000
LONGEST_LINK_QUESTION = 2000

NAMES = ("question", "pair", "max_new_tokens", "draft_tokens", "drafter", "temperature", "top_p", "top_k", "seed",
         "numerics", "coupling", "device", "draft_device", "kv_cache", "target", "draft", "weight_format")
"""The inputs of a run, in the order in which the page and the endpoints pass them; also the names in a link."""


class InputError(ValueError):
    """A setting that cannot be used; the message is one sentence for the visitor."""


@dataclass(frozen=True, slots=True)
class Models:
    """Which models, and where they run. `target` and `draft` (a folder or a Hub repository) and `weight_format` count
    for the pair OWN only."""

    pair: str
    device: str = "CPU"
    draft_device: str = "CPU"
    kv_cache: str = "auto"
    target: str = ""
    draft: str = ""
    weight_format: str = "int8"

    def __str__(self) -> str:
        return f"{self.target} with {self.draft or 'no draft'}" if self.pair == OWN else self.pair


@dataclass(frozen=True, slots=True)
class Request:
    """What a visitor asked for."""

    question: str
    pair: Models
    settings: Settings


def parse(question, pair, max_new_tokens, draft_tokens, drafter, temperature, top_p, top_k, seed, numerics,
          coupling="shared", device="CPU", draft_device="CPU", kv_cache="auto", target="", draft="",
          weight_format="int8") -> Request:
    """The components' values as a Request; `pair` may be a Models already. Raises InputError for an empty question or
    an impossible value."""
    question = question if isinstance(question, str) else ""
    if not question.strip():
        raise InputError("Please type a question or an instruction first; the box is empty.")
    if not isinstance(pair, Models):
        pair = models(pair, device, draft_device, kv_cache, target, draft, weight_format)
    return Request(question, pair, Settings(
        max_new_tokens=number("Maximum tokens", max_new_tokens, 1, LONGEST_ANSWER, int),
        draft_tokens=_draft_tokens(draft_tokens),
        drafter=_choice("Drafter", drafter, DRAFTERS),
        temperature=number("Temperature", temperature, 0, 5, float),
        top_p=number("Top-p", top_p, 0.01, 1, float),
        top_k=number("Top-k", top_k, 0, 100_000, int),
        seed=number("Seed", seed, 0, 2**31 - 1, int),
        numerics=_choice("Numerics", numerics, NUMERICS),
        coupling=_choice("Acceptance rule", coupling, COUPLINGS),
    ))


def models(pair, device="CPU", draft_device="CPU", kv_cache="auto", target="", draft="", weight_format="int8") -> Models:
    """The choice of models that these values make. Raises InputError. Whether they exist is found when they are opened."""
    chosen = Models(
        _text("Pair", pair), _text("Device", device) or "CPU", _text("Draft device", draft_device) or "CPU",
        _choice("KV cache precision", kv_cache, KV_CACHES),
    )
    if chosen.pair != OWN:
        return chosen
    target, draft = _text("Target", target), _text("Draft", draft)
    if not target:
        raise InputError("Your own pair needs a target: a folder on the server or a Hub repository (owner/name).")
    return replace(chosen, target=target, draft=draft,
                   weight_format=_choice("Weight format", weight_format, WEIGHT_FORMATS))


def _text(label: str, value) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if len(text) > 500 or not text.isprintable():
        raise InputError(f"{label} should be a short line of text, not {_shown(value)}.")
    return text


def number(label: str, value, low: float, high: float, kind: type):
    """`value` as an int or a float within limits. Raises InputError, naming the `label`."""
    try:
        found = kind(value)
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None or not low <= found <= high or found != float(value):
        whole = "a whole number" if kind is int else "a number"
        raise InputError(f"{label} should be {whole} from {low:,} to {high:,}, not {_shown(value)}.")
    return found


def _choice(label: str, value, options: list[str]) -> str:
    if value not in options:
        raise InputError(f"{label} should be one of {', '.join(options)}, not {_shown(value)}.")
    return value


def _draft_tokens(value) -> int | None:
    if value is None or str(value).strip().lower() == "auto":
        return None
    try:
        return number("Draft length", value, 1, 64, int)
    except InputError:
        raise InputError(f"Draft length should be auto or a whole number from 1 to 64, not {_shown(value)}.") from None


def _shown(value) -> str:
    return "nothing" if value is None or value == "" else f"{value!r:.40}"


def link_query(values: Mapping[str, object]) -> str:
    """The query string that restores these values (question shortened to LONGEST_LINK_QUESTION characters)."""
    kept = {name: str(values[name]) for name in NAMES if values.get(name) not in (None, "")}
    kept["question"] = kept.get("question", "")[:LONGEST_LINK_QUESTION]
    return urlencode(kept)


def from_link(query: Mapping[str, str], pairs: list[str], defaults: Mapping[str, object]) -> dict[str, object]:
    """The components' values that a link asks for; whatever is missing or impossible stays at its default.

    Devices and a pair of one's own are not taken from a link: a click must not fetch or run what a stranger named.
    """
    values = dict(defaults)
    values["question"] = query.get("question", "")[:LONGEST_LINK_QUESTION]
    if query.get("pair") in pairs and query["pair"] != OWN:
        values["pair"] = query["pair"]
    readers = {
        "max_new_tokens": lambda text: number("", text, 1, LONGEST_ANSWER, int),
        "draft_tokens": lambda text: _choice("", text, DRAFT_TOKENS),
        "drafter": lambda text: _choice("", text, DRAFTERS),
        "temperature": lambda text: number("", text, 0, 2, float),
        "top_p": lambda text: number("", text, 0.05, 1, float),
        "top_k": lambda text: number("", text, 0, 1000, int),
        "seed": lambda text: number("", text, 0, 2**31 - 1, int),
        "numerics": lambda text: _choice("", text, NUMERICS),
        "coupling": lambda text: _choice("", text, COUPLINGS),
        "kv_cache": lambda text: _choice("", text, KV_CACHES),
    }
    for name, read in readers.items():
        if name in query:
            try:
                values[name] = read(query[name])
            except InputError:
                continue
    return values
