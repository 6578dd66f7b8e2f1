"""The draft, the target's first layers between its frozen embedding and head, and its training.

A step is cut into equal parts, and each worker thread computes parts on one core: on a machine that
other programs share, no thread waits for another inside every matrix product.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from specdemo.errors import BadInput
from specdemo.training import corpus
from specdemo.training.corpus import Batch, Conversation

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from specdemo.training.command import TrainSettings

LONGEST = 640
"""Tokens of a conversation that training reads."""
LIKELY, NEGATIVES = 2048, 1024
"""Ids scored in every step: the most frequent ones, and some drawn from the other frequent ones."""
LEARNING_RATE, WARMUP_STEPS = 2e-3, 20
DECAY = 0.35
"""Share of the run at its end over which the learning rate falls."""
AVERAGE = 0.98
"""Decay of the running average of weights."""
BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"


def build_draft(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A model of the target's class with its first `layers` layers; those and the final norm train.

    The first layers start better than the first and the last (docs/results/draft-training.md): the
    last one adds as much to the residual stream as all before it, noise if those are missing.
    Raises BadInput for an unsupported architecture or a target with fewer layers.
    """
    available = len(_decoder_layers(target))
    if layers > available:
        raise BadInput(f"--layers {layers}: the target has {available}; choose 1 to {available}.")
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    draft = type(target)(config).to(target.dtype)
    wanted = draft.state_dict().keys()
    draft.load_state_dict({k: v for k, v in target.state_dict().items() if k in wanted})
    draft.requires_grad_(False)
    for part in (*_decoder_layers(draft), _final_norm(draft)):
        part.requires_grad_(True)
    return draft


def _decoder_layers(model: PreTrainedModel) -> Sequence[torch.nn.Module]:
    head = model.get_output_embeddings()
    layers = getattr(model.base_model, "layers", None)
    if layers is None or _final_norm(model) is None or head is None or head.bias is not None:
        raise BadInput(
            "train-draft makes drafts for Llama-like and GPT-NeoX targets; "
            f"{type(model).__name__} is built differently."
        )
    return layers


def _final_norm(model: PreTrainedModel) -> torch.nn.Module | None:
    base = model.base_model
    return getattr(base, "norm", None) or getattr(base, "final_layer_norm", None)


def logits(model: PreTrainedModel, batch: Batch, candidates: np.ndarray) -> torch.Tensor:
    """The draft's logits of `candidates` (int64 [m]) for the labels of a batch, [labels, m]."""
    import torch

    tokens = torch.from_numpy(batch.tokens).to(model.device)
    states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    rows = torch.from_numpy(candidates).to(model.device)
    head = model.get_output_embeddings().weight.detach()[rows]
    return states[:, :-1][torch.from_numpy(batch.answered[:, 1:])] @ head.T


def scale_final_norm(
    model: PreTrainedModel, conversations: Sequence[Conversation], frequent: np.ndarray
) -> float:
    """Scale the final norm so that the loss of the untrained draft is least; returns the scale.
    After a few layers the target's norm gives logits that are far too sure."""
    import torch

    batch = corpus.make_batch(conversations[:8], LONGEST)
    candidates = np.union1d(frequent, batch.labels)
    labels = torch.from_numpy(np.searchsorted(candidates, batch.labels)).to(model.device)
    loss = torch.nn.functional.cross_entropy
    with torch.no_grad():
        scores = logits(model, batch, candidates)
        scale = min((1.0, 0.3, 0.1), key=lambda scale: float(loss(scale * scores, labels)))
        for parameter in _final_norm(model).parameters():
            parameter.mul_(scale)
    return scale


@dataclass(slots=True)
class Progress:
    """How far training came. `tokens` counts padding too; `seconds` leaves out pauses of the
    process; `agreement` is a moving average of the share of labels that the draft predicts."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    agreement: float = 0.0


class Distillation:
    """Trains `model` (from `build_draft`) in place, on the device where it is.

    `frequent` (int64 [n]) are the ids that the draft may propose, most frequent first. With
    `settings.minutes` None the result depends on text, settings and hardware alone. `checkpoint` is
    read if it is there, and written every `checkpoint_seconds`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        lessons: Sequence[Conversation],
        frequent: np.ndarray,
        settings: TrainSettings,
        checkpoint: Path,
    ) -> None:
        import torch

        self._model, self._lessons, self._frequent = model, lessons, frequent
        self._settings, self._checkpoint = settings, checkpoint
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        self._averages = [one.detach().clone() for one in self._parameters]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01
        )
        self._part_tokens = settings.batch_tokens // settings.parts
        self._longest = min(LONGEST, self._part_tokens)
        self._progress = Progress()
        if checkpoint.is_file():
            self._load()

    def run(self) -> Progress:
        """Train to the end and leave the draft with the running average of its weights."""
        import torch

        settings, progress = self._settings, self._progress
        order = islice(
            corpus.batches(self._lessons, self._part_tokens, self._longest, settings.seed),
            progress.steps * settings.parts,
            None,
        )
        gpu = self._model.device.type == "cuda"
        count = 1 if gpu else min(settings.parts, os.cpu_count() or 1)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        read = settings.passes * sum(min(len(one), self._longest) for one in self._lessons)
        steps = max(1, round(read / settings.batch_tokens))
        seconds = settings.minutes and 60 * settings.minutes
        saved, clock = progress.seconds, time.monotonic()
        bar = tqdm(total=1.0, desc="Training", bar_format=BAR)
        with bar, ThreadPoolExecutor(count, "train", torch.set_num_threads, (1,)) as workers:
            while (done := progress.seconds / seconds if seconds else progress.steps / steps) < 1:
                bar.update(done - bar.n)
                numbers = [next(order) for _ in range(settings.parts)]
                agreement, tokens = self._step(numbers, done, workers)
                clock, before = time.monotonic(), clock
                # A pause (a stopped process, a sleeping laptop) counts as one slow step.
                slowest = 3 * progress.seconds / progress.steps if progress.steps else 60
                progress.seconds += min(clock - before, slowest)
                progress.steps += 1
                progress.tokens += tokens
                newest = max(0.05, 1 / progress.steps)
                progress.agreement += (agreement - progress.agreement) * newest
                # The average is young at first: it must not remember weights that never trained.
                keep = min(AVERAGE, progress.steps / (progress.steps + 10))
                for average, parameter in zip(self._averages, self._parameters, strict=True):
                    average.lerp_(parameter.detach(), 1 - keep)
                bar.set_postfix(agreement=f"{progress.agreement:.3f}")
                if progress.seconds - saved >= settings.checkpoint_seconds:
                    self._save()
                    saved = progress.seconds
            bar.update(1 - bar.n)
        torch.set_num_threads(threads)
        self._save()
        for parameter, average in zip(self._parameters, self._averages, strict=True):
            parameter.data.copy_(average)
        return progress

    def _step(
        self, numbers: Sequence[Sequence[int]], done: float, workers: Executor
    ) -> tuple[float, int]:
        """One optimizer step; returns the share of labels predicted, and the tokens read."""
        import torch

        # Warm-up, then constant so that the average is usable at any time, then down to 2 % (WSD,
        # arXiv 2404.06395).
        rate = min(1.0, (self._progress.steps + 1) / WARMUP_STEPS)
        rate *= min(1.0, max(0.02, (1 - done) / DECAY))
        for group in self._optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate
        parts = [
            corpus.make_batch([self._lessons[i] for i in part], self._longest) for part in numbers
        ]
        weight = float(sum(part.weights.sum() for part in parts))
        candidates = self._candidates(parts)
        jobs = [workers.submit(self._gradients, part, candidates, weight) for part in parts]
        results = [job.result() for job in jobs]
        for index, parameter in enumerate(self._parameters):
            # Summed in the order of the parts, whichever ends first: a rerun gives the same bits.
            parameter.grad = sum(gradients[index] for gradients, _ in results)
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        labels = sum(len(part.labels) for part in parts)
        right = sum(count for _, count in results)
        return right / labels, sum(part.tokens.size for part in parts)

    def _candidates(self, parts: Sequence[Batch]) -> np.ndarray:
        """The ids that a step scores, rising: frequent ones, some drawn, and all of its labels."""
        rng = np.random.default_rng([self._settings.seed, self._progress.steps])
        drawn = rng.permutation(self._frequent[LIKELY:])[:NEGATIVES]
        labels = [part.labels for part in parts]
        soft = [part.soft.tokens.ravel() for part in parts if part.soft]
        return np.unique(np.concatenate([self._frequent[:LIKELY], drawn, *labels, *soft]))

    def _gradients(
        self, part: Batch, candidates: np.ndarray, weight: float
    ) -> tuple[Sequence[torch.Tensor], int]:
        """Gradients of the cross-entropy to the labels, or to the target's probabilities if the
        part has them, divided by `weight`; and how many labels are predicted."""
        import torch

        def tensor(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values).to(self._model.device)

        scores = logits(self._model, part, candidates)
        wanted = tensor(np.searchsorted(candidates, part.labels))
        if part.soft is None:
            losses = torch.nn.functional.cross_entropy(scores, wanted, reduction="none")
        else:
            places = tensor(np.searchsorted(candidates, part.soft.tokens))
            likely = tensor(part.soft.probabilities.astype(np.float32))
            losses = -(likely * scores.log_softmax(1).gather(1, places)).sum(1)
        loss = (losses * tensor(part.weights[part.answered])).sum() / weight
        gradients = torch.autograd.grad(loss, self._parameters)
        return gradients, int((scores.detach().argmax(1) == wanted).sum())

    def _save(self) -> None:
        """Everything that a run continues from; draws depend on the seed and the step alone."""
        import torch

        held = {
            "progress": asdict(self._progress),
            "parameters": [parameter.detach() for parameter in self._parameters],
            "averages": self._averages,
            "optimizer": self._optimizer.state_dict(),
        }
        partial = self._checkpoint.with_name(self._checkpoint.name + ".partial")
        torch.save(held, partial)
        os.replace(partial, self._checkpoint)

    def _load(self) -> None:
        import torch

        held = torch.load(self._checkpoint, map_location=self._model.device)
        mine = [*self._parameters, *self._averages]
        for tensor, kept in zip(mine, held["parameters"] + held["averages"], strict=True):
            tensor.data.copy_(kept)
        self._optimizer.load_state_dict(held["optimizer"])
        self._progress = Progress(**held["progress"])
