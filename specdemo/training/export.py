"""What a run leaves: the draft as OpenVINO IR in int8, its n-gram table, and the card."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from specdemo.models import export, gguf_files
from specdemo.models.ngrams import NGramTable
from specdemo.training.corpus import Conversation
from specdemo.training.target import Target

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedModel

_TOKENIZER_FILES = (
    "tokenizer.json tokenizer_config.json special_tokens_map.json tokenizer.model "
    "chat_template.jinja generation_config.json"
).split()
RARE = 2
"""A context seen less often is left out of the n-gram table, unless it is a single token."""
SAME = 0.08
"""A longer context is left out if it proposes the shorter one's token, with a probability that
differs less."""


def export_draft(model: PreTrainedModel, target: Target, out: Path, work: Path) -> None:
    """Put IR of `model` into `out`; `work` keeps the checkpoint that it was made from. For a GGUF
    target the draft's layers are joined with its tensors, and openvino_genai converts the file."""
    made = work / "ir"
    shutil.rmtree(made, ignore_errors=True)
    if target.ir_folder:
        layers, joined = work / "layers.gguf", work / "draft.gguf"
        write_layers(model, layers)
        gguf_files.write_draft(gguf_files.read(target.weights), gguf_files.read(layers), joined)
        export.convert_gguf(joined, made)
        joined.unlink()
    else:
        checkpoint = work / "checkpoint"
        model.save_pretrained(checkpoint)
        for name in _TOKENIZER_FILES:
            if (target.weights / name).is_file():
                shutil.copyfile(target.weights / name, checkpoint / name)
        export.export(checkpoint, made, "int8", name="the draft")
    for path in made.iterdir():
        os.replace(path, out / path.name)
    made.rmdir()


def write_layers(draft: LlamaForCausalLM, out: Path) -> None:
    """Write the layers (Q8_0) and norms (float32) of a Llama-like draft as GGUF, without embedding
    and head. The same weights give the same bytes."""
    import gguf

    config = draft.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_block_count(config.num_hidden_layers)
    for name, tensor in draft.state_dict().items():
        if not name.startswith(("model.layers.", "model.norm.")):
            continue
        value, kind = tensor.detach().float().numpy(), None
        if value.ndim == 2:
            if count := heads.get(name.split(".")[-2]):
                # GGUF keeps the two rows of a rotary pair together, torch half a head apart.
                halves = value.reshape(count, 2, -1, value.shape[1])
                value = halves.swapaxes(1, 2).reshape(value.shape)
            kind = gguf.GGMLQuantizationType.Q8_0
            value = gguf.quants.quantize(np.ascontiguousarray(value), kind)
        writer.add_tensor(names.get_name(name, (".weight",)), value, raw_dtype=kind)
    gguf_files.close(writer)


def count_ngrams(conversations: Iterable[Conversation], vocabulary_size: int) -> NGramTable:
    """The n-gram table of the answers: the likeliest token after one to four tokens (three, for a
    vocabulary beyond 65,536). Its probability is smoothed over shorter contexts."""
    table = NGramTable.empty(vocabulary_size)
    longest = len(table.known)
    following: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for one in conversations:
        before = one.prompt[-longest:]
        text = before + one.answer
        for at in range(max(len(before), 1), len(text)):
            for length in range(1, min(longest, at) + 1):
                following[text[at - length : at]][text[at]] += 1
    best: dict[tuple[int, ...], tuple[int, float]] = {}
    for context in sorted(following, key=len):
        if len(context) > 1 and following[context].total() < RARE:
            continue
        candidates = [token for token, _ in following[context].most_common(4)]
        shorter = best.get(context[1:])
        if shorter:
            candidates.append(shorter[0])
        guesses = [(token, _smoothed(following, context, token)) for token in candidates]
        token, probability = best[context] = max(guesses, key=itemgetter(1))
        if not shorter or shorter[0] != token or abs(shorter[1] - probability) > SAME:
            entry = token, round(255 * probability)
            table.known[len(context) - 1][table.pack(context)] = entry
    return table


def _smoothed(
    following: dict[tuple[int, ...], Counter[int]], context: tuple[int, ...], token: int
) -> float:
    """The probability of `token` after `context` by Witten and Bell's smoothing."""
    if not context:
        return 0.0
    counts = following[context]
    own = counts.total() / (counts.total() + len(counts))
    shorter = _smoothed(following, context[1:], token)
    return own * counts[token] / counts.total() + (1 - own) * shorter


def write_card(folder: Path, facts: dict[str, Any]) -> None:
    """Write card.json, which is `facts`, and README.md, their summary, into `folder`."""
    (folder / "card.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    template = jinja2.Template(Path(__file__).with_name("card.md").read_text(encoding="utf-8"))
    (folder / "README.md").write_text(template.render(facts) + "\n", encoding="utf-8")
