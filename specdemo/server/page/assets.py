"""The files that the browser loads: scripts, styles, recorded races, and Plotly."""

import gzip
import hashlib
from functools import cached_property
from pathlib import Path

from specdemo.runs.trace import Trace, from_json
from specdemo.server.page.events import finished

STATIC = Path(__file__).parent / "static"
RECORDED = STATIC / "recorded"  # races to watch before a question; tools/page_record.py makes them
KINDS = {".js": "text/javascript", ".css": "text/css", ".json": "application/json"}
KINDS[".png"] = "image/png"


class Assets:
    """The files by name, and the recorded `races` by file name, the first to be shown first. The
    `digest` is a part of every address, so that browsers may keep the files."""

    def __init__(self) -> None:
        paths = [path for path in STATIC.iterdir() if path.suffix in KINDS]
        self.files = {path.name: path.read_bytes() for path in paths}
        self.races: dict[str, Trace] = {}
        for path in sorted(RECORDED.glob("*.json")):
            self.races[path.name] = trace = from_json(path.read_text("utf-8"))
            self.files[path.name] = finished(trace, "opened").encode()
        everything = b"".join(self.files[name] for name in sorted(self.files))
        self.digest = hashlib.sha256(everything).hexdigest()[:12]

    @cached_property
    def plotly(self) -> bytes:
        """Plotly's script, compressed by gzip: 1.4 MB of 4.6."""
        from plotly.offline import get_plotlyjs

        return gzip.compress(get_plotlyjs().encode(), 6)
