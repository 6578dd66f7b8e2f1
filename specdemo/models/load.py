"""From a pair to files on this disk with a tokenizer and a template. Nothing is compiled here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specdemo.errors import BadInput
from specdemo.models import embedded, ir, sources
from specdemo.models.ngrams import NGramTable
from specdemo.models.progress import Report, silent
from specdemo.models.registry import Pair
from specdemo.models.templates import DOLLY, NAMED, PLAIN, Template, chat_template
from specdemo.models.tokenizer import Tokenizer
from specdemo.settings import ModelChoice
from specdemo.trace import PairInfo

UNSAID_CONTEXT = 2048
"""Tokens, for a model whose configuration names no limit."""


@dataclass
class LoadedPair:
    """A pair ready to compile.

    Attributes:
        draft_xml: None for n-gram lookup only.
        context_limit: in tokens.
        draft_head_tokens: the ids that a trimmed draft head keeps, ascending (int64 [n]); None for
            a whole head.
        ngrams: the target's n-gram table, None where there is none.
        draft_window: how many tokens of the prompt the draft reads, None for all.
        device, draft_device: OpenVINO's names.
        kv_cache: precision of both KV caches, see `settings.ModelChoice`.
    """

    info: PairInfo
    target_xml: Path
    draft_xml: Path | None
    tokenizer: Tokenizer
    template: Template
    stop_ids: frozenset[int]
    context_limit: int
    draft_head_tokens: np.ndarray | None = None
    ngrams: NGramTable | None = None
    draft_window: int | None = None
    device: str = "CPU"
    draft_device: str = "CPU"
    kv_cache: str = "auto"


def load_pair(
    pair: Pair, *, choice: ModelChoice | None = None, progress: Report = silent
) -> LoadedPair:
    """Fetch what of `pair` is missing and open its tokenizer; `choice` says where it will run.

    Raises FetchError, or BadInput for models that cannot be used, each with one sentence.
    """
    loaded = _load_embedded(pair, progress) if pair.embedded else _load_models(pair, progress)
    choice = choice or ModelChoice()
    return replace(
        loaded, device=choice.device, draft_device=choice.draft_device, kv_cache=choice.kv_cache
    )


def _load_models(pair: Pair, report: Report) -> LoadedPair:
    wanted = [source for source in (pair.target, pair.draft) if source]
    target, *drafts = sources.prepare(wanted, report)
    draft = drafts[0] if drafts else None
    tokenizer = Tokenizer(target.folder / "tokenizer.json")
    if draft:
        draft_tokenizer = Tokenizer(draft.folder / "tokenizer.json")
        require_same_vocabulary(tokenizer, draft_tokenizer, pair.target.name, pair.draft.name)
    config = ir.read_config(target.folder)
    template, stop_ids = NAMED.get(pair.template), pair.stop_ids | config.stop_ids
    if template is None:
        template, ends = fitting_template(target.folder, tokenizer)
        stop_ids |= ends
    # Beyond the context of either model, learned positions fail and rotary ones were never trained.
    limits = [pair.context_limit, config.context_limit]
    limits += [ir.read_config(one.folder).context_limit for one in drafts]
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
        template=template,
        stop_ids=stop_ids,
        context_limit=min(filter(None, limits), default=UNSAID_CONTEXT),
    )


def fitting_template(folder: Path, tokenizer: Tokenizer) -> tuple[Template, frozenset[int]]:
    """The template of the model in `folder` by its own files, and stop ids that go with it.

    Dolly came before chat templates and is known by its vocabulary. Raises FetchError for a chat
    template that cannot be used.
    """
    end, response = tokenizer.token_id("### End"), tokenizer.token_id("### Response:\n")
    if end is not None and response is not None:
        return chat_template(folder) or DOLLY, frozenset({end})
    return chat_template(folder) or PLAIN, frozenset()


def _load_embedded(pair: Pair, report: Report) -> LoadedPair:
    files = embedded.fetch(report)
    return LoadedPair(
        info=PairInfo(
            name=pair.name,
            target=pair.target.name,
            draft=pair.draft.name,
            target_revision=embedded.REVISION,
            draft_revision=files.draft_revision,
        ),
        target_xml=files.target / ir.MODEL,
        draft_xml=files.draft / ir.MODEL,
        tokenizer=Tokenizer(files.target / "tokenizer.json"),
        template=NAMED[pair.template],
        stop_ids=pair.stop_ids,
        context_limit=pair.context_limit,
        draft_head_tokens=embedded.head_tokens(),
        ngrams=embedded.ngrams(),
        draft_window=embedded.DRAFT_WINDOW,
    )


def require_same_vocabulary(
    target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str
) -> None:
    """Raise BadInput, naming the first difference, if an id of both means different strings.

    Ids that only one of them has are fine: vocabularies are padded differently, and the target may
    have tokens of its own. The engine masks what the target does not have.
    """
    in_target = {id: string for string, id in target.vocabulary().items()}
    in_draft = {id: string for string, id in draft.vocabulary().items()}
    different = [id for id in in_target.keys() & in_draft.keys() if in_target[id] != in_draft[id]]
    if different:
        id = min(different)
        raise BadInput(
            f"{draft_name} cannot draft for {target_name}, their vocabularies differ: token {id} "
            f"is {in_target[id]!r} in the target and {in_draft[id]!r} in the draft; choose a draft "
            "of the same tokenizer family."
        )
