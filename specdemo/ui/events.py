"""How the page's own events are declared to Gradio."""

from __future__ import annotations

PRIVATE = {"api_visibility": "private", "show_progress": "hidden", "show_progress_on": []}
"""Options of an event that is no endpoint. Gradio's own sign of progress keeps a browser drawing sixty times a second even
where it is hidden, so it is shown on nothing; the page has its own."""
