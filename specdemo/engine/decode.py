"""Autoregressive and speculative decoding, as one generator that asks for forwards and yields
rounds. It does no I/O and reads no clock. The output depends only on the target model, the prompt
and the sampling settings; drafters change only the speed, except with the maximal coupling."""

from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from .acceptance import Verification, verify
from .cache import Sequence
from .constraint import Allowed, wait
from .drafters import AdaptiveDrafter
from .guard import Guard
from .messages import Draft, Forward, Prompt, Reply, Run, prefill_chunks
from .policy import Policy
from .rounds import DraftToken, EmittedToken, Kind, Round
from .sampling import REACH, Sampling


@dataclass(frozen=True, slots=True)
class Limits:
    """An answer ends after one of `stop_ids` (which is part of it), after `max_new_tokens`, or when
    prompt and answer fill `context_limit` tokens."""

    max_new_tokens: int
    context_limit: int
    stop_ids: frozenset[int] = frozenset()


Decoding = Generator[Forward | Round | Future[Any], Reply | None, str]


def prefill(
    target: Sequence, tokens: tuple[int, ...], prefix: int = 0
) -> Generator[Forward, Reply, Prompt]:
    """Run the tokens of a prompt that `target` does not hold yet, in chunks. The first `prefix`
    tokens are a chunk of their own. `target` must hold a proper prefix of the prompt."""
    seconds = 0.0
    chunks = []
    held = target.length
    if held < prefix:
        chunks.append((list(tokens[held:prefix]), 0))
        held = prefix
    for chunk, rows in [*chunks, *prefill_chunks(list(tokens[held:]), 1)]:
        reply = yield Forward("target", Run(target, chunk, rows))
        seconds += reply.seconds
    return Prompt(tokens, reply.logits.last(), seconds)


def decode(
    prompt: Prompt,
    *,
    target: Sequence,
    drafter: AdaptiveDrafter | None,
    policy: Policy,
    sampling: Sampling,
    limits: Limits,
    guard: Guard | None = None,
    allowed: Allowed | None = None,
) -> Decoding:
    """Decode an answer; without a drafter, by autoregressive decoding.

    `target` holds the prompt at first, and afterwards the prompt and all but the last answer token.
    Only `allowed` tokens are chosen; the drafter shares that object. Yields a Forward, which
    expects a Reply, a Round (`shown_at` is 0), or a Future to wait for, which expect None. Returns
    "stop", "length" or "context". Raises ValueError if the prompt leaves no room for an answer."""
    budget = min(limits.max_new_tokens, limits.context_limit - len(prompt.tokens))
    if budget < 1:
        raise ValueError(f"no room to answer {len(prompt.tokens)} prompt tokens within {limits}")
    exhausted = "length" if budget == limits.max_new_tokens else "context"
    context, states = list(prompt.tokens), prompt.logits.states(1)

    def verified(
        draft: Draft,
    ) -> Generator[Any, Any, tuple[Verification, np.ndarray | None, float]]:
        """Run the last token of `context` and the draft, while the masks are computed. Gives the
        verdict, the states of the tokens that stand, and the seconds of the forwards."""
        tokens = [context[-1], *draft.tokens]
        unpadded = guard is not None and not draft.tokens
        run = Run(target, tokens, len(tokens), stepwise=True, unpadded=unpadded)
        future = None if allowed is None else allowed.begin(draft.tokens)
        reply = yield Forward("target", run)
        logits, seconds, masks = reply.logits, reply.seconds, None
        if future is not None:
            if not future.done():
                logits = logits.copy()
            masks = yield from wait(future)
        verdict = verify(logits, draft, len(context), sampling, REACH if guard else 0.0, masks)
        if guard is not None and guard.doubts(run, reply, len(context) - 1, verdict.least_margin):
            reply, repeated = yield from guard.repeat(context, run)
            logits = reply.logits
            seconds += repeated
            verdict = verify(logits, draft, len(context), sampling, masks=masks)
        policy.others = reply.others
        return verdict, logits.states(verdict.accepted + 1), seconds

    masks = None if allowed is None else (yield from wait(allowed.begin([])))
    first = verify(prompt.logits, Draft(), len(context), sampling, masks=masks)
    token = first.token
    context.append(token)
    if allowed is not None:
        allowed.settle([token])
    emitted = EmittedToken(token, "first", first.token_probability, margin=first.margin)
    yield Round((), emitted, 0.0, prompt.seconds, 0.0)
    try:
        while token not in limits.stop_ids:
            left = budget - (len(context) - len(prompt.tokens))
            if not left:
                return exhausted
            # Draft gamma tokens, with room for the one that the target adds.
            draft = Draft()
            if drafter is not None and left > 1:
                draft = yield from drafter.propose(context, left - 1, states)
            # One forward gives the target's logits after the context and after each draft token.
            verdict, states, seconds = yield from verified(draft)
            # Accepted tokens and the target's own join the text; the cache forgets the others.
            round_, added = settle(draft, verdict, limits.stop_ids, seconds)
            context += added
            target.truncate(len(context) - 1)
            if allowed is not None:
                allowed.settle(added)
            policy.record_round(draft.seconds, seconds, len(added))
            token = added[-1]
            yield round_
        return "stop"
    finally:
        target.truncate(min(target.length, len(context) - 1))


def settle(
    draft: Draft, verdict: Verification, stop_ids: frozenset[int], seconds: float
) -> tuple[Round, list[int]]:
    """The round of a verdict, cut after the first stop token, and the tokens that it adds."""
    accepted = draft.tokens[: verdict.accepted]
    stopped = next((at for at, token in enumerate(accepted) if token in stop_ids), None)
    kept = verdict.accepted if stopped is None else stopped + 1
    drafted = tuple(
        DraftToken(one.token, one.probability, probability, at < kept, one.source)
        for at, (one, probability) in enumerate(zip_longest(draft.proposals, verdict.probabilities))
    )
    if stopped is not None:
        return Round(drafted, None, draft.seconds, seconds, 0.0), accepted[:kept]
    kind: Kind = "plain" if not drafted else "bonus" if kept == len(drafted) else "correction"
    emitted = EmittedToken(verdict.token, kind, verdict.token_probability, margin=verdict.margin)
    return Round(drafted, emitted, draft.seconds, seconds, 0.0), [*accepted, verdict.token]
