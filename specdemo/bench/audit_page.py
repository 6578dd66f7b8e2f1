"""An audit's report as one HTML page that loads nothing: who is lossless, what a failure means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Template

from specdemo.bench.auditor import LEAST_P_VALUE, MEANINGS, failures, links
from specdemo.bench.bench_page import drawn
from specdemo.bench.charts import distances
from specdemo.bench.engines import OWN_PROPERTIES
from specdemo.bench.properties import PROPERTIES
from specdemo.host.terminal import text


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests found of an engine with one set of properties: how many passed of those that
    ran, of which methods and pairs; the failing properties; or why none ran."""

    engine: str
    methods: list[str]
    pairs: list[str]
    passed: int
    ran: int
    failing: list[str]
    why: str

    @property
    def result(self) -> str:
        return "fail" if self.failing else "pass" if self.ran else "none"


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """The verdicts of a report's rows, the failing engines last but for those that did not run."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        own = ", its own properties" if row["method"].endswith(OWN_PROPERTIES) else ""
        groups.setdefault(row["engine"] + own, []).append(row)
    found = []
    for engine, group in groups.items():
        cells = [(name, cell) for row in group for name, cell in row["cells"].items()]
        results = [cell["result"] for _, cell in cells]
        passed, failed = results.count("pass"), results.count("fail")
        methods = list(dict.fromkeys(row["method"].removesuffix(OWN_PROPERTIES) for row in group))
        pairs = list(dict.fromkeys(row["pair"] for row in group if row["pair"]))
        failing = list(dict.fromkeys(name for name, cell in cells if cell["result"] == "fail"))
        why = next((cell["note"] for _, cell in cells if cell["note"]), "nothing was tested")
        found.append(Verdict(engine, methods, pairs, passed, passed + failed, failing, why))
    return sorted(found, key=lambda verdict: ("pass", "fail", "none").index(verdict.result))


def page(report: Mapping[str, Any]) -> str:
    """The page of a report as in its JSON. All but plotly's output is escaped."""
    source = Path(__file__).with_name("audit.html.j2").read_text(encoding="utf-8")
    judged = [(row, failures(row)) for row in report["rows"]]
    sampled = [row for row in report["rows"] if row["cells"].get("sampling", {}).get("p_values")]
    template = Template(source, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    html: str = template.render(
        report,
        titles={name: title for name, (title, _) in PROPERTIES.items()},
        meanings=MEANINGS,
        text=text,
        links=links,
        judged=judged,
        verdicts=verdicts(report["rows"]),
        failing=[(row, wrong) for row, wrong in judged if wrong],
        least=LEAST_P_VALUE,
        **(drawn([distances(sampled)]) if sampled else {}),
    )
    return html
