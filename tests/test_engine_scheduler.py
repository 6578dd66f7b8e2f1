"""Requests that share forwards: each gets what it gets alone, nothing is kept, and a failure stays
where it happened."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyModel, alone, blocks_for, request

from specdemo.engine import scheduler as scheduling
from specdemo.engine.errors import Busy, CacheFull, ModelError, RequestFailed
from specdemo.engine.scheduler import Scheduler


@pytest.fixture
def scheduler():
    made = Scheduler()
    yield made
    made.close()


@pytest.fixture
def one_at_a_time():
    made = Scheduler(most_active=1, queued=2)
    yield made
    made.close()


def models(limit: int | None = None, draft_seed: int = 0) -> dict[str, ToyModel]:
    return {"target": ToyModel(limit=limit), "draft": ToyModel(seed=draft_seed)}


def endless() -> dict[str, ToyModel]:
    """Models that never choose the stop token and take a millisecond a forward."""
    shared = models()
    row = shared["target"].row
    shared["target"].row = lambda tokens: row(tokens) * [0, 1, 1, 1, 1, 1, 1]
    shared["target"].fault = lambda batch: time.sleep(0.001)
    return shared


def submit(scheduler, models, prompt=(1, 2, 3), new_tokens=20, draft_tokens=0, **options):
    work = lambda _: request(models, prompt, new_tokens, draft_tokens)  # noqa: E731
    return scheduler.submit(work, models, **options)


def ids(events) -> tuple[int, ...]:
    return tuple(token.id for round_ in events for token in round_.tokens)


def eventually(condition) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def in_threads(*calls) -> None:
    """Run every call in a thread of its own and wait for all."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def collect(handles: list, leave_after: dict[int, int] | None = None) -> list:
    """Every handle's tokens, or the error that it raised; `leave_after` closes some after so many
    events."""
    found: list = [()] * len(handles)

    def consume(at: int) -> None:
        events = []
        iterator = iter(handles[at])
        try:
            for event in iterator:
                events.append(event)
                if leave_after and leave_after.get(at) == len(events):
                    iterator.close()
                    break
            found[at] = ids(events)
        except Exception as error:
            found[at] = error

    in_threads(*(lambda at=at: consume(at) for at in range(len(handles))))
    return found


PROMPTS = st.lists(st.integers(1, 6), min_size=1, max_size=90).map(tuple)
"""The longest do not fit into a shared forward."""

REQUESTS = st.lists(
    st.tuples(
        PROMPTS,
        st.integers(1, 25),
        st.integers(0, 5),  # draft tokens
        st.sampled_from([None, None, None, 1, 3]),  # leaves after so many rounds
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 5), st.integers(0, 2), st.sampled_from([None, 60]))
def test_each_answer_is_the_one_given_alone_and_no_block_is_kept(asked, most, seed, limit):
    shared = models(limit, draft_seed=seed)
    scheduler = Scheduler(most_active=most)
    try:
        handles = [
            submit(
                scheduler,
                shared,
                prompt,
                new,
                draft,
                blocks={shared["target"]: blocks_for(len(prompt), new, draft)},
            )
            for prompt, new, draft, _ in asked
        ]
        leaving = {at: leave for at, (*_, leave) in enumerate(asked) if leave}
        for (prompt, new, _, leave), got in zip(asked, collect(handles, leaving), strict=True):
            expected = alone(0, prompt, new)
            assert got == expected or leave and got == expected[: len(got)]
        assert limit is None or len(shared["target"].pool.references) <= limit
        assert shared["target"].pool.used == shared["draft"].pool.used == 0
        load = scheduler.load
        assert (load.active, load.waiting, load.failed) == (0, 0, 0)
    finally:
        scheduler.close()


def test_requests_share_forwards_of_the_target_and_of_the_draft(scheduler):
    shared = models()
    shared["target"].gate.clear()
    handles = [submit(scheduler, shared, (1, 2, at), 16, 3) for at in range(1, 7)]
    shared["target"].gate.set()
    collect(handles)
    # Which requests share a forward depends on the threads; some end at their first token.
    assert max(map(len, shared["target"].batches)) >= 4
    assert max(map(len, shared["draft"].batches)) >= 2


def test_a_shared_forward_is_bounded_and_a_larger_one_is_run_alone(scheduler):
    shared = models()
    shared["target"].gate.clear()
    handles = [submit(scheduler, shared, (1, 2) * (5 + 10 * at), 30, 4) for at in range(8)]
    shared["target"].gate.set()
    collect(handles)
    for sizes in shared["target"].batches:
        assert sum(sizes) <= scheduling.MERGED_TOKENS or len(sizes) == 1


def test_where_sharing_is_not_exact_every_request_has_its_own_forwards(scheduler):
    shared = models()
    handles = [submit(scheduler, shared, (1, at), 12, merged_tokens=0) for at in range(1, 5)]
    assert [len(got) > 0 for got in collect(handles)] == [True] * 4
    assert all(len(sizes) == 1 for sizes in shared["target"].batches)


def test_a_long_prompt_does_not_hold_up_other_requests(scheduler):
    shared = models()
    shared["target"].gate.clear()
    long = submit(scheduler, shared, (1,) * 2000, 1)
    short = submit(scheduler, shared, (2, 3), 30)
    shared["target"].gate.set()
    collect([long, short])
    large = [
        at
        for at, sizes in enumerate(shared["target"].batches)
        if max(sizes) > scheduling.MERGED_TOKENS
    ]
    between = [later - sooner for sooner, later in zip(large, large[1:], strict=False)]
    answered = len(alone(0, (2, 3), 30)) - 2
    assert len(large) > 5
    assert sum(gap > 1 for gap in between[:answered]) >= len(between) // 2


def test_requests_are_admitted_only_as_far_as_their_worst_cases_fit_the_cache(scheduler):
    shared = models(limit=12)
    blocks = {shared["target"]: 5}
    handles = [submit(scheduler, shared, (1, 2, at), 12, blocks=blocks) for at in range(1, 8)]
    assert collect(handles) == [alone(0, (1, 2, at), 12) for at in range(1, 8)]
    assert len(shared["target"].pool.references) <= 12
    assert max(map(len, shared["target"].batches)) == 2, "two worst cases fit"


def test_what_could_never_fit_is_refused_at_once(scheduler):
    shared = models(limit=4)
    with pytest.raises(CacheFull, match="20 tokens"):
        submit(scheduler, shared, blocks={shared["target"]: 5})


def test_a_full_queue_refuses_and_a_waiting_request_is_told_its_place_and_the_wait(one_at_a_time):
    scheduler, shared = one_at_a_time, models()
    list(submit(scheduler, shared, (3, 1), 2))
    shared["target"].gate.clear()
    handles = [submit(scheduler, shared, (1, 1), 9)]
    eventually(lambda: scheduler.load.active)
    handles += [submit(scheduler, shared, (1, at), 9) for at in (2, 3)]
    with pytest.raises(Busy, match="2 requests are waiting"):
        submit(scheduler, shared)
    places = []

    def told():
        eventually(lambda: len(places) > 2)
        shared["target"].gate.set()

    last = handles[2].events(places.append, every=0.01)
    in_threads(lambda: collect(handles[:2]), lambda: list(last), told)
    assert places[0].place == 2 and places[0].seconds > 0


def test_a_request_submitted_first_goes_before_those_that_wait(one_at_a_time):
    scheduler, shared = one_at_a_time, models()
    shared["target"].gate.clear()
    running = submit(scheduler, shared, (1, 1), 4)
    eventually(lambda: scheduler.load.active)
    later = submit(scheduler, shared, (1, 2), 4)
    first = submit(scheduler, shared, (1, 3), 4, first=True)
    places = {later: [], first: []}

    def told():
        eventually(lambda: all(places.values()))
        shared["target"].gate.set()

    waiting = [handle.events(seen.append, every=0.01) for handle, seen in places.items()]
    in_threads(told, lambda: list(running), *(lambda one=one: list(one) for one in waiting))
    assert (places[first][0].place, places[later][0].place) == (1, 2)


# Stopping


def test_stop_ends_a_request_within_one_round_and_gives_everything_back(scheduler):
    shared = endless()
    stop = threading.Event()
    handle = submit(scheduler, shared, (1, 2), 5000, 2, stop=stop)
    seen = []
    for event in handle:
        seen.append(event)
        if len(seen) == 3:
            stop.set()
            forwards = len(shared["target"].batches)
    assert handle.stopped and len(seen) == 3
    assert len(shared["target"].batches) <= forwards + 3
    assert shared["target"].pool.used == shared["draft"].pool.used == 0


def test_a_request_that_waits_can_be_stopped_before_it_began(one_at_a_time):
    scheduler, shared = one_at_a_time, models()
    shared["target"].gate.clear()
    running = submit(scheduler, shared, (1, 1), 4)
    stop = threading.Event()
    waiting = submit(scheduler, shared, (1, 2), 4, stop=stop)
    stop.set()
    shared["target"].gate.set()
    assert list(waiting) == [] and waiting.stopped
    assert ids(running) == alone(0, (1, 1), 4)


def test_a_request_whose_events_are_not_collected_is_paused_and_cancelled(scheduler, monkeypatch):
    monkeypatch.setattr(scheduling, "UNDELIVERED", 3)
    monkeypatch.setattr(scheduling, "ABANDONED_AFTER", 0.2)
    shared = endless()
    submit(scheduler, shared, (1, 2), 100_000)
    eventually(lambda: scheduler.load.cancelled)
    assert scheduler.load.cancelled == 1 and shared["target"].pool.used == 0
    assert len(shared["target"].batches) < 20
    assert ids(submit(scheduler, shared, (1, 2), 4))


def test_closing_ends_what_runs_and_refuses_what_comes(scheduler):
    shared = endless()
    handle = submit(scheduler, shared, (1, 2), 5000)
    events = iter(handle)
    next(events)
    scheduler.close()
    list(events)
    assert handle.stopped and shared["target"].pool.used == 0
    with pytest.raises(Busy, match="closed"):
        submit(scheduler, shared)


# Failures


def fail_on(prompt: tuple[int, ...], error: Exception):
    def fault(batch):
        if any(tuple(run.sequence.tokens[: len(prompt)]) == prompt for run in batch):
            raise error

    return fault


@pytest.mark.parametrize(
    "error", [ModelError("The inference failed: x"), CacheFull("full"), MemoryError()]
)
def test_of_a_forward_that_fails_only_the_request_that_made_it_fail_is_lost(scheduler, error):
    shared = models()
    shared["target"].gate.clear()
    handles = [submit(scheduler, shared, (1, 2, at), 15, 2) for at in range(1, 5)]
    shared["target"].fault = fail_on((1, 2, 3), error)
    shared["target"].gate.set()
    got = collect(handles)
    assert got[2] is error
    assert [got[at] for at in (0, 1, 3)] == [alone(0, (1, 2, at + 1), 15) for at in (0, 1, 3)]
    assert shared["target"].pool.used == shared["draft"].pool.used == 0
    shared["target"].fault = None
    assert ids(submit(scheduler, shared, (1, 2, 3), 5)) == alone(0, (1, 2, 3), 5)


def test_a_request_that_raises_by_itself_fails_alone(scheduler):
    shared = models()

    def broken(_):
        yield from request(shared, (1, 2), 1)
        raise ZeroDivisionError("a bug")

    handle, other = scheduler.submit(broken, shared), submit(scheduler, shared, (2, 2), 9)
    with pytest.raises(ZeroDivisionError):
        list(handle)
    assert ids(other) == alone(0, (2, 2), 9)


@pytest.mark.parametrize("error", [RuntimeError("a bug in the loop"), SystemExit()])
def test_when_the_engines_loop_fails_its_requests_are_told_and_the_next_one_is_answered(
    scheduler, monkeypatch, error
):
    shared = endless()
    handle = submit(scheduler, shared, (1, 2), 5000)
    events = iter(handle)
    next(events)
    step = Scheduler.step

    def failing(self):
        monkeypatch.setattr(Scheduler, "step", step)
        raise error

    monkeypatch.setattr(Scheduler, "step", failing)
    with pytest.raises(RequestFailed, match="ask again"):
        list(events)
    assert shared["target"].pool.used == 0
    others = models()
    assert ids(submit(scheduler, others, (1, 2), 6)) == alone(0, (1, 2), 6)
    assert scheduler.load.restarts == 1
