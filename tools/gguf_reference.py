"""Compares the logits of a GGUF file's IR with transformers' float32 reading of the same file.

    python tools/gguf_reference.py FILE.gguf --text FILE [--tokens 2000] [--formats fp16,int8,int4]

For each weight format: the IR's size, the mean divergence KL(file || IR) in nats a token over the
text, the share of equal greedy choices, the largest difference of a log-probability. Needs torch
and transformers (requirements-export.txt).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np

from specdemo.engine.model import ModelSettings, PagedModel, Run
from specdemo.models import ir
from specdemo.models.export import export
from specdemo.models.tokenizer import Tokenizer

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
CHUNK = 250


def log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    rows -= rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def reference(file: Path, chunks: list[list[int]]) -> list[np.ndarray]:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.absolute().parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0].numpy() for ids in chunks]


def rows_of(xml: Path, chunks: list[list[int]], group: str) -> list[np.ndarray]:
    properties = {**EXACT, "DYNAMIC_QUANTIZATION_GROUP_SIZE": group}
    model = PagedModel(xml, ModelSettings("CPU", tuple(properties.items())))
    found = []
    for ids in chunks:
        with model.new_sequence() as sequence:
            [logits] = model.forward([Run(sequence, ids, len(ids))])
            found.append(logits.rows.copy())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="a text that both read")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--formats", default="fp16,int8,int4")
    parser.add_argument("--group", default="0", help="activations that share a scale; 0: floats")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folders = {}
        for one in asked.formats.split(","):
            folders[one] = Path(scratch, one)
            export(asked.file, folders[one], one)
        tokenizer = Tokenizer(next(iter(folders.values())) / "tokenizer.json")
        ids = tokenizer.encode(asked.text.read_text(encoding="utf-8"), special=False)[
            : asked.tokens
        ]
        chunks = [ids[at : at + CHUNK] for at in range(0, len(ids), CHUNK)]
        exact = [log_softmax(rows) for rows in reference(asked.file, chunks)]
        print(f"{'format':8} {'MB':>7} {'nats/token':>11} {'same choice':>12} {'largest':>8}")
        for one, folder in folders.items():
            rows = [log_softmax(rows) for rows in rows_of(folder / ir.MODEL, chunks, asked.group)]
            kl = np.concatenate(
                [
                    (np.exp(p) * (p - q[:, : p.shape[1]])).sum(-1)
                    for p, q in zip(exact, rows, strict=True)
                ]
            )
            same = np.concatenate(
                [p.argmax(-1) == q.argmax(-1) for p, q in zip(exact, rows, strict=True)]
            )
            far = max(abs(p - q).max() for p, q in zip(exact, rows, strict=True))
            size = (folder / ir.WEIGHTS).stat().st_size / 1e6
            print(f"{one:8} {size:7.0f} {kl.mean():11.5f} {same.mean():12.4f} {far:8.4f}")
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
