"""The whole of `train-draft`: text, split, draft, training, evaluation, IR, card.

Everything between the steps is in `OUT/work`, so an interrupted run continues where it was.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specdemo.errors import BadInput, MissingPackage
from specdemo.models import heads, ir
from specdemo.training import corpus, distil, export, generate, loop, states, target
from specdemo.training.corpus import Conversation
from specdemo.training.evaluate import Agreement, evaluate, summarise
from specdemo.training.target import Target

if TYPE_CHECKING:
    from specdemo.training.command import TrainSettings

HELD_EVERY, HELD_MOST = 16, 120
"""One greedy conversation in HELD_EVERY is held back for evaluation, HELD_MOST at most."""
PACKAGES = ("torch", "transformers", "optimum", "gguf")
PRIVATE = ("target", "out", "text", "device", "checkpoint_seconds")
"""Settings that the card leaves out."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """`before` and `after` are measured on held-back text, `progress` says how long it trained."""

    before: Agreement
    after: Agreement
    progress: loop.Progress


def train_draft(settings: TrainSettings) -> TrainResult:
    """Make a draft for `settings.target` in `settings.out`: IR in int8, with its card, and for a
    draft model with a tokenizer.

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
    said = _text(teacher, settings, work, device)
    make = _make_head if settings.kind == "head" else _make_model
    result, made = make(settings, teacher, said, device)
    recipe = {key: value for key, value in asdict(settings).items() if key not in PRIVATE}
    facts = {
        "target": teacher.name,
        "recipe": recipe | made,
        "text": settings.text.name if settings.text else "written by the target",
        "steps": result.progress.steps,
        "tokens_trained": result.progress.tokens,
        "seconds": round(result.progress.seconds),
        "before": asdict(result.before),
        "after": asdict(result.after),
    }
    export.write_card(out, facts)
    return result


def _make_model(
    settings: TrainSettings, teacher: Target, said: Sequence[Conversation], device: str
) -> tuple[TrainResult, dict]:
    """A draft model of the target's first layers; also what the card says of how it was made."""
    out, work = settings.out, settings.out / "work"
    whole = teacher.load()
    model = distil.build_draft(whole, settings.layers).to(device)
    labels, read = settings.labels, None
    if labels == "auto":
        # A GGUF target is read on the CPU, which takes longer than training on a GPU gains by it.
        labels = "soft" if device == "cuda" and not teacher.ir_folder else "hard"
    if labels == "soft":
        read = states.of(teacher, whole, device, ())
    held, lessons = _lessons(settings, said, read)
    del whole, read
    vocabulary = model.get_output_embeddings().weight.shape[0]
    frequent = corpus.frequent_tokens(lessons, vocabulary, settings.head_tokens or 16_384)
    start_norm = distil.scale_final_norm(model, lessons, frequent)
    before = evaluate(model.eval(), held, frequent, "Measuring the untrained draft")
    progress = distil.train(model.train(), lessons, frequent, settings, work / "state.pt")
    after = evaluate(model.eval(), held, frequent, "Measuring the draft")
    print("Making OpenVINO IR", file=sys.stderr)
    export.export_draft(model.cpu(), teacher, out, work)
    np.save(out / heads.TOKENS, frequent)
    export.count_ngrams(lessons, vocabulary).save(out / "ngrams.npz")
    return TrainResult(before, after, progress), {"labels": labels, "start_norm": start_norm}


def _make_head(
    settings: TrainSettings, teacher: Target, said: Sequence[Conversation], device: str
) -> tuple[TrainResult, dict]:
    """A draft head, which reads the target's hidden states; also what the card says of it."""
    from specdemo.training import head

    whole, fractions = None, states.THIRDS
    if teacher.ir_folder:
        embedding, output = heads.tables(teacher.ir_folder / ir.MODEL)
    else:
        whole = teacher.load().to(device)
        fractions = states.whole_layers(len(distil.decoder_layers(whole)))
        both = whole.get_input_embeddings(), whole.get_output_embeddings()
        embedding, output = (part.weight.detach().cpu().numpy() for part in both)
    held, lessons = _lessons(settings, said, states.of(teacher, whole, device, fractions))
    del whole
    frequent = corpus.frequent_tokens(lessons, len(output), settings.head_tokens or 4096)
    rows, held_rows = head.gather(lessons), head.gather(held)
    network = head.DraftHead(embedding, output, frequent, 1 + len(fractions), settings, device)
    bounds = np.cumsum([len(one.answer) for one in held])[:-1]

    def measure() -> Agreement:
        return summarise(held, np.split(head.guesses(network, held_rows), bounds))

    before = measure()
    progress = head.train(network, rows, settings, settings.out / "work" / "state.pt")
    after = measure()
    own = heads.Head(network.quantized(), frequent, fractions)
    own.save(settings.out / "head.npz")
    heads.write(own, embedding, output, settings.out)
    export.count_ngrams(lessons, len(output)).save(settings.out / "ngrams.npz")
    return TrainResult(before, after, progress), {"labels": "soft", "fractions": fractions}


def _lessons(
    settings: TrainSettings, said: Sequence[Conversation], read: states.Read | None
) -> tuple[list[Conversation], list[Conversation]]:
    """The conversations that are held back and those to learn from, with what `read` gives."""
    held, train = split(said)
    if not train or not held:
        raise BadInput(f"--tokens {settings.tokens} is too little text to hold any back.")
    lessons = [corpus.lesson(one, settings.prompt_tokens) for one in train]
    if read:
        found = states.read_all(read, said, settings.out / "work" / "states")
        known = dict(zip(said, found, strict=True))
        held = [replace(one, states=known[one]) for one in held]
        pairs = zip(lessons, train, strict=True)
        lessons = [replace(to, states=known[one][: len(to.answer)]) for to, one in pairs]
    return held, lessons


def split(conversations: Sequence[Conversation]) -> tuple[list[Conversation], list[Conversation]]:
    """Held back, and to train on. Agreement can be counted on greedy conversations only; a prompt
    that is held back is never trained on."""
    greedy = [one for one in conversations if one.greedy and one.answer]
    held = greedy[::HELD_EVERY][:HELD_MOST]
    prompts = {one.prompt for one in held}
    return held, [one for one in conversations if one.answer and one.prompt not in prompts]


def _text(teacher: Target, settings: TrainSettings, work: Path, device: str) -> list[Conversation]:
    """The conversations of `--text`, or those that the target writes."""
    path = settings.text or work / "text.jsonl"
    done = work / "text.done"
    if not settings.text and not done.exists():
        limit, seed = settings.answer_tokens, settings.seed
        writer = teacher.writer(device)
        generate.write_text(teacher, writer, path, settings.tokens, limit=limit, seed=seed)
        done.touch()
    conversations = [corpus.cut(one, corpus.LONGEST) for one in corpus.read(path)]
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
