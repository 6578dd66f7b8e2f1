"""Autoregressive and speculative decoding, as one generator that asks for forwards and yields
rounds. It does no I/O and reads no clock. The output depends only on the target model, the prompt
and the sampling settings; drafters change only the speed, except with the maximal coupling."""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from .acceptance import TargetRows, Verification, adjustment, verify
from .cache import KVSequence
from .constraint import Allowed, wait
from .drafts.drafter import AdaptiveDrafter
from .guard import Guard
from .messages import (
    PREFILL_CHUNK,
    Draft,
    DraftToken,
    EmittedToken,
    Forward,
    Kind,
    Prompt,
    Reply,
    Round,
    Run,
    next_chunk,
)
from .policy import Policy
from .sampling import MAX_MARGIN, Sampling


@dataclass(frozen=True, slots=True)
class Limits:
    """An answer ends after one of `stop_ids` (which is part of it), after `max_new_tokens`, or when
    prompt and answer fill `context_limit` tokens."""

    max_new_tokens: int
    context_limit: int
    stop_ids: frozenset[int] = frozenset()


Decoding = Generator[Forward | Round | Future[Any], Any, str]  # Forwards expect a Reply


def prefill(
    target: KVSequence,
    tokens: tuple[int, ...],
    prefix: int = 0,
    drafter: AdaptiveDrafter | None = None,
    fair_chunk: Callable[[int], int] = lambda context: PREFILL_CHUNK,
) -> Generator[Forward, Reply, Prompt]:
    """Run the tokens of a prompt that `target` does not hold yet, in chunks, beside other requests
    of `fair_chunk(context)` tokens. The first `prefix` tokens are a chunk of their own. `target`
    must hold a proper prefix of the prompt. The `drafter` may read the states of each chunk; the
    seconds are the target's."""
    seconds, size, last = 0.0, PREFILL_CHUNK, None
    while last is None:
        length = target.length
        chunk, rows = next_chunk(list(tokens[length : length + size + 2]), size)
        if length < prefix:
            chunk, rows = list(tokens[length:prefix]), 0
        reply = yield Forward("target", Run(target, chunk, rows))
        seconds += reply.seconds
        last = reply.logits.last() if rows else None
        size = fair_chunk(target.length) if reply.shared else size
        states = reply.logits.states(len(chunk))
        if drafter is not None and states is not None:
            yield from drafter.read_prompt(tokens, target.length, states)
    return Prompt(tokens, last, seconds)


def decode(
    prompt: Prompt,
    *,
    target: KVSequence,
    drafter: AdaptiveDrafter | None,
    policy: Policy,
    sampling: Sampling,
    limits: Limits,
    guard: Guard | None = None,
    allowed: Allowed | None = None,
    logprobs: int | None = None,
    elapsed: Callable[[], float] = lambda: 0.0,
) -> Decoding:
    """Decode an answer; without a drafter, by autoregressive decoding.

    `target` holds the prompt at first, and afterwards the prompt and all but the last answer token.
    Only `allowed` tokens are chosen; the drafter shares that object. Rounds have `logprobs`, with
    so many of the likeliest tokens, unless it is None, and are shown at `elapsed()`. Yields a
    Forward, which expects a Reply, a Round, or a Future to wait for, which expect None. Returns
    "stop", "length" or "context". Raises ValueError if the prompt leaves no room for an answer."""
    budget = min(limits.max_new_tokens, limits.context_limit - len(prompt.tokens))
    if budget < 1:
        raise ValueError(f"no room to answer {len(prompt.tokens)} prompt tokens within {limits}")
    exhausted = "length" if budget == limits.max_new_tokens else "context"
    context, states = list(prompt.tokens), prompt.logits.states(1)
    adjust = adjustment(sampling, context)

    masks = None if allowed is None else (yield from wait(allowed.begin([])))
    rows = TargetRows(prompt.logits, context, adjust, masks)
    first = verify(rows, Draft(), sampling)
    stop_ids, seconds = limits.stop_ids, prompt.seconds
    round_, [token] = round_of(rows, Draft(), first, stop_ids, seconds, logprobs, "first")
    context.append(token)
    if allowed is not None:
        allowed.commit([token])
    round_.shown_at = elapsed()
    yield round_
    try:
        while token not in stop_ids:
            left = budget - (len(context) - len(prompt.tokens))
            if not left:
                return exhausted
            # Draft gamma tokens, with room for the one that the target adds.
            draft = Draft()
            if drafter is not None and left > 1:
                draft = yield from drafter.propose(context, left - 1, states)
            # One forward gives the target's logits after the context and after each draft token.
            # Meanwhile the masks of these rows are computed.
            masks_coming = None if allowed is None else allowed.begin(draft.tokens)
            tokens = [context[-1], *draft.tokens]
            # Padded, a single token needs no guard.
            unpadded = guard is not None and not draft.tokens and policy.costs.single_token_size < 2
            run = Run(target, tokens, len(tokens), stepwise=True, unpadded=unpadded)
            reply = yield Forward("target", run)
            logits, seconds = reply.logits, reply.seconds
            if masks_coming is not None:
                if not masks_coming.done():
                    logits = logits.copy()  # other requests' forwards come first
                masks = yield from wait(masks_coming)
            rows = TargetRows(logits, context, adjust, masks)
            verification = verify(rows, draft, sampling, MAX_MARGIN if guard else 0.0)
            # A near tie is decided by a forward that rounds as those of several tokens do.
            margin = verification.least_margin
            if guard is not None and guard.doubts(run, reply, len(context) - 1, margin):
                reply, repeated = yield from guard.repeat(context, run)
                seconds += repeated
                rows = replace(rows, logits=reply.logits)
                verification = verify(rows, draft, sampling)
            policy.others = reply.others
            # Accepted tokens and the target's own join the text; the cache forgets the others.
            states = rows.logits.states(verification.accepted + 1)
            round_, added = round_of(rows, draft, verification, stop_ids, seconds, logprobs)
            context += added
            target.truncate(len(context) - 1)
            if allowed is not None:
                allowed.commit(added)
            policy.record_round(draft.seconds + seconds, len(added))
            token = added[-1]
            round_.shown_at = elapsed()
            yield round_
        return "stop"
    finally:
        target.truncate(min(target.length, len(context) - 1))


def round_of(
    rows: TargetRows,
    draft: Draft,
    verification: Verification,
    stop_ids: frozenset[int],
    seconds: float,
    logprobs: int | None = None,
    undrafted: Kind = "plain",
) -> tuple[Round, list[int]]:
    """The round of a verification, cut after the first stop token, and the tokens that it adds.
    `undrafted` is the kind of the target's token in a round without draft tokens."""
    added = [*draft.tokens[: verification.accepted], verification.token]
    end = next((index for index, token in enumerate(added, 1) if token in stop_ids), len(added))
    added = added[:end]
    accepted = min(end, verification.accepted)
    pairs = enumerate(zip_longest(draft.proposals, verification.probabilities))
    drafted = tuple(
        DraftToken(drafted.token, drafted.probability, target, index < accepted, drafted.source)
        for index, (drafted, target) in pairs
    )
    emitted = None
    if len(added) > accepted:
        emitted = EmittedToken(
            verification.token,
            undrafted if not drafted else "bonus" if accepted == len(drafted) else "correction",
            verification.token_probability,
            margin=verification.margin,
        )
    rated = [] if logprobs is None else list(enumerate(added))
    alternatives = tuple(rows.logits.logprobs(row, token, logprobs or 0) for row, token in rated)
    return Round(drafted, emitted, draft.seconds, seconds, 0.0, alternatives), added
