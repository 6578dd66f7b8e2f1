"""The documents: their length, and that what they name exists."""

import json
import re
from functools import cache
from pathlib import Path

import click
import pytest
from pydantic import TypeAdapter

from specdemo.audit.auditor import AuditReport, AuditRow
from specdemo.cli import COMMANDS, program
from specdemo.runs.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for folder in ("specdemo", "tools", "tests")
    for path in (ROOT / folder).rglob("*.py")
}
CONTEXT = click.Context(program)
OF_OTHERS = set(
    "--space-sdk --repo-type --delete --head --disable-usage-stats --dashboard-host "
    "--index-url --generate --no-deps --cov --spec-type --commit-message".split()
)
"""Options of pip, hf, ray, llama.cpp and pytest that the documents name."""


def slug(title: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_documents_are_short_enough_to_be_read():
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert sum(words.values()) <= 19_000
    for page in ROOT.glob("docs/results/*.md"):
        tables = len(re.findall(r"^\|--", page.read_text(encoding="utf-8"), re.M))
        assert words[page] <= 500 and tables <= 1, page.name


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_and_paths_of_a_document_exist(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        if "://" in file:
            continue
        target = page.parent / file if file else page
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)", target.read_text(encoding="utf-8"), re.M)
            assert anchor in map(slug, titles), link
    for path in re.findall(r"\b(?:specdemo|tests|tools|docs|examples)/[\w./-]+\w", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"-m (tools\.\w+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module


@cache
def known_options() -> tuple[set[str], set[str]]:
    """The options, and the environment variables."""
    known = {"--help", "--version"} | OF_OTHERS
    for name in COMMANDS:
        for option in program.get_command(CONTEXT, name).params:
            known.update((*option.opts, *option.secondary_opts))
    code = "\n".join(SOURCES.values())
    known |= set(re.findall(r"\"(--[a-z-]+)\"", code))
    fields = re.findall(r"^    (\w+): .*= option\(", code, re.M)
    known.update("--" + field.replace("_", "-") for field in fields)
    variables = {option.replace("--", "SPECDEMO_").replace("-", "_").upper() for option in known}
    return known, variables | set(re.findall(r"\bSPECDEMO_[A-Z_]+\b", code))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_and_variables_that_a_document_names_exist(page):
    text, (options, variables) = page.read_text(encoding="utf-8"), known_options()
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= options
    assert set(re.findall(r"\bSPECDEMO_[A-Z_]+\b", text)) <= variables


def test_files_and_classes_of_the_architecture_exist():
    text = (ROOT / "docs/reference/architecture.md").read_text(encoding="utf-8")
    files = {path.name for path in (ROOT / "specdemo").rglob("*")} | {"app.py"}
    named = re.findall(r"`(?:[\w/]+/)?(\w+\.(?:py|js|json|html))`", text)
    engine = {path.name for path in (ROOT / "specdemo/engine").rglob("[a-z]*.py")}
    assert engine <= set(named) <= files
    classes = set(re.findall(r"^class (\w+)", "\n".join(SOURCES.values()), re.M))
    assert set(re.findall(r"`([A-Z][a-z]+[A-Za-z]*)(?:\.\w+)?`", text)) <= classes


def test_the_published_audit_passes_the_programs_rule():
    folder = ROOT / "docs/results"
    report = AuditReport(settings=Settings(64, seed=56100000), prompts=200, draws=2700)
    rows = json.loads((folder / "audit.json").read_bytes())["rows"]
    report.rows = TypeAdapter(list[AuditRow]).validate_python(rows)
    report.judge()
    ours = [row for row in report.rows if row.engine == "specdemo"]
    assert ours and not any(row.failures for row in ours)
    text, cells = (folder / "audit.md").read_text(encoding="utf-8"), report.sampling_cells
    sampled = [row.cells["sampling"] for row in ours if "sampling" in row.cells]
    least = min(cell.p_value for cell in sampled)
    assert f"| least p of {cells} | {least:.3f} |" in text
