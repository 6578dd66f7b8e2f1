"""From a pair to files on this disk with a tokenizer and a template: all a session needs, nothing compiled yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdemo.engine.trace import PairInfo
from specdemo.zoo import embedded
from specdemo.zoo.pairs import Pair
from specdemo.zoo.progress import Progress, silent
from specdemo.zoo.templates import NAMED, Template
from specdemo.zoo.tokenizer import Tokenizer


@dataclass
class LoadedPair:
    """A pair ready to compile.

    `draft_xml` None means that guesses come from the prompt by lookup. `draft_head_tokens` are the ids that a trimmed
    draft head keeps, in row order (int64), None for a draft with a whole head. `context_limit` is in tokens.
    """

    info: PairInfo
    target_xml: Path
    draft_xml: Path | None
    tokenizer: Tokenizer
    template: Template
    stop_ids: frozenset[int]
    context_limit: int
    draft_head_tokens: np.ndarray | None = None
    device: str = "CPU"
    draft_device: str = "CPU"


def load_pair(pair: Pair, *, progress: Callable[[Progress], None] | None = None) -> LoadedPair:
    """Fetch what of `pair` is missing and open its tokenizer. Raises ZooError with one sentence for the user."""
    return _load_embedded(pair, progress or silent)


def _load_embedded(pair: Pair, report: Callable[[Progress], None]) -> LoadedPair:
    files = embedded.fetch(report)
    return LoadedPair(
        info=PairInfo(
            name=pair.name,
            target=pair.target.name,
            draft=pair.draft.name if pair.draft and files.draft else None,
            target_revision=embedded.REVISION,
            draft_revision=files.draft_revision,
        ),
        target_xml=files.target / "openvino_model.xml",
        draft_xml=files.draft / "openvino_model.xml" if files.draft else None,
        tokenizer=Tokenizer(files.target / "tokenizer.json"),
        template=NAMED[pair.template],
        stop_ids=pair.stop_ids,
        context_limit=pair.context_limit,
        draft_head_tokens=np.load(files.head_tokens) if files.head_tokens else None,
    )
