"""The rooms of the package: which imports which, and names that occur once."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "specdemo"
FILES = sorted(PACKAGE.rglob("*.py"))

ORDER = (
    "start cli commands server bench audit training api runs pairs text convert machine "
    "options errors engine"
).split()
"""A room, or a file beside the rooms, imports only those to its right."""


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text("utf-8")))]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """The rooms that a file imports, whenever it does."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for package, *rest in (name.split(".") for name in names):
            if package == "specdemo" and rest and rest[0] in ORDER:
                yield rest[0]


@pytest.mark.parametrize("room", ORDER)
def test_a_room_imports_only_what_is_below_it(room):
    allowed = ORDER[ORDER.index(room) :]
    files = [path for path in FILES if room_of(path) == room]
    upward = {path.name: set(imports(path)) - set(allowed) for path in files}
    assert not any(upward.values()), upward


def test_every_file_is_in_a_room():
    assert {room_of(path) for path in FILES} == {*ORDER, "__init__", "__main__"}


def test_the_name_of_a_file_or_a_class_occurs_once():
    nodes = (node for path in FILES for node in nodes_of(path))
    names = Counter(path.name for path in FILES if path.name != "__init__.py")
    names.update(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_audit_knows_the_engine_only_through_its_adapter():
    users = {path.name for path in FILES if room_of(path) == "audit" and "engine" in imports(path)}
    assert users == {"own_engine.py"}


ALGORITHM = (
    "acceptance cache constraint decode drafts.draft_sources forwards policy prefixes "
    "profile request rounds sampling scheduler"
).split()
BLOCKED = """
import importlib, sys
sys.modules.update(dict.fromkeys(("openvino", "torch", "tokenizers", "gradio")))
for name in sys.argv[1:]:
    importlib.import_module("specdemo.engine." + name)
"""


def test_the_engines_algorithm_is_imported_without_openvino():
    command = [sys.executable, "-c", BLOCKED, *ALGORITHM]
    subprocess.run(command, check=True, timeout=60)


def test_no_files_of_the_engine_import_each_other_in_a_circle():
    imported: dict[str, set[str]] = {}
    for path in (PACKAGE / "engine").rglob("*.py"):
        names = imported[path.stem] = set()
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.level:
                names.add((node.module or "").rpartition(".")[2])
                names.update(alias.name for alias in node.names)
    TopologicalSorter(imported).prepare()  # raises CycleError
