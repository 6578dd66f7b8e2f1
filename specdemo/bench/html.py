"""A report as one self-contained page: tables and Plotly figures, plotly.js inside."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from specdemo.bench import tables
from specdemo.bench.figures import all_figures
from specdemo.bench.report import Report


def page(report: Report) -> str:
    """The whole page as text (about 5 MB, nearly all of it plotly.js). Everything but plotly's own
    output is escaped."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters["text"] = tables.text
    config = {"displaylogo": False, "responsive": True}
    figures = [
        to_html(figure, full_html=False, include_plotlyjs=False, config=config)
        for figure in all_figures(report)
    ]
    template = environment.get_template("report.html.j2")
    return template.render(report=report, tables=tables, figures=figures, plotlyjs=get_plotlyjs())
