"""`python -m specdemo.models.export_child SOURCE OUT FORMAT GROUP_SIZE`: the export itself, in a process of its own."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

GROUP_SIZES = (128, 64, 32)
KEPT = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def main(source: Path, out: Path, weight_format: str, group_size: int, *, convert_tokenizer: bool = True) -> int:
    """`convert_tokenizer` False leaves out the tokenizer as IR, which other programs want and this one does not."""
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    main_export(
        str(source),
        output=str(out),
        task="text-generation-with-past",
        ov_config=OVConfig(dtype="fp16" if weight_format == "fp16" else "fp32"),
        library_name="transformers",
        stateful=True,
        convert_tokenizer=convert_tokenizer,
    )
    if weight_format != "fp16":
        size = group_size or fitting_group_size(json.loads((source / "config.json").read_text(encoding="utf-8")))
        compress(out / "openvino_model.xml", weight_format, size)
    for name in KEPT:  # the checkpoint's own files, where transformers wrote none or another form
        if (source / name).is_file() and (name == "tokenizer.json" or not (out / name).exists()):
            shutil.copyfile(source / name, out / name)
    return 0


def compress(xml: Path, weight_format: str, group_size: int) -> None:
    """Store the IR's weights as int8 with a scale a row, or int4 with a scale a group (embedding and head as int8).

    optimum-intel's `main_export` leaves a quantization that its configuration asks for to its command line.
    """
    import nncf
    import openvino

    model = openvino.Core().read_model(xml)
    if weight_format == "int8":
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    else:
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT4_SYM, group_size=group_size, ratio=1.0)
    # Read weights stay mapped from their file: written beside it, then put in its place.
    small = xml.with_name("compressed.xml")
    openvino.save_model(model, small, compress_to_fp16=False)
    del model
    for suffix in (".xml", ".bin"):
        small.with_suffix(suffix).replace(xml.with_suffix(suffix))


def fitting_group_size(config: dict) -> int:
    """The largest group that divides the model's widths, -1 (one scale for a whole row) if none does."""
    names = ("hidden_size", "intermediate_size", "n_embd", "n_inner")
    widths = [config[name] for name in names if isinstance(config.get(name), int)]
    return next((size for size in GROUP_SIZES if widths and all(width % size == 0 for width in widths)), -1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
