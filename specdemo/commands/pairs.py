"""`specdemo pairs`: the pairs, what they need, and whether they fit this machine and are here already."""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the list as JSON ('-' for standard output)")


def main(args: argparse.Namespace) -> int:
    from specdemo.cli import write_json
    from specdemo.models.catalogue import survey
    from specdemo.models.progress import size

    listed = survey()
    if args.json:
        rows = [
            {
                "name": one.pair.name,
                "target": one.pair.target.name,
                "draft": one.draft,
                "download_bytes": one.pair.download_bytes,
                "memory_bytes": one.pair.memory_bytes,
                "fits": one.fits,
                "ready": one.ready,
                "licence": one.pair.licence,
            }
            for one in listed
        ]
        write_json(json.dumps(rows, indent=1), args.json)
    if args.json != "-":
        table = [("pair", "target", "draft", "download", "memory", "fits", "here")]
        table += [
            (
                one.pair.name,
                one.pair.target.name,
                one.draft or "prompt lookup",
                size(one.pair.download_bytes),
                size(one.pair.memory_bytes),
                "yes" if one.fits else "no",
                "yes" if one.ready else "no",
            )
            for one in listed
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0
