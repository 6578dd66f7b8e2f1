"""An audit's report as one HTML page that loads nothing: who is lossless, what a failure means."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Template

from specdemo.bench.auditor import LEAST_P_VALUE, MEANINGS, failures, links
from specdemo.bench.properties import PROPERTIES
from specdemo.host.terminal import text


def tested(row: Mapping[str, Any]) -> bool:
    """Whether the method ran at all."""
    return row["cells"].get("greedy", {}).get("result") in ("pass", "fail")


def page(report: Mapping[str, Any]) -> str:
    """The page of a report as in its JSON. Everything is escaped."""
    source = Path(__file__).with_name("audit.html.j2").read_text(encoding="utf-8")
    judged = [(row, failures(row)) for row in report["rows"]]
    absent = [row for row, _ in judged if not tested(row)]
    template = Template(source, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    html: str = template.render(
        report,
        titles={name: title for name, (title, _) in PROPERTIES.items()},
        meanings=MEANINGS,
        text=text,
        links=links,
        judged=judged,
        passing=[row for row, wrong in judged if not wrong and row not in absent],
        absent=absent,
        failing=[(row, wrong) for row, wrong in judged if wrong],
        least=LEAST_P_VALUE,
    )
    return html
