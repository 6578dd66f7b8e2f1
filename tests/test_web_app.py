"""What the page changes of Gradio, each with what Gradio does without it."""

from __future__ import annotations

import asyncio

import pytest
from fakes import FakeSession, page_application, page_server

from specdemo.pairs.choice import ModelChoice
from specdemo.ui import web_app
from specdemo.ui.service import Service

playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture
def service():
    service = Service(ModelChoice("embedded"), lambda pair, report: FakeSession())
    service.start()
    return service


def test_an_idle_page_looks_for_events_two_hundred_times_a_second_at_most(service, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        queue.stopped = True

    app, _ = page_application(service)
    queue = app.routes[-1].app.get_blocks()._queue
    monkeypatch.setattr("gradio.queueing.asyncio.sleep", sleep)
    asyncio.run(queue.start_processing())
    assert slept == [0.005]


def test_a_flood_of_browser_sessions_keeps_those_with_events(service):
    app, _ = page_application(service)
    queue = app.routes[-1].app.get_blocks()._queue
    messages = queue.pending_messages_per_session
    messages["running"] = object()
    queue.event_ids_to_events["event"] = type("Event", (), {"session_hash": "running"})
    for number in range(2 * web_app.MAX_SESSIONS):
        messages[str(number)] = object()
    assert len(messages) == web_app.MAX_SESSIONS
    assert "running" in messages and "0" not in messages


COUNT_FRAMES = """const ask = requestAnimationFrame;
window.frames_asked = 0;
window.requestAnimationFrame = (draw) => { window.frames_asked++; return ask(draw); };"""

AT_REST = """() => {
  const before = window.frames_before;
  window.frames_before = window.frames_asked;
  return before === window.frames_asked;
}"""


def test_a_page_at_rest_asks_for_no_frames(service, chromium):
    with page_server(service) as url, playwright.sync_playwright() as run:
        browser = run.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(reduced_motion="reduce").new_page()
        page.add_init_script(COUNT_FRAMES)
        page.goto(url)
        page.wait_for_function("window.specdemo?.race")
        page.wait_for_function(AT_REST, polling=300)
        browser.close()
