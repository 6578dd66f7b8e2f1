"""Loads a pair: files on this disk, tokenizer and chat template. Compiles nothing."""

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from specdemo.convert import configuration, model_files
from specdemo.engine.pair_files import Checkpoint, PairFiles, weights_size
from specdemo.engine.profile import Profile
from specdemo.errors import BadInput, FetchError, ModelError
from specdemo.machine import measured
from specdemo.machine.disk import file_size
from specdemo.machine.hardware import on_torch, require_memory
from specdemo.machine.terminal import Report, silent, size
from specdemo.pairs import embedded, sources, storage
from specdemo.pairs.hub import WORKING_BYTES, Check, Snapshot
from specdemo.pairs.registry import NO_DRAFT, Pair, PairInfo
from specdemo.pairs.sources import Source
from specdemo.text.templates import DOLLY, RAW, Template, chat_template
from specdemo.text.tokenizer import Tokenizer
from specdemo.text.translation import TextTranslation

log = logging.getLogger(__name__)

DRAFT_TOKENS = 65_536
"""A draft model proposes only so many tokens, the more frequent ones: of Qwen2.5's 151,936 they are
97 % of English text, of Gemma's 262,144 94 %, in 0.57 of the time of a step with all."""


@dataclass(frozen=True, kw_only=True)
class LoadedPair(PairFiles):
    """A pair ready to compile."""

    info: PairInfo
    tokenizer: Tokenizer
    template: Template
    stop_ids: frozenset[int]
    context_limit: int  # tokens
    typical_profile: Profile | None = None  # used until this machine has measured
    check: Check = field(default_factory=Check)  # finds damaged files


def chosen_draft(pair: Pair) -> tuple[Source, ...]:
    """The draft of `pair` to use; empty for n-grams only. If the user named none: a draft on this
    disk before others, the fastest by `tune` (on the processor) before others, then the first."""
    choice = pair.choice
    if choice.assistant_model:
        return pair.drafts
    on_cpu = choice.device == choice.draft_device == "CPU"
    tuned = measured.read("tuned", pair.subject, measured.TuningResult) if on_cpu else None
    winner = tuned.winner if tuned else ""
    if winner == NO_DRAFT:
        return ()
    if winner:
        # A draft that the user named, and may have deleted.
        with suppress(BadInput):
            drafts = pair.with_draft(winner).drafts
            if sources.here(drafts[0]):
                return drafts
    by_rank = sorted(pair.drafts, key=lambda draft: (not sources.here(draft), draft.name != winner))
    return tuple(by_rank[:1])


def load_pair(pair: Pair, report: Report = silent) -> LoadedPair:
    """Fetch missing files of `pair` and open its tokenizer. Raises FetchError, DamagedModel, or
    BadInput for models that cannot be used."""
    pair = replace(pair, drafts=chosen_draft(pair))
    models = fetch_pair(pair, report)
    for model in models:
        storage.mark_used(model.folder)
    weights = sum(file_size(model.folder / model_files.WEIGHTS) for model in models)
    require_memory(weights + WORKING_BYTES, f"Running {pair.name or pair.target.name}")
    check = Check([model.folder for model in models])
    try:
        loaded = _opened(pair, check, *models)
        target, draft = weights_size(loaded.target), loaded.draft and weights_size(loaded.draft)
    except (FetchError, ModelError):
        check.require()  # the reason may be a damaged file, which the check removes
        raise
    if draft and draft > target:
        log.warning(
            f"The draft model {loaded.info.draft} has {size(draft)} of weights, its target "
            f"{loaded.info.target} has {size(target)}: such a draft saves no time; swap them?"
        )
    return loaded


def fetch_pair(pair: Pair, report: Report = silent) -> list[Snapshot]:
    """Fetch target and draft, if any, in the format that their devices run. Raises as `load_pair`.
    An exception in `report` stops the download; a later call resumes it."""
    models, choice = (pair.target, *chosen_draft(pair)), pair.choice
    in_format = [
        replace(source, export=sources.AS_IT_IS) if on_torch(device) else source
        for source, device in zip(models, (choice.device, choice.draft_device), strict=False)
    ]
    return sources.prepare(in_format, report)


def _opened(
    pair: Pair, check: Check, target: Snapshot, draft: Snapshot | None = None
) -> LoadedPair:
    choice = pair.choice
    tokenizer, template, stop_ids, context = read_text_files(target.folder)
    head, layers, model = _head(pair, target, draft)
    draft_context, token_ids, translation = 0, None, None
    if layers:  # of a head that has logits of all tokens
        token_ids = np.array(tokenizer.frequent_ids(DRAFT_TOKENS))
    if model and pair.draft:
        draft_ids, draft_context = configuration.read_config(model.folder)
        draft_tokenizer = Tokenizer(model.folder / "tokenizer.json", ends=draft_ids)
        token_ids = np.array(draft_tokenizer.frequent_ids(DRAFT_TOKENS))
        if difference := vocabulary_difference(tokenizer, draft_tokenizer):
            log.warning(
                f"{pair.draft.name} has another vocabulary than {pair.target.name} ({difference}): "
                "its text is encoded again with the target's tokenizer."
            )
            translation = partial(TextTranslation, tokenizer, draft_tokenizer)
    # Beyond a model's context, learned positions fail and rotary ones are untrained.
    context = context or draft_context or 2048
    tokenizer.context = context
    template = replace(template, thinking=choice.thinking)
    embedded_draft = pair.embedded and not (pair.draft and pair.draft.repo)
    typical = embedded_draft and not on_torch(choice.device) and embedded.TYPICAL.read_bytes()
    return LoadedPair(
        target=_model(target, choice.device),
        draft=_model(model, choice.draft_device) if model else None,
        device=choice.device,
        draft_device=choice.draft_device,
        kv_cache=choice.kv_cache,
        template_prefix=template.prefix(tokenizer),
        head=head,
        head_layers=layers,
        info=PairInfo(
            name=pair.name,
            target=pair.target.name,
            draft=pair.draft.name if pair.draft else None,
            target_revision=target.revision,
            draft_revision=draft.revision if draft else "",
            target_weights=model_files.weight_format(target.folder),
            draft_weights=model_files.weight_format(draft.folder) if draft else "",
        ),
        tokenizer=tokenizer,
        template=template,
        stop_ids=stop_ids,
        context_limit=context,
        draft_context=draft_context,
        draft_token_ids=token_ids,
        translation=translation,
        typical_profile=TypeAdapter(Profile).validate_json(typical) if typical else None,
        check=check,
    )


def read_text_files(folder: Path) -> tuple[Tokenizer, Template, frozenset[int], int]:
    """A model's tokenizer and template, the ids that end answers, and its context (tokens, 0: not
    given). What a token is for decides which tokens are special. Raises FetchError, BadInput."""
    template, (ids, context) = chat_template(folder), configuration.read_config(folder)
    turns, turn_end = template.turn_markers() if template else (set(), "")
    named = template.tokens.values() if template else ()
    tokenizer = Tokenizer(folder / "tokenizer.json", turns.union(named), ids)
    end = tokenizer.token_id("### End")  # only Dolly has this token
    template = template or (RAW if end is None else DOLLY)
    if turns.isdisjoint(map(tokenizer.string, ids)):  # a configuration of a model without turns
        end = tokenizer.token_id(turn_end) if end is None else end
    return tokenizer, template, ids if end is None else ids | {end}, context


def _head(
    pair: Pair, target: Snapshot, draft: Snapshot | None
) -> tuple[Path | None, tuple[int, ...], Snapshot | None]:
    """The draft head in `draft`, the target's layers that it reads, and `draft` if it has a draft
    model. Raises BadInput for a head of another target."""
    source = pair.draft
    if draft is None or source is None:
        return None, (), None
    if configuration.is_eagle_head(configuration.read_json(draft.folder / "config.json")):
        if any(map(on_torch, (pair.choice.device, pair.choice.draft_device))):
            raise BadInput(
                f"{source.name} is a draft head, which needs states of a target on the CPU "
                "device; leave the devices at CPU, or choose another draft."
            )
        from specdemo.convert.eagle3 import eagle_layers  # imports OpenVINO

        model = target.folder / model_files.MODEL
        layers = eagle_layers(draft.folder, source.name, model, pair.target.name)
        return draft.folder / model_files.MODEL, layers, None
    head = draft.folder / model_files.HEAD
    if not head.is_file():
        return None, (), draft
    if source.repo and not on_torch(pair.choice.device):
        from specdemo.convert.heads import require_target

        require_target(head, target.folder / model_files.MODEL, pair.target.name)
    # A folder may hold nothing but a draft head.
    return head, (), draft if (draft.folder / model_files.MODEL).is_file() else None


def _model(model: Snapshot, device: str) -> Path | Checkpoint:
    if not on_torch(device):
        return model.folder / model_files.MODEL
    # Only the operator can set this, no request.
    variable = os.environ.get("SPECDEMO_TRUST_REMOTE_CODE", "")
    trusted = variable.strip().lower() in ("1", "true", "yes")
    gguf = model.folder / model_files.SOURCE
    return Checkpoint(gguf if gguf.is_file() else model.folder, trusted)


def vocabulary_difference(target: Tokenizer, draft: Tokenizer) -> str:
    """The first token id with different strings, in words; "" if there is none. Ids that only one
    vocabulary has are no difference: the engine masks those that the target lacks."""
    strings = {id: string for string, id in target.vocabulary().items()}
    for string, id in sorted(draft.vocabulary().items(), key=itemgetter(1)):
        if strings.get(id, string) != string:
            return f"token {id} is {strings[id]!r} in the one and {string!r} in the other"
    return ""
