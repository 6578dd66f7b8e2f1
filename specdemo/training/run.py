"""The whole of `train-draft`, step by step: text, split, draft, distillation, evaluation, IR, card.

Everything between the steps lies in `OUT/work`, so that a run which was killed continues where it was.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from specdemo.training import corpus
from specdemo.training.corpus import Conversation
from specdemo.training.settings import Report, TrainProgress, TrainResult, TrainSettings, silent
from specdemo.training.target import Target, open_target
from specdemo.models.errors import BadChoice, ZooError

HELD_EVERY, HELD_MOST = 16, 120
"""One conversation in so many is held back for evaluation, and at most so many in all."""


def train_draft(settings: TrainSettings, progress: Report = silent) -> TrainResult:
    """Make a draft for `settings.target` in `settings.out`: IR in int8, with tokenizer and card.

    A second call with the same settings continues an interrupted run; by `passes` it ends with the same draft as an
    uninterrupted one.

    Raises:
        BadChoice: a setting cannot work, or `out` holds a run with other settings. ZooError: a step failed.
    """
    _require_packages()
    work = _open_work(settings)
    target = open_target(settings.target, work)
    device = _device(settings.device)
    held, train = split(_text(target, settings, work, device, progress))
    return _train(target, settings, work, device, held, train, progress)


def split(conversations: Sequence[Conversation]) -> tuple[list[Conversation], list[Conversation]]:
    """Held back, and to train on. Agreement can be read off greedy conversations only."""
    numbers = [i for i, one in enumerate(conversations) if one.greedy and one.answer][::HELD_EVERY][:HELD_MOST]
    chosen = set(numbers)
    prompts = {conversations[i].prompt for i in numbers}
    # A question that was asked twice must not be trained on when it is held back.
    rest = [
        one for i, one in enumerate(conversations) if i not in chosen and one.answer and one.prompt not in prompts
    ]
    return [conversations[i] for i in numbers], rest


def _train(target: Target, settings, work: Path, device: str, held, train, progress: Report) -> TrainResult:
    import torch

    from specdemo.training import card, distil, draft, export, teacher
    from specdemo.training.evaluate import evaluate
    from specdemo.training.phrases import count_phrases

    if not train or not held:
        raise BadChoice(f"--tokens {settings.tokens} is too little text to hold any back; ask for more.")
    lessons = [corpus.lesson(one, settings.prompt_tokens) for one in train]
    whole = target.model()
    model = draft.build_draft(whole, settings.layers).to(device)
    vocabulary = model.get_output_embeddings().weight.shape[0]
    frequent = corpus.frequent_tokens(lessons, vocabulary, min(settings.head_tokens, vocabulary))
    scale = distil.start_norm(model, lessons, frequent)
    # The IR of a GGUF target is asked on the CPU, which takes longer than training on a GPU gains by it.
    free = device == "cuda" and target.ir_xml is None
    labels = settings.labels if settings.labels != "auto" else "soft" if free else "hard"
    soft = known = None
    if labels == "soft":
        oracle = teacher.IRTeacher(target.ir_xml) if target.ir_xml else teacher.TorchTeacher(whole.to(device))
        longest = min(distil.LONGEST, settings.batch_tokens // settings.parts)
        soft = teacher.soft_labels(oracle, train, lessons, longest, work / "probabilities", progress)
        known = [teacher.ask(oracle, one) for one in held]
        del oracle
    del whole
    progress(TrainProgress("Measuring the untrained draft", 0, 0))
    before = evaluate(model.eval(), held, frequent, known)
    outcome = distil.distil(model.train(), lessons, frequent, settings, work / "state.pt", progress, soft)
    progress(TrainProgress("Measuring the draft", 0, 0))
    after = evaluate(model.eval(), held, frequent, known)
    progress(TrainProgress("Making OpenVINO IR", 0, 0))
    with torch.no_grad():
        export.export_draft(model.cpu(), target, settings.out, work)
    np.save(settings.out / "head_tokens.npy", frequent.astype(np.int64))
    if vocabulary <= 1 << 16:
        count_phrases(lessons).save(settings.out / "phrases.npz")
    result = TrainResult(settings.out, before, after, outcome.steps, outcome.tokens, outcome.seconds, outcome.resumed)
    card.write_card(settings.out, target.name, settings, result, labels, scale)
    return result


def _text(target: Target, settings: TrainSettings, work: Path, device: str, progress: Report) -> list[Conversation]:
    if settings.text:
        conversations = corpus.read(settings.text)
        if not conversations:
            raise BadChoice(f"--text {settings.text} holds no conversations (JSONL: kind, greedy, prompt, answer).")
        return conversations
    from specdemo.training.text import write_text

    path, done = work / "text.jsonl", work / "text.done"
    if not done.exists():
        write_text(target, target.writer(device), path, tokens=settings.tokens, limit=settings.answer_tokens,
                   seed=settings.seed, report=progress)  # fmt: skip
        done.touch()
    return corpus.read(path)


def _open_work(settings: TrainSettings) -> Path:
    """OUT/work, which belongs to these settings alone."""
    work = settings.out / "work"
    described = {
        name: str(value) for name, value in asdict(settings).items() if name not in ("out", "checkpoint_seconds")
    }
    if settings.text:
        described["text"] = hashlib.sha256(settings.text.read_bytes()).hexdigest()
    path = work / "settings.json"
    if path.is_file():
        earlier = json.loads(path.read_text(encoding="utf-8"))
        changed = sorted(name for name in described if earlier.get(name) != described[name])
        if changed:
            raise BadChoice(
                f"{settings.out} holds a run with another {', '.join(changed)}; "
                "repeat its settings to continue it, or name another --out."
            )
        return work
    if settings.out.exists() and (not settings.out.is_dir() or any(settings.out.iterdir())):
        raise BadChoice(f"--out {settings.out} exists and is no earlier run; name a folder that is not there yet.")
    try:
        work.mkdir(parents=True)
        path.write_text(json.dumps(described, indent=1), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(work, ignore_errors=True)
        raise ZooError(f"--out {settings.out} cannot be written: {error.strerror or error}.") from error
    return work


def _device(asked: str) -> str:
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise BadChoice("--device cuda: torch finds no GPU here; use --device cpu or auto.")
    return "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"


def _require_packages() -> None:
    import importlib.util

    missing = [name for name in ("torch", "transformers", "optimum") if importlib.util.find_spec(name) is None]
    if missing:
        raise ZooError(
            f"train-draft needs {', '.join(missing)}; run `pip install --retries 1 -r requirements-export.txt`."
        )
