"""A benchmark's report (a dict, as in its JSON) as one HTML page with Plotly figures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template
from plotly import graph_objects as go
from plotly.offline import get_plotlyjs

from specdemo.bench.charts import Figure, of_report
from specdemo.bench.report import tables
from specdemo.host.terminal import text
from specdemo.runs.trace import as_json


def page(report: dict[str, Any]) -> str:
    """One self-contained HTML page, 5 MB with plotly.js. All but plotly's output is escaped."""
    source = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    data = json.loads(as_json(report))
    names = {"tables": tables(data), "text": text, **drawn(of_report(data))}
    html: str = Template(source, autoescape=True).render(data, **names)
    return html


def drawn(charts: Sequence[Figure]) -> dict[str, Any]:
    """HTML of `charts`, as `figures`, and the script that draws them, as `plotlyjs`."""
    look = {"full_html": False, "include_plotlyjs": False, "config": {"displaylogo": False}}
    styled = [go.Figure(chart).update_layout(template="plotly_white") for chart in charts]
    return {"figures": [chart.to_html(**look) for chart in styled], "plotlyjs": get_plotlyjs()}
