"""Sampled answers against the exact distribution of the target model.

The outcome space is kept small (top-k, two or three tokens), so that the probability of every
outcome can be computed from the target model's logits and a few thousand draws tell something.
Knows decoders only as functions: a toy, our session and a peer are tested alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from tqdm import tqdm

from specdemo.bench.peers import Peer
from specdemo.engine.sampling import Distribution
from specdemo.errors import RequestFailed
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import Trace

OUTCOME_TOKENS = (3, 2)
MOST_NOISE = 0.03
"""Outcomes have three tokens, or two where the noise floor of three would exceed this."""

LEAST_EXPECTED = 5.0
"""The chi-square test counts outcomes together until they are expected this often."""

RETRIES = 5

Exact = Mapping[tuple[str, tuple[int, ...]], float]
"""The probability of each outcome, an instruction and the tokens drawn after it; all instructions
are equally frequent."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The first tokens of a sampled answer; how many draft tokens were proposed (None: not known);
    how many attempts failed before."""

    tokens: tuple[int, ...]
    drafted: int | None = None
    failures: int = 0


Sampler = Callable[[str, Settings, int], Draw]
"""(instruction, settings, tokens): the first tokens of an answer, fewer where it ends before."""


Cell = dict[str, Any]
"""One way to sample, tested, as JSON has it."""


def exact_outcomes(
    session: Session,
    instructions: Sequence[str],
    settings: Settings,
    draws: int,
    stop_ids: frozenset[int],
) -> Exact:
    """Enumerates the outcomes: of three tokens if so many draws then have little noise, or two."""
    for tokens in OUTCOME_TOKENS:
        exact = {}
        for instruction in instructions:
            following = partial(session.next_distribution, instruction, settings)
            for outcome, chance in enumerate_outcomes(following, tokens, stop_ids).items():
                exact[instruction, outcome] = chance / len(instructions)
        if expected_distance(exact, draws) <= MOST_NOISE:
            break
    return exact


def enumerate_outcomes(
    following: Callable[[tuple[int, ...]], Distribution], tokens: int, stop_ids: frozenset[int]
) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of `tokens` tokens, or fewer up to a stop token, where
    `following` gives the distribution of the token after others."""
    whole: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(tokens):
        longer = {}
        for prefix, chance in whole.items():
            if prefix and prefix[-1] in stop_ids:
                longer[prefix] = chance
                continue
            after = following(prefix)
            for token, share in zip(after.ids, after.probabilities, strict=True):
                longer[*prefix, int(token)] = chance * float(share)
        whole = longer
    return whole


def sample_cell(
    sampler: Sampler, exact: Exact, settings: Settings, draws: int, drafter: str, together: int = 1
) -> Cell:
    """Draw, `together` at once, and test against the exact distribution. `tv_noise_floor` is the
    expected distance of as many draws from that distribution itself; `drafted_per_draw` says how
    much was speculated (None: not known), `failures` counts draws that failed and were repeated.

    Every draw has a seed of its own: equal seeds would make even a wrong rule look right.
    """
    instructions = list(dict.fromkeys(instruction for instruction, _ in exact))
    tokens = max(len(outcome) for _, outcome in exact)

    def one(place: int) -> tuple[str, Draw]:
        instruction = instructions[place % len(instructions)]
        return instruction, sampler(
            instruction, replace(settings, seed=settings.seed + place), tokens
        )

    title = f"sampling: {drafter}, {settings.coupling}, {together} at once"
    pool = ThreadPoolExecutor(together)
    try:
        drawing = pool.map(one, range(draws))
        drawn = list(tqdm(drawing, title, draws, leave=False, disable=None))
    finally:
        pool.shutdown(cancel_futures=True)
    counts = Counter((instruction, draw.tokens) for instruction, draw in drawn)
    drafted = [draw.drafted for _, draw in drawn if draw.drafted is not None]
    return {
        "draws": draws,
        "outcomes": len(exact),
        "tv_distance": distance(counts, exact),
        "tv_noise_floor": expected_distance(exact, draws),
        "p_value": p_value(counts, exact),
        "drafter": drafter,
        "coupling": settings.coupling,
        "batched": together > 1,
        "outcome_tokens": tokens,
        "top_k": settings.top_k,
        "temperature": settings.temperature,
        "drafted_per_draw": sum(drafted) / len(drafted) if drafted else None,
        "failures": sum(draw.failures for _, draw in drawn),
    }


def session_draw(session: Session, instruction: str, settings: Settings, tokens: int) -> Draw:
    """Our own Sampler, for a given session."""
    found: list[int] = []
    drafted = 0
    with closing(session.answer(instruction, settings)) as events:
        for event in events:
            if isinstance(event, Trace) or len(found) >= tokens:
                break
            found += [token.id for token in event.tokens]
            drafted += len(event.drafted)
    return Draw(tuple(found[:tokens]), drafted)


def peer_draw(peer: Peer, instruction: str, settings: Settings, tokens: int) -> Draw:
    """The Sampler of a given peer. OpenVINO GenAI's speculative pipeline (2026.4.1) fails an
    assertion of its own in a few of a hundred sampled answers: such a draw is repeated with another
    seed. Raises RequestFailed when that does not help."""
    for attempt in count():
        # Two tokens more than count, so that drafts are not always cut short.
        seed = settings.seed + attempt * 1_000_003
        asked = replace(settings, seed=seed, max_new_tokens=tokens + 2)
        try:
            answer, _ = peer.answer(instruction, asked)
            return Draw(answer[:tokens], failures=attempt)
        except RequestFailed:
            if attempt == RETRIES:
                raise


# Statistics: `counts` are those of the drawn outcomes, `exact` probabilities that sum to 1.


def distance(counts: Counter[Hashable], exact: Mapping[Hashable, float]) -> float:
    """The total variation distance of the drawn frequencies from the probabilities."""
    draws = counts.total()
    return 0.5 * sum(abs(counts[one] / draws - exact.get(one, 0.0)) for one in {**exact, **counts})


def expected_distance(exact: Mapping[Hashable, float], draws: int) -> float:
    """The expected `distance` of `draws` draws from `exact` itself: half the sum of the mean
    absolute deviations of binomial shares, each in closed form (de Moivre)."""
    total = 0.0
    for chance in exact.values():
        above = math.floor(draws * chance) + 1
        if 0 < chance < 1 and above <= draws:
            log_choose = (
                math.lgamma(draws + 1) - math.lgamma(above + 1) - math.lgamma(draws - above + 1)
            )
            log_term = above * math.log(chance) + (draws - above + 1) * math.log1p(-chance)
            total += above * math.exp(log_choose + log_term) / draws
    return total


def p_value(counts: Counter[Hashable], exact: Mapping[Hashable, float]) -> float:
    """Of Pearson's chi-square test, rare outcomes counted together: 0 where an outcome was drawn
    that the distribution excludes, 1 where nothing is left to compare."""
    if not all(exact.get(outcome) for outcome in counts):
        return 0.0
    draws = counts.total()
    statistic, cells, count, expected = 0.0, 0, 0, 0.0
    for outcome, chance in sorted(exact.items(), key=lambda item: item[1]):
        count += counts[outcome]
        expected += draws * chance
        if expected >= LEAST_EXPECTED:
            statistic += (count - expected) ** 2 / expected
            cells, count, expected = cells + 1, 0, 0.0
    return chi_square_tail(statistic, cells - 1)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(X >= statistic) for a chi-square distribution with `degrees` degrees of freedom: the
    regularized upper incomplete gamma function Q(degrees / 2, statistic / 2), by its recurrence."""
    half = statistic / 2
    if degrees < 1 or half == 0:
        return 1.0
    shape = 0.5 if degrees % 2 else 1.0
    tail = math.erfc(math.sqrt(half)) if degrees % 2 else math.exp(-half)
    while shape < degrees / 2:
        tail += math.exp(shape * math.log(half) - half - math.lgamma(shape + 1))
        shape += 1
    return min(tail, 1.0)
