"""What so many visitors need, from figures that `specdemo load` measured: replicas, cores, memory, cost. Arithmetic only.

docs/serving.md has the formulae and what they leave out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from specdemo.models.errors import BadChoice

HEADROOM = 0.7
"""Share of what a replica can do that is planned with: visitors do not come evenly."""

PATIENCE = 2.0
"""Seconds to the first token that a visitor should have to wait, at the 95th percentile."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one replica did: `visitors` at once, together `tokens_per_s`, first token after `first_token_s` (95th
    percentile), on `cores` cores with `memory_bytes` bytes."""

    visitors: int
    tokens_per_s: float
    first_token_s: float
    cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Demand:
    """Each of `visitors` asks once in `question_every_s` seconds and gets `answer_tokens` tokens."""

    visitors: int
    question_every_s: float = 60.0
    answer_tokens: float = 150.0

    @property
    def tokens_per_s(self) -> float:
        return self.visitors * self.answer_tokens / self.question_every_s

    @property
    def requests_per_s(self) -> float:
        return self.visitors / self.question_every_s


@dataclass(frozen=True, slots=True)
class Plan:
    """What a demand needs. `in_flight` is how many answers are being made at once, on average (Little's law)."""

    demand_tokens_per_s: float
    requests_per_s: float
    in_flight: float
    answer_s: float
    replicas: int
    cores: int
    memory_bytes: int
    per_million_tokens: float | None


def plan(demand: Demand, measured: Measured, price_per_core_hour: float | None = None) -> Plan:
    """The replicas that the demand needs with HEADROOM, and what follows from that. A price is in any currency."""
    each = measured.tokens_per_s / measured.visitors
    answer = measured.first_token_s + demand.answer_tokens / each
    by_tokens = demand.tokens_per_s / (HEADROOM * measured.tokens_per_s)
    in_flight = demand.requests_per_s * answer
    replicas = max(1, math.ceil(by_tokens), math.ceil(in_flight / measured.visitors))
    cost = None
    if price_per_core_hour is not None:
        cost = replicas * measured.cores * price_per_core_hour * 1e6 / (3600 * demand.tokens_per_s)
    return Plan(
        demand_tokens_per_s=demand.tokens_per_s,
        requests_per_s=demand.requests_per_s,
        in_flight=in_flight,
        answer_s=answer,
        replicas=replicas,
        cores=replicas * measured.cores,
        memory_bytes=replicas * measured.memory_bytes,
        per_million_tokens=cost,
    )


def best_level(text: str, cores: int, memory_bytes: int) -> Measured:
    """Of what `specdemo load --json` wrote, the level with the most tokens a second at which nobody waits for longer
    than PATIENCE; if there is none, the one with the shortest wait. Raises BadChoice for another kind of file."""
    try:
        levels = [
            Measured(int(one["visitors"]), float(one["tokens_per_s"]), float(one["ttft_p95_s"]), cores, memory_bytes)
            for one in json.loads(text)["levels"]
            if not one["errors"] and one["tokens_per_s"] > 0
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise BadChoice("--figures should be a file that `specdemo load --json FILE` wrote.") from error
    if not levels:
        raise BadChoice("--figures: no level of that file is without errors; measure again.")
    patient = [one for one in levels if one.first_token_s <= PATIENCE]
    return max(patient, key=lambda one: one.tokens_per_s) if patient else min(levels, key=lambda one: one.first_token_s)


def main(args: argparse.Namespace) -> int:
    """Print the plan that `--plan` asks for."""
    import os

    from specdemo.cli import write_json
    from specdemo.models.pairs import find_pair
    from specdemo.models.progress import size

    try:
        text = Path(args.figures).read_text(encoding="utf-8")
    except OSError as error:
        raise BadChoice(f"--figures {args.figures} cannot be read: {error.strerror}.") from error
    cores = args.cpus_per_replica or os.cpu_count() or 1
    memory = find_pair(args.pair).memory_bytes if args.pair else 0
    measured = best_level(text, cores, memory)
    found = plan(Demand(args.plan, args.question_every, args.answer_tokens), measured, args.price_per_core_hour)
    if args.json:
        write_json(json.dumps({"measured": dataclasses.asdict(measured), "plan": dataclasses.asdict(found)}, indent=1),
                   args.json)  # fmt: skip
    if args.json != "-":
        print(f"measured: {measured.tokens_per_s:.0f} tokens/s for {measured.visitors} visitors at once on {cores} cores, "
              f"first token after {measured.first_token_s:.2f} s (95th percentile)")  # fmt: skip
        print(f"wanted: {found.requests_per_s:.1f} answers/s, {found.demand_tokens_per_s:.0f} tokens/s; "
              f"{found.in_flight:.0f} answers in flight, {found.answer_s:.1f} s each")  # fmt: skip
        memory_text = f", {size(found.memory_bytes)} of memory" if memory else ""
        print(f"needed: {found.replicas} replicas, {found.cores} cores{memory_text}")
        if found.per_million_tokens is not None:
            print(f"cost: {found.per_million_tokens:.2f} per million tokens while the load is there")
    return 0
