"""Measures what watching a race costs: the seconds of decoding of the same races while nobody has
the page open, while it is open, and while it asks and draws them. All on one machine, in turn.

`python tools/page_watch.py`, on a quiet machine. On a server of its own drawing costs nothing.
"""

from __future__ import annotations

import json
import shutil
from statistics import median

import httpx
from playwright.sync_api import Page, sync_playwright

from specdemo.bench.load_test import started

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


def decoding_seconds(trace: dict) -> float:
    summary = trace["summary"]
    return summary["decode_seconds"] + summary["baseline_decode_seconds"]


def main() -> None:
    seconds: dict[str, list[float]] = {"without": [], "open": [], "watched": []}
    options = {"HF_HUB_OFFLINE": "1", "SPECDEMO_RACE_SECONDS": "0", "SPECDEMO_PAIR": "embedded"}
    with started("app.py", **options) as server, sync_playwright() as run:
        browser = run.chromium.launch(executable_path=shutil.which("chromium"))
        for _ in range(3):
            ask_without_page(server.url)  # compiles and measures what is missing
        for _ in range(TURNS):
            seconds["without"].append(ask_without_page(server.url))
            page = browser.new_page()
            page.goto(f"{server.url}/?speed=steps")
            page.wait_for_function("document.querySelector('.sd-plot')?.dataset.run")
            page.wait_for_timeout(2000)
            seconds["open"].append(ask_without_page(server.url))
            seconds["watched"].append(ask_on_page(page))
            page.close()
    least = median(seconds["without"])
    for name, taken in seconds.items():
        ratios = f"{median(taken) / least - 1:+.1%}"
        print(f"{name}: {median(taken):.3f} s ({min(taken):.3f} to {max(taken):.3f}), {ratios}")


if __name__ == "__main__":
    main()
