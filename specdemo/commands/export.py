"""`specdemo export REPO_OR_DIR OUT`: OpenVINO IR of a PyTorch checkpoint, made by optimum-intel."""

from __future__ import annotations

import argparse
from pathlib import Path

FORMATS = ("int8", "int4", "fp16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from specdemo.cli import whole_number

    parser.add_argument("source", metavar="REPO_OR_DIR", help="a Hub repository or a folder with a PyTorch checkpoint")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to make")
    parser.add_argument("--weight-format", choices=FORMATS, default="int8", help="default int8")
    parser.add_argument(
        "--group-size",
        type=whole_number(1),
        default=0,
        metavar="N",
        help="weights that share a scale, for int4 (default: the largest of 128, 64, 32 that fits)",
    )


def main(args: argparse.Namespace) -> int:
    from specdemo.commands.progress_bar import ProgressBar
    from specdemo.models import models
    from specdemo.models.errors import BadChoice
    from specdemo.models.export import ExportSettings, export

    if args.group_size and args.weight_format != "int4":
        raise BadChoice(f"--group-size goes with --weight-format int4, not {args.weight_format}.")
    bar = ProgressBar()
    try:
        source = models.source_of(args.source, "REPO_OR_DIR", args.weight_format)
        folder = models.checkpoint(source, bar)
        export(folder, args.out, ExportSettings(args.weight_format, args.group_size), bar, name=source.name)
    finally:
        bar.close()
    print(f"{args.out} holds the IR of {source.name} ({args.weight_format})")
    return 0
