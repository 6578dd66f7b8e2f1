"""Measures what watching a race costs: the seconds of decoding of the same races while nobody has
the page open, while it is open, and while it asks and draws them. All on one machine, in turn.

`python tools/page_watch.py`, on a quiet machine. On a server of its own drawing costs nothing.
"""

from __future__ import annotations

import json
import shutil
from statistics import median
from typing import Any

import httpx
from playwright.sync_api import Page, sync_playwright

from specdemo.host.server_process import started

QUESTION = "Explain the difference between fission and fusion"
TURNS = 8
SETTLED = "before => { const { run, root } = window.specdemo.race; return run !== before && "
SETTLED += "root.dataset.settled === run; }"


def ask_without_page(url: str) -> float:
    """Seconds of decoding of both runs, asked for by a program that reads the stream."""
    body = {"visitor": "program", "values": {"question": QUESTION, "pair": "embedded"}}
    with httpx.stream("POST", f"{url}/race", json=body, timeout=60) as response:
        *_, last = (json.loads(line[6:]) for line in response.iter_lines() if line)
    return decoding_seconds(last["trace"])


def ask_on_page(page: Page) -> float:
    before = page.evaluate("window.specdemo.race.run")
    page.fill("#sd-question textarea", QUESTION)
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_function(SETTLED, arg=before)
    return decoding_seconds(page.evaluate("window.specdemo.race.trace"))


def decoding_seconds(trace: dict[str, Any]) -> float:
    summary = trace["summary"]
    return summary["decode_seconds"] + summary["baseline_decode_seconds"]


def main() -> None:
    without, opened, watched = [], [], []
    options = {"HF_HUB_OFFLINE": "1", "SPECDEMO_RACE_SECONDS": "0", "SPECDEMO_PAIR": "embedded"}
    with started("app.py", **options) as server, sync_playwright() as run:
        browser = run.chromium.launch(executable_path=shutil.which("chromium"))
        for _ in range(3):
            ask_without_page(server.url)  # compiles and measures what is missing
        for turn in range(TURNS):
            if turn % 2:
                without.append(ask_without_page(server.url))
            page = browser.new_page()
            page.goto(f"{server.url}/?speed=steps")
            page.wait_for_function("document.querySelector('.sd-plot')?.dataset.run")
            page.wait_for_timeout(2000)
            opened.append(ask_without_page(server.url))
            watched.append(ask_on_page(page))
            page.close()
            if turn % 2 == 0:
                without.append(ask_without_page(server.url))
    print(f"without: {median(without):.3f} s")
    for name, times in (("open", opened), ("watched", watched)):
        ratios = [time / least for time, least in zip(times, without, strict=True)]
        print(f"{name}: {median(times):.3f} s, {median(ratios) - 1:+.1%} of the same turn without")


if __name__ == "__main__":
    main()
