"""The pairs that can be named: repositories, sizes, licences and templates; what of them is here.

Nothing is fetched by this module; `load` does that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specdemo.errors import BadInput
from specdemo.models import embedded, hub, machine, sources
from specdemo.models.checkpoints import on_torch
from specdemo.models.sources import Source
from specdemo.settings import ModelChoice

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Pair:
    """A target model and its draft; `draft` None means n-gram lookup.

    `memory_bytes` is what running it takes: weights, caches and working space. `template` names one
    of `templates.NAMED`, or is "auto" (`load.fitting_template`). `stop_ids` are added to those of
    the model's configuration. `context_limit` is in tokens, 0 for the model's own.
    """

    name: str
    title: str
    target: Source
    draft: Source | None
    template: str = "auto"
    licence: str = "the models' own"
    memory_bytes: int = 0
    stop_ids: frozenset[int] = frozenset()
    context_limit: int = 0

    @property
    def embedded(self) -> bool:
        return not self.target.repo

    @property
    def download_bytes(self) -> int:
        return self.target.download_bytes + (self.draft.download_bytes if self.draft else 0)


EMBEDDED = Pair(
    name="embedded",
    title="SmolLM2-135M-Instruct with a draft distilled for it",
    target=Source("", "SmolLM2-135M-Instruct", 92_871_040),
    draft=Source("", "embedded draft", 0),
    template="chatml",
    licence="Apache-2.0",
    memory_bytes=3_400 * MB,
    stop_ids=frozenset({2}),
    context_limit=8192,
)


def _openvino(name: str, megabytes: int) -> Source:
    return Source(f"OpenVINO/{name}", name, megabytes * MB)


_DOLLY_3B_INT4 = _openvino("dolly-v2-3b-int4-ov", 1_570)
_DOLLY_3B_INT8 = _openvino("dolly-v2-3b-int8-ov", 2_780)
_DOLLY_7B_INT8 = _openvino("dolly-v2-7b-int8-ov", 6_900)
_DOLLY_12B_INT8 = _openvino("dolly-v2-12b-int8-ov", 11_900)
# Not pythia-1.4b-int4-ov or -int8-ov: the files of those names are a model of 12 billion weights.
_PYTHIA_1B_INT4 = _openvino("pythia-1b-int4-ov", 627)
_PYTHIA_70M = Source("EleutherAI/pythia-70m", "pythia-70m", 166 * MB, export="int8")


def _dolly(name: str, title: str, target: Source, draft: Source, memory: int) -> Pair:
    """`memory` is in megabytes."""
    return Pair(
        name=name,
        title=title,
        target=target,
        draft=draft,
        template="dolly",
        licence="MIT (Dolly V2), Apache-2.0 (Pythia)",
        memory_bytes=memory * MB,
        stop_ids=frozenset({50277}),  # "### End"
        context_limit=2048,
    )


# Memory: the target's weights twice, because a session that is asked for exact and fast numerics
# holds two compiled models; the draft's; KV caches of a full context; 1 GB to work in. Exact
# numerics alone take little more than half of it (`rehearse` measures what one of them takes).
PAIRS: tuple[Pair, ...] = (
    EMBEDDED,
    _dolly("dolly-3b", "Dolly V2 3B with Pythia 1B", _DOLLY_3B_INT8, _PYTHIA_1B_INT4, 8_700),
    _dolly("dolly-3b-70m", "Dolly V2 3B with Pythia 70M", _DOLLY_3B_INT8, _PYTHIA_70M, 7_700),
    _dolly("dolly-7b", "Dolly V2 7B with Pythia 1B", _DOLLY_7B_INT8, _PYTHIA_1B_INT4, 17_600),
    _dolly("dolly-12b", "Dolly V2 12B with Pythia 1B", _DOLLY_12B_INT8, _PYTHIA_1B_INT4, 28_500),
    # The pairs that the paper ran. GPT-2 completes text rather than follows instructions.
    _dolly(
        "dolly-12b-paper", "Dolly V2 12B with Dolly V2 3B", _DOLLY_12B_INT8, _DOLLY_3B_INT4, 31_000
    ),
    Pair(
        name="gpt2-xl",
        title="GPT-2 XL with GPT-2",
        target=Source("openai-community/gpt2-xl", "gpt2-xl", 6_430 * MB, export="int8"),
        draft=Source("openai-community/gpt2", "gpt2", 548 * MB, export="int8"),
        template="plain",
        licence="MIT",
        memory_bytes=15_000 * MB,
        stop_ids=frozenset({50256}),
        context_limit=1024,
    ),
)

_DEFAULTS = ("dolly-12b", "dolly-7b", "dolly-3b")
"""From large to small: the default is the first that fits."""


def own_pair(target: Source, draft: Source | None) -> Pair:
    """A pair of the user's own: template, stop ids and context limit come from its own files."""
    title = f"{target.name} with {draft.name}" if draft else target.name
    return Pair("own", title, target, draft)


def find_pair(name: str, *, option: str = "--pair") -> Pair:
    """The pair called `name`. Raises BadInput, naming the `option` it came from."""
    for pair in PAIRS:
        if pair.name == name:
            return pair
    names = ", ".join(pair.name for pair in PAIRS)
    raise BadInput(f"{option} {name!r} is not a pair this demo knows; choose one of {names}.")


def chosen_pair(
    choice: ModelChoice,
    name: Callable[[str], str] = str,
    default: Callable[[], Pair] = lambda: default_pair().pair,
) -> Pair:
    """The pair that `choice` names, `default()` where it names none. `name` says what the user
    calls a field of ModelChoice. Raises BadInput for names that cannot be used."""
    machine.require_device(choice.device, name("device"))
    machine.require_device(choice.draft_device, name("draft_device"))
    if choice.kv_cache != "auto" and any(map(on_torch, (choice.device, choice.draft_device))):
        raise BadInput(
            f"{name('kv_cache')} {choice.kv_cache} is for OpenVINO devices; on torch keys and "
            "values have the type of the weights: leave it out."
        )
    if choice.target:
        target, draft = (
            sources.source_of(text, name(field), choice.weight_format) if text else None
            for field, text in (("target", choice.target), ("draft", choice.draft))
        )
        return own_pair(target, draft)
    if choice.draft:
        raise BadInput(f"{name('draft')} needs {name('target')} beside it: it drafts for your own.")
    return find_pair(choice.pair, option=name("pair")) if choice.pair else default()


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A pair, and whether it fits this memory and is here."""

    pair: Pair
    fits: bool
    ready: bool


def survey() -> list[Surveyed]:
    """All pairs. Looks at this machine and its disk, never at the network."""
    memory = machine.memory_bytes()
    return [Surveyed(pair, pair.memory_bytes <= memory, is_ready(pair)) for pair in PAIRS]


def is_ready(pair: Pair) -> bool:
    """Whether everything `pair` needs is on this disk."""
    if pair.embedded:
        return embedded.is_ready()
    return sources.is_ready([source for source in (pair.target, pair.draft) if source])


@dataclass(frozen=True, slots=True)
class Choice:
    """The pair that is used when none was asked for, and the reason, one sentence for the user.
    `later` is one that suits this machine better and is not here."""

    pair: Pair
    why: str
    later: Pair | None = None


def default_pair(*, fetch: bool = True) -> Choice:
    """The largest Dolly pair that fits this memory, of those on disk, else any if the Hub answers
    within two seconds; without one, the embedded pair. Without `fetch` one that is here, and the
    network is not asked. Never raises."""
    memory = machine.memory_bytes()
    fitting = [pair for pair in map(find_pair, _DEFAULTS) if pair.memory_bytes <= memory]
    ready = [pair for pair in fitting if is_ready(pair)]
    pair, later = EMBEDDED, None
    if ready:
        pair, why = ready[0], "the largest Dolly pair that is here already and fits this machine"
        if pair is not fitting[0]:
            why += f"; {fitting[0].name} would fit too"
    elif not fitting:
        why = f"no Dolly pair fits the {memory / 1e9:.0f} GB of this machine"
    elif not fetch:
        later, why = fitting[0], f"it is here and {fitting[0].name} is not yet"
    elif hub.answers():
        pair, why = fitting[0], "the largest Dolly pair that fits this machine"
    else:
        why = "the Hub cannot be reached and no Dolly pair is here"
    return Choice(pair, f"{pair.name}: {why}.", later)
