"""Measures the page on a quiet machine: first paint, when the recorded race plays, what an update
makes the browser do, layout shifts, and what watching costs an answer.

`python tools/page_measure.py [--repeats 10] [--tokens 300]`
`python tools/page_measure.py --verdicts` asks four questions five times each, in a fresh page, and
compares the verdicts with each other and with `bench` on the same prompts.

Answers without a page come over HTTP from the same loaded models: those of two processes differ by
several percent, wherever their memory happens to lie.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from specdemo.serving.load import started  # noqa: E402
from specdemo.trace import from_json  # noqa: E402
from specdemo.verdict import verdict  # noqa: E402

QUESTION = "Write a long story about a lighthouse keeper and the sea"

SHIFTS = """window.shift = 0;
new PerformanceObserver(list => list.getEntries().forEach(one => { window.shift += one.value; }))
  .observe({ type: 'layout-shift' });"""
READY, SET = "window.specdemo?.race?.run", "window.specdemo.link().includes('max_new_tokens')"
SETTLED = """before => {
  const { race } = window.specdemo;
  return race.run !== before && race.root.dataset.settled === race.run;
}"""


def token_ms(summary: dict) -> float:
    return 1e3 * summary["decode_seconds"] / (summary["tokens"] - 1)


def served():
    """Starts a server of the page with the embedded pair."""
    return started("app.py", "--pair", "embedded", HF_HUB_OFFLINE="1")


@contextlib.contextmanager
def chromium() -> Iterator:
    from playwright.sync_api import sync_playwright

    names = "chromium", "chromium-browser", "google-chrome"
    path = next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as run:
        browser = run.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(context, url: str, **settings):
    page = context.new_page()
    page.set_default_timeout(180_000)
    page.goto(url + "?" + urlencode(settings))
    page.wait_for_function(READY)
    if settings:
        page.wait_for_function(SET)
    return page


def race(page, question: str = QUESTION) -> dict:
    """Asks the question and returns the trace."""
    before = page.evaluate("window.specdemo.race.run")
    page.fill("#sd-question textarea", question)
    page.get_by_role("button", name="Run", exact=True).click()
    # The default, a check at every frame, would make the browser draw sixty times a second.
    page.wait_for_function(SETTLED, arg=before, polling=250)
    return page.evaluate("window.specdemo.race.trace")


def work(page) -> list[tuple[str, float]]:
    """The work of the browser in a race: bytes and pieces received, layouts, seconds of its main
    thread."""
    names = "LayoutCount", "RecalcStyleCount", "ScriptDuration", "LayoutDuration", "TaskDuration"
    browser, sizes = page.context.new_cdp_session(page), []
    browser.on("Network.dataReceived", lambda event: sizes.append(event["dataLength"]))
    browser.send("Network.enable")
    browser.send("Performance.enable")

    def metrics() -> dict[str, float]:
        found = browser.send("Performance.getMetrics")["metrics"]
        return {one["name"]: one["value"] for one in found}

    before = metrics()
    race(page)
    after = metrics()
    browser.detach()
    done = [(name, after[name] - before[name]) for name in names]
    return [("bytes", sum(sizes)), ("pieces", len(sizes)), *done]


def benched(questions: tuple[str, ...]) -> list[float]:
    """The speed-ups of `bench`, medians of five runs."""
    with tempfile.TemporaryDirectory() as folder:
        prompts, report = Path(folder, "prompts.jsonl"), Path(folder, "report.json")
        lines = ({"id": at, "task": "page", "instruction": one} for at, one in enumerate(questions))
        prompts.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
        how = ["--pair", "embedded", "--repeats", "5"]
        command = [sys.executable, "-m", "specdemo", "bench", *how, "--prompts", str(prompts)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*command, "--json", str(report)], check=True, cwd=ROOT, **quiet)
        return [row["speedup"] for row in json.loads(report.read_text("utf-8"))["rows"]]


def compare_verdicts() -> None:
    """Prints each question's verdicts, the largest over the smallest, and the median over bench."""
    from specdemo.ui.page import EXAMPLES

    questions = list(EXAMPLES)[:4]
    with served() as server, chromium() as browser:
        page = open_page(browser.new_context(), server.url)
        found = [
            [verdict(from_json(json.dumps(race(page, one)))) for one in questions] for _ in range(5)
        ]
    for at, bench in enumerate(benched(questions)):
        verdicts = [click[at] for click in found]
        told = sorted(one.speedup for one in verdicts if one)
        races = "+".join(str(one.races if one else 0) for one in verdicts)
        print(
            f"{questions[at]}: {', '.join(f'{one:.2f}' for one in told)} (of {races} races); "
            f"largest / smallest {told[-1] / told[0]:.2f}; bench {bench:.2f}, "
            f"page / bench {told[0] / bench:.2f} to {told[-1] / bench:.2f}"
        )


def main() -> None:
    from gradio_client import Client

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--verdicts", action="store_true")
    options = parser.parse_args()
    if options.verdicts:
        compare_verdicts()
        return
    settings = {"max_new_tokens": options.tokens, "draft_tokens": "3"}
    with served() as server, chromium() as browser:
        url = server.url
        paints = []
        for _ in range(3):
            context = browser.new_context()
            page = open_page(context, url, max_new_tokens=8)
            first = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            played = page.evaluate("performance.getEntriesByName('sd-play')[0].startTime")
            paints.append(f"{page.evaluate(first):.0f} and {played:.0f}")
            context.close()
        print(f"first paint, recorded race plays, in a fresh browser, ms: {', '.join(paints)}")

        page = open_page(browser.new_context(), url, **settings)
        race(page)  # the models are loaded, and everything is warm
        page.evaluate(SHIFTS)
        print("a watched race:", ", ".join(f"{name} {value:g}" for name, value in work(page)))
        print(f"layout shift while streaming: {page.evaluate('window.shift'):.4f}")

        client, alone, watched = Client(url, verbose=False), [], []
        for _ in range(options.repeats + 1):
            page.goto("about:blank")
            *_, answered = client.submit(QUESTION, **settings, api_name="/generate")
            alone.append(1e3 / answered["tokens_per_second"])
            page = open_page(page.context, url, **settings)
            time.sleep(2)  # until the browser has finished with loading
            watched.append(token_ms(race(page)["summary"]))
        # The first of each is a warm-up.
        without, with_page = median(alone[1:]), median(watched[1:])
        print(
            f"ms a token, median of {options.repeats}: {without:.2f} without a page, "
            f"{with_page:.2f} with the page: {with_page / without - 1:+.1%}"
        )


if __name__ == "__main__":
    main()
