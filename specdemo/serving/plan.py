"""What a number of visitors needs, from figures that `specdemo load` measured. Arithmetic only.

docs/guide/serve.md has the formulae and what they leave out.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from specdemo.errors import BadInput
from specdemo.settings import CONFIG, option, real, whole

HEADROOM = 0.7
"""Share of a replica's capacity that is planned with: visitors do not come evenly."""

PATIENCE = 2.0
"""Seconds to the first token that a visitor should wait at most, at the 95th percentile."""


Interval = Annotated[float, Field(gt=0, le=86_400)]


@checked(frozen=True, slots=True, config=CONFIG)
class PlanOptions:
    """The visitors, who each ask once in `question_every` seconds."""

    visitors: whole(1) | None = option(
        None,
        "for how many visitors",
        name="plan",
        section="A plan instead of a service: what so many visitors need",
    )
    figures: str | None = option(None, "what `specdemo load --json FILE` measured", metavar="FILE")
    question_every: Interval = option(60.0, "seconds between a visitor's questions")
    answer_tokens: Interval = option(150.0, "tokens of a usual answer")
    price_per_core_hour: real(0, 1000) | None = option(None, "in any currency; gives the cost")


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


def plan(asked: PlanOptions, measured: Measured) -> Plan:
    requests = asked.visitors / asked.question_every
    demand = requests * asked.answer_tokens
    a_token = measured.visitors / measured.tokens_per_s
    answer = measured.first_token_s + asked.answer_tokens * a_token
    in_flight = requests * answer  # Little's law
    by_tokens = math.ceil(demand / (HEADROOM * measured.tokens_per_s))
    replicas = max(1, by_tokens, math.ceil(in_flight / measured.visitors))
    cores = replicas * measured.cores
    cost = None
    if asked.price_per_core_hour is not None:
        cost = cores * asked.price_per_core_hour * 1e6 / (3600 * demand)
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
