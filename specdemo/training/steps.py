"""All steps of `train-draft`: text, states, training, evaluation, IR, card.

`OUT/work` keeps text, hidden states and training state, so that an interrupted run continues.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from specdemo.convert import heads
from specdemo.errors import BadInput, naming
from specdemo.machine.disk import file_size, require_space, sha256
from specdemo.machine.hardware import require_device
from specdemo.machine.terminal import progress_bar
from specdemo.pairs import sources
from specdemo.pairs.loading import LoadedPair, load_pair
from specdemo.pairs.registry import NO_DRAFT, Pair, choice_of, chosen_pair
from specdemo.training import data
from specdemo.training.data import Conversation
from specdemo.training.recipe import TrainSettings

WRITTEN_TIMES = 3  # with --text, how often each answer that the target wrote counts in training
PRIVATE = {"out", "device", "checkpoint_seconds"}  # not in the card
GROWING = {"tokens", "minutes", "passes"}  # these and PRIVATE may differ when a run is continued


def train_draft(settings: TrainSettings) -> str:
    """Make a draft head for `settings.target` in `settings.out`: IR, its own weights and a card.
    Gives a sentence on the result.

    A second call with the same settings continues an interrupted run; with `passes` the head is the
    same as without the interruption. Raises BadInput for a setting that cannot work or an `out`
    with a run of other settings, MissingPackage, FetchError or ModelError.
    """
    pair, out, work = _pair(settings), settings.out, settings.out / "work"
    with naming(lambda field: "--target"):
        sources.require(pair.target)
    require_device(f"torch:{settings.device}", "device")
    from specdemo.training import network

    if settings.start:
        network.earlier_weights(settings.start)  # fails now if it is no head
    try:
        _open_work(settings, work)
    except OSError as error:
        raise BadInput(f"--out {out} cannot be written: {error.strerror}.") from error
    with progress_bar() as report:
        loaded = load_pair(pair, report)
    assert isinstance(loaded.target, Path), "the default device runs IR"
    _open_work(settings, work, sha256(loaded.target.with_suffix(".bin")))
    tables = heads.tables(loaded.target)
    network.first_weights(settings, tables[0].shape[1])  # fails now if `start` has another size
    made = sum(map(file_size, work.glob("*/*.npy")))
    states = settings.tokens * 6 * tables[0].shape[1]  # float16 at three depths
    require_space(work, states - made, "The text with the target's states")
    groups: dict[Path, list[Conversation]] = {}
    unanswered: list[str] = []
    if settings.text:
        groups, unanswered = data.read_conversations(settings.text, work / "states", loaded)
    groups |= data.write_conversations(loaded, work / "text", settings, unanswered)
    evaluation = _make_head(settings, loaded, tables, groups)
    return (
        f"{out} holds the draft head: agreement with the target on {evaluation['tokens']:,} "
        f"held-back tokens {evaluation['agreement']:.3f}; its card is {out / 'card.json'}"
    )


def _make_head(
    settings: TrainSettings,
    loaded: LoadedPair,
    tables: tuple[np.ndarray, np.ndarray],
    groups: Mapping[Path, Sequence[Conversation]],
) -> dict[str, Any]:
    """Train, evaluate and write the head. Gives the evaluation as the card holds it."""
    from specdemo.training import network

    out, rows = settings.out, data.read_rows(loaded, groups)
    conversations = [conversation for group in groups.values() for conversation in group]
    trained = network.HeadNetwork(*tables, rows, settings)
    held_back, learned = _split(conversations)
    kinds = np.array([conversation.kind for conversation in conversations])
    times = learned.astype(int)
    if settings.text:
        times[kinds != data.ANSWERED] *= WRITTEN_TIMES
    lengths = [len(conversation.answer) for conversation in conversations]
    conversation_of_row = np.repeat(np.arange(len(conversations)), lengths)
    starts = np.repeat(np.arange(len(rows.tokens)), times[conversation_of_row])
    progress = network.train(trained, rows, starts, settings, out / "work" / "training.pt")
    judged = np.flatnonzero(held_back[conversation_of_row])
    judged = judged[judged + 1 < rows.ends[judged]]
    hits = trained.guesses(rows, judged)
    evaluation = _agreement(hits, kinds[conversation_of_row[judged]])
    head = heads.HeadWeights(trained.quantized(rows), trained.frequent, data.THIRDS)
    head.save(out / "head.npz")
    heads.write(head, tables[0], out, f"{loaded.info.target} ({loaded.info.target_revision})")
    omitted = PRIVATE | {"target", "text", "start"}
    recipe = {name: value for name, value in asdict(settings).items() if name not in omitted}
    card = {
        "target": loaded.info.target,
        "target_revision": loaded.info.target_revision,
        "recipe": recipe,
        "text": {
            "conversations": len(conversations),
            "answer_tokens": len(rows.tokens),
            "given": settings.text and settings.text.name,
        },
        "start": settings.start and settings.start.name,
        "training": progress,
        "held_back": evaluation,
    }
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return evaluation


def _split(conversations: Sequence[Conversation]) -> tuple[np.ndarray, np.ndarray]:
    """Which conversations are held back and which are learned, bool [conversations] each. Every
    16th greedy instruction is held back, at most 120; conversations with other instructions are
    learned. Raises BadInput if none are left to learn."""
    greedy = [conversation.instruction for conversation in conversations if conversation.greedy]
    aside = set(greedy[::16][:120])
    held_back = np.array([conversation.instruction in aside for conversation in conversations])
    if held_back.all():
        raise BadInput("--tokens or --text: there is too little text to hold any back.")
    judged = held_back & [conversation.greedy for conversation in conversations]
    return judged, ~held_back


def _agreement(hits: np.ndarray, kinds: np.ndarray) -> dict[str, Any]:
    """The share of right draft tokens on held-back answers; `hits` are the head's `guesses`. In all
    and by kind: after the answer's own tokens. By depth in a chain: after right draft tokens."""
    first = hits[:, 0]
    right = np.logical_and.accumulate(hits, axis=1).sum(0).tolist()
    return {
        "tokens": len(hits),
        "agreement": float(first.mean()),
        "by_kind": {str(kind): float(first[kinds == kind].mean()) for kind in np.unique(kinds)},
        "by_depth": [now / max(1, before) for before, now in pairwise([len(hits), *right])],
    }


def _pair(settings: TrainSettings) -> Pair:
    choice = choice_of(settings.target, settings.weight_format)
    if choice.pair and settings.weight_format != "auto":
        raise BadInput("--weight-format is for a model of your own; a pair's IR has its format.")
    with naming(lambda field: "--target"):
        return chosen_pair(replace(choice, assistant_model=NO_DRAFT))


def _open_work(settings: TrainSettings, work: Path, weights: str = "") -> None:
    """Make OUT/work for these settings and the hash of the target's `weights`, if it is known.
    Raises BadInput if it belongs to others."""
    out, path = settings.out, work / "settings.json"
    values, left_out = asdict(settings), PRIVATE | GROWING
    described = {name: str(values[name]) for name in values if name not in left_out}
    described |= {"target_weights": weights} if weights else {}
    begun = path.is_file() and any(file != path for file in work.iterdir())
    if not begun:  # also where an earlier call refused what it should read
        if not path.is_file() and out.exists() and any(out.iterdir()):
            raise BadInput(f"--out {out} exists and is no earlier run; name a new folder.")
        work.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(described, indent=1), encoding="utf-8")
        return
    stored = json.loads(path.read_bytes())
    compared = stored.keys() - GROWING - ({"target_weights"} - described.keys())
    other = [f"{name} {stored[name]}" for name in compared if stored[name] != described.get(name)]
    if other:
        raise BadInput(
            f"{out} holds a run with other settings ({', '.join(sorted(other))}); repeat them to "
            "continue it, or name another --out."
        )
