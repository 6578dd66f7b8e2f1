#!/bin/sh
# Ray Serve 2.60.0: after its client has gone, an async generator that computes between its pieces (without
# an await) is run to its end, the same in a sync generator stops after a piece or two, and one that awaits
# is closed at once. Expected: all are closed when the client is gone.
# Seen on Linux, Python 3.11:
#   pieces of 8 made for a client that left after one: {'computes': 8, 'sync': 2, 'awaits': 1}
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet 'ray[serve]==2.60.0' httpx
venv/bin/python - <<'EOF'
import asyncio
import os
import time

os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
import httpx
import ray
from ray import serve
from starlette.responses import StreamingResponse

PIECES, PORT = 8, 18471


@serve.deployment
class Pieces:
    def __init__(self):
        self.made = dict.fromkeys(("computes", "sync", "awaits"), 0)

    async def __call__(self, request):
        kind = request.url.path.strip("/")
        return StreamingResponse(getattr(self, kind)()) if kind in self.made else self.made

    async def computes(self):
        for _ in range(PIECES):
            time.sleep(0.5)
            self.made["computes"] += 1
            yield b"piece"

    def sync(self):
        for _ in range(PIECES):
            time.sleep(0.5)
            self.made["sync"] += 1
            yield b"piece"

    async def awaits(self):
        for _ in range(PIECES):
            await asyncio.sleep(0.5)
            self.made["awaits"] += 1
            yield b"piece"


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
serve.start(http_options={"host": "127.0.0.1", "port": PORT})
serve.run(Pieces.bind(), logging_config={"log_level": "ERROR"})
for kind in ("computes", "sync", "awaits"):
    with httpx.stream("GET", f"http://127.0.0.1:{PORT}/{kind}", timeout=30) as reply:
        next(reply.iter_raw())
    time.sleep(6)
made = httpx.get(f"http://127.0.0.1:{PORT}/").json()
print("pieces of", PIECES, "made for a client that left after one:", made)
serve.shutdown()
ray.shutdown()
raise SystemExit(made["computes"] != PIECES or max(made["sync"], made["awaits"]) >= PIECES)
EOF
