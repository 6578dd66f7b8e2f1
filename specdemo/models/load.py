"""From a pair to files on this disk with a tokenizer and a template: all a session needs, nothing compiled yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specdemo.trace import PairInfo
from specdemo.models import embedded, embedded_draft, ir, models
from specdemo.models.pairs import Pair
from specdemo.models.progress import Progress, silent
from specdemo.models.templates import DOLLY, NAMED, PLAIN, Template, chat_template
from specdemo.models.tokenizer import Tokenizer
from specdemo.models.vocabulary import require_same_vocabulary

if TYPE_CHECKING:
    from specdemo.engine.drafters import PhraseTable

UNSAID_CONTEXT = 2048
"""Tokens, for a model whose configuration names no limit."""


@dataclass
class LoadedPair:
    """A pair ready to compile.

    `draft_xml` None means that guesses come from the prompt by lookup. `draft_head_tokens` are the ids that a trimmed
    draft head keeps, ascending (int64), None for a draft with a whole head. `phrases` is a table of what the target
    usually says, None where nobody made one. `draft_window` is how many tokens of a text that others wrote the draft
    reads, None for all. `context_limit` is in tokens. `kv_cache`, one of
    `machine.KV_CACHES`, is for target and draft alike; like the devices it is the user's choice, kept here for whoever
    compiles the models.
    """

    info: PairInfo
    target_xml: Path
    draft_xml: Path | None
    tokenizer: Tokenizer
    template: Template
    stop_ids: frozenset[int]
    context_limit: int
    draft_head_tokens: np.ndarray | None = None
    phrases: PhraseTable | None = None
    draft_window: int | None = None
    device: str = "CPU"
    draft_device: str = "CPU"
    kv_cache: str = "auto"


def load_pair(pair: Pair, *, progress: Callable[[Progress], None] | None = None) -> LoadedPair:
    """Fetch what of `pair` is missing and open its tokenizer. Raises ZooError with one sentence for the user."""
    report = progress or silent
    return _load_embedded(pair, report) if pair.embedded else _load_models(pair, report)


def _load_models(pair: Pair, report: Callable[[Progress], None]) -> LoadedPair:
    sources = [pair.target] if pair.draft is None else [pair.target, pair.draft]
    target, *drafts = models.prepare(sources, report)
    draft = drafts[0] if drafts else None
    tokenizer = Tokenizer(target.folder / "tokenizer.json")
    if draft and pair.draft:
        draft_tokenizer = Tokenizer(draft.folder / "tokenizer.json")
        require_same_vocabulary(tokenizer, draft_tokenizer, pair.target.name, pair.draft.name)
    config = ir.read_config(target.folder)
    return LoadedPair(
        info=PairInfo(
            name=pair.name,
            target=pair.target.name,
            draft=pair.draft.name if pair.draft else None,
            target_revision=target.revision,
            draft_revision=draft.revision if draft else "",
        ),
        target_xml=target.folder / ir.MODEL,
        draft_xml=draft.folder / ir.MODEL if draft else None,
        tokenizer=tokenizer,
        template=_template(pair, target.folder, tokenizer),
        stop_ids=pair.stop_ids | config.stop_ids | _dolly_end(tokenizer),
        context_limit=_context(pair, config, draft),
    )


def _template(pair: Pair, folder: Path, tokenizer: Tokenizer) -> Template:
    if pair.template != "auto":
        return NAMED[pair.template]
    return chat_template(folder) or (DOLLY if _dolly_end(tokenizer) else PLAIN)


def _dolly_end(tokenizer: Tokenizer) -> frozenset[int]:
    """The id of "### End" if the vocabulary is Dolly's, which came before chat templates did."""
    end, response = tokenizer.token_id("### End"), tokenizer.token_id("### Response:\n")
    return frozenset() if end is None or response is None else frozenset({end})


def _context(pair: Pair, config: ir.ModelConfig, draft: models.Model | None) -> int:
    """Tokens both models were made for: learned positions beyond it would fail, rotary ones would be nonsense."""
    limits = [pair.context_limit, config.context_limit, ir.read_config(draft.folder).context_limit if draft else 0]
    return min((limit for limit in limits if limit), default=UNSAID_CONTEXT)


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
        draft_head_tokens=np.sort(np.load(files.head_tokens)) if files.head_tokens else None,
        phrases=embedded.phrases(),
        draft_window=embedded_draft.WINDOW,
    )
