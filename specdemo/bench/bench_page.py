"""A benchmark's report (a dict, as in its JSON) as one HTML page with Plotly figures."""

import json
from pathlib import Path
from typing import Any

from jinja2 import Template
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

from specdemo.bench.charts import of_report
from specdemo.bench.report import tables
from specdemo.host.terminal import text
from specdemo.runs.trace import as_json


def page(report: dict[str, Any]) -> str:
    """One self-contained HTML page, 5 MB with plotly.js. All but plotly's output is escaped."""
    source = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    data = json.loads(as_json(report))
    look = {"full_html": False, "include_plotlyjs": False, "config": {"displaylogo": False}}
    charts = [Figure(chart).update_layout(template="plotly_white") for chart in of_report(data)]
    figures = [chart.to_html(**look) for chart in charts]
    names = {"tables": tables(data), "figures": figures, "text": text, "plotlyjs": get_plotlyjs()}
    html: str = Template(source, autoescape=True).render(data, **names)
    return html
