"""Whether a draft can guess for a target: an id that both have must mean the same string in both."""

from __future__ import annotations

from specdemo.models.errors import BadChoice
from specdemo.models.tokenizer import Tokenizer


def require_same_vocabulary(target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str) -> None:
    """Raise BadChoice, naming the first difference, if a shared id means different strings.

    Ids that only one of them has are fine: vocabularies are padded differently, and the target may have tokens of its
    own. The engine masks what the target does not have.
    """
    difference = first_difference(target.vocabulary(), draft.vocabulary())
    if difference is None:
        return
    id, in_target, in_draft = difference
    raise BadChoice(
        f"{draft_name} cannot draft for {target_name}, their vocabularies differ: token {id} is {in_target!r} in the "
        f"target and {in_draft!r} in the draft; choose a draft of the same tokenizer family."
    )


def first_difference(target: dict[str, int], draft: dict[str, int]) -> tuple[int, str, str] | None:
    """The lowest id that both vocabularies (string to id) have with different strings: (id, target's, draft's)."""
    in_target = {id: string for string, id in target.items()}
    in_draft = {id: string for string, id in draft.items()}
    for id in sorted(in_target.keys() & in_draft.keys()):
        if in_target[id] != in_draft[id]:
            return id, in_target[id], in_draft[id]
    return None
