"""`python -m specdemo.models.convert GGUF FOLDER`: turn a GGUF file into OpenVINO IR in FOLDER, with openvino_genai.

A program of its own so that a crash in it hurts nobody. It writes openvino_model.xml and .bin with int8 weights, then
checks that the model reads back as a decoder; it exits with 1 and a sentence if not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from specdemo.models.quantize import to_int8_rows


def main(gguf: Path, folder: Path) -> int:
    import openvino
    import openvino_genai

    openvino_genai.LLMPipeline(str(gguf), "CPU", enable_save_ov_model=True)
    folder.mkdir(parents=True, exist_ok=True)
    for made in gguf.parent.glob("openvino_*"):
        made.rename(folder / made.name)
    model = openvino.Core().read_model(folder / "openvino_model.xml")
    to_int8_rows(model)
    # Read weights stay mapped from their file: written beside it, then put in its place.
    openvino.save_model(model, folder / "int8.xml", compress_to_fp16=False)
    del model
    for suffix in ("xml", "bin"):
        (folder / f"int8.{suffix}").replace(folder / f"openvino_model.{suffix}")
    inputs = {name for port in openvino.Core().read_model(folder / "openvino_model.xml").inputs for name in port.names}
    missing = {"input_ids", "attention_mask", "position_ids", "beam_idx"} - inputs
    if missing:
        print(f"the converted model has no input {', '.join(sorted(missing))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
