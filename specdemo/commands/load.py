"""`specdemo load`: visitors for a server, how many tokens a second they get together, and what they leave behind."""

from __future__ import annotations

import argparse
import dataclasses
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from specdemo.cli import real_number, whole_number

    parser.add_argument("--visitors", type=whole_number(1, 64), default=16, metavar="N",
                        help="most visitors at a time; levels are 1, 4, 8, 16, 32 up to that (default 16)")  # fmt: skip
    parser.add_argument("--seconds", type=real_number(1, 600), default=30.0, metavar="S",
                        help="how long each level lasts (default 30)")  # fmt: skip
    parser.add_argument("--soak", type=real_number(0, 1440, open_below=True), metavar="MINUTES",
                        help="instead of levels: visitors who join, stop and leave at random, then a look at what "
                        "they left behind")  # fmt: skip
    parser.add_argument("--url", metavar="URL", help="a server that runs already (default: one is started)")
    parser.add_argument("--pair", default="embedded", metavar="NAME", help="what a started server loads (embedded)")
    parser.add_argument("--max-new-tokens", type=whole_number(1, 2000), default=100, metavar="N",
                        help="length of the answers (default 100, as on the page)")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON ('-' for standard output)")


def main(args: argparse.Namespace) -> int:
    from contextlib import nullcontext

    from specdemo import loadtest
    from specdemo.bench.prompts import read_prompts, spread
    from specdemo.models.pairs import find_pair

    find_pair(args.pair)
    prompts = [prompt.instruction for prompt in spread(read_prompts(), None) if len(prompt.instruction) < 400]
    if args.url:
        url = args.url.rstrip("/")
        loadtest.wait_ready(url)
        running = nullcontext((url, None))
    else:
        running = loadtest.server(args.pair)
    screen = _Screen(quiet=args.json == "-")
    with running as (url, pid):
        if args.soak:
            return _soak(args, url, pid, prompts, screen)
        report = loadtest.run_levels(
            url, pid, prompts, visitors=args.visitors, seconds=args.seconds, max_new_tokens=args.max_new_tokens,
            said=screen.level)  # fmt: skip
    screen.report(report)
    _write(args, dataclasses.asdict(report))
    return 0 if not any(level.errors for level in report.levels) and report.identical else 1


def _soak(args: argparse.Namespace, url: str, pid: int | None, prompts: list[str], screen: _Screen) -> int:
    from specdemo import loadtest

    report = loadtest.soak(
        url, pid, prompts, visitors=args.visitors, minutes=args.soak, max_new_tokens=args.max_new_tokens)  # fmt: skip
    before, after = report.before, report.after
    screen.line(
        f"{report.requests} requests in {report.seconds:.0f} s: {report.finished} finished, {report.left} hung up, "
        f"{report.errors} errors"
    )
    screen.line(
        f"left behind: {after.active + after.queue} requests, {after.blocks_held} cache blocks; threads "
        f"{before.threads} before, {after.threads} after; memory {before.rss_bytes / 1e6:.0f} MB before, "
        f"{after.rss_bytes / 1e6:.0f} MB after"
    )
    for said in report.said:
        screen.line(f"error: {said}")
    screen.line("clean" if report.clean else "NOT clean")
    _write(args, {**dataclasses.asdict(report), "clean": report.clean})
    return 0 if report.clean else 1


def _write(args: argparse.Namespace, figures: dict) -> None:
    from specdemo.cli import write_json

    if args.json:
        write_json(json.dumps(figures, indent=2), args.json)


class _Screen:
    """Lines for a person: on standard error where standard output is for a program."""

    def __init__(self, quiet: bool):
        import sys

        self._stream = sys.stderr if quiet else sys.stdout

    def line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def level(self, level) -> None:
        def seconds(value: float | None) -> str:
            return "-" if value is None else f"{value:.2f} s"

        self.line(
            f"{level.visitors:3d} visitor{'s' if level.visitors > 1 else ' '}: {level.tokens_per_s:6.1f} tokens/s "
            f"together; first token {seconds(level.ttft_p50_s)} median, {seconds(level.ttft_p95_s)} 95th percentile; "
            f"{level.requests} requests, {level.errors} errors"
        )

    def report(self, report) -> None:
        if report.aggregate_gain is not None:
            self.line(f"8 visitors together: {report.aggregate_gain:.2f} times the tokens a second of one at a time")
        words = "are the ones given alone" if report.identical else "are NOT all the ones given alone"
        self.line(f"{report.compared} answers under load {words}")
        if report.memory:
            sizes = [one.rss_bytes / 1e6 for one in report.memory]
            self.line(f"memory of the server: {sizes[0]:.0f} MB at first, {sizes[-1]:.0f} MB at last, {max(sizes):.0f} most")
        for said in report.errors:
            self.line(f"error: {said}")
