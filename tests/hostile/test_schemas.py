"""Both servers against what schemathesis makes of their OpenAPI schemas, each for
HOSTILE_SECONDS."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
from helpers import page_application, running, served, service_of
from toy_session import ToySession

from specdemo.pairs.registry import PairInfo
from specdemo.server.page import routes
from specdemo.server.page.service import VisitorLimits
from specdemo.server.web_server import Server

SECONDS = os.environ.get("HOSTILE_SECONDS", "30")

INFO = PairInfo("scripted", "Scripted-1", None, "abc123", "", "exact")


def schemathesis(schema: str, *options: str) -> None:
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", schema, *options]
    command += ["--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing"]
    command += ["--max-time", SECONDS, "--max-examples", "1000000", "--request-timeout", "30"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[:5000] + done.stdout[-5000:] + done.stderr[-2000:]
    words = r"^ *(?:\d+ generated.*|\W*Generated .*|.*passed.*)$"
    print("\n".join(re.findall(words, done.stdout, re.M)))


def test_the_api_never_fails_on_what_it_is_sent(embedded_pair):
    session = ToySession("One two ", loaded=embedded_pair, info=INFO, context_limit=10**7)
    with served(session) as server:
        schemathesis(f"{server.url}/openapi.json")


def test_the_page_never_fails_on_what_it_is_sent(tmp_path, capfd):
    limits = VisitorLimits(at_once=1000, per_minute=10**6)
    app, guard = page_application(service_of(ToySession("One two "), limits))
    with running(Server(app, guard, 1)) as url:
        schema = asyncio.run(described(app.routes[-1].app))
        (tmp_path / "openapi.json").write_text(json.dumps(schema))
        schemathesis(str(tmp_path / "openapi.json"), "--url", url)
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    print(out)


async def described(gradios) -> dict:
    """Gradio's schema of the routes that are open."""
    transport = httpx.ASGITransport(gradios)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        schema = (await client.get("/gradio_api/openapi.json")).json()
    kept = {*routes.CALLS, *routes.READS}
    schema["paths"] = {path: one for path, one in schema["paths"].items() if path in kept}
    assert len(schema["paths"]) == 2
    return schema
