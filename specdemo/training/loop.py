"""The training loop: rates over time, averaged weights, checkpoints.

A step is cut into parts, and each worker thread computes parts on one core: on a machine that other
programs share, no thread waits for another inside every matrix product.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    import torch

    from specdemo.training.command import TrainSettings

WARMUP_STEPS = 20
DECAY = 0.35
"""Share of the run at its end over which the learning rate falls."""
AVERAGE = 0.98
"""Decay of the running average of weights."""
BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"


@dataclass(slots=True)
class Progress:
    """How far training came. `tokens` counts padding too; `seconds` leaves out pauses of the
    process; `agreement` is a moving average of the share of labels that the draft predicts."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    agreement: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """What a part of a step found: the gradient of each parameter, how many of its labels the draft
    predicted, and the tokens it read."""

    gradients: Sequence[torch.Tensor]
    right: int
    labels: int
    tokens: int


def train(
    parameters: Sequence[torch.Tensor],
    optimizer: torch.optim.Optimizer,
    parts: Callable[[int], Sequence[Callable[[], Part]]],
    steps: int,
    settings: TrainSettings,
    checkpoint: Path,
) -> Progress:
    """Train `parameters` in place, for `steps` steps or `settings.minutes`, and leave them with the
    running average of their values. `parts` gives what a step computes, by its number alone.

    `checkpoint` is read if it is there, and written every `settings.checkpoint_seconds`.
    """
    import torch

    averages = [one.detach().clone() for one in parameters]
    progress = Progress()
    if checkpoint.is_file():
        held = torch.load(checkpoint, map_location=parameters[0].device)
        kept = held["parameters"] + held["averages"]
        for tensor, value in zip([*parameters, *averages], kept, strict=True):
            tensor.data.copy_(value)
        optimizer.load_state_dict(held["optimizer"])
        progress = Progress(**held["progress"])

    def save() -> None:
        held = {
            "progress": asdict(progress),
            "parameters": [parameter.detach() for parameter in parameters],
            "averages": averages,
            "optimizer": optimizer.state_dict(),
        }
        partial = checkpoint.with_name(checkpoint.name + ".partial")
        torch.save(held, partial)
        os.replace(partial, checkpoint)

    rates = [group.setdefault("initial_lr", group["lr"]) for group in optimizer.param_groups]
    gpu = parameters[0].device.type == "cuda"
    count = 1 if gpu else min(settings.parts, os.cpu_count() or 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = settings.minutes and 60 * settings.minutes
    saved, clock = progress.seconds, time.monotonic()
    bar = tqdm(total=1.0, desc="Training", bar_format=BAR)
    with bar, ThreadPoolExecutor(count, "train", torch.set_num_threads, (1,)) as workers:
        while (done := progress.seconds / seconds if seconds else progress.steps / steps) < 1:
            bar.update(done - bar.n)
            # Warm-up, then constant so that the average is usable at any time, then down to 2 %
            # (WSD, arXiv 2404.06395).
            share = min(1.0, (progress.steps + 1) / WARMUP_STEPS, max(0.02, (1 - done) / DECAY))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share
            jobs = [workers.submit(part) for part in parts(progress.steps)]
            results = [job.result() for job in jobs]
            for index, parameter in enumerate(parameters):
                # Summed in the order of the parts, whichever ends first: a rerun gives the same
                # bits.
                parameter.grad = sum(one.gradients[index] for one in results)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            clock, before = time.monotonic(), clock
            # A pause (a stopped process, a sleeping laptop) counts as one slow step.
            slowest = 3 * progress.seconds / progress.steps if progress.steps else 60
            progress.seconds += min(clock - before, slowest)
            progress.steps += 1
            progress.tokens += sum(one.tokens for one in results)
            agreement = sum(one.right for one in results) / sum(one.labels for one in results)
            newest = max(0.05, 1 / progress.steps)
            progress.agreement += (agreement - progress.agreement) * newest
            # The average is young at first: it must not remember weights that never trained.
            keep = min(AVERAGE, progress.steps / (progress.steps + 10))
            for average, parameter in zip(averages, parameters, strict=True):
                average.lerp_(parameter.detach(), 1 - keep)
            bar.set_postfix(agreement=f"{progress.agreement:.3f}")
            if progress.seconds - saved >= settings.checkpoint_seconds:
                save()
                saved = progress.seconds
        bar.update(1 - bar.n)
    torch.set_num_threads(threads)
    save()
    for parameter, average in zip(parameters, averages, strict=True):
        parameter.data.copy_(average)
    return progress
