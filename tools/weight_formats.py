"""Compares IR of one model in several weight formats with the first: divergence, and costs.

specdemo export MODEL.gguf fp16 --weight-format fp16
specdemo export MODEL.gguf int4 --weight-format int4
python -m tools.weight_formats fp16 int4
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np
import openvino as ov

from specdemo.cli import main
from specdemo.convert import ir
from specdemo.engine import numerics
from specdemo.engine.invariance import measure_invariance
from specdemo.engine.messages import ModelSettings, Run
from specdemo.engine.model import PagedModel
from specdemo.host.terminal import show
from specdemo.text.tokenizer import Tokenizer

PLACES = ("README.md", "specdemo/engine/policy.py")  # the text, half of the tokens from each
SIZES = (1, 2, 3, 4, 6, 8)
CONTEXT, TIMES, TOGETHER = 100, 10, 50


def milliseconds(model: PagedModel, ids: list[int]) -> dict[str, float]:
    """The median of a forward by its number of tokens, after CONTEXT tokens."""
    spent: dict[int, list[float]] = {size: [] for size in SIZES}
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, ids[:CONTEXT], 1)])
        for size in SIZES * TIMES:
            for _ in range(2):  # the first one changes the size
                before = perf_counter()
                model.forward([Run(sequence, ids[:size], size, stepwise=True, unpadded=True)])
                seconds = perf_counter() - before
                sequence.truncate(CONTEXT)
            spent[size].append(1e3 * seconds)
    return {f"{size} tokens, ms": round(median(each), 1) for size, each in spent.items()}


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--tokens", default=1200, help="Tokens of text.")
def command(folders: tuple[Path, ...], tokens: int) -> None:
    """Show nats a token, how often the likeliest token is the same, and the time of forwards, each
    model in its exact numerics."""
    core, tokenizer = ov.Core(), Tokenizer(folders[0] / "tokenizer.json")
    table: list[dict[str, Any]] = []
    texts = [tokenizer.encode(Path(place).read_text("utf-8"), special=False) for place in PLACES]
    ids = [id for text in texts for id in text[: tokens // 2]]
    with tempfile.TemporaryFile() as file:
        for folder in folders:
            xml = folder / ir.MODEL
            properties, *_ = numerics.candidates(xml, "CPU", "auto", True, core)
            model = PagedModel(xml, ModelSettings(properties=properties), core)
            shape, nats, same = (len(ids), model.vocabulary_size), 0.0, 0
            reference = np.memmap(file, np.float32, "r+" if table else "w+", shape=shape)
            with model.new_sequence() as sequence:
                for begin in range(0, len(ids), TOGETHER):
                    part = ids[begin : begin + TOGETHER]
                    [logits] = model.forward([Run(sequence, part, len(part))])
                    logarithms = logits.rows - logits.log_sum[:, None]
                    expected = reference[begin : begin + len(part)]
                    if not table:
                        expected[:] = logarithms
                    nats += float((np.exp(expected) * (expected - logarithms)).sum())
                    same += int((expected.argmax(1) == logarithms.argmax(1)).sum())
            row = {"": folder.name, "MB": xml.with_suffix(".bin").stat().st_size // 10**6}
            row |= {"nats": round(nats / len(ids), 4), "same choice": round(same / len(ids), 3)}
            row["equal up to"] = measure_invariance(model).tokens
            table.append(row | milliseconds(model, ids))
    show(f"{len(ids)} tokens of {' and '.join(PLACES)}", table, sys.stdout)


if __name__ == "__main__":
    sys.exit(main(command=command, name="weight_formats"))
