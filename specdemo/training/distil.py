"""The draft model, the target's first layers between its frozen embedding and head, and its
training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specdemo.errors import BadInput
from specdemo.training import corpus, loop
from specdemo.training.corpus import Batch, Conversation

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from specdemo.training.command import TrainSettings

LONGEST = 640
"""Tokens of a conversation that training reads."""
LIKELY, NEGATIVES = 2048, 1024
"""Ids scored in every step: the most frequent ones, and some drawn from the other frequent ones."""
LEARNING_RATE = 2e-3


def build_draft(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A model of the target's class with its first `layers` layers; those and the final norm train.

    The first layers start better than the first and the last (docs/results/draft-training.md): the
    last one adds as much to the residual stream as all before it, noise if those are missing.
    Raises BadInput for an unsupported architecture or a target with fewer layers.
    """
    available = len(decoder_layers(target))
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
    for part in (*decoder_layers(draft), _final_norm(draft)):
        part.requires_grad_(True)
    return draft


def decoder_layers(model: PreTrainedModel) -> Sequence[torch.nn.Module]:
    """Raises BadInput for an unsupported architecture."""
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
    return states[:, :-1][torch.from_numpy(batch.answered[:, 1:])] @ _head_rows(model, candidates)


def soft_labels(model: PreTrainedModel, batch: Batch, candidates: np.ndarray) -> torch.Tensor:
    """The target's probabilities of `candidates` for the labels of a batch, [labels, m]."""
    import torch

    states = torch.from_numpy(batch.states).to(model.device, model.dtype)
    return (states[:, :-1] @ _head_rows(model, candidates) - states[:, -1:]).exp()


def _head_rows(model: PreTrainedModel, tokens: np.ndarray) -> torch.Tensor:
    import torch

    rows = torch.from_numpy(tokens).to(model.device)
    return model.get_output_embeddings().weight.detach()[rows].T


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


def train(
    model: PreTrainedModel,
    lessons: Sequence[Conversation],
    frequent: np.ndarray,
    settings: TrainSettings,
    checkpoint: Path,
) -> loop.Progress:
    """Train `model` (from `build_draft`) in place, on the device where it is.

    `frequent` (int64 [n]) are the ids that the draft may propose, most frequent first. With
    `settings.minutes` None the result depends on text, settings and hardware alone.
    """
    import torch

    part_tokens = settings.batch_tokens // settings.parts
    longest = min(LONGEST, part_tokens)
    parameters = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01
    )
    order = enumerate(corpus.batches(lessons, part_tokens, longest, settings.seed))

    def parts(step: int) -> list[Callable[[], loop.Part]]:
        members = []
        for number, part in order:
            if number >= step * settings.parts:  # those before were read before an interruption
                members.append([lessons[i] for i in part])
            if len(members) == settings.parts:
                break
        batches = [corpus.make_batch(part, longest) for part in members]
        weight = float(sum(batch.weights.sum() for batch in batches))
        rng = np.random.default_rng([settings.seed, step])
        candidates = _candidates(batches, frequent, rng)
        return [partial(_gradients, model, batch, candidates, weight) for batch in batches]

    read = settings.passes * sum(min(len(one), longest) for one in lessons)
    steps = max(1, round(read / settings.batch_tokens))
    return loop.train(parameters, optimizer, parts, steps, settings, checkpoint)


def _candidates(
    batches: Sequence[Batch], frequent: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The ids that a step scores, rising: frequent ones, some drawn, and all of its labels."""
    drawn = rng.permutation(frequent[LIKELY:])[:NEGATIVES]
    labels = [batch.labels for batch in batches]
    return np.unique(np.concatenate([frequent[:LIKELY], drawn, *labels]))


def _gradients(
    model: PreTrainedModel, batch: Batch, candidates: np.ndarray, weight: float
) -> loop.Part:
    """Gradients of the cross-entropy to the labels, or to the target's probabilities if the batch
    has them, divided by `weight`."""
    import torch

    scores = logits(model, batch, candidates)
    wanted = torch.from_numpy(np.searchsorted(candidates, batch.labels)).to(model.device)
    if batch.states is None:
        losses = torch.nn.functional.cross_entropy(scores, wanted, reduction="none")
    else:
        losses = -(soft_labels(model, batch, candidates) * scores.log_softmax(1)).sum(1)
    weights = torch.from_numpy(batch.weights[batch.answered]).to(model.device)
    loss = (losses * weights).sum() / weight
    gradients = torch.autograd.grad(loss, [one for one in model.parameters() if one.requires_grad])
    right = int((scores.detach().argmax(1) == wanted).sum())
    return loop.Part(gradients, right, len(wanted), batch.tokens.size)
