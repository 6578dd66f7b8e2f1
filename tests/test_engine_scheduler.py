"""Requests that share forwards: each gets what it gets alone, nothing is kept, and a failure stays where it happened."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_batch import ToyModel, alone, blocks_for, request

from specdemo.engine import batch
from specdemo.engine.scheduler import Scheduler, Busy, EngineError
from specdemo.engine.graph import ModelError
from specdemo.engine.model import CacheFull


@pytest.fixture
def batcher():
    made = Scheduler()
    yield made
    made.close()


def ids(events) -> tuple[int, ...]:
    return tuple(token.id for round_ in events for token in round_.tokens)


def submit(batcher, models, prompt=(1, 2, 3), new_tokens=20, draft_tokens=0, slow=0.0, **options):
    return batcher.submit(lambda _: request(models, prompt, new_tokens, draft_tokens, slow), models, **options)


def models(limit: int | None = None, draft_seed: int = 0) -> dict[str, ToyModel]:
    return {"target": ToyModel(0, limit), "draft": ToyModel(draft_seed)}


def collect(tickets: list, stops: dict[int, int] | None = None) -> list[tuple[int, ...]]:
    """Every ticket's tokens, each collected by a thread of its own; `stops` closes some after so many events."""
    found: list[tuple[int, ...]] = [()] * len(tickets)

    def consume(at: int) -> None:
        events = []
        iterator = iter(tickets[at])
        for event in iterator:
            events.append(event)
            if stops and stops.get(at) == len(events):
                iterator.close()
                break
        found[at] = ids(events)

    threads = [threading.Thread(target=consume, args=(at,)) for at in range(len(tickets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return found


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 6), min_size=1, max_size=90).map(tuple),  # prompt: beyond a shared forward's size
        st.integers(1, 25),
        st.integers(0, 5),  # draft tokens
        st.sampled_from([None, None, None, 1, 3]),  # leaves after so many rounds
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 5), st.integers(0, 2), st.sampled_from([None, 60]))
def test_whoever_joins_and_leaves_each_answer_is_the_one_given_alone_and_no_block_is_kept(asked, most, seed, limit):
    shared = models(limit, draft_seed=seed)
    batcher = Scheduler(most_active=most)
    try:
        tickets = [
            submit(batcher, shared, prompt, new, draft, blocks={shared["target"]: blocks_for(len(prompt), new, draft)})
            for prompt, new, draft, _ in asked
        ]
        stops = {at: leave for at, (*_, leave) in enumerate(asked) if leave}
        for (prompt, new, _, leave), got in zip(asked, collect(tickets, stops), strict=True):
            expected = alone(0, prompt, new)
            assert got == expected or leave and got == expected[: len(got)]
        assert limit is None or len(shared["target"].pool.references) <= limit
        assert shared["target"].pool.used == shared["draft"].pool.used == 0
        load = batcher.load
        assert (load.active, load.waiting, load.failed) == (0, 0, 0)
    finally:
        batcher.close()


def test_requests_share_forwards_of_the_target_and_of_the_draft(batcher):
    shared = models()
    shared["target"].gate.clear()
    tickets = [submit(batcher, shared, (1, 2, at), 16, 3) for at in range(1, 7)]
    shared["target"].gate.set()
    collect(tickets)
    # Who shares with whom is a matter of when each comes back; some of these answers end at their first token.
    assert max(map(len, shared["target"].batches)) >= 4
    assert max(map(len, shared["draft"].batches)) >= 2


def test_a_shared_forward_holds_no_more_tokens_than_exactness_allows_and_a_larger_one_is_run_alone(batcher):
    shared = models()
    shared["target"].gate.clear()
    tickets = [submit(batcher, shared, (1, 2) * (5 + 10 * at), 30, 4) for at in range(8)]
    shared["target"].gate.set()
    collect(tickets)
    for sizes in shared["target"].batches:
        assert sum(sizes) <= batch.MERGED_TOKENS or len(sizes) == 1


def test_where_sharing_is_not_exact_every_request_has_its_own_forwards(batcher):
    shared = models()
    tickets = [submit(batcher, shared, (1, at), 12, merged_tokens=0) for at in range(1, 5)]
    assert [len(got) > 0 for got in collect(tickets)] == [True] * 4
    assert all(len(sizes) == 1 for sizes in shared["target"].batches)


def test_a_long_prompt_does_not_hold_up_those_who_are_answered(batcher):
    shared = models()
    shared["target"].gate.clear()
    long = submit(batcher, shared, (1,) * 2000, 1)
    short = submit(batcher, shared, (2, 3), 30)
    shared["target"].gate.set()
    collect([long, short])
    large = [at for at, sizes in enumerate(shared["target"].batches) if max(sizes) > batch.MERGED_TOKENS]
    between = [later - sooner for sooner, later in zip(large, large[1:], strict=False)]
    assert len(large) > 5 and sum(gap > 1 for gap in between[: len(alone(0, (2, 3), 30)) - 2]) >= len(between) // 2


def test_the_cache_is_never_asked_for_more_than_it_has_and_everybody_is_answered():
    shared = models(limit=12)
    batcher = Scheduler()
    try:
        tickets = [submit(batcher, shared, (1, 2, at), 12, blocks={shared["target"]: 5}) for at in range(1, 8)]
        got = collect(tickets)
        assert got == [alone(0, (1, 2, at), 12) for at in range(1, 8)]
        assert len(shared["target"].pool.references) <= 12
        assert max(map(len, shared["target"].batches)) == 2, "two worst cases fit"
    finally:
        batcher.close()


def test_what_could_never_fit_is_refused_at_once(batcher):
    shared = models(limit=4)
    with pytest.raises(CacheFull, match="20 tokens"):
        submit(batcher, shared, blocks={shared["target"]: 5})


def test_a_full_queue_is_said_and_a_place_in_it_told_with_the_wait_that_was_measured():
    shared = models()
    batcher = Scheduler(most_active=1, queued=2)
    try:
        list(submit(batcher, shared, (3, 1), 2))
        shared["target"].gate.clear()
        tickets = [submit(batcher, shared, (1, at), 9) for at in range(1, 3)]
        until = time.monotonic() + 5
        while batcher.load.active < 1 and time.monotonic() < until:
            time.sleep(0.01)
        tickets.append(submit(batcher, shared, (1, 3), 9))
        with pytest.raises(Busy, match="2 requests are waiting"):
            submit(batcher, shared)
        places = []
        thread = threading.Thread(target=lambda: list(tickets[2].events(places.append, every=0.01)))
        thread.start()
        while len(places) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert places[0].place == 2 and places[0].seconds > 0
        shared["target"].gate.set()
        collect(tickets[:2])
        thread.join(10)
        assert not thread.is_alive()
    finally:
        batcher.close()


def test_the_second_half_of_a_comparison_goes_before_new_questions():
    shared = models()
    batcher = Scheduler(most_active=1)
    try:
        shared["target"].gate.clear()
        running = submit(batcher, shared, (1, 1), 4)
        time.sleep(0.05)
        tickets = {"new": submit(batcher, shared, (1, 2), 4), "half": submit(batcher, shared, (1, 3), 4, first=True)}
        places = {name: [] for name in tickets}
        threads = [
            threading.Thread(
                target=lambda name=name, ticket=ticket: list(ticket.events(places[name].append, every=0.01))
            )
            for name, ticket in tickets.items()
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 10
        while not all(places.values()) and time.monotonic() < until:
            time.sleep(0.01)
        assert {name: seen[-1].place for name, seen in places.items()} == {"half": 1, "new": 2}
        shared["target"].gate.set()
        list(running)
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
    finally:
        batcher.close()


# Stopping


def test_stop_ends_a_request_within_one_round_and_gives_everything_back(batcher):
    shared = models()
    stop = threading.Event()
    ticket = submit(batcher, shared, (1, 2), 5000, 2, slow=0.002, stop=stop)
    shared["target"].row = lambda tokens, row=shared["target"].row: row(tokens)[:] * [0, 1, 1, 1, 1, 1, 1]
    seen = []
    for event in ticket:
        seen.append(event)
        if len(seen) == 3:
            stop.set()
            forwards = len(shared["target"].batches)
    assert ticket.stopped and len(seen) == 3
    assert len(shared["target"].batches) <= forwards + 3
    assert shared["target"].pool.used == shared["draft"].pool.used == 0


def test_a_request_that_waits_can_be_stopped_before_it_began():
    shared = models()
    batcher = Scheduler(most_active=1)
    try:
        shared["target"].gate.clear()
        running = submit(batcher, shared, (1, 1), 4)
        stop = threading.Event()
        waiting = submit(batcher, shared, (1, 2), 4, stop=stop)
        stop.set()
        shared["target"].gate.set()
        assert list(waiting) == [] and waiting.stopped
        assert ids(running) == alone(0, (1, 1), 4)
    finally:
        batcher.close()


def test_a_request_whose_consumer_has_gone_is_paused_and_then_cancelled(batcher, monkeypatch):
    monkeypatch.setattr(batch, "UNDELIVERED", 3)
    monkeypatch.setattr(batch, "ABANDONED_AFTER", 0.2)
    shared = models()
    shared["target"].row = lambda tokens, row=shared["target"].row: row(tokens)[:] * [0, 1, 1, 1, 1, 1, 1]
    submit(batcher, shared, (1, 2), 100_000)
    until = time.monotonic() + 5
    while not batcher.load.cancelled and time.monotonic() < until:
        time.sleep(0.02)
    assert batcher.load.cancelled == 1 and shared["target"].pool.used == 0
    assert len(shared["target"].batches) < 20
    assert ids(submit(batcher, shared, (1, 2), 4))


def test_closing_ends_what_runs_and_refuses_what_comes():
    shared = models()
    batcher = Scheduler()
    ticket = submit(batcher, shared, (1, 2), 5000, slow=0.01)
    events = iter(ticket)
    next(events)
    batcher.close()
    list(events)
    assert ticket.stopped and shared["target"].pool.used == 0
    with pytest.raises(EngineError, match="closed"):
        submit(batcher, shared)


# Failures


def fail_on(prompt: tuple[int, ...], error: Exception):
    def fault(batch):
        if any(tuple(run.sequence.tokens[: len(prompt)]) == prompt for run in batch):
            raise error

    return fault


@pytest.mark.parametrize("error", [ModelError("The inference failed: x"), CacheFull("full"), MemoryError()])
def test_of_a_forward_that_fails_only_the_request_that_made_it_fail_is_lost(batcher, error):
    shared = models()
    shared["target"].gate.clear()
    tickets = [submit(batcher, shared, (1, 2, at), 15, 2) for at in range(1, 5)]
    shared["target"].fault = fail_on((1, 2, 3), error)
    shared["target"].gate.set()
    threads = []
    got: dict[int, object] = {}

    def consume(at: int) -> None:
        try:
            got[at] = ids(tickets[at])
        except Exception as raised:
            got[at] = raised

    for at in range(4):
        threads.append(threading.Thread(target=consume, args=(at,)))
        threads[-1].start()
    for thread in threads:
        thread.join(10)
    assert got[2] is error
    assert [got[at] for at in (0, 1, 3)] == [alone(0, (1, 2, at + 1), 15) for at in (0, 1, 3)]
    assert shared["target"].pool.used == shared["draft"].pool.used == 0
    shared["target"].fault = None
    assert ids(submit(batcher, shared, (1, 2, 3), 5)) == alone(0, (1, 2, 3), 5)


def test_a_request_that_raises_by_itself_fails_alone(batcher):
    shared = models()

    def broken(_):
        yield from request(shared, (1, 2), 1)
        raise ZeroDivisionError("a bug")

    ticket, other = batcher.submit(broken, shared), submit(batcher, shared, (2, 2), 9)
    with pytest.raises(ZeroDivisionError):
        list(ticket)
    assert ids(other) == alone(0, (2, 2), 9)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("death", [RuntimeError("a bug in the loop"), SystemExit()])
def test_when_the_engines_loop_dies_its_requests_get_a_sentence_and_the_next_one_an_answer(batcher, monkeypatch, death):
    shared = models()
    ticket = submit(batcher, shared, (1, 2), 5000, slow=0.005)
    events = iter(ticket)
    next(events)
    step = Scheduler.step

    def dies(self):
        monkeypatch.setattr(Scheduler, "step", step)
        raise death

    monkeypatch.setattr(Scheduler, "step", dies)
    with pytest.raises(EngineError, match="ask again"):
        list(events)
    assert shared["target"].pool.used == 0
    assert ids(submit(batcher, shared, (1, 2), 6)) == alone(0, (1, 2), 6)
    assert batcher.load.restarts == 1
