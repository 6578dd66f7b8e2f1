"""The pairs this demo knows, as data: which repositories, how large, which licence, which prompt template.

Nothing is fetched here; `load` and the modules it calls do that.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdemo.zoo.errors import BadChoice

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
    memory_bytes=1 * GB,
    stop_ids=frozenset({2}),
    context_limit=8192,
    note="Comes from PyPI; needs no Hub. Runs on anything.",
)

PAIRS: tuple[Pair, ...] = (EMBEDDED,)


def find_pair(name: str, *, option: str = "--pair") -> Pair:
    """The pair called `name`. Raises BadChoice, naming the `option` it came from and listing the names there are."""
    for pair in PAIRS:
        if pair.name == name:
            return pair
    names = ", ".join(pair.name for pair in PAIRS)
    raise BadChoice(f"{option} {name!r} is not a pair this demo knows; choose one of {names}.")
