"""Compares the logits of EAGLE-3 heads with those of the package `speculators`.

    python -m tools.speculators_logits [--json FILE]

Heads with made-up weights, one for each variant that both know, are run over the same text: at each
position a chain of DEPTH tokens, whose rows are then dropped as after a rejection. Needs
`speculators` (0.9), which this project does not install.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click
import numpy as np
import openvino as ov

from specdemo.cli import main
from specdemo.commands.shared import json_option, write_report
from specdemo.convert import exporting, ir
from specdemo.engine.backends.eagle_head import EagleHead
from specdemo.engine.messages import ModelSettings, Run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from eagle3_reference import write_made_up_head

POSITIONS, DEPTH = 200, 5
HIDDEN, VOCABULARY, ROWS = 256, 2000, 800
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
VARIANTS = {
    "as published": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc, norm_output": {"norm_before_fc": True, "norm_output": True},
    "fc_norm": {"fc_norm": True},
    "biases": {"biases": True},
    "qwen3 layer, norms of queries and keys": {"norms": True, "model_type": "qwen3"},
    "llama3 positions": {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}},
}
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
FORMATS = {"fp16": EXACT | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}, "int8": EXACT}


def speculators_logits(folder: Path, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Logits [DEPTH + 1, positions, V']: of each true row, and of the 1, 2, ... rows of a chain
    after it that reads the text's own tokens."""
    import torch
    from safetensors.torch import load_file
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    data = json.loads((folder / "config.json").read_text())
    proposals = [GreedyTokenProposalConfig(speculative_tokens=DEPTH)]
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    described = SpeculatorsConfig(
        algorithm="eagle3",
        proposal_methods=proposals,
        default_proposal_method="greedy",
        verifier=verifier,
    )
    names = ("draft_vocab_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    options = {name: data.pop(name) for name in names if name in data}
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=data, speculators_config=described, **options
    )
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(config).eval()
    wrong = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not wrong.unexpected_keys and all("verifier" in key for key in wrong.missing_keys), wrong
    logits: list[np.ndarray] = []
    model.lm_head.register_forward_hook(lambda *args: logits.append(args[2][0].numpy()))
    with torch.no_grad():
        model(
            torch.from_numpy(states)[None],
            torch.from_numpy(tokens)[None],
            torch.zeros(1, len(tokens), dtype=torch.long),
            ttt_steps=DEPTH + 1,
        )
    return np.array(logits)


def own_logits(
    folder: Path, weight_format: str, tokens: np.ndarray, states: np.ndarray
) -> np.ndarray:
    """The same from the engine, where chains that end beyond the text are nan."""
    made = folder.with_name(f"{folder.name}-{weight_format}")
    exporting.export(folder, made, weight_format)
    settings = ModelSettings(properties=tuple(FORMATS[weight_format].items()))
    head = EagleHead(made / ir.MODEL, made / ir.MODEL, settings, ov.Core())
    rows = np.full((DEPTH + 1, len(tokens), len(head.token_ids)), np.nan, np.float32)
    with head.new_sequence() as sequence:
        for index, token in enumerate(tokens.tolist()):
            run = Run(sequence, [token], 1, True, states=states[index : index + 1])
            for depth in range(min(DEPTH + 1, len(tokens) - index)):
                [logits] = head.forward([run])
                rows[depth, index] = logits.rows[0]
                following = tokens[index + depth + 1 :][:1].tolist()
                run = Run(sequence, following, 1, True, chained=logits.states(1))
            sequence.truncate(index + 1)
    return rows


def compare(name: str, weight_format: str, home: Path) -> dict[str, object]:
    """The figures of a variant: differences in the logits of all places, and the share of equal
    first choices."""
    folder = home / "head"
    if not folder.is_dir():
        sizes = {"hidden": HIDDEN, "vocabulary": VOCABULARY, "rows": ROWS, "prefix": "layers.0"}
        write_made_up_head(folder, **sizes | VARIANTS[name])
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCABULARY, POSITIONS)
    states = rng.normal(size=(POSITIONS, 3 * HIDDEN)).astype(np.float32)
    theirs = speculators_logits(folder, tokens, states)
    own = own_logits(folder, weight_format, tokens, states)
    there = ~np.isnan(own[..., 0])
    same = own[there].argmax(-1) == theirs[there].argmax(-1)
    return {
        "variant": name,
        "weights": weight_format,
        "rows": int(there.sum()),
        "largest difference": float(np.abs(own - theirs)[there].max()),
        "spread of the logits": float(theirs[there].std()),
        "equal first choices": float(same.mean()),
    }


@click.command()
@json_option
def command(json_file: str | None) -> None:
    """Compare the logits of EAGLE-3 heads with those of speculators."""
    rows = []
    for name in VARIANTS:
        with tempfile.TemporaryDirectory() as home:
            rows += [compare(name, weight_format, Path(home)) for weight_format in FORMATS]
    title = f"EAGLE-3 heads and speculators: {POSITIONS} positions, chains of {DEPTH}"
    write_report({"rows": rows}, json_file, {title: rows})


if __name__ == "__main__":
    sys.exit(main(command=command, name="speculators_logits"))
