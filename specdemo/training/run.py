"""The whole of `train-draft`: text, split, draft, training, evaluation, IR, card.

Everything between the steps is in `OUT/work`, so an interrupted run continues where it was.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specdemo.errors import BadInput, MissingPackage
from specdemo.training import corpus, distil, export, generate, target
from specdemo.training.corpus import Conversation
from specdemo.training.evaluate import Agreement, evaluate
from specdemo.training.target import Target

if TYPE_CHECKING:
    from specdemo.training.command import TrainSettings

HELD_EVERY, HELD_MOST = 16, 120
"""One greedy conversation in HELD_EVERY is held back for evaluation, HELD_MOST at most."""
PACKAGES = ("torch", "transformers", "optimum", "gguf")


@dataclass(frozen=True, slots=True)
class TrainResult:
    """`before` and `after` are measured on held-back text, `progress` says how long it trained."""

    before: Agreement
    after: Agreement
    progress: distil.Progress


def train_draft(settings: TrainSettings) -> TrainResult:
    """Make a draft for `settings.target` in `settings.out`: IR in int8, with tokenizer and card.

    A second call with the same settings continues an interrupted run; by `passes` it ends with the
    same draft as an uninterrupted one. Raises BadInput for a setting that cannot work or an `out`
    with a run of other settings, MissingPackage, or FetchError if a step failed.
    """
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise MissingPackage(
            f"train-draft needs {', '.join(missing)}; "
            "run `pip install --retries 1 -r requirements-export.txt`."
        )
    out, work = settings.out, _open_work(settings)
    teacher = target.open_target(settings.target, work)
    device = _device(settings.device)
    held, train = split(_text(teacher, settings, work, device))
    if not train or not held:
        raise BadInput(f"--tokens {settings.tokens} is too little text to hold any back.")
    lessons = [corpus.lesson(one, settings.prompt_tokens) for one in train]
    whole = teacher.load()
    model = distil.build_draft(whole, settings.layers).to(device)
    vocabulary = model.get_output_embeddings().weight.shape[0]
    frequent = corpus.frequent_tokens(lessons, vocabulary, settings.head_tokens)
    start_norm = distil.scale_final_norm(model, lessons, frequent)
    labels = settings.labels
    if labels == "auto":
        # A GGUF target is asked on the CPU, which takes longer than training on a GPU gains by it.
        labels = "soft" if device == "cuda" and not teacher.ir_folder else "hard"
    if labels == "soft":
        ask = teacher.asker(whole, device)
        lessons = generate.add_soft_labels(ask, train, lessons, work / "probabilities")
        held = generate.add_soft_labels(ask, held, held, work / "held-probabilities")
        del ask
    del whole
    before = evaluate(model.eval(), held, frequent, "Measuring the untrained draft")
    training = distil.Distillation(model.train(), lessons, frequent, settings, work / "state.pt")
    progress = training.run()
    after = evaluate(model.eval(), held, frequent, "Measuring the draft")
    print("Making OpenVINO IR", file=sys.stderr)
    export.export_draft(model.cpu(), teacher, out, work)
    np.save(out / "head_tokens.npy", frequent)
    if vocabulary <= 1 << 16:
        export.count_ngrams(lessons).save(out / "ngrams.npz")
    result = TrainResult(before, after, progress)
    export.write_card(out, _facts(teacher.name, settings, result, labels, start_norm))
    return result


def split(conversations: Sequence[Conversation]) -> tuple[list[Conversation], list[Conversation]]:
    """Held back, and to train on. Agreement can be counted on greedy conversations only; a prompt
    that is held back is never trained on."""
    greedy = [one for one in conversations if one.greedy and one.answer]
    held = greedy[::HELD_EVERY][:HELD_MOST]
    prompts = {one.prompt for one in held}
    return held, [one for one in conversations if one.answer and one.prompt not in prompts]


def _facts(
    name: str, settings: TrainSettings, result: TrainResult, labels: str, norm: float
) -> dict[str, Any]:
    """What card.json says."""
    private = {"target", "out", "text", "device"}
    recipe = {key: value for key, value in asdict(settings).items() if key not in private}
    return {
        "target": name,
        "recipe": recipe | {"labels": labels, "start_norm": norm},
        "text": settings.text.name if settings.text else "written by the target",
        "steps": result.progress.steps,
        "tokens_trained": result.progress.tokens,
        "seconds": round(result.progress.seconds),
        "before": asdict(result.before),
        "after": asdict(result.after),
    }


def _text(teacher: Target, settings: TrainSettings, work: Path, device: str) -> list[Conversation]:
    """The conversations of `--text`, or those that the target writes."""
    path = settings.text or work / "text.jsonl"
    done = work / "text.done"
    if not settings.text and not done.exists():
        limit, seed = settings.answer_tokens, settings.seed
        writer = teacher.writer(device)
        generate.write_text(teacher, writer, path, settings.tokens, limit=limit, seed=seed)
        done.touch()
    conversations = corpus.read(path)
    if not conversations:
        raise BadInput(
            f"--text {path} holds no conversations (JSONL: kind, greedy, prompt, answer)."
        )
    return conversations


def _open_work(settings: TrainSettings) -> Path:
    """OUT/work, which belongs to these settings alone."""
    out, work = settings.out, settings.out / "work"
    described = {name: str(value) for name, value in asdict(settings).items()}
    del described["out"], described["checkpoint_seconds"]
    if settings.text:
        described["text"] = hashlib.sha256(settings.text.read_bytes()).hexdigest()
    path = work / "settings.json"
    if path.is_file():
        earlier = json.loads(path.read_text(encoding="utf-8"))
        if changed := sorted(name for name in described if earlier.get(name) != described[name]):
            raise BadInput(
                f"{out} holds a run with another {', '.join(changed)}; "
                "repeat its settings to continue it, or name another --out."
            )
        return work
    try:
        if out.exists() and any(out.iterdir()):
            raise BadInput(f"--out {out} exists and is no earlier run; name a new folder.")
        work.mkdir(parents=True)
        path.write_text(json.dumps(described, indent=1), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--out {out} cannot be written: {error.strerror or error}.") from error
    return work


def _device(asked: str) -> str:
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: torch finds no GPU here; use --device cpu or auto.")
    return "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"
