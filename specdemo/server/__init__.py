"""The servers of the page and of the OpenAI-compatible API."""

import os

# Read when ray is imported. Despite its name, the last makes Ray listen on the loopback address
# only, on every system.
for _name in (
    "RAY_SERVE_LOG_TO_STDERR",
    "RAY_enable_metrics_collection",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
):
    os.environ.setdefault(_name, "0")
