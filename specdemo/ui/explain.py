"""The tab that explains speculative decoding in a few drawings. Static text."""

from __future__ import annotations

from pathlib import Path


def build(gr) -> None:
    """Adds the tab's content to the layout being built."""
    gr.HTML(html_template=(Path(__file__).parent / "explain.html").read_text(encoding="utf-8"), apply_default_css=False,
            elem_id="sd-explain")
