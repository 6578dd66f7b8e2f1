"""`specdemo bench`: measure prompts with and without speculation, beside peers; print, and write JSON and HTML."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from specdemo.cli import check_output

if TYPE_CHECKING:
    from specdemo.bench.report import Report, Row
    from specdemo.bench.screen import Screen
    from specdemo.trace import Settings
    from specdemo.session import Session
    from specdemo.models.load import LoadedPair

SWEEP_PROMPTS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from specdemo.cli import add_decoding_arguments, add_pair_arguments, whole_number

    add_prompt_arguments(parser)
    parser.add_argument("--peers", choices=("openvino-genai",), help="also run another engine on the same IR files")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON ('-' for standard output)")
    parser.add_argument("--html", metavar="FILE", help="write the report as one self-contained page with figures")
    parser.add_argument("--repeats", type=whole_number(1, 99), metavar="R", default=1,
                        help="runs of each prompt, in alternating order; medians count (default 1)")  # fmt: skip
    parser.add_argument("--sweep-prompts", type=whole_number(0), metavar="N", default=None,
                        help="run N of the prompts with every draft length from 1 to 12 as well "
                        f"(default {SWEEP_PROMPTS} with --html, else 0)")  # fmt: skip
    parser.add_argument("--paper", action="store_true",
                        help="the paper's own table instead (arXiv 2311.04951), its figures beside")  # fmt: skip
    add_pair_arguments(parser)
    add_decoding_arguments(parser)


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """--prompts and --limit, which audit has too."""
    from specdemo.cli import whole_number

    parser.add_argument("--prompts", metavar="FILE",
                        help="JSONL with id, task and instruction (default: a small set of its own)")  # fmt: skip
    parser.add_argument("--limit", type=whole_number(1), metavar="N",
                        help="run only N prompts, spread evenly over the tasks")  # fmt: skip


def main(args: argparse.Namespace) -> int:
    from specdemo.bench.prompts import BUILT_IN, read_prompts, spread
    from specdemo.bench.screen import Screen
    from specdemo.cli import settings_from
    from specdemo.models.errors import BadChoice

    if args.paper and (args.prompts or args.limit or args.peers or args.html or args.sweep_prompts):
        raise BadChoice(
            "--paper has a prompt of its own; leave out --prompts, --limit, --peers, --sweep-prompts, --html."
        )
    prompts = spread(read_prompts(args.prompts or BUILT_IN), args.limit)
    settings = settings_from(args)
    check_output(args.json, "--json")
    check_output(args.html, "--html")
    loaded, session = open_session(args)
    # With the report on standard output, what a person reads goes to standard error.
    screen = Screen(sys.stderr if args.json == "-" else sys.stdout)
    try:
        if args.paper:
            return _paper(args, session, settings, screen)
        sweep = args.sweep_prompts if args.sweep_prompts is not None else SWEEP_PROMPTS if args.html else 0
        report = _run(args, loaded, session, prompts, settings, sweep, screen)
    finally:
        session.close()
    if not report.rows:
        from specdemo.models.errors import ZooError

        raise ZooError("None of the prompts could be run: " + "; ".join(s.reason for s in report.details.skipped[:1]))
    return 0


def open_session(args: argparse.Namespace) -> tuple[LoadedPair, Session]:
    """The pair that the options name, fetched if need be and compiled."""
    from specdemo.cli import load_from

    loaded = load_from(args)

    from specdemo.session import Session  # openvino is imported here, after the cheap refusals above

    return loaded, Session(loaded)


def _run(args, loaded, session, prompts, settings, sweep: int, screen: Screen) -> Report:
    from specdemo.bench.report import PeerRow, Report, Row, Skipped, to_json
    from specdemo.bench.run import Plan, Step, bench
    from specdemo.cli import write_json

    plan = Plan(settings, repeats=args.repeats, sweep_prompts=sweep)
    screen.line(f"{session.info.target}, drafting with {session.info.draft or 'prompt lookup'}; "
                f"{len(prompts)} prompts, {settings.max_new_tokens} new tokens at most")  # fmt: skip
    report = None
    with _peers(args, loaded, session, settings, screen) as peers:
        table = _row_table()
        screen.line(table.head)
        for event in bench(session, prompts, plan, peers=peers):
            if isinstance(event, Step):
                screen.step(event)
            elif isinstance(event, Row):
                screen.line(table.row(*_row_cells(event)))
            elif isinstance(event, Skipped):
                screen.line(f"skipped {event.id}: {event.reason}")
            elif isinstance(event, Report):
                report = event
            else:
                assert isinstance(event, PeerRow)
    screen.line()
    for line in summary_lines(report):
        screen.line(line)
    if args.json:
        write_json(to_json(report), args.json)
    if args.html:
        from specdemo.bench.html import page

        _write(page(report), args.html)
        screen.line(f"\nreport with figures: {args.html}")
    return report


class _peers:
    """The peers that --peers asks for, as a context that frees them."""

    def __init__(self, args, loaded, session, settings: Settings, screen: Screen) -> None:
        self._wanted = args.peers
        self._loaded, self._session, self._settings, self._screen = loaded, session, settings, screen
        self._models = None

    def __enter__(self):
        if not self._wanted:
            return ()
        from specdemo.bench.peers import GenaiModels, open_peers

        self._models = GenaiModels(self._loaded)
        properties = self._session.target_properties(self._settings.numerics)
        peers, left_out = open_peers(self._models, properties)
        for sentence in left_out:
            self._screen.line(sentence)
        return peers

    def __exit__(self, *error) -> None:
        if self._models is not None:
            self._models.__exit__(*error)


def _row_table():
    from specdemo.bench.screen import Table

    return Table(("prompt", 20), ("tokens", 6), ("plain s", 8), ("spec. s", 8), ("speed-up", 8), ("accepted", 8),
                 ("tok/round", 9), ("identical", 9))  # fmt: skip


def _row_cells(row: Row) -> tuple[str, ...]:
    from specdemo.bench.screen import number, percent, times, yes_no

    name = row.id if row.task in row.id else f"{row.task} {row.id}"
    return (name, str(row.tokens), number(row.autoregressive_s), number(row.speculative_s), times(row.speedup),
            percent(row.acceptance_rate), number(row.tokens_per_round), yes_no(row.identical))  # fmt: skip


def summary_lines(report: Report) -> list[str]:
    """The report's summary as lines of text."""
    from specdemo.bench.screen import number, percent, printable, table_lines, times, yes_no

    s, d = report.summary, report.details
    rows = [["task", "speed-up"], *([printable(task)[:40], times(value)] for task, value in s.speedup_by_task.items())]
    lines = table_lines(rows)
    lines += [
        "",
        f"speed-up {times(s.speedup)} in total; worst prompt {times(s.worst_prompt_speedup)}"
        + (f"; half of the prompts between {times(d.spread.low)} and {times(d.spread.high)}" if d.spread else ""),
        f"plain {number(s.autoregressive_tokens_per_s, 1)} tokens/s, "
        f"speculative {number(s.speculative_tokens_per_s, 1)} tokens/s",
        f"acceptance rate {percent(s.acceptance_rate)}, {number(s.tokens_per_round)} tokens per round, "
        f"identical: {yes_no(s.identical)}",
        f"outside inference {percent(s.outside_inference_fraction, 1)} of the time; "
        f"predicted speed-up {times(d.predicted_speedup)}",
        f"processor seconds per token: plain {number(s.cpu_seconds_per_token.autoregressive, 4)}, "
        f"speculative {number(s.cpu_seconds_per_token.speculative, 4)}",
    ]
    joules = d.joules_per_token
    if joules.speculative is not None:
        lines.append(
            f"joules per token: plain {number(joules.autoregressive, 3)}, speculative {number(joules.speculative, 3)}"
        )
    else:
        lines.append(f"energy: {d.energy}")
    if report.peers:
        lines.append("")
        rows = [["peer", "tokens/s", "ours is", "identical to ours", "variant"]]
        for name, peer in report.peers.items():
            ours = s.autoregressive_tokens_per_s if "/autoregressive" in name else s.speculative_tokens_per_s
            gain = ours / peer.tokens_per_s if ours and peer.tokens_per_s else None
            rows.append([name, number(peer.tokens_per_s, 1), times(gain), yes_no(peer.identical),
                         peer.settings.get("variant", "")])  # fmt: skip
        lines += table_lines(rows)
    if d.stopped:
        lines.append("stopped before the end: figures are of the prompts finished until then")
    return lines


def _paper(args, session, settings, screen: Screen) -> int:
    from specdemo.bench.paper import PROMPT, PaperRow, PaperTable, paper_table, to_json
    from specdemo.bench.run import Step
    from specdemo.bench.screen import Table, number, percent, times, yes_no
    from specdemo.cli import write_json

    screen.line(f'"{PROMPT}", seconds from the prompt to the last token; {session.info.target}, '
                f"drafting with {session.info.draft or 'prompt lookup'}")  # fmt: skip
    table = Table(("N", 5), ("tokens", 6), ("plain s", 8), ("spec. s", 8), ("speed-up", 8), ("accepted", 8),
                  ("identical", 9), ("paper: plain s", 8), ("spec. s", 8), ("speed-up", 8))  # fmt: skip
    screen.line(table.head)
    for event in paper_table(session, settings):
        if isinstance(event, Step):
            screen.step(event)
        elif isinstance(event, PaperRow):
            paper = event.published
            screen.line(table.row(event.new_tokens, event.tokens, number(event.autoregressive_s),
                                  number(event.speculative_s), times(event.speedup), percent(event.acceptance_rate),
                                  yes_no(event.identical), number(paper.autoregressive_s), number(paper.speculative_s),
                                  times(paper.speedup)))  # fmt: skip
        elif isinstance(event, PaperTable) and args.json:
            write_json(to_json(event), args.json)
    screen.line("The paper ran dolly-v2-12b with dolly-v2-3b, K = 5, on its own machine.")
    return 0


def _write(text: str, destination: str) -> None:
    from specdemo.models.errors import ZooError

    try:
        with open(destination, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ZooError(f"--html {destination} cannot be written: {error.strerror or error}.") from error
