"""`python tests/tiny_home.py GROUP FOLDER`: tiny models with made-up weights, those of a group exported in one process.

To import torch and optimum-intel takes longer than to export any of them, and this way the tests' own process need not.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

EXPORTED = {
    "hub": (("dolly", "int8"), ("pythia", "int8"), ("gpt2", "int8")),
    "llama": (
        ("llama-target", "int8"),
        ("llama-draft", "int8"),
        ("llama-target", "int4"),
        ("llama-target", "fp16"),
    ),
}
"""The groups: checkpoints and weight formats; `ir_folder` names the results."""


def ir_folder(home: Path, name: str, weight_format: str) -> Path:
    return home / f"{name}-{weight_format}"


def main(group: str, home: Path) -> None:
    from tiny_llama import write_llama_pair
    from tiny_models import write_dolly_pair, write_gpt2_pair

    from specdemo.models import export_child, ir

    if group == "llama":
        write_llama_pair(home / "llama-target", home / "llama-draft")
    else:
        write_dolly_pair(home / "dolly", home / "pythia")
        write_gpt2_pair(home / "gpt2-xl", home / "gpt2")
    for name, weight_format in EXPORTED[group]:
        out = ir_folder(home, name, weight_format)
        # To convert a vocabulary of 50,000 takes longer than to export these models.
        export_child.main(home / name, out, weight_format, 0, convert_tokenizer=False)
        ir.check_decoder(out)


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main(sys.argv[1], Path(sys.argv[2]))
