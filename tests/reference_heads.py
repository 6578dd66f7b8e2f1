"""Draft heads of modules of transformers, with made-up weights: what the engine's are compared
with. The parameters are named as in checkpoints."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import Embedding, Linear, ModuleDict, ModuleList
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention


class ReferenceHead(torch.nn.Module):
    """A decoder layer that reads states of a target, and proposes `tokens`."""

    rotary: torch.nn.Module
    embedding: torch.Tensor  # [vocabulary, H]
    tokens: np.ndarray  # ids of its logits

    def fused(self, states: np.ndarray) -> np.ndarray:
        """What the layer reads [n, H] of the target's `states`."""
        return states

    def rows(
        self, states: torch.Tensor, embedded: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [n, V'], and what replaces the states in a chain [n, H]."""
        raise NotImplementedError

    def context(self, count: int) -> dict[str, Any]:
        """For rows 0 to `count`, each of which attends to those before it."""
        mask = torch.full((count, count), -1e9).triu(1)[None, None]
        tables = self.rotary(torch.zeros(1), torch.arange(count)[None])
        return {"position_embeddings": tables, "attention_mask": mask}

    @torch.no_grad()
    def forward(self, states: np.ndarray, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The `rows` of fused states [n, H], or of those in a chain, each with the token after
        it."""
        logits, chained = self.rows(torch.from_numpy(states), self.embedding[tokens])
        return logits.numpy(), chained.numpy()

    def chain(self, states: np.ndarray, tokens: list[int], drafted: list[int]) -> np.ndarray:
        """The logits [1 + drafted, V'] of the last of a target's `states`, and after each of the
        `drafted` tokens."""
        states = self.fused(states)
        for token in drafted:
            _, chained = self(states, tokens)
            states, tokens = np.vstack([states, chained[-1:]]), [*tokens, token]
        return self(states, tokens)[0][-1 - len(drafted) :]

    def right(self, trace, pair, states_of: Callable[[list[int]], np.ndarray]) -> tuple[int, int]:
        """How many draft tokens of a run of the `pair` are chosen here too, and how many there are.
        `states_of` gives the target's states of a text."""
        prompt = pair.template.render(trace.instruction, pair.tokenizer)
        text, begin, right, total = [*prompt, *trace.token_ids], len(prompt), 0, 0
        states = states_of(text)
        for round_ in trace.decoding_rounds:
            drafted = [token.id for token in round_.drafted]
            logits = self.chain(states[:begin], text[1 : begin + 1], drafted)
            for row, token in zip(logits, drafted, strict=False):
                # Near ties are rounding.
                right += row.max() - row[list(self.tokens).index(token)] < 0.05
            total += len(drafted)
            begin += len(round_.tokens)
        return right, total


class EagleReference(ReferenceHead):
    """An EAGLE-3 head of `rows` logits, four heads of queries and two of keys with `width`, `norms`
    of queries and keys, and `biases`. Without an `embedding` of its own it is given the target's.
    Its file names the layer's tensors with `prefix`; `config` goes into config.json."""

    def __init__(
        self,
        *,
        hidden: int,
        vocabulary: int,
        rows: int,
        width: int = 32,
        target_hidden: int | None = None,
        embedding: bool = True,
        prefix: str = "midlayer",
        norms: bool = False,
        biases: bool = False,
        **config: object,
    ):
        super().__init__()
        target_hidden = target_hidden or hidden
        fields: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle3"]}
        fields |= {"model_type": "llama", "hidden_size": hidden, "intermediate_size": 256}
        fields |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": width}
        fields |= {"num_hidden_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6}
        fields |= {"vocab_size": vocabulary, "draft_vocab_size": rows}
        fields |= {"target_hidden_size": target_hidden, "attention_bias": biases}
        fields |= {"mlp_bias": biases, **config}
        self.config, self.prefix = fields, prefix
        # A configuration changes its own.
        layer = modeling_llama.LlamaConfig(**deepcopy(fields), attn_implementation="eager")
        read = target_hidden * len(config.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0))
        attention = (Qwen3Attention if norms else modeling_llama.LlamaAttention)(layer, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            count = getattr(attention, name).out_features
            setattr(attention, name, Linear(2 * hidden, count, bias=biases))
        parts = {"self_attn": attention, "mlp": LlamaMLP(layer)}
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            parts[name] = LlamaRMSNorm(hidden)
        self.midlayer = ModuleDict(parts)
        self.fc = Linear(read, hidden, bias=False)
        self.lm_head = Linear(hidden, rows, bias=False)
        self.norm = LlamaRMSNorm(hidden)
        if embedding:
            self.embed_tokens = Embedding(vocabulary, hidden)
            self.embedding = self.embed_tokens.weight.data
        if config.get("norm_before_fc"):
            self.input_norm = LlamaRMSNorm(read)
        if config.get("fc_norm"):
            self.fc_norm = ModuleList(LlamaRMSNorm(target_hidden) for _ in range(3))
        self.rotary = modeling_llama.LlamaRotaryEmbedding(layer)
        self._fill()
        self.tokens = np.sort(np.random.default_rng(0).choice(vocabulary, rows, replace=False))

    @torch.no_grad()
    def _fill(self) -> None:
        """With numbers that have 16 bits."""
        random = torch.Generator().manual_seed(0)
        for name, weights in self.named_parameters():
            deviation = 1.0 if "embed" in name else 1.5 / weights.shape[-1] ** 0.5
            if weights.ndim == 1:
                deviation = 0.25
            weights.normal_(float("norm" in name), deviation, generator=random)
            weights.copy_(weights.half())

    def write(self, folder: Path) -> Path:
        """Write a checkpoint, as such heads are published; gives its folder."""
        tensors = {
            name.replace("midlayer", self.prefix): weights.half()
            for name, weights in self.state_dict().items()
        }
        if len(self.tokens) < (vocabulary := self.config["vocab_size"]):
            tensors["d2t"] = torch.from_numpy(self.tokens - np.arange(len(self.tokens)))
            tensors["t2d"] = torch.from_numpy(np.isin(np.arange(vocabulary), self.tokens))
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder

    @torch.no_grad()
    def fused(self, states: np.ndarray) -> np.ndarray:
        read = torch.from_numpy(states)
        if self.config.get("norm_before_fc"):
            read = self.input_norm(read)
        if self.config.get("fc_norm"):
            parts = zip(self.fc_norm, read.chunk(3, -1), strict=True)
            read = torch.cat([norm(part) for norm, part in parts], -1)
        return self.fc(read).numpy()

    def rows(
        self, states: torch.Tensor, embedded: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layer, normed = self.midlayer, self.midlayer.hidden_norm(states)
        x = torch.cat([layer.input_layernorm(embedded), normed], -1)[None]
        y = layer.self_attn(x, **self.context(len(states)))[0][0]
        y = y + (normed if self.config.get("norm_before_residual") else states)
        z = y + layer.mlp(layer.post_attention_layernorm(y))
        out = self.norm(z)
        return self.lm_head(out), out if self.config.get("norm_output") else z
