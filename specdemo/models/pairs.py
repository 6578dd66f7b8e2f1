"""The pairs this demo knows, as data: which repositories, how large, which licence, which prompt template.

Nothing is fetched here; `load` and the modules it calls do that.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdemo.models.errors import BadChoice

GB = 1_000_000_000
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """One model and where it comes from.

    `repo` is a Hub repository, a folder, or "" for the model that comes with the embedded pair. `revision` may be a
    prefix of a commit: it says what was seen, while `main` is what is followed. `export` is the weight format made
    on this machine from a PyTorch checkpoint ("" for OpenVINO IR). `download_bytes` is what a first use transfers.
    """

    repo: str
    name: str
    download_bytes: int
    revision: str = ""
    export: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target model and its draft. `draft` None means that guesses come from the prompt by n-gram lookup.

    `memory_bytes` is what running it needs, weights and caches and working space together. `template` names one of
    `templates.NAMED`, or "auto": the tokenizer's own chat template if it has one, plain text otherwise. Stop ids are
    added to the end token that the model's own configuration names.
    """

    name: str
    title: str
    target: Source
    draft: Source | None
    template: str
    licence: str
    memory_bytes: int
    stop_ids: frozenset[int] = frozenset()
    context_limit: int = 0
    note: str = ""

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
    note="Comes from PyPI; needs no Hub. Runs on anything.",
)

_DOLLY_3B_INT4 = Source("OpenVINO/dolly-v2-3b-int4-ov", "dolly-v2-3b-int4-ov", 1_570 * MB, "375b0f2")
_DOLLY_3B_INT8 = Source("OpenVINO/dolly-v2-3b-int8-ov", "dolly-v2-3b-int8-ov", 2_780 * MB, "3934949")
_DOLLY_7B_INT8 = Source("OpenVINO/dolly-v2-7b-int8-ov", "dolly-v2-7b-int8-ov", 6_900 * MB, "a18d4df")
_DOLLY_12B_INT8 = Source("OpenVINO/dolly-v2-12b-int8-ov", "dolly-v2-12b-int8-ov", 11_900 * MB, "a74f842")
_PYTHIA_1B_INT4 = Source("OpenVINO/pythia-1b-int4-ov", "pythia-1b-int4-ov", 627 * MB, "962eba4")
# Not pythia-1.4b-int4-ov or -int8-ov: the files under those names are a model of 12 billion weights.

_DOLLY_END = frozenset({50277})  # "### End"


def _dolly(name: str, title: str, target: Source, draft: Source, memory_bytes: int, note: str) -> Pair:
    return Pair(
        name,
        title,
        target,
        draft,
        template="dolly",
        licence="MIT (Dolly V2), Apache-2.0 (Pythia)",
        memory_bytes=memory_bytes,
        stop_ids=_DOLLY_END,
        context_limit=2048,
        note=note,
    )


# Memory: the target's weights twice, because exact and fast numerics are two compiled models and a session that was asked
# for both holds both; the draft's; KV caches of a full context; 1 GB to work in. The files themselves are mapped, and
# need not stay in memory once a model is compiled. Exact numerics alone take little more than half of it, so a
# smaller machine can run these too (`rehearse` says what one of them takes).
PAIRS: tuple[Pair, ...] = (
    EMBEDDED,
    _dolly("dolly-3b", "Dolly V2 3B with Pythia 1B", _DOLLY_3B_INT8, _PYTHIA_1B_INT4, 8_700 * MB,
           "Fits a free Space. The draft is dear here: about 0.4 of the target's time a step."),
    _dolly("dolly-3b-70m", "Dolly V2 3B with Pythia 70M", _DOLLY_3B_INT8,
           Source("EleutherAI/pythia-70m", "pythia-70m", 166 * MB, export="int8"), 7_700 * MB,
           "A draft that costs next to nothing and is wrong more often; exported here on first use."),
    _dolly("dolly-7b", "Dolly V2 7B with Pythia 1B", _DOLLY_7B_INT8, _PYTHIA_1B_INT4, 17_600 * MB,
           "About ten to one in size, as the paper advises."),
    _dolly("dolly-12b", "Dolly V2 12B with Pythia 1B", _DOLLY_12B_INT8, _PYTHIA_1B_INT4, 28_500 * MB,
           "The paper's target with a draft a tenth its size."),
    _dolly("dolly-12b-paper", "Dolly V2 12B with Dolly V2 3B", _DOLLY_12B_INT8, _DOLLY_3B_INT4, 31_000 * MB,
           "The pair that the paper ran."),
    Pair(
        "gpt2-xl",
        "GPT-2 XL with GPT-2",
        Source("openai-community/gpt2-xl", "gpt2-xl", 6_430 * MB, export="int8"),
        Source("openai-community/gpt2", "gpt2", 548 * MB, export="int8"),
        template="plain",
        licence="MIT",
        memory_bytes=15_000 * MB,
        stop_ids=frozenset({50256}),
        context_limit=1024,
        note="Also the paper's. A checkpoint, exported here on first use: needs requirements-export.txt. "
        "It completes text rather than follows instructions.",
    ),
)  # fmt: skip

BY_SIZE = ("dolly-12b", "dolly-7b", "dolly-3b")
"""The Dolly pairs from large to small: the default is the first that fits."""


def own_pair(target: Source, draft: Source | None) -> Pair:
    """A pair of the user's own: chat template, stop ids and context come from the model's own files."""
    title = target.name if draft is None else f"{target.name} with {draft.name}"
    return Pair("own", title, target, draft, template="auto", licence="the models' own", memory_bytes=0)


def find_pair(name: str, *, option: str = "--pair") -> Pair:
    """The pair called `name`. Raises BadChoice, naming the `option` it came from and listing the names there are."""
    for pair in PAIRS:
        if pair.name == name:
            return pair
    names = ", ".join(pair.name for pair in PAIRS)
    raise BadChoice(f"{option} {name!r} is not a pair this demo knows; choose one of {names}.")
