"""Tests that speculative decoding is lossless: greedy and same-seed answers token by token against
autoregressive decoding, sampled answers against the exact distribution of the target model."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from specdemo.bench.peers import Peer
from specdemo.bench.prompts import BenchPrompt
from specdemo.engine.request import NextToken
from specdemo.engine.rounds import Round
from specdemo.engine.sampling import Distribution
from specdemo.errors import BadInput, RequestFailed
from specdemo.runs.question import trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Difference

INSTRUCTION = (
    "Repeat these words twice, in the same order: red, green, blue, red, green, blue, red."
)
"""The prompt of the sampled part; n-gram lookup finds draft tokens in it."""
COUPLINGS: tuple[Literal["shared", "maximal"], ...] = ("shared", "maximal")
TOP_K, MAX_TOP_K = 4, 8
DRAFT_TOKENS = 4  # draft length of the sampled part, fixed so that every draw speculates
TOGETHER = 8  # requests that are active at once in the batched cells
SAME_SEED_ANSWERS, SAME_SEED_TOKENS = 20, 24
LEAST_P_VALUE = 0.01
OUTCOME_TOKENS = (3, 2)  # two if the noise floor of three exceeds MOST_NOISE
MOST_NOISE = 0.03
SIMULATED = 10_000  # samples of the exact distribution that a cell is compared with
Exact = dict[tuple[int, ...], float]  # the probability of each outcome, an answer's first tokens
Draw = tuple[tuple[int, ...], int | None]  # an outcome, number of draft tokens (None: unknown)
Cell = dict[str, Any]  # the test of one way to sample, as in JSON


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answers compared with independent autoregressive decoding. `tokens`: of the baselines.
    `differences`: by prompt id (None: one answer is the beginning of the other)."""

    prompts: int
    identical: int
    tokens: int
    differences: list[tuple[str, Difference | None]]


@dataclass(frozen=True, slots=True)
class Audit:
    """`sampling` is the one of `sampling_cells` with the smallest p-value. Each of `peers` has
    `greedy`: its answers against its own autoregressive ones; `sampling`: its draws against our
    target model's exact distribution; `note`: its settings, and why it failed."""

    greedy: Comparison
    same_seed: Comparison | None
    sampling: Cell | None
    sampling_cells: tuple[Cell, ...]
    peers: dict[str, dict[str, Any]]

    @property
    def lossless(self) -> bool:
        """Whether all tests pass. LEAST_P_VALUE is the chance of a false alarm over all cells."""
        least = LEAST_P_VALUE / max(len(self.sampling_cells), 1)
        same = all(not one.differences for one in (self.greedy, self.same_seed) if one)
        return same and all(cell["p_value"] > least for cell in self.sampling_cells)


def audit(
    session: Session,
    prompts: Sequence[BenchPrompt],
    settings: Settings,
    *,
    draws: int = 4000,
    peers: Sequence[Peer] = (),
) -> Audit:
    """Audit our pair, then each peer, with progress bars on stderr. `draws`: for each way to sample
    (0 leaves sampling out). The autoregressive peer comes first in `peers`. Raises BadInput."""
    sampled = sampled_settings(settings)
    greedy = replace(settings, temperature=0.0)
    compared = _race(session, prompts, greedy, "greedy")
    same_seed, exact, cells = None, {}, []
    if draws:
        longer = replace(sampled, max_new_tokens=SAME_SEED_TOKENS, coupling="shared")
        again = [prompts[at % len(prompts)] for at in range(SAME_SEED_ANSWERS)]
        same_seed = _race(session, again, longer, "same seed")
        for tokens in OUTCOME_TOKENS:
            following = partial(session.result_of, NextToken, INSTRUCTION, sampled)
            exact = outcomes(following, tokens, session.loaded.stop_ids)
            if simulated_distances(exact, draws).mean() <= MOST_NOISE:
                break
        cells = _sample(session, exact, sampled, draws)
    audited, baselines = {}, {}
    for peer in peers:  # one at a time is in memory; a failed one keeps its finished parts
        engine, _, mode = peer.name.partition("/")
        note = ", ".join(f"{key}={value}" for key, value in peer.settings.items())
        result: dict[str, Any] = {"greedy": None, "sampling": None, "note": note}
        audited[peer.name] = result
        try:
            progress = tqdm(prompts, f"{peer.name}: greedy", leave=False, disable=None)
            answers = [peer.answer(prompt.instruction, greedy)[0] for prompt in progress]
            if mode.startswith("autoregressive"):
                baselines[engine] = answers
            elif engine in baselines:
                result["greedy"] = _compare(prompts, answers, baselines[engine])
            if draws:
                cell = sample_cell(partial(_peer_draw, peer), exact, sampled, draws, peer.name)
                result["sampling"] = {**cell, "coupling": "its own"}
        except RequestFailed as error:
            result["note"] += f" {error}"
        peer.close()
    return Audit(
        greedy=compared,
        same_seed=same_seed,
        sampling=min(cells, key=lambda cell: cell["p_value"], default=None),
        sampling_cells=tuple(cells),
        peers=audited,
    )


def sampled_settings(settings: Settings) -> Settings:
    """The settings to sample with: temperature 1 and top-k 4 by default, a fixed draft length, and
    room for a whole draft after the tested tokens. Raises BadInput if top-k is too large."""
    if settings.top_k > MAX_TOP_K:
        raise BadInput(f"--top-k is {settings.top_k}; the audit takes at most {MAX_TOP_K}.")
    length = settings.draft_tokens or DRAFT_TOKENS
    return replace(
        settings,
        temperature=settings.temperature or 1.0,
        top_k=settings.top_k or TOP_K,
        draft_tokens=length,
        max_new_tokens=max(OUTCOME_TOKENS) + length + 1,
    )


def _race(
    session: Session, prompts: Sequence[BenchPrompt], settings: Settings, name: str
) -> Comparison:
    differences, tokens = [], 0
    for place, prompt in enumerate(tqdm(prompts, name, leave=False, disable=None)):
        seeded = replace(settings, seed=settings.seed + place)
        trace = trace_of(session.race(prompt.instruction, seeded))
        tokens += len(trace.baseline.tokens) if trace.baseline else 0
        if not trace.identical:
            differences.append((prompt.id, trace.difference))
    return Comparison(len(prompts), len(prompts) - len(differences), tokens, differences)


def _sample(session: Session, exact: Exact, sampled: Settings, draws: int) -> list[Cell]:
    """A cell for each drafter, coupling and number of active requests, each with its own seeds."""
    drafters = [sampled.drafter]
    if sampled.drafter == "auto":
        drafters = ["model", "lookup", "auto"] if session.info.draft else ["lookup", "auto"]
    cells = []
    kinds = itertools.product(drafters, COUPLINGS, (TOGETHER, 1))
    for at, (drafter, coupling, together) in enumerate(kinds):
        seed = sampled.seed + at * 10_000_000
        settings = replace(sampled, drafter=drafter, coupling=coupling, seed=seed)
        draw = partial(_session_draw, session)
        cells.append(sample_cell(draw, exact, settings, draws, drafter, together))
    return cells


def outcomes(
    following: Callable[[tuple[int, ...]], Distribution], tokens: int, stop_ids: frozenset[int]
) -> Exact:
    """The probability of every sequence of `tokens` tokens, or fewer up to a stop token.
    `following` gives the distribution of the token after the given ones."""
    whole: Exact = {(): 1.0}
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
    draw: Callable[[Settings, int], Draw | None],
    exact: Exact,
    settings: Settings,
    draws: int,
    drafter: str,
    together: int = 1,
) -> Cell:
    """Draw, `together` at once, and test against the exact distribution. A failed draw is None and
    does not count. Each draw has its own seed: with equal seeds even a wrong rule looks right."""
    each = (replace(settings, seed=settings.seed + at) for at in range(draws))
    tokens = itertools.repeat(max(map(len, exact)))
    title = f"sampling: {drafter}, {settings.coupling}, {together} at once"
    pool = ThreadPoolExecutor(together)
    try:
        drawing = tqdm(pool.map(draw, each, tokens), title, draws, leave=False, disable=None)
        drawn = list(filter(None, drawing))
    finally:
        pool.shutdown(cancel_futures=True)
    if not drawn:
        raise RequestFailed("None of the draws succeeded.")
    drafted = [count for _, count in drawn if count is not None]
    return {
        "draws": len(drawn),
        "outcomes": len(exact),
        **goodness(Counter(outcome for outcome, _ in drawn), exact),
        "drafter": drafter,
        "coupling": settings.coupling,
        "batched": together > 1,
        "drafted_per_draw": sum(drafted) / len(drafted) if drafted else None,
        "failures": draws - len(drawn),
    }


def goodness(counts: Counter[tuple[int, ...]], exact: Exact) -> dict[str, float]:
    """The total variation distance of the drawn frequencies from `exact`, its mean over simulated
    samples of `exact` of the same size, and the p-value: the share of these samples whose distance
    is at least as large, or 0 if an outcome was drawn that `exact` excludes."""
    draws = counts.total()
    found = 0.5 * sum(abs(counts[o] / draws - exact.get(o, 0.0)) for o in {**exact, **counts})
    chance = simulated_distances(exact, draws)
    possible = all(exact.get(outcome) for outcome in counts)
    p_value = float((chance >= found).mean()) if possible else 0.0
    return {"tv_distance": found, "tv_noise_floor": float(chance.mean()), "p_value": p_value}


def simulated_distances(exact: Exact, draws: int) -> np.ndarray:
    """Total variation distances of SIMULATED samples of `draws` draws, float64 [SIMULATED]."""
    shares = np.array(list(exact.values()))
    counts = np.random.default_rng(0).multinomial(draws, shares / shares.sum(), SIMULATED)
    distances: np.ndarray = 0.5 * np.abs(counts / draws - shares).sum(1)
    return distances


def _session_draw(session: Session, settings: Settings, tokens: int) -> Draw:
    found: list[int] = []
    drafted = 0
    with closing(session.answer(INSTRUCTION, settings)) as events:
        for one in (event for event in events if isinstance(event, Round)):  # the rest are Waiting
            found += [token.id for token in one.tokens]
            drafted += len(one.drafted)
            if len(found) >= tokens:
                break
    return tuple(found[:tokens]), drafted


def _peer_draw(peer: Peer, settings: Settings, tokens: int) -> Draw | None:
    # Two tokens more than are tested, so that drafts are not always cut short.
    try:
        answer, _ = peer.answer(INSTRUCTION, replace(settings, max_new_tokens=tokens + 2))
    except RequestFailed:  # GenAI's speculative pipeline (2026.4.1): a few of a hundred draws
        return None
    return answer[:tokens], None


def _compare(
    prompts: Sequence[BenchPrompt],
    answers: Sequence[tuple[int, ...]],
    baseline: Sequence[tuple[int, ...]],
) -> Comparison:
    differences: list[tuple[str, Difference | None]] = []
    for prompt, *both in zip(prompts, answers, baseline, strict=True):
        for at, (one, other) in enumerate(itertools.zip_longest(*both)):
            if one != other:
                differences.append((prompt.id, Difference(at, f"id {one}", f"id {other}", None)))
                break
    tokens = sum(map(len, baseline))
    return Comparison(len(prompts), len(prompts) - len(differences), tokens, differences)
