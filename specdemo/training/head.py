"""The training of a draft head (`specdemo.models.heads` has its formula) on the target's states.

The target is read once over the text; from then on training needs its hidden states only, because
they times its output matrix are its logits. A chain starts at every answer token, and its later
steps are trained where its earlier ones were right, as in decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from specdemo.models import heads
from specdemo.training import loop
from specdemo.training.corpus import Conversation

if TYPE_CHECKING:
    from specdemo.training.command import TrainSettings

DEPTH = 5
"""Tokens of a chain."""
LATER = 0.8
"""Weight of a step of a chain, relative to the one before."""
LEARNING_RATE = 4e-3
FEWEST_ROWS = 64
"""Rows of a part that its later steps keep at least."""
EVALUATED_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Rows:
    """Answer tokens, one after the other: their `states` (`states.Read`), float16 [n, H + 1]; the
    tokens, int64 [n]; their weights in the loss, float32 [n]; and where the answer of each ends,
    int64 [n]."""

    states: np.ndarray
    tokens: np.ndarray
    weights: np.ndarray
    ends: np.ndarray


def gather(lessons: Sequence[Conversation]) -> Rows:
    """The rows of conversations with states."""
    lengths = [len(one.answer) for one in lessons]
    return Rows(
        np.concatenate([one.states for one in lessons]),
        np.concatenate([np.asarray(one.answer, np.int64) for one in lessons]),
        np.concatenate([one.weights or np.ones(len(one.answer)) for one in lessons]).astype("f4"),
        np.repeat(np.cumsum(lengths), lengths),
    )


class DraftHead:
    """A head's weights, by the names of `specdemo.models.heads`, and what it has of the target: the
    embedding, [vocabulary, E], and its output matrix for the tokens `frequent`, [V', E]."""

    def __init__(
        self,
        embedding: np.ndarray,
        output: np.ndarray,
        frequent: np.ndarray,
        features: int,
        settings: TrainSettings,
        device: str,
    ) -> None:
        width, inner, size = settings.width, 2 * settings.width, embedding.shape[1]
        shapes = {
            "mix": (width, features * size + width + size),
            "gate_up": (2 * inner, width),
            "down": (width, inner),
            "out": (output.shape[1], width),
        }
        generator = torch.Generator().manual_seed(settings.seed)
        self.weights = {
            name: (torch.randn(shape, generator=generator) / shape[1] ** 0.5).to(device)
            for name, shape in shapes.items()
        }
        for weights in self.weights.values():
            weights.requires_grad_(True)
        self.embedding = torch.from_numpy(embedding).to(device)
        self.rows = torch.from_numpy(output[frequent]).to(device, _product_type(device))
        self.frequent = frequent
        self.device = device

    def quantized(self) -> dict[str, heads.Quantized]:
        values = {name: one.detach().cpu().numpy() for name, one in self.weights.items()}
        return {name: heads.quantize(value) for name, value in values.items()}

    def cast(self) -> dict[str, torch.Tensor]:
        """The weights as they multiply fastest. Not autocast: its cache is shared by all threads,
        so that sums would be rounded in another order each time."""
        return {name: one.to(self.rows.dtype) for name, one in self.weights.items()}

    def read(self, weights: dict[str, torch.Tensor], states: np.ndarray) -> torch.Tensor:
        """What all steps of a chain share, [n, S], of rows of `Rows.states`. `weights` are those of
        `cast`."""
        pieces = torch.from_numpy(states[:, :-1]).to(self.device).float()
        pieces = _norm(pieces.reshape(len(states), -1, self.embedding.shape[1]))
        hidden = pieces.view(len(states), -1)
        return _product(hidden, weights["mix"][:, : hidden.shape[1]])

    def step(
        self,
        weights: dict[str, torch.Tensor],
        read: torch.Tensor,
        state: torch.Tensor | None,
        tokens: np.ndarray,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next state, [n, S], and what the target's output matrix turns into logits, [n, E]."""
        given = _norm(self.embedding[torch.from_numpy(tokens).to(self.device)])
        state = torch.zeros_like(read) if state is None else _norm(state)
        given = torch.cat([state, given], 1)
        state = read + _product(given, weights["mix"][:, -given.shape[1] :])
        gate, up = _product(_norm(state), weights["gate_up"]).chunk(2, 1)
        state = state + _product(functional.silu(gate) * up, weights["down"])
        return state, _product(_norm(state), weights["out"])

    def logits(self, out: torch.Tensor) -> torch.Tensor:
        """float32 [n, V'] of what `step` gave, or of the target's last hidden states."""
        return (out.to(self.rows.dtype) @ self.rows.T).float()

    def target(self, rows: Rows, at: np.ndarray) -> torch.Tensor:
        """The target's probabilities of the frequent tokens after the rows `at`, [n, V']; the rest
        to one is that of all others."""
        states = torch.from_numpy(rows.states[at]).to(self.device)
        logits = self.logits(states[:, : self.embedding.shape[1]])
        return logits.sub_(states[:, -1:]).clamp_(max=0).exp_()


def _norm(rows: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(rows.float(), rows.shape[-1:], eps=heads.EPSILON)


def _product(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return functional.linear(rows.to(weights.dtype), weights).float()


def _product_type(device: str) -> torch.dtype:
    """bfloat16 where the device multiplies it faster."""
    fast = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def train(head: DraftHead, rows: Rows, settings: TrainSettings, checkpoint: Path) -> loop.Progress:
    """Train a head in place; a step draws `settings.batch_tokens` chains, those more often whose
    first token n-gram lookup does not propose."""
    starts = np.flatnonzero(np.arange(len(rows.ends)) + 1 < rows.ends)
    drawn = np.cumsum(rows.weights[starts + 1], dtype=np.float64)
    parameters = list(head.weights.values())
    optimizer = torch.optim.Muon(
        parameters, lr=LEARNING_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
    )

    def parts(step: int) -> list[Callable[[], loop.Part]]:
        rng = np.random.default_rng([settings.seed, step])
        places = np.searchsorted(drawn, rng.random(settings.batch_tokens) * drawn[-1])
        seeds = rng.integers(1 << 32, size=settings.parts)
        shares = np.array_split(np.sort(starts[places]), settings.parts)
        return [
            partial(_gradients, head, rows, share, int(seed), len(places))
            for share, seed in zip(shares, seeds, strict=True)
        ]

    steps = max(1, round(settings.passes * len(starts) / settings.batch_tokens))
    return loop.train(parameters, optimizer, parts, steps, settings, checkpoint)


def _gradients(head: DraftHead, rows: Rows, at: np.ndarray, seed: int, total: int) -> loop.Part:
    """Gradients of the cross-entropy to the target's probabilities along the chains that start at
    the rows `at`, divided by `total`."""
    rng = np.random.default_rng(seed)
    outs, slopes, state, right, chains = [], [], None, 0, len(at)
    weights = head.cast()
    read = head.read(weights, rows.states[at])
    for depth in range(1, DEPTH + 1):
        ahead = np.minimum(at + depth, len(rows.tokens) - 1)
        state, out = head.step(weights, read, state, rows.tokens[ahead - 1])
        with torch.no_grad():
            share = LATER ** (depth - 1) * (at + depth < rows.ends[at])
            if depth > 1:
                share = share * rows.weights[ahead]
            wanted = head.target(rows, ahead)
            guessed = head.logits(out).softmax(1)
            best = head.frequent[guessed.argmax(1).cpu().numpy()]
            # Tokens that the head does not have keep their share: it is nobody's gain.
            slope = guessed.mul_(wanted.sum(1, keepdim=True)).sub_(wanted)
            scale = torch.from_numpy((share / total).astype(np.float32)).to(out.device)
            slope.mul_(scale[:, None])
            outs.append(out)
            slopes.append((slope.to(head.rows.dtype) @ head.rows).float())
        hit = best == rows.tokens[ahead]
        right += int(hit.sum()) if depth == 1 else 0
        # A draft token is judged only after right ones; of the others some go on, too.
        order = hit + 1.1 * rng.random(len(at)) - 9 * (at + depth + 1 >= rows.ends[at])
        kept = np.sort(np.argsort(-order)[: max(FEWEST_ROWS, len(at) // 2)])
        index = torch.from_numpy(kept).to(out.device)
        at, read, state = at[kept], read[index], state[index]
    gradients = torch.autograd.grad(outs, list(head.weights.values()), slopes)
    return loop.Part(gradients, right, chains, chains)


def guesses(head: DraftHead, rows: Rows) -> np.ndarray:
    """Which tokens of the chain that starts at each row would be right, if those before them are:
    bool [n, DEPTH], column d for the token d + 1 places after the row's; False past the end."""
    hits = np.zeros((len(rows.tokens), DEPTH), bool)
    with torch.no_grad():
        weights = head.cast()
        for start in range(0, len(hits), EVALUATED_ROWS):
            at = np.arange(start, min(start + EVALUATED_ROWS, len(hits)))
            read, state = head.read(weights, rows.states[at]), None
            for depth in range(1, DEPTH + 1):
                ahead = np.minimum(at + depth, len(hits) - 1)
                state, out = head.step(weights, read, state, rows.tokens[ahead - 1])
                best = head.frequent[head.logits(out).argmax(1).cpu().numpy()]
                inside = at + depth < rows.ends[at]
                hits[at, depth - 1] = inside & (best == rows.tokens[ahead])
    return hits
