"""The algorithm: plain and speculative decoding, as one generator that asks for forwards and yields rounds.

It does no I/O and reads no clock: a runner performs its requests and says how long they took. Output is a function
of the target, the prompt and the seed; drafters only change how fast it comes.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from .drafters import Draft, Drafter, Forward, Reply
from .policy import Lookahead
from .model import Logits, Run, Sequence, prefill_chunks
from .open import Model
from .sampling import (
    RESIDUAL,
    Sampling,
    acceptance_probability,
    accepts,
    distribution,
    draw,
    draw_from,
    firm_draw,
    point_mass,
    residual,
)
from .rounds import DraftToken, EmittedToken, Round


@dataclass(frozen=True, slots=True)
class Limits:
    """Where an answer ends: after one of `stop_ids` (which is part of it), after `max_new_tokens`, or when prompt
    and answer fill `context_limit` tokens."""

    max_new_tokens: int
    context_limit: int
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that was run: its ids, the logits of the token after them (one row), and the seconds that took."""

    tokens: tuple[int, ...]
    logits: Logits
    seconds: float = 0.0


REPEATED = 16
"""Tokens that a forward repeats at once where a near tie asks for it."""

Decoding = Generator[Forward | Round, Reply | None, str]


def prefill(target: Sequence, tokens: tuple[int, ...], opening: int = 0) -> Generator[Forward, Reply, Prompt]:
    """Run what of a prompt the sequence does not hold yet, in chunks, its first `opening` tokens being one of their own;
    it must hold a proper prefix of it."""
    seconds = 0.0
    chunks = []
    held = target.length
    if held < opening:
        chunks.append((list(tokens[held:opening]), 0))
        held = opening
    for chunk, rows in [*chunks, *prefill_chunks(list(tokens[held:]), 1)]:
        reply = yield Forward("target", Run(target, chunk, rows))
        seconds += reply.seconds
    return Prompt(tokens, reply.logits.last(), seconds)


def decode(
    prompt: Prompt,
    *,
    target: Sequence,
    drafter: Drafter | None,
    lookahead: Lookahead,
    sampling: Sampling,
    limits: Limits,
    guard: float | None = None,
) -> Decoding:
    """Decode an answer; without a drafter, autoregressively.

    `target` holds the prompt; afterwards it holds the prompt and the answer but for its last token. Yields a Forward
    to be answered with a Reply, or a Round (`shown_at` unset) to be answered with None. Returns the finish reason:
    "stop", "length" or "context". Raises ValueError when the prompt leaves no room for an answer.

    `guard`, in logits and for what can be guarded (`Sampling.guardable`), lets a token that nothing was drafted after run
    by itself, as plain decoding does, though that forward rounds differently: whenever a choice after it is won by too
    little to be sure, what was rounded differently is run again (see `_Guarded`).
    """
    budget = min(limits.max_new_tokens, limits.context_limit - len(prompt.tokens))
    if budget < 1:
        raise ValueError(f"no room to answer: {len(prompt.tokens)} prompt tokens, context {limits.context_limit}")
    exhausted = "length" if budget == limits.max_new_tokens else "context"
    lookahead.begin_text()
    guarded = _Guarded(target, sampling, guard if sampling.guardable else None)
    context = list(prompt.tokens)
    token = choose(prompt.logits, 0, sampling, len(context))
    context.append(token)
    yield Round((), EmittedToken(token, "first", prompt.logits.probability(0, token)), 0.0, prompt.seconds, 0.0)
    try:
        while token not in limits.stop_ids:
            budget -= 1
            if not budget:
                return exhausted
            lookahead.context = len(context)
            draft = Draft()
            if drafter is not None and budget > 1:
                draft = yield from drafter.propose(context, budget - 1)
            reply, verified, repeated = yield from guarded.forward(context, draft.tokens)
            verdict = verify(reply.logits, draft, len(context), sampling, guarded.choices)
            round_, added = settle(draft, verdict, limits.stop_ids, reply.seconds + repeated)
            context += added
            budget -= len(added) - 1
            token = added[-1]
            target.truncate(len(context) - 1)
            if reply.first:
                lookahead.costs.saw_verify(verified, reply.seconds, lookahead.context)
            lookahead.saw_round(draft.seconds + reply.seconds, len(round_.tokens))
            yield round_
        return "stop"
    finally:
        target.truncate(min(target.length, len(context) - 1))


class _Guarded:
    """Forwards of the target that may run a token by itself, and make that good where it could matter.

    In such a forward the last bits of keys, values and logits differ from those of larger ones. A choice is the same
    all the same unless it is a near tie: won by less than `guard` (None: nothing is run by itself), or drawn so that logits
    which differ by as much might have drawn another (`firm_draw`). Then everything since the first such forward is run
    again, in forwards that round alike. `guard` is many times the measured difference (`numerics.Invariance.guard`), and
    the certificate checks the whole answer afterwards.
    """

    def __init__(self, target: Sequence, sampling: Sampling, guard: float | None):
        self.target = target
        self.sampling = sampling
        self.guard = guard
        self.choices: tuple[int, ...] = ()
        """The target's own ones after the last forward's tokens, as far as they had to be made here."""
        self._since: int | None = None

    def forward(
        self, context: list[int], drafted: tuple[int, ...]
    ) -> Generator[Forward, Reply, tuple[Reply, int, float]]:
        """Verify the drafted tokens after `context`, of which the target holds all but the last.

        Gives the reply, how many tokens its forward ran, and the seconds spent on repeating others.
        """
        target = self.target
        tokens = [context[-1], *drafted]
        lone = self.guard is not None and not drafted
        run = Run(target, tokens, len(tokens), stepwise=True, lone=lone)
        reply = yield Forward("target", run)
        # With others in the forward it is a large one, however little of it is this request's.
        verified = reply.tokens or (1 if lone else max(len(tokens), target.min_tokens))
        self.choices = ()
        if lone and verified == 1 and self._since is None:
            self._since = len(context) - 1
        if self._since is None or not self._near_tie(reply.logits, drafted, len(context)):
            return reply, verified, 0.0
        since, self._since = self._since, None
        target.truncate(since)
        seconds = 0.0
        for begin in range(since, len(context) - 1, REPEATED):
            repeat = context[begin : min(begin + REPEATED, len(context) - 1)]
            seconds += (yield Forward("target", Run(target, repeat, 0, stepwise=True))).seconds
        again = yield Forward("target", Run(target, tokens, len(tokens), stepwise=True))
        return replace(again, seconds=reply.seconds), verified, seconds + again.seconds

    def _near_tie(self, logits: Logits, drafted: tuple[int, ...], position: int) -> bool:
        """Whether a choice that counts was won by too little: those up to the first that is not the draft's."""
        choices = []
        for at in range(len(drafted) + 1):
            if self.sampling.greedy:
                token = int(logits.best[at]) if logits.margin[at] >= self.guard else None
            else:
                token = firm_draw(logits.rows[at], self.sampling, position + at, self.guard)
            if token is None:
                return True
            choices.append(token)
            if at < len(drafted) and token != drafted[at]:
                break
        self.choices = tuple(choices)
        return False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target said of a draft: how many tokens it accepted, the token it adds after those, and its
    probabilities of the accepted tokens and, where one was rejected, of that; then of the added token."""

    accepted: int
    token: int
    probabilities: tuple[float, ...]
    token_probability: float


def choose(logits: Logits, at: int, sampling: Sampling, position: int) -> int:
    """The target's own choice at a text position, from row `at` of its logits."""
    if sampling.greedy:
        return int(logits.best[at])
    return draw_from(logits.rows[at], sampling, position)


def verify(
    logits: Logits, draft: Draft, position: int, sampling: Sampling, choices: tuple[int, ...] = ()
) -> Verdict:
    """Judge a draft by the target's logits, one row a draft token and one more; `position` is the first one's. `choices`
    are those of the target's own that were made before: up to the first that is not the draft's, or none.

    Greedy decoding and the shared coupling accept while the target's own choice is the draft token: the output is
    then, by construction, what the target alone would have chosen.
    """
    if not sampling.greedy and sampling.coupling == "maximal":
        return _verify_maximal(logits, draft, position, sampling)

    def chosen(at: int) -> int:
        return choices[at] if choices else choose(logits, at, sampling, position + at)

    probabilities = []
    for at, drafted in enumerate(draft.tokens):
        token = chosen(at)
        probabilities.append(logits.probability(at, drafted))
        if token != drafted:
            return Verdict(at, token, tuple(probabilities), logits.probability(at, token))
    last = len(draft.tokens)
    token = chosen(last)
    return Verdict(last, token, tuple(probabilities), logits.probability(last, token))


def _verify_maximal(logits: Logits, draft: Draft, position: int, sampling: Sampling) -> Verdict:
    """Algorithm 2 of Chen et al.: accept with min(1, q/p), redraw a rejected token from max(0, q - p)."""
    probabilities = []
    for at, drafted in enumerate(draft.tokens):
        q = distribution(logits.rows[at], sampling)
        p = draft.distributions[at] if draft.distributions else point_mass(drafted)
        probabilities.append(q.probability(drafted))
        chance = acceptance_probability(p.probability(drafted), q.probability(drafted))
        if not accepts(chance, sampling.seed, position + at):
            token = draw(residual(p, q), sampling.seed, position + at, RESIDUAL)
            return Verdict(at, token, tuple(probabilities), q.probability(token))
    last = len(draft.tokens)
    q = distribution(logits.rows[last], sampling)
    token = draw(q, sampling.seed, position + last)
    return Verdict(last, token, tuple(probabilities), q.probability(token))


def settle(draft: Draft, verdict: Verdict, stop_ids: frozenset[int], seconds: float) -> tuple[Round, list[int]]:
    """The round that a verdict makes, ended at the first stop token, and the tokens it adds."""
    if not draft.tokens:
        emitted = EmittedToken(verdict.token, "plain", verdict.token_probability)
        return Round((), emitted, draft.seconds, seconds, 0.0), [verdict.token]
    accepted = list(draft.tokens[: verdict.accepted])
    stopped = next((at for at, token in enumerate(accepted) if token in stop_ids), None)
    kept = verdict.accepted if stopped is None else stopped + 1
    tokens = tuple(
        DraftToken(
            id=token,
            draft_probability=draft.probabilities[at],
            target_probability=verdict.probabilities[at] if at < len(verdict.probabilities) else None,
            accepted=at < kept,
            source=draft.sources[at],
        )
        for at, token in enumerate(draft.tokens)
    )
    if stopped is not None:
        return Round(tokens, None, draft.seconds, seconds, 0.0), accepted[:kept]
    kind = "bonus" if kept == len(draft.tokens) else "correction"
    emitted = EmittedToken(verdict.token, kind, verdict.token_probability)
    return Round(tokens, emitted, draft.seconds, seconds, 0.0), [*accepted, verdict.token]


def follow(prompt: Prompt, answer: tuple[int, ...], target: Sequence, sampling: Sampling) -> Decoding:
    """Autoregressive decoding along an answer that is known to be the target's: one token a forward, nothing drafted.

    This is the timed baseline. The work of a step does not depend on which token is fed, so where a one-token forward
    rounds a near tie to another token than the answer has, the round says so (its `correction` is the answer's token,
    its rejected "draft" the one-token forward's choice) and decoding goes on along the answer.
    """
    yield Round((), EmittedToken(answer[0], "first"), 0.0, prompt.seconds, 0.0)
    position = len(prompt.tokens)
    for fed, token in zip(answer, answer[1:], strict=False):
        reply = yield Forward("target", Run(target, [fed], 1))
        position += 1
        own = choose(reply.logits, 0, sampling, position)
        tie = () if own == token else (_near_tie(reply.logits.rows[0], own, token),)
        yield Round(tie, EmittedToken(token, "correction" if tie else "plain"), 0.0, reply.seconds, 0.0)
    return "length"


def _near_tie(row: np.ndarray, own: int, token: int) -> DraftToken:
    margin = abs(float(row[own]) - float(row[token]))
    return DraftToken(own, draft_probability=margin, target_probability=None, accepted=False, source="near tie")


def certify(
    prompt: Prompt, answer: tuple[int, ...], target: Sequence, sampling: Sampling, chunk: int
) -> Generator[Forward, Reply, tuple[int | None, float]]:
    """Check an answer against the target in parallel, `chunk` tokens a forward: each token must be what the logits
    before it choose. Gives the first answer position where it is not (None: certified), and seconds.

    `target` holds the prompt. Together with logits that do not depend on how many tokens run together, this proves
    by induction that plain decoding would have given the same answer.
    """
    if choose(prompt.logits, 0, sampling, len(prompt.tokens)) != answer[0]:
        return 0, 0.0
    seconds = 0.0
    position = len(prompt.tokens)
    for begin in range(0, len(answer) - 1, chunk):
        tokens = list(answer[begin : min(begin + chunk, len(answer) - 1)])
        reply = yield Forward("target", Run(target, tokens, len(tokens), stepwise=True))
        seconds += reply.seconds
        for row in range(len(tokens)):
            at = begin + row + 1
            if choose(reply.logits, row, sampling, position + at) != answer[at]:
                return at, seconds
    return None, seconds


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run: why, and the seconds from its start (prefill included)."""

    reason: str
    seconds: float


def run(
    decoding: Decoding,
    models: dict[str, Model],
    *,
    stop: threading.Event | None = None,
    since: float | None = None,
) -> Iterator[Round | Finished]:
    """Perform one decoding's requests on the models, one at a time; yields its rounds with their times, then Finished.

    Times count from `since` (a perf_counter reading; now, by default). When `stop` is set, ends before the next
    forward with the reason "cancelled".
    """
    start = perf_counter() if since is None else since
    reply = None
    try:
        while True:
            try:
                event = decoding.send(reply)
            except StopIteration as done:
                yield Finished(done.value, perf_counter() - start)
                return
            reply = None
            if isinstance(event, Round):
                yield event.at(perf_counter() - start)
            elif stop is not None and stop.is_set():
                yield Finished("cancelled", perf_counter() - start)
                return
            else:
                reply = answer(event, models)
    finally:
        decoding.close()


def perform(
    requests: Generator[Forward, Reply, Any], models: dict[str, Model], *, stop: threading.Event | None = None
) -> Any:
    """Perform requests that yield no rounds (`prefill`, `certify`); gives what they return, or None when stopped."""
    reply = None
    while True:
        try:
            request = requests.send(reply)
        except StopIteration as done:
            return done.value
        if stop is not None and stop.is_set():
            requests.close()
            return None
        reply = answer(request, models)


def answer(request: Forward, models: dict[str, Model]) -> Reply:
    """Perform one request."""
    before = perf_counter()
    logits = models[request.model].forward([request.run])[0]
    return Reply(logits, perf_counter() - before)
