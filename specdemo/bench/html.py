"""A report as one self-contained page: tables and Plotly figures, plotly.js inside."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from plotly.offline import get_plotlyjs

from specdemo import terminal
from specdemo.bench import tables
from specdemo.bench.figures import all_figures
from specdemo.bench.report import Report


def page(report: Report) -> str:
    """The whole page as text (about 5 MB, nearly all of it plotly.js). Everything but plotly's own
    output is escaped."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters["text"] = terminal.text
    look = {"full_html": False, "include_plotlyjs": False, "config": {"displaylogo": False}}
    figures = [figure.to_html(**look) for figure in all_figures(report)]
    shown = tables.of_report(report)
    template = environment.get_template("report.html.j2")
    return template.render(report=report, tables=shown, figures=figures, plotlyjs=get_plotlyjs())
