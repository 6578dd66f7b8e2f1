"""What a number of visitors needs, from figures that `specdemo load` measured. Arithmetic only.

docs/guide/serve.md has the formulae and what they leave out.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from specdemo.errors import BadInput

HEADROOM = 0.7
"""Share of a replica's capacity that is planned with: visitors do not come evenly."""

PATIENCE = 2.0
"""Seconds to the first token that a visitor should wait at most, at the 95th percentile."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one replica gave: `tokens_per_s` to `visitors` at once, the first token after
    `first_token_s` (95th percentile), on `cores` cores with `memory_bytes` bytes."""

    visitors: int
    tokens_per_s: float
    first_token_s: float
    cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a demand needs. `in_flight` is the average number of answers being made at once."""

    demand_tokens_per_s: float
    requests_per_s: float
    in_flight: float
    answer_s: float
    replicas: int
    cores: int
    memory_bytes: int
    per_million_tokens: float | None


def plan(
    visitors: int,
    measured: Measured,
    question_every_s: float,
    answer_tokens: float,
    price_per_core_hour: float | None = None,
) -> Plan:
    """What `visitors` need who each ask once in `question_every_s` seconds and get `answer_tokens`
    tokens. The price is in any currency."""
    requests = visitors / question_every_s
    demand = requests * answer_tokens
    answer = measured.first_token_s + answer_tokens * measured.visitors / measured.tokens_per_s
    in_flight = requests * answer  # Little's law
    by_tokens = math.ceil(demand / (HEADROOM * measured.tokens_per_s))
    replicas = max(1, by_tokens, math.ceil(in_flight / measured.visitors))
    cores = replicas * measured.cores
    cost = None
    if price_per_core_hour is not None:
        cost = cores * price_per_core_hour * 1e6 / (3600 * demand)
    memory = replicas * measured.memory_bytes
    return Plan(demand, requests, in_flight, answer, replicas, cores, memory, cost)


def best_level(figures: str, cores: int, memory_bytes: int) -> Measured:
    """Of the levels in a file that `specdemo load --json` wrote, the one with the most tokens a
    second at which the first token takes at most PATIENCE; if none does, the shortest wait.

    Raises BadInput for another kind of file.
    """
    try:
        levels = [
            Measured(int(one["visitors"]), rate, float(one["ttft_p95_s"]), cores, memory_bytes)
            for one in json.loads(Path(figures).read_text(encoding="utf-8"))["levels"]
            if not one["errors"] and (rate := float(one["tokens_per_s"])) > 0
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"--figures {figures} must be a file that `specdemo load --json FILE` wrote."
        ) from error
    if not levels:
        raise BadInput("--figures: no level of that file is without errors; measure again.")
    quick = [one for one in levels if one.first_token_s <= PATIENCE]
    if quick:
        return max(quick, key=lambda one: one.tokens_per_s)
    return min(levels, key=lambda one: one.first_token_s)


def lines(measured: Measured, found: Plan) -> list[str]:
    """Both as lines for a person."""
    memory = f", {found.memory_bytes / 1e9:.1f} GB of memory" if found.memory_bytes else ""
    text = [
        f"measured: {measured.tokens_per_s:.0f} tokens/s for {measured.visitors} visitors at once "
        f"on {measured.cores} cores, first token after {measured.first_token_s:.2f} s (95th "
        "percentile)",
        f"wanted: {found.requests_per_s:.1f} answers/s, {found.demand_tokens_per_s:.0f} tokens/s; "
        f"{found.in_flight:.0f} answers in flight, {found.answer_s:.1f} s each",
        f"needed: {found.replicas} replicas, {found.cores} cores{memory}",
    ]
    if found.per_million_tokens is not None:
        text.append(f"cost: {found.per_million_tokens:.2f} per million tokens under that load")
    return text
