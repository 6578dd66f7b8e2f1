"""Which processors have kernels in place of the plugin, and their code. Without VNNI the plugin
unpacks weights to floats; with it the kernels are faster too.

Activations are rounded to 8 bits, with one scale for each group of columns. The products of a group
are summed as integers, and groups are added in their order. So an output has the same bits whatever
the number of rows, threads and requests is.
"""

import importlib.util
import os
import platform
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

FORWARD, KERNELS, PLUGIN = "FORWARD", "kernels", "plugin"
"""Among the plugin's properties of a model stands what computes it where there are kernels."""

F32, GROUP = ("INFERENCE_PRECISION_HINT", "f32"), "DYNAMIC_QUANTIZATION_GROUP_SIZE"

VNNI = {
    "avx512vnni": ("avx512f", "avx512bw", "avx512vl", "avx512vnni"),
    "avxvnni": ("avxvnni",),
}
"""Forms of kernels.c beside that for AVX2 alone, the best first, with the features of a processor
that each needs."""

WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")  # values of ONEDNN_MAX_CPU_ISA


def plugin_properties(properties: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those that the plugin knows. It does not know that oneDNN is limited, and would ask it for
    what it then has not."""
    known = {name: value for name, value in properties if name != FORWARD}
    return known | (dict([F32, (GROUP, "0")]) if forbids_vnni() else {})


def forward_by(computing: str) -> tuple[str, str]:
    """The property of a model that KERNELS or PLUGIN compute on a processor like this one."""
    return FORWARD, f"{computing} ({instructions()})"


def in_kernels(properties: Iterable[tuple[str, str]]) -> bool:
    return any(name == FORWARD and value.startswith(KERNELS) for name, value in properties)


def forbids_vnni() -> bool:
    """Whether oneDNN must not use VNNI."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_VNNI


@cache
def available() -> bool:
    """Whether this processor has AVX2, and llvmlite is installed."""
    if os.name != "posix" or importlib.util.find_spec("llvmlite") is None:
        return False
    features = _features()
    return all(features.get(name) for name in ("avx2", "fma", "f16c"))


@cache
def vnni() -> str:
    """Which of VNNI the processor has; nothing where oneDNN must not use it."""
    features = {} if forbids_vnni() else _features()
    return next((name for name, needed in VNNI.items() if all(map(features.get, needed))), "")


def text_path(vnni: str) -> Path:
    """The LLVM text of kernels.c for AVX2 and one of VNNI, or nothing."""
    return Path(__file__).with_name(f"kernels.{vnni or 'avx2'}.ll")


def instructions() -> str:
    """What the kernels use here: "VNNI" or "AVX2"; "" where there are none."""
    return ("VNNI" if vnni() else "AVX2") if available() else ""


def _features() -> dict[str, bool]:
    from llvmlite import binding

    features: dict[str, bool] = binding.get_host_cpu_features()
    return features


def keep_code(key: tuple[str, ...], make: Callable[[], bytes]) -> bytes:
    """The object file of a `key`, made now. To be replaced by a function that keeps it on disk."""
    return make()


@cache
def compilation() -> Future[Any]:
    """The `kernel_code.Kernels` of this process, once they are compiled, which takes a second."""
    pool = ThreadPoolExecutor(1, "kernels")
    try:
        return pool.submit(_compiled)
    finally:
        pool.shutdown(wait=False)


def _compiled() -> Any:
    import llvmlite

    from .kernel_code import Kernels, object_file

    text = text_path(vnni()).read_text("ascii")
    features = ",".join(name for name, has in _features().items() if has)
    key = text, llvmlite.__version__, platform.machine(), features
    return Kernels(keep_code(key, partial(object_file, text)))


def compiled() -> Any:
    return compilation().result()
