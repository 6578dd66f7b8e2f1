"""Tests that speculative decoding is lossless: greedy and same-seed answers token by token against
autoregressive decoding, sampled answers against the exact distribution of the target model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from specdemo.bench.draws import (
    OUTCOME_TOKENS,
    Cell,
    Exact,
    Sampler,
    exact_outcomes,
    peer_draw,
    sample_cell,
    session_draw,
)
from specdemo.bench.prompts import BenchPrompt
from specdemo.bench.race import Peer, Step, finished_race, versions
from specdemo.errors import BadInput, SpecdemoError
from specdemo.models.machine import describe
from specdemo.session import Session
from specdemo.settings import Settings
from specdemo.trace import Difference, PairInfo

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
class Audit:
    """The whole audit. `sampling` is the one of `sampling_cells` with the smallest p-value;
    `same_seed` compares sampled answers of the shared coupling."""

    machine: str
    versions: dict[str, str]
    pair: PairInfo
    settings: Settings
    greedy: Comparison
    same_seed: Comparison | None
    sampling: Cell | None
    sampling_cells: tuple[Cell, ...]
    peers: dict[str, PeerAudit]

    @property
    def lossless(self) -> bool:
        """Whether nothing that was measured of us speaks against it. LEAST_P_VALUE is divided by
        the number of cells: it is the chance of one false alarm among them all."""
        compared = [one for one in (self.greedy, self.same_seed) if one is not None]
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
    on_step: Callable[[Step], None] = lambda step: None,
) -> Audit:
    """Audit our pair, then each peer; `on_step` is called before each piece of work.

    `draws` are those of each way to sample (0 leaves sampling out), spread over the first
    `sample_prompts` of the prompts, or all of INSTRUCTION's. `stop_ids` end an answer. `peers`
    opens them by name, the autoregressive one first. Raises BadInput for settings or prompts that
    cannot be used.
    """
    sampled = sampled_settings(settings)
    auditor = _Auditor(
        session, prompts, replace(settings, temperature=0.0), sampled, draws, on_step
    )
    greedy = auditor.compare(prompts, auditor.greedy, "greedy")
    same_seed, cells = None, []
    if draws:
        longer = replace(sampled, max_new_tokens=SAME_SEED_TOKENS, coupling="shared")
        again = [prompts[at % len(prompts)] for at in range(SAME_SEED_ANSWERS)]
        same_seed = auditor.compare(again, longer, "same seed")
        chosen = [prompt.instruction for prompt in prompts[:sample_prompts]] or [INSTRUCTION]
        auditor.exact = exact_outcomes(session, chosen, sampled, draws, stop_ids)
        cells = auditor.cells()
    return Audit(
        machine=describe(),
        versions=versions(),
        pair=session.info,
        settings=settings,
        greedy=greedy,
        same_seed=same_seed,
        sampling=min(cells, key=lambda cell: cell.p_value, default=None),
        sampling_cells=tuple(cells),
        peers={name: auditor.peer(name, opening) for name, opening in (peers or {}).items()},
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


@dataclass
class _Auditor:
    """What the parts of an audit share. `baseline` holds the greedy answers of the peer's
    autoregressive decoding."""

    session: Session
    prompts: Sequence[BenchPrompt]
    greedy: Settings
    sampled: Settings
    draws: int
    on_step: Callable[[Step], None]
    exact: Exact | None = None
    baseline: list[tuple[int, ...]] | None = None

    def compare(self, prompts: Sequence[BenchPrompt], settings: Settings, name: str) -> Comparison:
        """Race each prompt, with a seed of its own."""
        traces = []
        for done, prompt in enumerate(prompts):
            self.on_step(Step(done, len(prompts), f"{name}: {prompt.id}"))
            seeded = replace(settings, seed=settings.seed + done)
            traces.append(finished_race(self.session, prompt.instruction, seeded)[0])
        differences = tuple(
            PromptDifference(prompt.id, trace.difference)
            for prompt, trace in zip(prompts, traces, strict=True)
            if not trace.identical
        )
        tokens = sum(len(trace.baseline.tokens) for trace in traces)
        return Comparison(len(prompts), len(prompts) - len(differences), tokens, differences)

    def cells(self) -> list[Cell]:
        """Every drafter, coupling and number of requests at once, with seeds of its own."""
        drafters = ["model", "lookup", "auto"]
        if self.sampled.drafter != "auto":
            drafters = [self.sampled.drafter]
        elif self.session.info.draft is None:
            drafters.remove("model")
        sampler = partial(session_draw, self.session)
        found = []
        for ways in itertools.product(drafters, ("shared", "maximal"), (TOGETHER, 1)):
            drafter, coupling, together = ways
            seed = self.sampled.seed + len(found) * 10_000_000
            settings = replace(self.sampled, drafter=drafter, coupling=coupling, seed=seed)
            found.append(self._cell(sampler, settings, drafter, together))
        return found

    def peer(self, name: str, opening: Callable[[], Sequence[Peer]]) -> PeerAudit:
        """Of a peer that fails, what was finished, and why."""
        comparison = cell = None
        note = ""
        self.on_step(Step(0, 1, f"{name}: loading"))
        try:
            [peer] = opening()
            note = ", ".join(f"{key}={value}" for key, value in peer.settings.items())
            answers = []
            for done, prompt in enumerate(self.prompts):
                self.on_step(Step(done, len(self.prompts), f"{name}: greedy, {prompt.id}"))
                answers.append(peer.answer(prompt.instruction, self.greedy).tokens)
            if "/autoregressive" in name:
                self.baseline = answers
            elif self.baseline is not None:
                comparison = _compare_answers(self.prompts, answers, self.baseline)
            if self.exact is not None:
                cell = self._cell(partial(peer_draw, peer), self.sampled, name)
                cell = replace(cell, coupling="its own")
        except SpecdemoError as error:
            note = f"{note} {error}".strip()
        return PeerAudit(comparison, cell, note)

    def _cell(self, sampler: Sampler, settings: Settings, drafter: str, together: int = 1) -> Cell:
        return sample_cell(
            sampler, self.exact, settings, self.draws, drafter, together, self.on_step
        )


def _compare_answers(
    prompts: Sequence[BenchPrompt],
    answers: Sequence[tuple[int, ...]],
    baseline: Sequence[tuple[int, ...]],
) -> Comparison:
    differences = []
    for prompt, ours, plain in zip(prompts, answers, baseline, strict=True):
        if ours != plain:
            pairs = enumerate(itertools.zip_longest(ours, plain))
            at, (one, other) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
            where = Difference(at, f"id {one}", f"id {other}", None)
            differences.append(PromptDifference(prompt.id, where))
    same = len(prompts) - len(differences)
    return Comparison(len(prompts), same, sum(map(len, baseline)), tuple(differences))
