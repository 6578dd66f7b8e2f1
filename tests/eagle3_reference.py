"""EAGLE-3 heads in numpy, written from the equations, in float64: what the engine's are held
against; and heads with made-up weights, in files as they are published."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file


class Past(NamedTuple):
    """Keys and values of the rows so far, [rows, heads, width] each."""

    keys: np.ndarray
    values: np.ndarray


class ReferenceHead:
    """The head in `folder`; `embedding` replaces one that it lacks."""

    def __init__(self, folder: Path, embedding: np.ndarray | None = None):
        whole = json.loads((folder / "config.json").read_text())
        self.config = whole.get("transformer_layer_config") or whole
        self.flags = whole | (whole.get("eagle_config") or {})
        tensors = load_file(folder / "model.safetensors")
        self.weights = {
            name.replace("midlayer.", "layers.0.").removeprefix("layers.0."): value.astype(float)
            for name, value in tensors.items()
        }
        self.embedding = self.weights.get("embed_tokens.weight", embedding)
        rows = len(self.weights["lm_head.weight"])
        self.tokens = np.arange(rows) + tensors.get("d2t", 0)
        self.empty = Past(*(np.zeros((0, self.config["num_key_value_heads"], self.width)),) * 2)

    @property
    def width(self) -> int:
        return self.config["head_dim"]

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        mean = np.square(x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + self.config["rms_norm_eps"]) * self.weights[f"{name}.weight"]

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def fused(self, states: np.ndarray) -> np.ndarray:
        """g [n, H] of the target's states [n, 3 H']."""
        if self.flags.get("norm_before_fc"):
            states = self.norm("input_norm", states)
        if self.flags.get("fc_norm"):
            parts = np.split(states, 3, -1)
            states = np.hstack([self.norm(f"fc_norm.{at}", one) for at, one in enumerate(parts)])
        return self.linear("fc", states)

    def rows(
        self, g: np.ndarray, tokens: list[int], past: Past
    ) -> tuple[np.ndarray, np.ndarray, Past]:
        """Rows after `past`: logits [n, V'], what replaces g in a chain [n, H], the new past."""
        normed = self.norm("hidden_norm", g)
        embedded = self.norm("input_layernorm", self.embedding[tokens])
        x = np.hstack([embedded, normed])
        first = len(past.keys)
        positions = np.arange(first, first + len(g))
        query, key, value = (
            self.linear(f"self_attn.{one}_proj", x).reshape(len(g), -1, self.width) for one in "qkv"
        )
        both = self.head_norm("q", query), self.head_norm("k", key)
        query, key = (self.rotated(x, positions) for x in both)
        past = Past(np.concatenate([past.keys, key]), np.concatenate([past.values, value]))
        shared = query.shape[1] // key.shape[1]
        keys, values = (np.repeat(one, shared, 1) for one in past)
        scores = np.einsum("qhw,khw->hqk", query, keys) / math.sqrt(self.width)
        scores[:, np.arange(len(keys))[None, :] > positions[:, None]] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khw->qhw", shares, values).reshape(len(g), -1)
        y = self.linear("self_attn.o_proj", attended)
        y += normed if self.flags.get("norm_before_residual") else g
        inner = self.norm("post_attention_layernorm", y)
        gate, up = (self.linear(f"mlp.{name}_proj", inner) for name in ("gate", "up"))
        z = y + self.linear("mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
        out = self.norm("norm", z)
        return self.linear("lm_head", out), out if self.flags.get("norm_output") else z, past

    def head_norm(self, letter: str, x: np.ndarray) -> np.ndarray:
        name = f"self_attn.{letter}_norm"
        return self.norm(name, x) if f"{name}.weight" in self.weights else x

    def rotated(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        half = self.width // 2
        speeds = np.array([self.speed(at) for at in range(half)])
        angles = positions[:, None, None] * speeds
        first, second = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def speed(self, at: int) -> float:
        """Radians a position of the rotated pair `at`."""
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        base = rope.get("rope_theta") or self.config["rope_theta"]
        speed = base ** (-2 * at / self.width)
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "linear":
            return speed / rope["factor"]
        if kind == "llama3":
            turns = rope["original_max_position_embeddings"] * speed / (2 * math.pi)
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            kept = min(max((turns - low) / (high - low), 0), 1)
            return speed * (kept + (1 - kept) / rope["factor"])
        return speed


def write_made_up_head(
    folder: Path,
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
) -> None:
    """Write a checkpoint of an EAGLE-3 head with made-up weights, as they are published: `rows`
    logits, four heads of queries and two of keys with `width`, an `embedding` or none, the layer's
    tensors named with `prefix`; `norms` of queries and keys; `biases`. `config` goes into
    config.json."""
    rng, inner, query, key = np.random.default_rng(0), 256, 4 * width, 2 * width
    fields: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    fields |= {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1}
    fields |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": width}
    fields |= {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0}
    fields |= {"max_position_embeddings": 2048, "vocab_size": vocabulary, "draft_vocab_size": rows}
    fields |= {"target_hidden_size": target_hidden} if target_hidden else {}
    fields |= {"attention_bias": biases, "mlp_bias": biases} | config
    layers = fields.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0)
    states = (target_hidden or hidden) * len(layers)
    shapes = {
        "fc": (hidden, states),
        f"{prefix}.self_attn.q_proj": (query, 2 * hidden),
        f"{prefix}.self_attn.k_proj": (key, 2 * hidden),
        f"{prefix}.self_attn.v_proj": (key, 2 * hidden),
        f"{prefix}.self_attn.o_proj": (hidden, query),
        f"{prefix}.mlp.gate_proj": (inner, hidden),
        f"{prefix}.mlp.up_proj": (inner, hidden),
        f"{prefix}.mlp.down_proj": (hidden, inner),
        "lm_head": (rows, hidden),
    }
    tensors: dict[str, np.ndarray] = {
        f"{name}.weight": rng.normal(0, 1.5 / shape[1] ** 0.5, shape).astype(np.float16)
        for name, shape in shapes.items()
    }
    if embedding:
        tensors["embed_tokens.weight"] = rng.normal(size=(vocabulary, hidden)).astype(np.float16)
    sizes = {"norm": hidden}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        sizes[f"{prefix}.{name}"] = hidden
    if norms:
        sizes |= {f"{prefix}.self_attn.{name}_norm": width for name in "qk"}
    if fields.get("norm_before_fc"):
        sizes["input_norm"] = states
    if fields.get("fc_norm"):
        sizes |= {f"fc_norm.{tap}": target_hidden or hidden for tap in range(3)}
    for name, size in sizes.items():
        tensors[f"{name}.weight"] = rng.normal(1, 0.2, size).astype(np.float16)
    if biases:
        for name, shape in shapes.items():
            if name.startswith(prefix):
                tensors[f"{name}.bias"] = rng.normal(0, 0.3, shape[0]).astype(np.float16)
    if rows < vocabulary:
        tokens = np.sort(rng.choice(vocabulary, rows, replace=False))
        tensors["d2t"] = tokens - np.arange(rows)
        tensors["t2d"] = np.isin(np.arange(vocabulary), tokens)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields))
