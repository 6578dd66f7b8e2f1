"""Answers with the public schemas of tests/data: are they valid, are they those of constrained
autoregressive decoding, and how fast? `python tools/structured.py --help` shows the options, which
are those of `run` and --limit."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import jsonschema

from specdemo.cli import main
from specdemo.commands.shared import answer_options, load_pair
from specdemo.host.terminal import show
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.question import trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Summary, combined, summarize

FILE = Path(__file__).parents[1] / "tests" / "data" / "schemas.jsonl"
WAYS = "speculative", "autoregressive"


@click.command()
@click.option("--limit", type=int, help="Only so many schemas, spread over the file.")
@answer_options
def structured(
    limit: int | None, json_file: str | None, choice: ModelChoice, settings: Settings
) -> None:
    """Measure answers that follow public JSON schemas."""
    rows = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
    rows = rows[:: max(1, len(rows) // limit)][:limit] if limit else rows
    valid, finished, identical = 0, 0, 0
    figures: dict[str, list[Summary]] = {}
    masks: list[float] = []
    with Session(load_pair(choice)) as session:
        session.prepare()
        _ = session.grammars
        for row in rows:
            question = f"Write an example as JSON: {row['source'].split(': ')[-1]}."
            tokens = {}
            for schema in (json.dumps(row["schema"]), ""):
                for way, drafter in zip(WAYS, (settings.drafter, "none"), strict=True):
                    way_settings = replace(settings, json_schema=schema, drafter=drafter)
                    trace = trace_of(session.answer(question, way_settings))
                    name = f"{way}, {'with' if schema else 'without'} a schema"
                    figures.setdefault(name, []).append(summarize(trace))
                    if schema:
                        tokens[way] = trace.token_ids
                        if way == "speculative":
                            answer, ended = trace.text, trace.finish_reason == "stop"
            same = tokens["speculative"] == tokens["autoregressive"]
            identical += same
            finished += ended
            right = ended and is_valid(answer, row["schema"])
            valid += right
            if not same or ended and not right:
                print(f"{row['source']}: identical {same}, valid {right}: {answer}")
            place = session.grammars.compiled(json.dumps(row["schema"]))()
            for token in tokens["autoregressive"]:
                begun = time.perf_counter()
                place.mask()
                masks.append(1000 * (time.perf_counter() - begun))
                place.advance(token)
    print(f"{len(rows)} schemas: {finished} finished, {valid} valid; {identical} identical")
    most = sorted(masks)[int(0.99 * len(masks))]
    figures_of_masks = f"median {median(masks):.3f}, 99 % below {most:.3f}, most {max(masks):.3f}"
    print(f"{len(masks)} masks, ms: mean {sum(masks) / len(masks):.3f}, {figures_of_masks}")
    table = []
    for name, summaries in figures.items():
        total = combined(summaries)
        table.append(
            {
                "way": name,
                "tokens/s": total.tokens_per_second,
                "tokens a round": total.tokens_per_round,
                "acceptance rate": total.acceptance_rate,
            }
        )
    show(None, table, sys.stdout)


def is_valid(answer: str, schema: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(answer)))


if __name__ == "__main__":
    sys.exit(main(command=structured, name="structured"))
