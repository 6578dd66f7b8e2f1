"""The page: Gradio layout and events, Plotly figures, scripts that draw tokens as they arrive.

It asks a session for answers and draws traces; nothing here decodes, measures or downloads.
"""

import os

# Read when gradio is imported: no telemetry, and no statistics of the last 10,000 requests.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
