"""The servers of the page and of the OpenAI-compatible API."""

import os

# Read when ray is imported. Despite its name, the last makes Ray listen on the loopback address
# only, on every system.
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
os.environ.setdefault("RAY_enable_metrics_collection", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
