"""Trains a draft head (formula: `specdemo.convert.heads`) on the target's hidden states.

A chain of DEPTH steps starts at every answer token. Later steps are trained mainly where earlier
ones were right, as in decoding. The labels are the target's probabilities.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from specdemo.convert import heads
from specdemo.convert.weights import Quantized, fit_int4
from specdemo.engine.drafts.model_drafters import DEPTH
from specdemo.errors import BadInput
from specdemo.machine.disk import replacing
from specdemo.machine.terminal import Progress, progress_bar
from specdemo.training.data import THIRDS, Rows
from specdemo.training.recipe import TrainSettings

TOKENS = 4096  # a head drafts only these most frequent tokens
VARIATION = 0.9  # share of the total variation in the loss; the rest is cross-entropy
SHARPNESS = 1.5  # of the distributions in the loss, as at temperature 0.67: heads draft at 0 to 1
LATER, FITTED_LATER = 0.8, 0.6  # a step's weight relative to the step before: training, rounding
LEARNING_RATE = 4e-3
MUON_MOMENTUM, MUON_DECAY = 0.95, 0.01
MUON_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of its iteration, the steepest at zero
AVERAGE = 0.98  # decay of the running average of weights
START_SHARE = 0.5
"""Share of the starting head's weights in the result (arXiv 2109.01903): without, it forgets. On
questions in prose agreement was 0.528 at first, 0.508 after 0.94 M tokens, 0.535 mixed."""
FITTED_ROWS = 10_000  # rows to which the rounding to int4 is fitted


class HeadNetwork:
    """A head's weights, by the names of `specdemo.convert.heads`, and the target's matrices that it
    uses: the embedding, [vocabulary, E], and the rows, [V', E], of the output matrix, [vocabulary,
    E], for the TOKENS most `frequent` tokens in `rows`."""

    def __init__(
        self, embedding: np.ndarray, output: np.ndarray, rows: Rows, settings: TrainSettings
    ) -> None:
        device = settings.device
        counts = np.bincount(rows.tokens, minlength=len(output))
        self.frequent = np.argsort(-counts, kind="stable")[:TOKENS]
        first = first_weights(settings, embedding.shape[1])
        self.weights = {name: first[name].to(device).requires_grad_(True) for name in first}
        # bfloat16 where the device multiplies it faster.
        fast = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
        self.kind = torch.bfloat16 if fast else torch.float32
        self.embedding = torch.from_numpy(embedding).to(device)
        self.rows = torch.from_numpy(output[self.frequent]).to(device, self.kind)
        self.device = device

    def hidden(self, states: np.ndarray) -> torch.Tensor:
        """The head's input, [n, H], from rows of `Rows.states`; each part is normalised."""
        pieces = torch.from_numpy(states[:, :-1]).to(self.device).float()
        return _norm(pieces.view(len(states), -1, self.embedding.shape[1])).flatten(1)

    def shared(self, hidden: torch.Tensor) -> torch.Tensor:
        """The product of `mix` and `hidden`, [n, S], which all steps of a chain share."""
        return self._product(hidden, self.weights["mix"][:, : hidden.shape[1]])

    def step(
        self, shared: torch.Tensor, state: torch.Tensor | None, tokens: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """The next state, [n, S], the logits of the frequent tokens, [n, V'], and the input of each
        matrix (of `mix` without `hidden`, which comes first)."""
        state = torch.zeros_like(shared) if state is None else _norm(state)
        embedded = _norm(self.embedding[torch.from_numpy(tokens).to(self.device)])
        x = {"mix": torch.cat([state, embedded], 1)}
        mix = self.weights["mix"][:, -x["mix"].shape[1] :]
        state = shared + self._product(x["mix"], mix)
        x["gate_up"] = _norm(state)
        gate, up = self._product(x["gate_up"], self.weights["gate_up"]).chunk(2, 1)
        x["down"] = functional.silu(gate) * up
        state = state + self._product(x["down"], self.weights["down"])
        x["out"] = _norm(state)
        x["rows"] = self._product(x["out"], self.weights["out"])
        return state, self._product(x["rows"], self.rows), x

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not followed
    def chains(
        self, rows: Rows, starts: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray, torch.Tensor, dict[str, torch.Tensor]]]:
        """Run chains from the rows `starts` along the answers. Yields for each step its depth from
        0, the indices into `starts`, the logits, and the input of each matrix."""
        for part in np.array_split(np.arange(len(starts)), -(-len(starts) // 2048)):
            hidden, state = self.hidden(rows.states[starts[part]]), None
            shared = self.shared(hidden)
            for depth in range(DEPTH):
                ahead = np.minimum(starts[part] + depth, len(rows.tokens) - 1)
                state, logits, x = self.step(shared, state, rows.tokens[ahead])
                yield depth, part, logits, x | {"mix": torch.cat([hidden, x["mix"]], 1)}

    def quantized(self, rows: Rows) -> dict[str, Quantized]:
        """The weights and the rows of the target's output matrix in int4, rounded so that their
        products along these `rows` change least."""
        starts = np.arange(0, len(rows.tokens), max(len(rows.tokens) // FITTED_ROWS, 1))
        matrices = {**self.weights, "rows": self.rows}
        squares: dict[str, torch.Tensor] = {}
        for depth, _, _, inputs in self.chains(rows, starts):
            for name, x in inputs.items():
                squares[name] = squares.get(name, 0.0) + FITTED_LATER**depth * (x.T @ x)
        return {
            name: fit_int4(matrix.detach().float().cpu().numpy(), squares[name].cpu().numpy())
            for name, matrix in matrices.items()
        }

    def guesses(self, rows: Rows, starts: np.ndarray) -> np.ndarray:
        """Whether each of the DEPTH draft tokens after each of these rows is right, given the true
        tokens before it: bool [n, DEPTH], False past the end of the answer."""
        hits = np.zeros((len(starts), DEPTH), bool)
        for depth, part, logits, _ in self.chains(rows, starts):
            ahead = starts[part] + depth + 1
            inside = ahead < rows.ends[starts[part]]
            wanted = rows.tokens[np.minimum(ahead, len(rows.tokens) - 1)]
            hits[part, depth] = inside & self.right(logits, wanted)
        return hits

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not followed
    def target_probabilities(self, states: np.ndarray) -> torch.Tensor:
        """The target's probabilities of the frequent tokens to the power SHARPNESS, [n, V'], from
        rows of `Rows.states`; normalised with all other tokens as one, which has the rest."""
        rows = torch.from_numpy(states).to(self.device)
        logits = self._product(rows[:, : self.embedding.shape[1]], self.rows)
        logarithms = (logits - rows[:, -1:]).clamp_(max=0)
        others = (1 - logarithms.exp().sum(1, keepdim=True)).clamp_(min=0) ** SHARPNESS
        sharp = logarithms.mul_(SHARPNESS).exp_()
        return sharp.div_(sharp.sum(1, keepdim=True) + others)

    def right(self, logits: torch.Tensor, tokens: np.ndarray) -> np.ndarray:
        right: np.ndarray = self.frequent[logits.argmax(1).cpu().numpy()] == tokens
        return right

    def _product(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return functional.linear(rows.to(self.kind), weights.to(self.kind)).float()


def _norm(rows: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(rows, rows.shape[-1:], eps=heads.EPSILON)


def earlier_weights(path: Path) -> dict[str, torch.Tensor]:
    """The matrices of the head in `path`, but for the target's rows. Raises BadInput."""
    try:
        weights = heads.load(path).weights
        return {name: torch.from_numpy(weights[name].floats()) for name in heads.MATRICES[:-1]}
    except Exception as error:  # other files give errors of many kinds
        raise BadInput(f"--start {path} is not a head.npz that train-draft wrote.") from error


def first_weights(settings: TrainSettings, size: int) -> dict[str, torch.Tensor]:
    """Where training starts, for a target with `size` columns in its embedding: the weights of
    `settings.start`, else random ones. Raises BadInput for a head of another size."""
    width = settings.width
    shapes = {
        "mix": (width, (2 + len(THIRDS)) * size + width),
        "gate_up": (4 * width, width),
        "down": (width, 2 * width),
        "out": (size, width),
    }
    if settings.start:
        first = earlier_weights(settings.start)
        if {name: tuple(matrix.shape) for name, matrix in first.items()} != shapes:
            raise BadInput(f"--start {settings.start} is a head of another size of target.")
        return first
    generator = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: matrix / matrix.shape[1] ** 0.5 for name, matrix in drawn.items()}


def train(
    head: HeadNetwork, rows: Rows, starts: np.ndarray, settings: TrainSettings, checkpoint: Path
) -> dict[str, float]:
    """Train a head in place on chains from the rows `starts`, for `settings.minutes` or, without
    them, `settings.passes`. At the end its weights are their running average, mixed with those that
    `settings.start` gave. Gives the number of steps and their seconds.

    A step draws `settings.chains` chains, in proportion to the weights of their first draft tokens.
    `checkpoint` is read if it exists, and written every `settings.checkpoint_seconds`.
    """
    starts = starts[starts + 1 < rows.ends[starts]]
    drawn = np.cumsum(rows.weights[starts + 1], dtype=np.float64)
    parameters = list(head.weights.values())
    initial = [parameter.detach().clone() for parameter in parameters]
    averages = [weights.clone() for weights in initial]
    optimizer = Muon(parameters, head.kind)
    steps, seconds = 0, 0.0
    weights = [tensor.detach() for tensor in parameters + averages + optimizer.momenta]
    if checkpoint.is_file():
        stored = torch.load(checkpoint, map_location=head.device)
        for tensor, value in zip(weights, stored["weights"], strict=True):
            tensor.copy_(value)
        steps, seconds = stored["progress"]

    def save() -> None:
        with replacing(checkpoint) as partial:
            torch.save({"weights": weights, "progress": (steps, seconds)}, partial)

    planned = max(1, round(settings.passes * len(starts) / settings.chains))
    limit, saved = 60 * (settings.minutes or 0), seconds
    with progress_bar() as report:
        while (done := seconds / limit if limit else steps / planned) < 1:
            before = time.monotonic()
            rng = np.random.default_rng(steps)
            chosen = np.searchsorted(drawn, rng.random(settings.chains) * drawn[-1])
            loss, agreement = _loss(head, rows, np.sort(starts[chosen]), rng)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step(LEARNING_RATE * _rate_share(steps, done))
            steps += 1
            # The average decays faster at first, so that it forgets the untrained weights.
            keep = min(AVERAGE, steps / (steps + 10))
            current = [parameter.detach() for parameter in parameters]
            torch._foreach_lerp_(averages, current, 1 - keep)
            unit = f"%, agreement {agreement:.3f}"
            report(Progress("Training", round(100 * done), 100, unit=unit))
            seconds += time.monotonic() - before
            if seconds - saved >= settings.checkpoint_seconds:
                save()
                saved = seconds
    save()
    for parameter, average, first in zip(parameters, averages, initial, strict=True):
        parameter.data.copy_(average.lerp(first, START_SHARE if settings.start else 0.0))
    return {"steps": steps, "seconds": seconds}


def _rate_share(steps: int, done: float) -> float:
    """The share of LEARNING_RATE: a warm-up, then all of it, over the last 35 % down to 2 % (WSD,
    arXiv 2404.06395)."""
    return min(1.0, (steps + 1) / 20, max(0.02, (1 - done) / 0.35))


class Muon:
    """The optimizer Muon (K. Jordan, 2024) for `parameters`, float32 matrices, with products in
    `kind`. Updates have the size of AdamW's, so that learning rates are those of AdamW.

    torch's own multiplies in bfloat16 on every device. A processor without it emulates that: on
    AVX2 a step for the embedded target's head then took 80 s instead of 2."""

    def __init__(self, parameters: Sequence[torch.Tensor], kind: torch.dtype) -> None:
        self._parameters, self._kind = parameters, kind
        self.momenta = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not followed
    def step(self, rate: float) -> None:
        """One update, after which the gradients are gone."""
        for parameter, momentum in zip(self._parameters, self.momenta, strict=True):
            gradient: Any = parameter.grad
            momentum.lerp_(gradient, 1 - MUON_MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, MUON_MOMENTUM).to(self._kind))
            parameter.mul_(1 - rate * MUON_DECAY)
            parameter.add_(update, alpha=-rate * 0.2 * max(parameter.shape) ** 0.5)
            parameter.grad = None


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The nearly orthogonal matrix that is closest to `matrix`, by Newton-Schulz iterations: its
    singular values are all about one."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T).T
    matrix = matrix / matrix.norm().clamp(min=1e-7)
    linear, cubic, quintic = MUON_COEFFICIENTS
    for _ in range(5):
        square = matrix @ matrix.T
        matrix = linear * matrix + (cubic * square + quintic * square @ square) @ matrix
    return matrix


def distance(wanted: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The loss of each row, [n]. Total variation is the chance that the maximal coupling rejects a
    draft token; cross-entropy still has a gradient where the two distributions hardly overlap.
    `wanted`, [n, V']: the target's probabilities of the head's tokens. What is missing to one is
    not given to other tokens."""
    logarithms = logits.log_softmax(1)
    variation = 1 - torch.minimum(wanted, logarithms.exp()).sum(1)
    return VARIATION * variation - (1 - VARIATION) * (wanted * logarithms).sum(1)


def _loss(
    head: HeadNetwork, rows: Rows, starts: np.ndarray, rng: np.random.Generator
) -> tuple[torch.Tensor, float]:
    """The loss of the chains from the rows `starts`, and the share of right first tokens."""
    shared, state, count = head.shared(head.hidden(rows.states[starts])), None, len(starts)
    loss, agreement = torch.zeros((), device=head.device), 0.0
    for depth in range(1, DEPTH + 1):
        ahead = np.minimum(starts + depth, len(rows.tokens) - 1)
        state, logits, _ = head.step(shared, state, rows.tokens[ahead - 1])
        inside = starts + depth < rows.ends[starts]
        weights = LATER ** (depth - 1) * inside
        if depth > 1:
            weights = weights * rows.weights[ahead]
        losses = distance(head.target_probabilities(rows.states[ahead]), SHARPNESS * logits)
        mean_weights = torch.from_numpy((weights / count).astype(np.float32)).to(head.device)
        loss = loss + losses @ mean_weights
        right = head.right(logits, rows.tokens[ahead])
        if depth == 1:
            agreement = float(right.mean())
        ended = starts + depth + 1 >= rows.ends[starts]
        continued = _continued_chains(right, ended, rng)
        index = torch.from_numpy(continued).to(head.device)
        starts, shared, state = starts[continued], shared[index], state[index]
    return loss, agreement


def _continued_chains(right: np.ndarray, ended: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices of the half of the chains, at least 64, that take another step. Decoding reaches a
    draft token only after right ones, so right chains come first, with a few wrong ones among
    them. Chains whose answer has ended come last."""
    priority = right + 1.1 * rng.random(len(right))
    order = np.lexsort((-priority, ended))
    return np.sort(order[: max(64, len(right) // 2)])
