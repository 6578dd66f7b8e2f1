"""What the reports of `bench` and `audit` share: how they begin, and how they become HTML pages."""

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

from specdemo import __version__
from specdemo.machine.hardware import describe
from specdemo.machine.terminal import text
from specdemo.pairs.registry import PairInfo
from specdemo.runs.settings import Settings

PACKAGES = "openvino tokenizers numpy".split()
IF_IMPORTED = "openvino-genai openvino-tokenizers torch transformers".split()

PAPER_COLOUR, GREEN, PINK, GREY = "#9a6700", "#009E73", "#CC79A7", "#888"

Figure = Any
"""A figure of Plotly, which has no types."""


def versions() -> dict[str, str]:
    imported = [name for name in IF_IMPORTED if name.replace("-", "_") in sys.modules]
    packages = {name: metadata.version(name) for name in [*PACKAGES, *imported]}
    return {"specdemo": __version__, "python": platform.python_version(), **packages}


@dataclass(kw_only=True)
class ReportHeader:
    """What every report begins with."""

    machine: str = field(default_factory=describe)
    versions: dict[str, str] = field(default_factory=versions)
    pair: PairInfo | None = None
    settings: Settings | None = None


def render(template: Path, charts: Sequence[Figure], **names: Any) -> str:
    """One self-contained HTML page, with plotly.js (5 MB) if there are `charts`. The template
    extends report.html.j2. All but plotly's output is escaped."""
    from jinja2 import Environment, FileSystemLoader
    from plotly.offline import get_plotlyjs

    look = {"full_html": False, "include_plotlyjs": False, "config": {"displaylogo": False}}
    figures = [chart.update_layout(template="plotly_white").to_html(**look) for chart in charts]
    folders = FileSystemLoader([template.parent, Path(__file__).parent])
    pages = Environment(loader=folders, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = pages.get_template(template.name)
    plotlyjs = get_plotlyjs() if charts else ""
    return page.render(names, figures=figures, plotlyjs=plotlyjs, text=text)


def label(text: str) -> str:
    """At most 40 characters, escaped: Plotly's labels interpret a subset of HTML."""
    return escape(text if len(text) <= 40 else text[:39] + "…", quote=False)
