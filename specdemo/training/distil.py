"""The distillation itself: batches in a fixed order, one optimizer step each, checkpoints that continue exactly.

The compute is spent where it counts: the head scores only the tokens that are likely or occur in the step (a few
thousand of 50,000), only where an answer token is predicted. A step is cut into equal parts that worker threads take
one at a time, each computing on one core: where other programs use the machine, the free cores do the work and no
thread waits for one that was put aside inside every matrix product. Tokens that prompt lookup guesses for nothing count
little: an engine drafts those by lookup.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from specdemo.training import corpus, draft
from specdemo.training.corpus import Batch, Conversation
from specdemo.training.settings import Report, TrainProgress, TrainSettings
from specdemo.training.teacher import SoftLabels

LONGEST = 640
LIKELY, NEGATIVES = 2048, 1024
"""Scored in every step: the most frequent tokens, and this many drawn anew from the other frequent ones."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far training came; `seconds` counts only time in which the process ran."""

    steps: int
    tokens: int
    seconds: float
    resumed: bool


@dataclass(slots=True)
class _State:
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    agreement: float = 0.0


def distil(
    model,
    conversations: Sequence[Conversation],
    frequent: np.ndarray,
    settings: TrainSettings,
    checkpoint: Path,
    report: Report,
    soft: SoftLabels | None = None,
) -> Outcome:
    """Train `model` in place and leave it with the running average of its weights.

    Args:
        model: from `draft.build_draft`, on the device to train on.
        conversations: the text to learn from; none of it is held back here.
        frequent: int64 [n], the ids the draft competes over, most frequent first.
        settings: what to do; `minutes` None makes the result depend on nothing but text, settings and hardware.
        checkpoint: written every `settings.checkpoint_seconds`, read at the start if it is there.
        soft: the target's probabilities; None learns the text's own tokens.
    """
    device = next(model.parameters()).device
    parameters = draft.trainable(model)
    averages = [parameter.detach().clone() for parameter in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    state = _State()
    resumed = _load(checkpoint, state, parameters, averages, optimizer)
    part_tokens = settings.batch_tokens // settings.parts
    longest = min(LONGEST, part_tokens)
    total_steps = _steps(conversations, settings, longest)
    order = islice(corpus.batches(conversations, tokens=part_tokens, longest=longest, seed=settings.seed),
                   state.step * settings.parts, None)  # fmt: skip
    vocabulary = model.get_output_embeddings().weight.shape[0]
    scorer = _Scorer(model, torch.from_numpy(frequent), vocabulary, device, soft, settings.seed)
    pace, saved = _Pace(), state.seconds
    with _workers(settings.parts, device) as workers:
        while (done := _fraction(state, settings, total_steps)) < 1:
            rate = _rate(done, state.step, settings)
            for group in optimizer.param_groups:
                group["lr"] = rate
            numbers = [next(order) for _ in range(settings.parts)]
            parts = [corpus.make_batch([conversations[i] for i in part], longest) for part in numbers]
            right, labels = scorer.gradients(workers, parameters, numbers, parts, state.step)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            state.step += 1
            # The average is young at first: it must not remember weights that were never trained.
            keep = min(settings.average, state.step / (state.step + 10))
            for average, parameter in zip(averages, parameters, strict=True):
                average.lerp_(parameter.detach(), 1 - keep)
            state.agreement += (right / labels - state.agreement) * max(0.05, 1 / state.step)
            state.tokens += sum(part.tokens.size for part in parts)
            state.seconds += pace.step()
            if state.seconds - saved >= settings.checkpoint_seconds:
                _save(checkpoint, state, parameters, averages, optimizer)
                saved = state.seconds
            left = state.seconds * (1 - done) / max(done, 1e-9)
            report(TrainProgress("Training", done, 1.0, state.agreement, left))
    _save(checkpoint, state, parameters, averages, optimizer)
    for parameter, average in zip(parameters, averages, strict=True):
        parameter.data.copy_(average)
    return Outcome(state.step, state.tokens, state.seconds, resumed)


class _Scorer:
    """The loss of a step's parts and its gradients."""

    def __init__(self, model, frequent, vocabulary: int, device, soft: SoftLabels | None, seed: int) -> None:
        self._model, self._frequent, self._device, self._soft, self._seed = model, frequent, device, soft, seed
        self._places = torch.full((vocabulary,), -1, dtype=torch.long)

    def gradients(self, workers, parameters, numbers, parts: Sequence[Batch], step: int) -> tuple[int, int]:
        """Set every parameter's gradient. Returns how many labels the draft had right, of how many."""
        soft = [self._soft.of(part) if self._soft else None for part in numbers]
        candidates = self._candidates(parts, soft, step)
        self._places.fill_(-1)
        self._places[candidates] = torch.arange(len(candidates))
        rows = draft.head_rows(self._model, candidates.to(self._device))
        labels = sum(len(part.labels) for part in parts)
        weight = float(sum(part.weights.sum() for part in parts))
        jobs = [
            workers.submit(self._part, parameters, part, targets, rows, weight)
            for part, targets in zip(parts, soft, strict=True)
        ]
        results = [job.result() for job in jobs]
        for index, parameter in enumerate(parameters):
            # Summed in the order of the parts, whoever finished first, so that a rerun gives the same bits.
            parameter.grad = sum(gradients[index] for gradients, _ in results)
        return sum(right for _, right in results), labels

    def _candidates(self, parts, soft, step: int) -> torch.Tensor:
        rare = self._frequent[LIKELY:]
        generator = torch.Generator().manual_seed(1_000_003 * self._seed + step)
        drawn = rare[torch.randperm(len(rare), generator=generator)[:NEGATIVES]]
        seen = [torch.from_numpy(part.labels) for part in parts]
        likely = [
            torch.from_numpy(targets.tokens.astype(np.int64)).flatten() for targets in soft if targets is not None
        ]
        return torch.cat([self._frequent[:LIKELY], drawn, *seen, *likely]).unique()

    def _part(self, parameters, part: Batch, targets, rows, weight: float):
        logits = draft.hidden(self._model, part, self._device) @ rows.T
        wanted = self._places[torch.from_numpy(part.labels)].to(self._device)
        if targets is None:
            losses = torch.nn.functional.cross_entropy(logits, wanted, reduction="none")
        else:
            places = self._places[torch.from_numpy(targets.tokens.astype(np.int64))].to(self._device)
            likely = torch.from_numpy(targets.probabilities.astype(np.float32)).to(self._device)
            losses = -(likely * logits.log_softmax(1).gather(1, places)).sum(1)
        loss = (losses * torch.from_numpy(part.weights).to(self._device)).sum() / weight
        gradients = torch.autograd.grad(loss, parameters)
        return gradients, int((logits.detach().argmax(1) == wanted).sum())


class _Pace:
    """Seconds of a step, in which a pause (a stopped process, a sleeping laptop) counts as one slow step at most."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._recent: list[float] = []

    def step(self) -> float:
        now = time.monotonic()
        self._recent = [*self._recent[-49:], now - self._last]
        self._last = now
        return min(self._recent[-1], 3 * statistics.median(self._recent))


@contextmanager
def _workers(parts: int, device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """Threads that each compute on one core; on a GPU one thread that gives it the parts in turn."""
    before = torch.get_num_threads()
    count = 1 if device.type == "cuda" else min(parts, os.cpu_count() or 1)
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def _steps(conversations: Sequence[Conversation], settings: TrainSettings, longest: int) -> int:
    tokens = sum(min(len(conversation), longest) for conversation in conversations)
    return max(1, round(settings.passes * tokens / settings.batch_tokens))


def _fraction(state: _State, settings: TrainSettings, total_steps: int) -> float:
    """From 0 to 1: by time if minutes were given, else by steps."""
    if settings.minutes is not None:
        return state.seconds / (60 * settings.minutes)
    return state.step / total_steps


def _rate(done: float, step: int, settings: TrainSettings) -> float:
    """Warm-up, then constant so that the average is usable at any time, then down to 2 % (WSD, arXiv 2404.06395)."""
    rate = settings.learning_rate * min(1.0, (step + 1) / settings.warmup_steps)
    return rate * min(1.0, max(0.02, (1 - done) / settings.decay))


def _save(path: Path, state: _State, parameters, averages, optimizer) -> None:
    """Everything a run continues from. There is no RNG state: random draws depend on the seed and the step alone."""
    held = {
        "state": {name: getattr(state, name) for name in _State.__slots__},
        "parameters": [parameter.detach() for parameter in parameters],
        "averages": averages,
        "optimizer": optimizer.state_dict(),
    }
    partial = path.with_name(path.name + ".partial")
    torch.save(held, partial)
    os.replace(partial, path)


def _load(path: Path, state: _State, parameters, averages, optimizer) -> bool:
    if not path.is_file():
        return False
    held = torch.load(path, map_location=parameters[0].device)
    for name, value in held["state"].items():
        setattr(state, name, value)
    for mine, theirs in zip([*parameters, *averages], [*held["parameters"], *held["averages"]], strict=True):
        mine.data.copy_(theirs)
    optimizer.load_state_dict(held["optimizer"])
    return True


def start_norm(model, conversations: Sequence[Conversation], frequent: np.ndarray) -> float:
    """Scale the final norm so that the untrained draft is least wrong, and return the scale.

    The few first layers leave a residual stream of other proportions than all of them, and the norm's weights, made for
    those, give logits that are far too sure.
    """
    device = next(model.parameters()).device
    batch = corpus.make_batch(conversations[:8], LONGEST)
    tokens = np.union1d(frequent, batch.labels)
    labels = torch.from_numpy(np.searchsorted(tokens, batch.labels)).to(device)
    with torch.no_grad():
        logits = draft.hidden(model, batch, device) @ draft.head_rows(model, torch.from_numpy(tokens).to(device)).T
        losses = {s: float(torch.nn.functional.cross_entropy(s * logits, labels)) for s in (1.0, 0.3, 0.1)}
        scale = min(losses, key=losses.get)
        for parameter in draft.final_norm(model).parameters():
            parameter.mul_(scale)
    return scale
