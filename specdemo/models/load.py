"""From a pair to files on this disk with a tokenizer and a template. Nothing is compiled here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from specdemo.engine.checkpoint import Checkpoint
from specdemo.engine.profile import Profile
from specdemo.errors import BadInput, FetchError
from specdemo.models import embedded, ir, ngrams, sources
from specdemo.models.checkpoints import on_torch, open_checkpoint, untested
from specdemo.models.drafts import chosen_draft
from specdemo.models.hub import Snapshot
from specdemo.models.integrity import Check
from specdemo.models.ngrams import NGramTable
from specdemo.models.progress import Progress, Report, silent
from specdemo.models.registry import Pair
from specdemo.models.templates import DOLLY, NAMED, PLAIN, Template, chat_template
from specdemo.models.tokenizer import Tokenizer
from specdemo.settings import ModelChoice
from specdemo.trace import PairInfo

UNSAID_CONTEXT = 2048
"""Tokens, for a model whose configuration names no limit."""


@dataclass
class LoadedPair:
    """A pair ready to compile: IR, or checkpoints for torch devices; `draft_xml` None means n-gram
    lookup only, unless there is a draft head, `head_xml`. `context_limit` is in tokens.
    `typical_profile` is what to expect before this machine has measured. `check` compares the files
    with their hashes, since they were opened."""

    info: PairInfo
    target_xml: Path | Checkpoint
    draft_xml: Path | Checkpoint | None
    tokenizer: Tokenizer
    template: Template
    stop_ids: frozenset[int]
    context_limit: int
    ngrams: NGramTable | None = None
    device: str = "CPU"
    draft_device: str = "CPU"
    kv_cache: str = "auto"
    typical_profile: Profile | None = None
    head_xml: Path | None = None
    check: Check = field(default_factory=Check)


def load_pair(
    pair: Pair, *, choice: ModelChoice | None = None, progress: Report = silent
) -> LoadedPair:
    """Fetch what of `pair` is missing and open its tokenizer; `choice` says where it will run.

    Raises FetchError, or BadInput for models that cannot be used, each with one sentence.
    """
    choice = choice or ModelChoice()
    pair = replace(pair, drafts=chosen_draft(pair, choice))
    target, draft = [*fetch_pair(pair, choice, progress), None][:2]
    check = Check([one.folder for one in (target, draft) if one])
    try:
        return _opened(pair, target, draft, choice, check)
    except FetchError:
        check.require()  # the reason may be damage, which this mends
        raise


def fetch_pair(pair: Pair, choice: ModelChoice, progress: Report = silent) -> list[Snapshot]:
    """The files of the target and, if it has one, the draft as `choice` will run them, fetched
    where they are missing. Raises what `load_pair` raises; what `progress` raises ends it, and a
    repetition goes on."""
    pair = replace(pair, drafts=chosen_draft(pair, choice))
    devices = (choice.device, choice.draft_device)
    for warning in filter(None, map(untested, sorted(set(devices)))):
        progress(Progress(warning))
    if pair.embedded:
        return list(embedded.fetch(progress)[: 1 + len(pair.drafts)])
    wanted = [
        replace(source, export=sources.AS_IT_IS) if on_torch(device) else source
        for source, device in zip((pair.target, *pair.drafts), devices, strict=False)
    ]
    return sources.prepare(wanted, progress)


def _opened(
    pair: Pair, target: Snapshot, draft: Snapshot | None, choice: ModelChoice, check: Check
) -> LoadedPair:
    tokenizer = Tokenizer(target.folder / "tokenizer.json")
    revision, head_xml = draft.revision if draft else "", None
    if draft and (draft.folder / ir.HEAD).is_file():
        head_xml = draft.folder / ir.HEAD
        if not (draft.folder / ir.MODEL).is_file():
            draft = None  # nothing but a draft head
    loaded = LoadedPair(
        info=PairInfo(
            name=pair.name,
            target=pair.target.name,
            draft=pair.draft.name if pair.draft else None,
            target_revision=target.revision,
            draft_revision=revision,
        ),
        target_xml=_model(pair, target, choice.device),
        draft_xml=_model(pair, draft, choice.draft_device) if draft else None,
        tokenizer=tokenizer,
        template=NAMED.get(pair.template, PLAIN),
        stop_ids=pair.stop_ids,
        context_limit=pair.context_limit,
        device=choice.device,
        draft_device=choice.draft_device,
        kv_cache=choice.kv_cache,
        head_xml=head_xml,
        check=check,
    )
    if pair.embedded:
        return replace(
            loaded,
            ngrams=embedded.ngrams(),
            typical_profile=None if on_torch(choice.device) else embedded.typical_profile(),
        )
    if draft:
        draft_tokenizer = Tokenizer(draft.folder / "tokenizer.json")
        require_same_vocabulary(tokenizer, draft_tokenizer, pair.target.name, pair.draft.name)
    if pair.template not in NAMED:
        loaded.template, loaded.stop_ids = fitting_template(target.folder, tokenizer)
    stop_ids, own_limit = ir.read_config(target.folder)
    loaded.stop_ids |= stop_ids
    # Beyond the context of either model, learned positions fail and rotary ones were never trained.
    limits = [pair.context_limit, own_limit]
    if draft and pair.draft.repo:  # the embedded target has no config.json
        limits.append(ir.read_config(draft.folder)[1])
    loaded.context_limit = min(filter(None, limits), default=UNSAID_CONTEXT)
    loaded.ngrams = ngrams.load(ngrams.made_path(pair.target.name, target.revision))
    return loaded


def _model(pair: Pair, model: Snapshot, device: str) -> Path | Checkpoint:
    """What the engine opens on `device`."""
    if not on_torch(device):
        return model.folder / ir.MODEL
    in_gguf = pair.embedded or (model.folder / embedded.SOURCE).is_file()
    return open_checkpoint(embedded.gguf(model) if in_gguf else model.folder)


def fitting_template(folder: Path, tokenizer: Tokenizer) -> tuple[Template, frozenset[int]]:
    """The template of the model in `folder` by its own files, and stop ids that go with it. Dolly
    is known by its vocabulary. Raises FetchError for a chat template that cannot be used."""
    end, response = tokenizer.token_id("### End"), tokenizer.token_id("### Response:\n")
    if end is not None and response is not None:
        return chat_template(folder) or DOLLY, frozenset({end})
    return chat_template(folder) or PLAIN, frozenset()


def require_same_vocabulary(
    target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str
) -> None:
    """Raise BadInput, naming the first difference, if an id of both means different strings. Ids
    that only one of them has are fine: the engine masks what the target does not have."""
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
