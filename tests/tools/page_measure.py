"""Measures the page itself, on a quiet machine: first paint, work per update, layout shifts, and what it costs the
answers to be watched. Not a test: it prints figures. `python tests/tools/page_measure.py [--repeats 6] [--tokens 300]`.

Watched and unwatched answers come from the same loaded models: those of two processes differ by several percent, wherever
their memory happens to lie.
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
from pathlib import Path
from statistics import mean, median
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

ANSWERED = "answered:"
DRAFT_TOKENS = 3
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


def serve(port: int) -> None:
    """The page's server; for each line of its standard input it answers QUESTION itself, with as many tokens as the line
    says, and prints the milliseconds that a token took."""
    import app
    from specdemo.trace import Settings, Trace, summarize
    from specdemo.ui import choice

    sessions, open_session = [], choice.open_session

    def opened(*given, **named):
        sessions.append(open_session(*given, **named))
        return sessions[-1]

    def answer() -> None:
        for line in sys.stdin:
            settings = Settings(max_new_tokens=int(line), draft_tokens=DRAFT_TOKENS)
            events = sessions[-1].answer(QUESTION, settings)
            summary = summarize(next(event for event in events if isinstance(event, Trace)))
            print(f"{ANSWERED} {1e3 * summary.decode_seconds / (summary.tokens - 1)}", flush=True)

    choice.open_session = opened
    threading.Thread(target=answer, daemon=True).start()
    app.main(["--port", str(port), "--pair", "embedded"])


@contextlib.contextmanager
def served() -> Iterator[tuple[str, Callable[[int], float]]]:
    """The page of a server of its own on 127.0.0.1, and what has it answer by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--serve", str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)  # fmt: skip

    def alone(tokens: int) -> float:
        print(tokens, file=server.stdin, flush=True)
        line = next(line for line in server.stdout if line.startswith(ANSWERED))
        return float(line.split()[1])

    try:
        url = f"http://127.0.0.1:{port}/"
        for _ in range(600):
            try:
                urllib.request.urlopen(url, timeout=2).read()
                break
            except OSError:
                time.sleep(0.1)
        yield url, alone
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
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)

    from playwright.sync_api import sync_playwright

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with served() as (url, answer), sync_playwright() as run:
        browser = run.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        paints = []
        for _ in range(3):
            context = browser.new_context()
            page = open_page(context, url, max_new_tokens=8)
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            context.close()
        print(f"first paint in a fresh browser, ms: {', '.join(f'{paint:.0f}' for paint in paints)}")

        page = open_page(browser.new_context(), url, max_new_tokens=options.tokens, draft_tokens=DRAFT_TOKENS)
        race(page)  # the models are loaded, and everything is warm
        page.evaluate(WATCH)
        race(page)
        work = [spent for _, spent in page.evaluate("window.work")]
        quarter = len(work) // 4
        print(f"script time per update, ms: {mean(work[:quarter]):.2f} in the first quarter of {len(work)} updates, "
              f"{mean(work[-quarter:]):.2f} in the last")
        moved = ", ".join(sorted(set(map(str, page.evaluate("window.shifted")))))
        print(f"layout shift while streaming: {page.evaluate('window.shift'):.4f} {moved and f'({moved})'}")

        alone, watched = [], []
        for _ in range(options.repeats + 1):
            page.goto("about:blank")
            alone.append(answer(options.tokens))
            page = open_page(page.context, url, max_new_tokens=options.tokens, draft_tokens=DRAFT_TOKENS)
            time.sleep(2)  # until the browser has finished with loading
            watched.append(1e3 * seconds_a_token(race(page)["summary"]))
        # The first of each is a warm-up.
        print(f"ms a token, median of {options.repeats}: {median(alone[1:]):.2f} without a page, "
              f"{median(watched[1:]):.2f} with the page: {median(watched[1:]) / median(alone[1:]) - 1:+.1%}")
        browser.close()


if __name__ == "__main__":
    main()
