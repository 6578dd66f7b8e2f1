"""Sampled answers against the exact distribution of the target model.

The outcome space is kept small (top-k, two or three tokens), so that the probability of every
outcome can be computed from the target model's logits and a few thousand draws tell something.
Knows decoders only as functions: a toy, our session and a peer are tested alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial

from specdemo.bench.race import Peer, Step
from specdemo.bench.stats import Fit, expected_distance, fit
from specdemo.engine.sampling import Distribution
from specdemo.errors import RequestFailed
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import Trace

OUTCOME_TOKENS = (3, 2)
MOST_NOISE = 0.03
"""Outcomes have three tokens, or two where the noise floor of three would exceed this."""

RETRIES = 5

Outcome = tuple[str, tuple[int, ...]]
"""An instruction and the tokens drawn after it."""


@dataclass(frozen=True, slots=True)
class Exact:
    """What is sampled: the instructions, how many tokens of each answer count, and the probability
    of each outcome, all instructions being equally frequent."""

    instructions: tuple[str, ...]
    tokens: int
    probabilities: Mapping[Outcome, float]


@dataclass(frozen=True, slots=True)
class Draw:
    """The first tokens of a sampled answer; how many draft tokens were proposed (None: not known);
    how many attempts failed before."""

    tokens: tuple[int, ...]
    drafted: int | None = None
    failures: int = 0


Sampler = Callable[[str, Settings, int], Draw]
"""(instruction, settings, tokens): the first tokens of an answer, fewer where it ends before."""


@dataclass(frozen=True, slots=True)
class Cell(Fit):
    """One way to sample, tested. `drafted_per_draw` says how much was speculated (None: not known),
    `failures` counts draws that failed and were repeated with another seed."""

    drafter: str
    coupling: str
    batched: bool
    outcome_tokens: int
    top_k: int
    temperature: float
    drafted_per_draw: float | None
    failures: int


def exact_outcomes(
    session: Session,
    instructions: Sequence[str],
    settings: Settings,
    draws: int,
    stop_ids: frozenset[int],
) -> Exact:
    """Enumerates the outcomes: of three tokens if so many draws then have little noise, or two."""
    for tokens in OUTCOME_TOKENS:
        chances: dict[Outcome, float] = {}
        for instruction in instructions:
            following = partial(session.next_distribution, instruction, settings)
            for outcome, chance in enumerate_outcomes(following, tokens, stop_ids).items():
                chances[instruction, outcome] = chance / len(instructions)
        if expected_distance(chances, draws) <= MOST_NOISE:
            break
    return Exact(tuple(instructions), tokens, chances)


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
    sampler: Sampler,
    exact: Exact,
    settings: Settings,
    draws: int,
    drafter: str,
    together: int = 1,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Cell:
    """Draw, `together` at once, and test against the exact distribution.

    Every draw has a seed of its own: equal seeds would make even a wrong rule look right.
    """
    counts: Counter[Outcome] = Counter()
    failures = 0
    drafted = []

    def one(place: int) -> tuple[str, Draw]:
        instruction = exact.instructions[place % len(exact.instructions)]
        seeded = replace(settings, seed=settings.seed + place)
        return instruction, sampler(instruction, seeded, exact.tokens)

    pool = ThreadPoolExecutor(together)
    try:
        for done, (instruction, draw) in enumerate(pool.map(one, range(draws))):
            on_step(
                Step(done, draws, f"sampling: {drafter}, {settings.coupling}, {together} at once")
            )
            counts[instruction, draw.tokens] += 1
            failures += draw.failures
            if draw.drafted is not None:
                drafted.append(draw.drafted)
    finally:
        pool.shutdown(cancel_futures=True)
    return Cell(
        **asdict(fit(counts, exact.probabilities)),
        drafter=drafter,
        coupling=settings.coupling,
        batched=together > 1,
        outcome_tokens=exact.tokens,
        top_k=settings.top_k,
        temperature=settings.temperature,
        drafted_per_draw=sum(drafted) / len(drafted) if drafted else None,
        failures=failures,
    )


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
    for attempt in range(RETRIES + 1):
        # Two tokens more than count, so that drafts are not always cut short.
        seed = settings.seed + attempt * 1_000_003
        asked = replace(settings, seed=seed, max_new_tokens=tokens + 2)
        try:
            return Draw(peer.answer(instruction, asked).tokens[:tokens], failures=attempt)
        except RequestFailed:
            if attempt == RETRIES:
                raise
    raise AssertionError("the last attempt returns or raises")
