"""The engine's algorithm by itself: without OpenVINO, and without circles of imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import specdemo

ROOT = Path(specdemo.__file__).parent
FILES = (
    "acceptance cache constraint decode drafts.draft_sources messages policy prefixes "
    "profile request sampling scheduler"
).split()
BLOCKED = """
import importlib, sys
sys.modules.update(dict.fromkeys(("openvino", "torch", "tokenizers", "gradio")))
for name in sys.argv[1:]:
    importlib.import_module("specdemo.engine." + name)
"""


def test_the_algorithm_is_imported_without_openvino():
    command = [sys.executable, "-c", BLOCKED, *FILES]
    subprocess.run(command, check=True, timeout=60)


def test_no_files_of_the_engine_import_each_other_in_a_circle():
    imports = {file.stem: imported(file) for file in (ROOT / "engine").rglob("*.py")}
    TopologicalSorter(imports).prepare()  # raises CycleError


def imported(file: Path) -> set[str]:
    """The names of the engine's files that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            names = [alias.name for alias in node.names]
            found |= {(node.module or "").rpartition(".")[2], *names}
    return found
