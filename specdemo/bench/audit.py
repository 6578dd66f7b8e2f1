"""Tests that speculative decoding is lossless: greedy and same-seed answers token by token against
autoregressive decoding, sampled answers against the exact distribution of the target model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tqdm import tqdm

from specdemo.bench.draws import (
    OUTCOME_TOKENS,
    Cell,
    Exact,
    exact_outcomes,
    peer_draw,
    sample_cell,
    session_draw,
)
from specdemo.bench.peers import Peer
from specdemo.bench.prompts import BenchPrompt
from specdemo.bench.report import Measurement
from specdemo.errors import BadInput, SpecdemoError
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import Difference

INSTRUCTION = (
    "Repeat these words twice, in the same order: red, green, blue, red, green, blue, red."
)
"""Sampled unless other prompts are asked for: n-gram lookup finds its draft tokens in it."""

TOP_K, MAX_TOP_K = 4, 8

DRAFT_TOKENS = 4
"""Draft length of the sampled part, fixed so that every draw speculates."""

TOGETHER = 8
"""Requests that are active at once in the batched cells."""

SAME_SEED_ANSWERS, SAME_SEED_TOKENS = 20, 24
LEAST_P_VALUE = 0.01


@dataclass(frozen=True, slots=True)
class PromptDifference:
    """The prompt whose answer is not that of autoregressive decoding, and where (None: one of the
    two ends before)."""

    id: str
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answers compared token by token with autoregressive decoding, each decoded freely."""

    prompts: int
    identical: int
    tokens: int
    differences: tuple[PromptDifference, ...]


@dataclass(frozen=True, slots=True)
class PeerAudit:
    """A peer's greedy answers against its own autoregressive ones, and its draws against our target
    model's exact distribution, computed with the plugin properties that `note` gives."""

    greedy: Comparison | None
    sampling: Cell | None
    note: str


@dataclass(frozen=True, slots=True)
class Audit(Measurement):
    """The whole audit. `sampling` is the one of `sampling_cells` with the smallest p-value;
    `same_seed` compares sampled answers of the shared coupling."""

    greedy: Comparison
    same_seed: Comparison | None
    sampling: Cell | None
    sampling_cells: tuple[Cell, ...]
    peers: dict[str, PeerAudit]

    @property
    def lossless(self) -> bool:
        """Whether nothing that was measured of us speaks against it. LEAST_P_VALUE is divided by
        the number of cells: it is the chance of one false alarm among them all."""
        compared = filter(None, (self.greedy, self.same_seed))
        least = LEAST_P_VALUE / max(len(self.sampling_cells), 1)
        same = all(one.identical == one.prompts for one in compared)
        return same and all(cell.p_value > least for cell in self.sampling_cells)


def audit(
    session: Session,
    prompts: Sequence[BenchPrompt],
    settings: Settings,
    *,
    draws: int = 4000,
    sample_prompts: int = 0,
    stop_ids: frozenset[int] = frozenset(),
    peers: Mapping[str, Callable[[], Sequence[Peer]]] | None = None,
) -> Audit:
    """Audit our pair, then each peer, with progress bars on stderr.

    `draws` are those of each way to sample (0 leaves sampling out), spread over the first
    `sample_prompts` of the prompts, or all of INSTRUCTION's. `stop_ids` end an answer. `peers`
    opens them by name, the autoregressive one first. Raises BadInput for settings or prompts that
    cannot be used.
    """
    sampled = sampled_settings(settings)
    greedy = replace(settings, temperature=0.0)
    compared = _compare(session, prompts, greedy, "greedy")
    same_seed, exact, cells = None, None, []
    if draws:
        longer = replace(sampled, max_new_tokens=SAME_SEED_TOKENS, coupling="shared")
        again = [prompts[at % len(prompts)] for at in range(SAME_SEED_ANSWERS)]
        same_seed = _compare(session, again, longer, "same seed")
        chosen = [prompt.instruction for prompt in prompts[:sample_prompts]] or [INSTRUCTION]
        exact = exact_outcomes(session, chosen, sampled, draws, stop_ids)
        cells = _sample(session, exact, sampled, draws)
    return Audit(
        **Measurement.here(session, settings),
        greedy=compared,
        same_seed=same_seed,
        sampling=min(cells, key=lambda cell: cell.p_value, default=None),
        sampling_cells=tuple(cells),
        peers=_audit_peers(peers or {}, prompts, greedy, sampled, exact, draws),
    )


def sampled_settings(settings: Settings) -> Settings:
    """Temperature 1 and top-k 4 unless others are asked for, a fixed draft length, and room for a
    whole draft after the tokens that count. Raises BadInput for too many outcomes."""
    if settings.top_k > MAX_TOP_K:
        raise BadInput(
            f"--top-k is {settings.top_k}; the audit enumerates all outcomes: at most {MAX_TOP_K}."
        )
    length = settings.draft_tokens or DRAFT_TOKENS
    return replace(
        settings,
        temperature=settings.temperature or 1.0,
        top_k=settings.top_k or TOP_K,
        draft_tokens=length,
        max_new_tokens=max(OUTCOME_TOKENS) + length + 1,
    )


def _compare(
    session: Session, prompts: Sequence[BenchPrompt], settings: Settings, name: str
) -> Comparison:
    """Race each prompt, with a seed of its own."""
    differences, tokens = [], 0
    for place, prompt in enumerate(tqdm(prompts, name, leave=False, disable=None)):
        seeded = replace(settings, seed=settings.seed + place)
        *_, trace = session.race(prompt.instruction, seeded)
        tokens += len(trace.baseline.tokens)
        if not trace.identical:
            differences.append(PromptDifference(prompt.id, trace.difference))
    same = len(prompts) - len(differences)
    return Comparison(len(prompts), same, tokens, tuple(differences))


def _sample(session: Session, exact: Exact, sampled: Settings, draws: int) -> list[Cell]:
    """Every drafter, coupling and number of requests at once, with seeds of its own."""
    drafters = ["model", "lookup", "auto"]
    if sampled.drafter != "auto":
        drafters = [sampled.drafter]
    elif session.info.draft is None:
        drafters.remove("model")
    sampler = partial(session_draw, session)
    cells = []
    for ways in itertools.product(drafters, ("shared", "maximal"), (TOGETHER, 1)):
        drafter, coupling, together = ways
        seed = sampled.seed + len(cells) * 10_000_000
        settings = replace(sampled, drafter=drafter, coupling=coupling, seed=seed)
        cells.append(sample_cell(sampler, exact, settings, draws, drafter, together))
    return cells


def _audit_peers(
    peers: Mapping[str, Callable[[], Sequence[Peer]]],
    prompts: Sequence[BenchPrompt],
    greedy: Settings,
    sampled: Settings,
    exact: Exact | None,
    draws: int,
) -> dict[str, PeerAudit]:
    """One peer at a time is in memory. Of a peer that fails, what was finished, and why."""
    audits = {}
    baseline = None
    for name, opening in peers.items():
        comparison, cell, note = None, None, ""
        try:
            [peer] = opening()
            note = ", ".join(f"{key}={value}" for key, value in peer.settings.items())
            progress = tqdm(prompts, f"{name}: greedy", leave=False, disable=None)
            answers = [peer.answer(prompt.instruction, greedy)[0] for prompt in progress]
            if "/autoregressive" in name:
                baseline = answers
            elif baseline is not None:
                comparison = _compare_answers(prompts, answers, baseline)
            if exact is not None:
                cell = sample_cell(partial(peer_draw, peer), exact, sampled, draws, name)
                cell = replace(cell, coupling="its own")
        except SpecdemoError as error:
            note = f"{note} {error}".strip()
        peer = None  # frees its memory before the next one is opened
        audits[name] = PeerAudit(comparison, cell, note)
    return audits


def _compare_answers(
    prompts: Sequence[BenchPrompt],
    answers: Sequence[tuple[int, ...]],
    baseline: Sequence[tuple[int, ...]],
) -> Comparison:
    differences = []
    for prompt, ours, plain in zip(prompts, answers, baseline, strict=True):
        for at, (one, other) in enumerate(itertools.zip_longest(ours, plain)):
            if one != other:
                where = Difference(at, f"id {one}", f"id {other}", None)
                differences.append(PromptDifference(prompt.id, where))
                break
    same = len(prompts) - len(differences)
    return Comparison(len(prompts), same, sum(map(len, baseline)), tuple(differences))
