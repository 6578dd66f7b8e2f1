"""The draft's architecture: the target's own embedding and head, frozen, around copies of its first layers.

Needs torch and transformers, as do `distil` and `evaluate`; nothing that the page imports leads here.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from specdemo.models.errors import BadChoice

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def build_draft(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A model of the target's class with its first `layers` layers; those and the final norm are trainable.

    The first layers alone start far better than the first and the last: what a last layer adds to the residual stream
    is as large as all before it, and is noise when those before it are missing (docs/draft-training.md has figures).

    Raises:
        BadChoice: the architecture is not supported, or the target has fewer layers.
    """
    available = len(_decoder_layers(target))
    if not 1 <= layers <= available:
        raise BadChoice(f"--layers {layers}: the target has {available} layers, so choose from 1 to {available}.")
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    draft = type(target)(config).to(target.dtype)
    prefix = f"{target.base_model_prefix}.layers."
    kept = {
        name: value.clone()
        for name, value in target.state_dict().items()
        if not name.startswith(prefix) or int(name[len(prefix) :].split(".")[0]) < layers
    }
    draft.load_state_dict(kept)
    draft.requires_grad_(False)
    for part in (*_decoder_layers(draft), final_norm(draft)):
        part.requires_grad_(True)
    return draft.train()


def trainable(draft: PreTrainedModel) -> list[torch.nn.Parameter]:
    """The parameters that training changes, in a fixed order."""
    return [parameter for parameter in draft.parameters() if parameter.requires_grad]


def final_norm(model: PreTrainedModel) -> torch.nn.Module:
    """The norm before the head."""
    base = model.base_model
    norm = getattr(base, "norm", None) or getattr(base, "final_layer_norm", None)
    if norm is None:
        raise _unsupported(model)
    return norm


def head_rows(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """The head's rows for `tokens`, [n, width]. They carry no gradient."""
    return model.get_output_embeddings().weight.detach()[tokens]


def hidden(draft: PreTrainedModel, batch, device: torch.device) -> torch.Tensor:
    """What the head sees where a batch's labels are predicted, [n, width]."""
    tokens = torch.from_numpy(batch.tokens).to(device)
    return draft.base_model(input_ids=tokens, use_cache=False).last_hidden_state[batch.rows, batch.columns]


def _decoder_layers(model: PreTrainedModel):
    layers = getattr(model.base_model, "layers", None)
    if layers is None or model.get_output_embeddings() is None or model.get_output_embeddings().bias is not None:
        raise _unsupported(model)
    return layers


def _unsupported(model: PreTrainedModel) -> BadChoice:
    return BadChoice(
        f"train-draft makes drafts for Llama-like and GPT-NeoX targets; {type(model).__name__} is built differently."
    )
