"""The rooms of the package: who may import whom, and names that occur once."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "specdemo"
FILES = sorted(PACKAGE.rglob("*.py"))

ORDER = (
    "start cli commands server bench audit training api runs pairs text convert host "
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
    assert files, "there is no such room"
    upward = {path.name: set(imports(path)) - set(allowed) for path in files}
    assert not any(upward.values()), upward


def test_every_file_is_in_a_room():
    assert {room_of(path) for path in FILES} - set(ORDER) == {"__init__", "__main__"}


def test_a_file_name_occurs_once():
    names = Counter(path.name for path in FILES if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_a_class_name_occurs_once():
    nodes = (node for path in FILES for node in nodes_of(path))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_audit_knows_the_engine_only_through_its_adapter():
    users = {path.name for path in FILES if room_of(path) == "audit" and "engine" in imports(path)}
    assert users == {"own_engine.py"}
