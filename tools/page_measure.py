"""Measures the page on a quiet machine: first paint, when the recorded race plays, script time per
update, layout shifts, and what watching costs an answer.

`python tools/page_measure.py [--repeats 10] [--tokens 300]`

Watched and unwatched answers come from the same loaded models: those of two processes differ by
several percent, wherever their memory happens to lie.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

ANSWERED = "answered:"
DRAFT_TOKENS = 3
QUESTION = "Write a long story about a lighthouse keeper and the sea"

WATCH = """() => {
  window.work = []; window.shift = 0;
  const { stage } = window.specdemo;
  for (const name of ['drain', 'tick']) {
    const real = stage[name];
    stage[name] = function (...given) {
      const since = performance.now(), result = real.apply(this, given);
      if (stage.live) window.work.push(performance.now() - since);
      return result;
    };
  }
  new PerformanceObserver(list => list.getEntries().forEach(one => { window.shift += one.value; }))
    .observe({ type: 'layout-shift' });
}"""
READY = "window.specdemo?.stage?.run && window.specdemo.link().includes('max_new_tokens')"
SETTLED = """before => {
  const { stage } = window.specdemo;
  return stage.run !== before && stage.root.dataset.settled === stage.run;
}"""


def serve(port: int) -> None:
    """The page's server; for each line of standard input it answers QUESTION itself, with as many
    tokens as the line says, and prints the milliseconds per token."""
    import app
    from specdemo import cli
    from specdemo.settings import Settings
    from specdemo.trace import summarize
    from specdemo.ui import choice

    sessions, open_session = [], choice.open_session

    def opened(*given, **named):
        sessions.append(open_session(*given, **named))
        return sessions[-1]

    def answer() -> None:
        for line in sys.stdin:
            settings = Settings(max_new_tokens=int(line), draft_tokens=DRAFT_TOKENS)
            *_, trace = sessions[-1].answer(QUESTION, settings)
            print(f"{ANSWERED} {token_ms(asdict(summarize(trace)))}", flush=True)

    choice.open_session = opened
    threading.Thread(target=answer, daemon=True).start()
    cli.main(["--port", str(port), "--pair", "embedded"], app.page, "app.py")


def token_ms(summary: dict) -> float:
    return 1e3 * summary["decode_seconds"] / (summary["tokens"] - 1)


@contextlib.contextmanager
def served() -> Iterator[tuple[str, Callable[[int], float]]]:
    """The page of a server of its own, and a function that has it answer without a page."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, ROOT / "tools" / "page_measure.py", "--serve", str(port)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )

    def unwatched(tokens: int) -> float:
        print(tokens, file=server.stdin, flush=True)
        line = next(line for line in server.stdout if line.startswith(ANSWERED))
        return float(line.split()[1])

    try:
        url = f"http://127.0.0.1:{port}/"
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url, timeout=2).read()
                break
            time.sleep(0.1)
        yield url, unwatched
    finally:
        server.terminate()
        server.wait(20)


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
    return page


def race(page, question: str = QUESTION) -> dict:
    """Asks the question; gives the trace."""
    before = page.evaluate("window.specdemo.stage.run")
    page.fill("#sd-question textarea", question)
    page.get_by_role("button", name="Run", exact=True).click()
    # Looking at every frame, the default, would keep the browser drawing sixty times a second.
    page.wait_for_function(SETTLED, arg=before, polling=250)
    return page.evaluate("window.specdemo.stage.trace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    settings = {"max_new_tokens": options.tokens, "draft_tokens": DRAFT_TOKENS}
    with served() as (url, unwatched), chromium() as browser:
        paints = []
        for _ in range(3):
            context = browser.new_context()
            page = open_page(context, url, max_new_tokens=8)
            first = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            played = page.evaluate("window.specdemo.stage.playSince")
            paints.append(f"{page.evaluate(first):.0f} and {played:.0f}")
            context.close()
        print(f"first paint, recorded race plays, in a fresh browser, ms: {', '.join(paints)}")

        page = open_page(browser.new_context(), url, **settings)
        race(page)  # the models are loaded, and everything is warm
        page.evaluate(WATCH)
        race(page)
        work = page.evaluate("window.work")
        quarter = len(work) // 4
        print(
            f"script time per update, ms: {mean(work[:quarter]):.2f} in the first quarter of "
            f"{len(work)} updates, {mean(work[-quarter:]):.2f} in the last"
        )
        print(f"layout shift while streaming: {page.evaluate('window.shift'):.4f}")

        alone, watched = [], []
        for _ in range(options.repeats + 1):
            page.goto("about:blank")
            alone.append(unwatched(options.tokens))
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
