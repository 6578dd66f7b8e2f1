"""`specdemo fetch PAIR`: get a pair ready. Again is a no-op; interrupted and repeated, it goes on where it was."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pair", metavar="PAIR", help="a name that `specdemo pairs` lists")


def main(args: argparse.Namespace) -> int:
    from specdemo.commands.progress_bar import ProgressBar
    from specdemo.models.load import load_pair
    from specdemo.models.pairs import find_pair

    bar = ProgressBar()
    try:
        loaded = load_pair(find_pair(args.pair, option="PAIR"), progress=bar)
    finally:
        bar.close()
    print(f"{loaded.info.name} is ready: {loaded.info.target}, {loaded.info.draft or 'drafting by prompt lookup'}")
    return 0
