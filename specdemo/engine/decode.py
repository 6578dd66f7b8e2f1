"""Autoregressive and speculative decoding, as one generator that asks for forwards and yields
rounds. It does no I/O and reads no clock. The output depends only on the target model, the prompt
and the sampling settings; drafters change only the speed, except with the maximal coupling."""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from .acceptance import Adjustment, TargetRows, Verification, adjustment, verify
from .cache import KVSequence
from .constraint import AllowedTokens, Mask, wait
from .drafts.drafter import AdaptiveDrafter
from .forwards import PREFILL_CHUNK, Forward, Logits, Prompt, Reply, Run, next_chunk
from .policy import Policy
from .rounds import Draft, DraftToken, EmittedToken, Kind, Round
from .sampling import Sampling

Decoding = Generator[Forward | Round | Future[Any], Any, str]  # Forwards expect a Reply


@dataclass(frozen=True, slots=True)
class Limits:
    """Where an answer ends."""

    max_new_tokens: int  # of the answer
    context_limit: int  # tokens of prompt and answer
    stop_ids: frozenset[int] = frozenset()  # the answer ends with one of these


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
    allowed: AllowedTokens | None = None,
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
    context = list(prompt.tokens)
    adjust = adjustment(sampling, context)
    # The first round has no draft, and its logits are the prefill's.
    draft, reply = Draft(), Reply(prompt.logits, prompt.seconds)
    kind: Kind = "first"
    masks = None if allowed is None else allowed.begin([])
    try:
        while True:
            # Accept the draft tokens that the target chooses too, and add the token after them.
            rows = yield from target_rows(reply.logits, context, adjust, masks)
            verification, seconds = verify(rows, draft, sampling), reply.seconds
            round_ = round_of(rows, draft, verification, limits.stop_ids, seconds, logprobs, kind)
            added = [token.id for token in round_.tokens]
            states = rows.logits.states(verification.accepted + 1) if drafter else None
            # These tokens join the text; the cache forgets the others.
            context += added
            target.truncate(len(context) - 1)
            target.settle()
            if allowed is not None:
                allowed.commit(added)
            if kind != "first":
                drafting = draft.seconds if draft.sought else None
                spent = draft.seconds + seconds
                policy.record_round(spent, len(added), len(context), drafting, reply.own)
            round_.shown_at = elapsed()
            yield round_
            if added[-1] in limits.stop_ids:
                return "stop"
            left = budget - (len(context) - len(prompt.tokens))
            if not left:
                return "length" if budget == limits.max_new_tokens else "context"
            # Draft gamma tokens, with room for the one that the target adds.
            draft, kind = Draft(), "plain"
            if drafter is not None and left > 1:
                draft = yield from drafter.propose(context, left - 1, states)
            # One forward gives the target's logits after the context and after each draft token.
            # Meanwhile the masks of these rows are computed.
            masks = None if allowed is None else allowed.begin(draft.tokens)
            tokens = [context[-1], *draft.tokens]
            run = Run(target, tokens, len(tokens), stepwise=True)
            chances = draft.chances if policy.fixed is None else ()
            reply = yield Forward("target", run, chances, draft.seconds)
            draft = draft.first(target.length - len(context))
    finally:
        target.truncate(min(target.length, len(context) - 1))


def target_rows(
    logits: Logits, context: list[int], adjust: Adjustment | None, masks: Future[list[Mask]] | None
) -> Generator[Future[list[Mask]], None, TargetRows]:
    """The target's rows, once their masks are computed."""
    if masks is None:
        return TargetRows(logits, context, adjust)
    if not masks.done():
        logits = logits.copy()  # other requests' forwards come first
    return TargetRows(logits, context, adjust, (yield from wait(masks)))


def round_of(
    rows: TargetRows,
    draft: Draft,
    verification: Verification,
    stop_ids: frozenset[int],
    seconds: float,
    logprobs: int | None,
    undrafted: Kind,
) -> Round:
    """The round of a verification, cut after the first stop token. `undrafted` is the kind of the
    target's token in a round without draft tokens."""
    tokens = [*draft.tokens[: verification.accepted], verification.token]
    length = next((end for end, token in enumerate(tokens, 1) if token in stop_ids), len(tokens))
    accepted = min(length, verification.accepted)
    pairs = enumerate(zip_longest(draft.proposals, verification.probabilities))
    drafted = tuple(
        DraftToken(proposal.token, proposal.probability, target, index < accepted, proposal.source)
        for index, (proposal, target) in pairs
    )
    emitted = None
    if length > accepted:
        emitted = EmittedToken(
            verification.token,
            undrafted if not drafted else "bonus" if accepted == len(drafted) else "correction",
            verification.q(verification.token),
            margin=verification.margin,
        )
    candidates: tuple[DraftToken, ...] = ()
    if emitted is not None and emitted.kind == "correction":
        rejected, q = draft.proposals[accepted], verification.q
        candidates = tuple(
            DraftToken(id, p, q(id), False, rejected.source) for id, p in rejected.candidates
        )
    rated = [] if logprobs is None else list(enumerate(tokens[:length]))
    alternatives = tuple(rows.logits.row(row).logprobs(id, logprobs or 0) for row, id in rated)
    return Round(drafted, emitted, draft.seconds, seconds, 0.0, alternatives, candidates)
