"""Compiles kernels.c as LLVM text, once for each instruction set: run
`python -m tools.compile_kernels`. It needs ziglang, a package with clang."""

import re
import subprocess
import sys
from pathlib import Path

from specdemo.engine.backends import kernels

SOURCE = Path(kernels.__file__).with_name("kernels.c")

# Without optimization: llvmlite optimizes, for the processor at hand.
OPTIONS = """
    -target x86_64-unknown-linux-gnu -march=haswell -ffreestanding -nostdlibinc -S -emit-llvm -o -
    -O0 -Xclang -disable-O0-optnone -Xclang -disable-llvm-passes -fomit-frame-pointer
    -ffp-contract=off -fno-math-errno -fno-strict-aliasing -fno-ident -Wall -Wextra -Werror
""".split()

COMMENTS = re.compile(r"^;.*\n| *; preds = .*|^(source_filename|target triple).*\n", re.MULTILINE)


def llvm_text(vnni: str, *more: str) -> str:
    """The LLVM text for AVX2 and one of `kernels.VNNI`, or nothing. `more` are options of clang."""
    import ziglang

    folder = Path(ziglang.__file__).parent
    features = [f"-m{feature}" for feature in kernels.VNNI.get(vnni, ())]
    command = [sys.executable, "-m", "ziglang", "clang", *OPTIONS, *features, *more]
    command += ["-isystem", str(folder / "lib/include"), SOURCE.name]
    done = subprocess.run(command, cwd=SOURCE.parent, check=True, stdout=subprocess.PIPE, text=True)
    return COMMENTS.sub("", done.stdout)


if __name__ == "__main__":
    for name in ("", *kernels.VNNI):
        kernels.text_path(name).write_text(llvm_text(name), "ascii")
