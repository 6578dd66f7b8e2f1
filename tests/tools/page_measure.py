"""Measures the page itself, on a quiet machine: first paint, work per update, layout shifts, and what it costs the
answers to be watched. Not a test: it prints figures. `python tests/tools/page_measure.py [--repeats 6] [--tokens 300]`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

QUESTION = "Write a long story about a lighthouse keeper and the sea"

WATCH = """() => {
  window.work = []; window.shift = 0;
  const stage = window.specdemo.stage;
  for (const name of ['receive', 'tick']) {
    const real = stage[name];
    stage[name] = function (...given) {
      const since = performance.now(), result = real.apply(this, given);
      if (stage.live) window.work.push([stage.spec.tokens + stage.plain.tokens, performance.now() - since]);
      return result;
    };
  }
  window.shifted = [];
  new PerformanceObserver(list => list.getEntries().forEach(one => {
    window.shift += one.value;
    for (const { node } of one.sources) if (node) window.shifted.push(node.id || node.className || node.nodeName);
  }))
    .observe({ type: 'layout-shift' });
}"""


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The page of a server of its own on 127.0.0.1, up and with its models ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "app.py", "--port", str(port), "--pair", "embedded"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}/"
        for _ in range(600):
            try:
                urllib.request.urlopen(url, timeout=2).read()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(20)


def open_page(context, url: str, **settings):
    page = context.new_page()
    page.set_default_timeout(180_000)
    page.goto(url + "?" + urlencode({"question": QUESTION, **settings}))
    page.wait_for_function("window.specdemo && window.specdemo.stage && document.querySelector('#sd-question textarea')?"
                           ".value && window.specdemo.link().includes('max_new_tokens')")
    return page


def race(page) -> dict:
    """Runs the question that is in the box; gives the trace."""
    before = page.evaluate("window.specdemo.stage.run")
    page.get_by_role("button", name="Run", exact=True).click()
    # Looking at every frame, as it would by default, keeps the browser drawing sixty times a second.
    page.wait_for_function("before => { const stage = window.specdemo.stage;"
                           " return stage.run !== before && stage.root.dataset.settled === stage.run }", arg=before,
                           polling=250)
    return page.evaluate("window.specdemo.stage.trace")


def seconds_a_token(summary) -> float:
    return summary["decode_seconds"] / (summary["tokens"] - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=300)
    options = parser.parse_args()

    from playwright.sync_api import sync_playwright

    from specdemo.engine.trace import Settings, Trace, summarize
    from specdemo.session import Session
    from specdemo.zoo.load import load_pair
    from specdemo.zoo.pairs import EMBEDDED

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with served() as url, sync_playwright() as run:
        browser = run.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        paints = []
        for _ in range(3):
            context = browser.new_context()
            page = open_page(context, url, max_new_tokens=8)
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            context.close()
        print(f"first paint in a fresh browser, ms: {', '.join(f'{paint:.0f}' for paint in paints)}")

        page = open_page(browser.new_context(), url, max_new_tokens=options.tokens, draft_tokens=3)
        race(page)  # the models are loaded, and everything is warm
        page.evaluate(WATCH)
        race(page)
        work = [spent for _, spent in page.evaluate("window.work")]
        quarter = len(work) // 4
        print(f"script time per update, ms: {mean(work[:quarter]):.2f} in the first quarter of {len(work)} updates, "
              f"{mean(work[-quarter:]):.2f} in the last")
        moved = ", ".join(sorted(set(map(str, page.evaluate("window.shifted")))))
        print(f"layout shift while streaming: {page.evaluate('window.shift'):.4f} {moved and f'({moved})'}")

        session = Session(load_pair(EMBEDDED))
        settings = Settings(max_new_tokens=options.tokens, draft_tokens=3)
        alone, watched = [], []
        for turn in range(options.repeats + 1):
            trace = next(event for event in session.answer(QUESTION, settings) if isinstance(event, Trace))
            summary = race(page)["summary"]
            if turn:  # the first of each is a warm-up
                alone.append(summarize(trace).decode_seconds / (summarize(trace).tokens - 1))
                watched.append(seconds_a_token(summary))
        print(f"ms a token, median of {options.repeats}: {1e3 * median(alone):.2f} in this process without a page, "
              f"{1e3 * median(watched):.2f} with the page: {median(watched) / median(alone) - 1:+.1%}")
        browser.close()


if __name__ == "__main__":
    main()
