"""Measures losslessness: speculative against plain decoding, greedy token by token, sampled as distributions.

Knows decoders only as functions, so that our pair and a peer are put through the very same audit.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from specdemo.bench.prompts import BenchPrompt
from specdemo.bench.run import Step, versions
from specdemo.bench.stats import noise_floor, permutation_test, tv_distance
from specdemo.trace import PairInfo, Settings, Trace
from specdemo.session import Session
from specdemo.models.machine import describe

OUTCOME_TOKENS = 3
"""Length of the sampled continuations that are counted: the first comes from the prefill, the others from rounds."""

DRAFT_TOKENS = 4
"""Draft length of the sampled audit, fixed so that every draw speculates."""

SAME_SEED_DRAWS = 40
LEAST_P_VALUE = 0.01


class AuditError(RuntimeError):
    """An audit that could not be carried out; the message is one sentence for the user."""


class Stopped(Exception):
    """The stop event was set in the middle of an answer."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A decoder's token ids, whether one parallel forward certified them (None: not tried), and how many attempts
    failed before this one."""

    tokens: tuple[int, ...]
    certified: bool | None = None
    failures: int = 0


Decoder = Callable[[str, Settings, int | None], Answered]
"""(instruction, settings, tokens wanted): answers, wholly or until so many tokens are known. Raises Stopped."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two greedy answers to a prompt part: the first answer position (from 0) at which they differ."""

    id: str
    position: int


@dataclass(frozen=True, slots=True)
class GreedyAudit:
    """How many prompts got the same tokens from speculative as from plain decoding in the same numerics, and how many
    of the speculative answers hold a certificate (None where no certificate exists)."""

    prompts: int
    identical: int
    certified: int | None
    tokens: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class SamplingAudit:
    """Speculative draws against as many plain ones. `tv_noise_floor` is the distance that two plain samples of this
    size stay below in 99 of 100 cases, `tv_plain` that of the two plain samples drawn. `same_seed_identical` counts,
    of `same_seed_draws`, those that are equal token by token with plain draws of the same seed (None: not promised).
    `failures` counts attempts of a peer that failed and were repeated with another seed."""

    draws: int
    tv_distance: float
    tv_noise_floor: float
    p_value: float
    tv_plain: float
    outcome_tokens: int
    prompts: int
    outcomes: int
    coupling: str
    same_seed_draws: int
    same_seed_identical: int | None
    failures: int = 0


@dataclass(frozen=True, slots=True)
class PeerAudit:
    greedy: GreedyAudit | None
    sampling: SamplingAudit | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """The whole audit. `sampling` is the default coupling ("shared"), `sampling_maximal` the min(1, q/p) rule."""

    machine: str
    versions: dict[str, str]
    pair: PairInfo
    settings: Settings
    greedy: GreedyAudit | None
    sampling: SamplingAudit | None
    sampling_maximal: SamplingAudit | None
    peers: dict[str, PeerAudit]
    stopped: bool

    @property
    def lossless(self) -> bool:
        """Whether nothing that was measured of us speaks against it."""
        greedy = self.greedy is None or self.greedy.identical == self.greedy.prompts
        samples = [one for one in (self.sampling, self.sampling_maximal) if one is not None]
        same = all(one.same_seed_identical in (None, one.same_seed_draws) for one in samples)
        return greedy and same and all(one.p_value > LEAST_P_VALUE for one in samples)


def to_json(audit: Audit) -> str:
    data = dataclasses.asdict(audit)
    if audit.settings.draft_tokens is None:
        data["settings"]["draft_tokens"] = "auto"
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """`draws` are all of one arm's, spread over `sample_prompts` prompts; 0 leaves the sampled audit out."""

    settings: Settings
    draws: int = 2000
    sample_prompts: int = 4


@dataclass(frozen=True, slots=True)
class AuditedPeer:
    """A peer's two decoders. `note` says what is special about it."""

    name: str
    speculative: Decoder
    plain: Decoder
    note: str = ""


def audit(
    session: Session,
    prompts: Sequence[BenchPrompt],
    plan: AuditPlan,
    *,
    peers: Sequence[AuditedPeer] = (),
    stop: threading.Event | None = None,
) -> Iterator[Step | Audit]:
    """Audit our pair and then each peer; yields a Step before each piece of work, and last the Audit.

    When `stop` is set the Audit holds the parts that were finished. Raises RequestError for settings or prompts that
    cannot be used.
    """
    stop = stop or threading.Event()
    greedy_settings = dataclasses.replace(plan.settings, temperature=0.0)
    greedy: GreedyAudit | None = None
    sampled: dict[str, SamplingAudit] = {}
    of_peers: dict[str, PeerAudit] = {}
    speculative, plain = session_decoder(session, stop), session_decoder(session, stop, drafter="none")
    try:
        greedy = yield from audit_greedy(prompts, speculative, plain, greedy_settings, name="ours")
        if plan.draws:
            arms = (SampledArm("shared", speculative, same_seed=True), SampledArm("maximal", speculative))
            sampled = yield from audit_sampling(prompts, plain, arms, _sampled(plan.settings), plan, name="ours")
        for peer in peers:
            of_peers[peer.name] = yield from _audit_peer(peer, prompts, plan, greedy_settings)
    except Stopped:
        pass
    yield Audit(
        machine=describe(),
        versions=versions(),
        pair=session.info,
        settings=plan.settings,
        greedy=greedy,
        sampling=sampled.get("shared"),
        sampling_maximal=sampled.get("maximal"),
        peers=of_peers,
        stopped=stop.is_set(),
    )


def _audit_peer(
    peer: AuditedPeer, prompts: Sequence[BenchPrompt], plan: AuditPlan, greedy_settings: Settings
) -> Generator[Step, None, PeerAudit]:
    note, sampling, greedy = peer.note, None, None
    try:
        greedy = yield from audit_greedy(prompts, peer.speculative, peer.plain, greedy_settings, name=peer.name)
        if plan.draws:
            arm = SampledArm("its own", peer.speculative)
            found = yield from audit_sampling(
                prompts, peer.plain, (arm,), _sampled(plan.settings), plan, name=peer.name
            )
            sampling = found[arm.coupling]
    except AuditError as error:
        note = f"{note} {error}".strip()
    return PeerAudit(greedy, sampling, note)


def _sampled(settings: Settings) -> Settings:
    """Settings of the sampled audit: temperature 1 unless asked for another, a fixed draft length, short answers."""
    length = settings.draft_tokens or DRAFT_TOKENS
    return dataclasses.replace(
        settings,
        temperature=settings.temperature or 1.0,
        draft_tokens=length,
        max_new_tokens=OUTCOME_TOKENS + length + 1,
    )


def session_decoder(session: Session, stop: threading.Event, *, drafter: str | None = None) -> Decoder:
    """Our own decoder: as the settings say, or with another drafter ("none": plain decoding, in the same numerics)."""

    def decode(instruction: str, settings: Settings, wanted: int | None) -> Answered:
        if drafter is not None:
            settings = dataclasses.replace(settings, drafter=drafter)
        tokens: list[int] = []
        for event in session.answer(instruction, settings, stop=stop):
            if isinstance(event, Trace):
                if event.finish_reason == "cancelled":
                    raise Stopped
                certified = None if event.certificate is None else event.certificate.certified
                return Answered(event.token_ids[:wanted], certified)
            tokens += [token.id for token in event.tokens]
            if wanted is not None and len(tokens) >= wanted:
                break
        return Answered(tuple(tokens[:wanted]))

    return decode


def audit_greedy(
    prompts: Sequence[BenchPrompt], speculative: Decoder, plain: Decoder, settings: Settings, *, name: str
) -> Generator[Step, None, GreedyAudit]:
    """Answer each prompt by both decoders and compare token by token; yields Steps, returns the GreedyAudit."""
    certificates: list[bool] = []
    differences: list[Difference] = []
    tokens = 0
    for done, prompt in enumerate(prompts):
        yield Step(done, len(prompts), f"{name}: greedy, {prompt.task} {prompt.id}")
        ours = speculative(prompt.instruction, settings, None)
        expected = plain(prompt.instruction, settings, None).tokens
        tokens += len(expected)
        if ours.certified is not None:
            certificates.append(ours.certified)
        if ours.tokens != expected:
            differences.append(Difference(prompt.id, first_difference(ours.tokens, expected)))
    certified = sum(certificates) if certificates else None
    return GreedyAudit(len(prompts), len(prompts) - len(differences), certified, tokens, tuple(differences))


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """The first position at which two different sequences differ; the shorter one's length if it begins the other."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@dataclass(frozen=True, slots=True)
class SampledArm:
    """One speculative way to sample: its decoder and the coupling it is asked for. `same_seed` says that it promises
    the very tokens of plain decoding for equal seeds."""

    coupling: str
    decoder: Decoder
    same_seed: bool = False


def audit_sampling(
    prompts: Sequence[BenchPrompt],
    plain: Decoder,
    arms: Sequence[SampledArm],
    settings: Settings,
    plan: AuditPlan,
    *,
    name: str,
) -> Generator[Step, None, dict[str, SamplingAudit]]:
    """Draw continuations plainly (twice) and by each arm and compare their distributions; yields Steps, returns the
    arms' SamplingAudits by coupling.

    Every draw has a seed of its own, in all samples: equal seeds would make even a wrong decoder look right.
    """
    chosen = list(prompts[: plan.sample_prompts])
    per_prompt = -(-plan.draws // len(chosen))
    decoders = {"plain": (plain, settings), "again": (plain, settings)}
    decoders |= {arm.coupling: (arm.decoder, _coupled(settings, arm)) for arm in arms}
    samples: dict[str, list[list[tuple[int, ...]]]] = {label: [[] for _ in chosen] for label in decoders}
    failures = dict.fromkeys(decoders, 0)
    seed = settings.seed
    for at, prompt in enumerate(chosen):
        for draw in range(per_prompt):
            if draw % 25 == 0:
                place = at * per_prompt + draw
                yield Step(place, len(chosen) * per_prompt, f"{name}: sampling, {prompt.task} {prompt.id}")
            # Arms take turns, so that what drifts in a run drifts in all of them.
            for label, (decoder, asked) in decoders.items():
                seed += 1
                answered = decoder(prompt.instruction, dataclasses.replace(asked, seed=seed), OUTCOME_TOKENS)
                samples[label][at].append(answered.tokens)
                failures[label] += answered.failures
    first, again = samples["plain"], samples["again"]
    floor, tv_plain = noise_floor(first, again), tv_distance(first, again)
    found = {}
    for arm in arms:
        mine = samples[arm.coupling]
        equal = None
        if arm.same_seed:
            yield Step(0, 1, f"{name}: same seeds")
            equal = _same_seed(chosen, arm.decoder, plain, _coupled(settings, arm))
        found[arm.coupling] = SamplingAudit(
            draws=len(chosen) * per_prompt,
            tv_distance=tv_distance(mine, first),
            tv_noise_floor=floor,
            p_value=permutation_test(mine, first),
            tv_plain=tv_plain,
            outcome_tokens=OUTCOME_TOKENS,
            prompts=len(chosen),
            outcomes=sum(len({*a, *b}) for a, b in zip(first, mine, strict=True)),
            coupling=arm.coupling,
            same_seed_draws=SAME_SEED_DRAWS if arm.same_seed else 0,
            same_seed_identical=equal,
            failures=failures[arm.coupling],
        )
    return found


def _coupled(settings: Settings, arm: SampledArm) -> Settings:
    return dataclasses.replace(settings, coupling=arm.coupling)


def _same_seed(prompts: Sequence[BenchPrompt], speculative: Decoder, plain: Decoder, settings: Settings) -> int:
    """How many of SAME_SEED_DRAWS answers equal those of plain decoding with the same seed, token by token."""
    equal = 0
    for seed in range(SAME_SEED_DRAWS):
        instruction = prompts[seed % len(prompts)].instruction
        seeded = dataclasses.replace(settings, seed=seed, max_new_tokens=settings.max_new_tokens + 8)
        equal += speculative(instruction, seeded, None).tokens == plain(instruction, seeded, None).tokens
    return equal
