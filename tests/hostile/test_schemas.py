"""Both servers against what schemathesis makes of their OpenAPI schemas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fakes import PIECES, FakeSession, page_server, served

from specdemo.settings import ModelChoice
from specdemo.trace import PairInfo
from specdemo.ui.service import Limits, Service

CASES = os.environ.get("HOSTILE_CASES", "100")
"""Of each operation; each server has about eight."""

PHASES = "examples,coverage,fuzzing"
EMBEDDED = ModelChoice("embedded")
INFO = PairInfo("scripted", "Scripted-1", None, "abc123", "", "exact")


def schemathesis(schema: str, *options: str) -> None:
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", schema]
    command += ["--max-examples", CASES, "--request-timeout", "30", "--phases", PHASES]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[:5000] + done.stdout[-5000:] + done.stderr[-2000:]


def test_the_api_never_fails_on_what_it_is_sent(embedded_pair):
    session = FakeSession(PIECES, info=INFO, context_limit=10**7)
    with served(session, embedded_pair) as server:
        schemathesis(f"{server.url}/openapi.json", "--checks", "not_a_server_error")


def test_the_page_never_fails_on_what_it_is_sent(tmp_path, capfd):
    limits = Limits(at_once=1000, per_minute=10**6)
    service = Service(EMBEDDED, lambda pair, report: FakeSession(PIECES), limits)
    service.start()
    list(service.states(EMBEDDED))
    with page_server(service, tmp_path) as url:
        schemathesis(f"{url}/gradio_api/openapi.json", "--checks", "not_a_server_error")
    assert "Traceback" not in capfd.readouterr().err
