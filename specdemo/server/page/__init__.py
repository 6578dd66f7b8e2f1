"""The page: Gradio layout and events, and scripts that draw tokens as they arrive. It asks a
session for answers and draws traces; nothing here decodes, measures or downloads."""

import os

# Read when gradio is imported: it keeps no statistics of the last 10,000 requests.
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000")

MAX_EVENTS = 64
"""Runs that are active or wait at once; the scheduler decides how many share the models."""

PRIVATE = {"api_visibility": "private", "show_progress": "hidden", "show_progress_on": []}
"""Options of an event that is not an endpoint. Gradio's progress display, even a hidden one, makes
a browser draw sixty times a second, so it is shown on nothing."""
