"""Requests that share forwards: each gets what it gets alone, nothing is kept, and a failure stays
where it happened."""

import os
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice

import pytest
from helpers import until
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import (
    BLOCK,
    HASHED_VOCABULARY,
    Language,
    ToyModel,
    alone,
    answer_ids,
    blocks_for,
    drive,
    request,
)

from specdemo.engine.decode import Limits, prefill
from specdemo.engine.drafts.lookup import LOOKUPS
from specdemo.engine.faults import Busy, CacheFull, Closed, ModelError, RequestFailed
from specdemo.engine.forwards import PREFILL_CHUNK, Forward, Reply, Run
from specdemo.engine.policy import Policy
from specdemo.engine.prefixes import PrefixCache
from specdemo.engine.profile import MERGED_TOKENS, Invariance
from specdemo.engine.request import Request, Target, answer
from specdemo.engine.rounds import Round, Timing
from specdemo.engine.sampling import Sampling
from specdemo.engine.scheduler import Handle, Scheduler


@pytest.fixture
def scheduler(request):
    with closing(Scheduler(**getattr(request, "param", {}))) as made:
        yield made


ONE = {"max_active": 1, "queued": 2}
one_at_a_time = pytest.mark.parametrize("scheduler", [ONE], indirect=True)


@pytest.fixture
def shared() -> dict[str, ToyModel]:
    return models()


@pytest.fixture
def endless(shared) -> dict[str, ToyModel]:
    """Models that never choose the stop token and take a millisecond a forward."""
    row = shared["target"].row
    shared["target"].row = lambda tokens: row(tokens) - [99, 0, 0, 0, 0, 0, 0]
    shared["target"].fault = lambda batch: time.sleep(0.001)
    return shared


def models(limit: int | None = None, draft_seed: int = 0) -> dict[str, ToyModel]:
    return {"target": ToyModel(limit=limit), "draft": ToyModel(seed=draft_seed)}


def submit(scheduler, models, prompt=(1, 2, 3), new=20, draft=0, first=False, **options):
    work = request(models, prompt, new, draft)
    return scheduler.submit(Handle(work, models, **options), first=first)


def test_the_first_round_of_a_request_counts_with_those_at_work(shared, monkeypatch):
    """It drafted as much as if it were alone, and all others waited."""
    model, requests, plan = shared["target"], [], Policy.plan
    monkeypatch.setattr(
        Policy, "plan", lambda self, *left: requests.append(self.requests) or plan(self, *left)
    )
    target = Target("exact", model, PrefixCache(model), Invariance())
    asked = Request((1, 2, 3), Sampling(), Limits(8, 100), "lookup")
    works = [answer(asked, Timing(), target, LOOKUPS[:1]) for _ in range(3)]
    [prefill, *_] = map(next, works)
    [logits] = model.forward([prefill.run])
    assert isinstance(works[0].send(Reply(logits, 0.0)), Round)
    next(works[0])
    for work in works:
        work.close()
    assert requests == [3] and not target.policy.answering


class SlowLanguage(Language):
    def mask(self):
        time.sleep(0.005)
        return super().mask()


def test_masks_that_come_late_are_of_their_own_forwards_logits(scheduler, endless):
    """Meanwhile the forwards of another request overwrite these."""
    work = request(endless, (1, 2, 3), 12, 2, Language(1, HASHED_VOCABULARY))
    expected = answer_ids(drive(work, endless)[0])
    other = submit(scheduler, endless, (4, 5), new=2000)
    until(lambda: scheduler.activity.active)
    work = request(endless, (1, 2, 3), 12, 2, SlowLanguage(1, HASHED_VOCABULARY))
    constrained = scheduler.submit(Handle(work, endless))
    assert answer_ids(list(constrained.events())) == expected
    assert not other.result, "the other request ran all the time"
    other.stop.set()


def test_a_reply_says_what_the_request_itself_took_since_its_targets_last(
    scheduler, shared, monkeypatch
):
    clock, own = iter(range(100)), []
    monkeypatch.setattr("specdemo.engine.scheduler.perf_counter", lambda: next(clock))
    sequences = {name: model.new_sequence() for name, model in shared.items()}

    def work():
        for name in ("target", "draft", "target", "target"):
            own.append((yield Forward(name, Run(sequences[name], [1], 1))).own)

    list(scheduler.submit(Handle(work(), shared)).events())
    assert own == [1, 1, 2, 1], "a second passes whenever the request goes on"


@pytest.mark.parametrize("ends", ["done", "error", "stop"])
def test_a_request_that_awaits_a_future_delays_no_other(scheduler, shared, ends):
    future, sequence = Future(), shared["target"].new_sequence()

    def work():
        yield future
        yield len((yield Forward("target", Run(sequence, [1, 2], 1))).logits.rows)
        return future.result()

    awaiting = scheduler.submit(Handle(work(), shared))
    assert answer_ids(submit(scheduler, shared).events()) == alone(0, (1, 2, 3), 20)
    assert awaiting.queue.empty()
    if ends == "stop":
        awaiting.stop.set()
        assert list(awaiting.events()) == [] and awaiting.stopped
    elif ends == "done":
        future.set_result(7)
        assert list(awaiting.events()) == [1] and awaiting.result == 7
    else:
        future.set_exception(ModelError("too complex"))
        with pytest.raises(ModelError, match="too complex"):
            list(awaiting.events())


def collect(handles: list, leave_after: dict[int, int] | None = None, **options) -> list:
    """Every handle's tokens, or the error that it raised, each in a thread of its own;
    `leave_after` closes some after so many events."""

    def consume(at: int) -> tuple[int, ...]:
        with closing(handles[at].events(**options)) as events:
            return answer_ids(list(islice(events, (leave_after or {}).get(at))))

    with ThreadPoolExecutor(len(handles)) as pool:
        done = [pool.submit(consume, at) for at in range(len(handles))]
        return [one.exception(20) or one.result() for one in done]


def holds_nothing(shared) -> bool:
    return shared["target"].pool.used == shared["draft"].pool.used == 0


REQUESTS = st.lists(
    st.tuples(
        # The longest prompts do not fit into a shared forward.
        st.lists(st.integers(1, 6), min_size=1, max_size=90).map(tuple),
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
    cache = PrefixCache(shared["target"])
    with closing(Scheduler(max_active=most)) as scheduler:
        handles = []
        for prompt, new, draft, _ in asked:
            blocks = {cache: blocks_for(len(prompt), new, draft)}
            handles.append(submit(scheduler, shared, prompt, new, draft, blocks=blocks))
        leaving = {at: leave for at, (*_, leave) in enumerate(asked) if leave}
        for (prompt, new, _, leave), got in zip(asked, collect(handles, leaving), strict=True):
            expected = alone(0, prompt, new)
            assert got == expected or leave and got == expected[: len(got)]
        assert holds_nothing(shared)
        assert (scheduler.activity.active, scheduler.activity.waiting) == (0, 0)


def test_requests_share_forwards_up_to_a_bound_and_a_larger_one_is_run_alone(scheduler, shared):
    shared["target"].gate.clear()
    first = submit(scheduler, shared, (1, 2), 1)
    until(lambda: first.admitted_at)  # it waits in a forward, so all others begin together
    handles = [submit(scheduler, shared, (1, 2) * (5 + 10 * at), 30, 4) for at in range(8)]
    shared["target"].gate.set()
    collect([first, *handles])
    batches = shared["target"].batches
    assert max(map(len, batches)) >= 4 and max(map(len, shared["draft"].batches)) >= 2
    assert all(sum(sizes) <= MERGED_TOKENS or len(sizes) == 1 for sizes in batches)


def test_where_sharing_is_not_exact_every_request_has_its_own_forwards(scheduler, shared):
    handles = [submit(scheduler, shared, (1, at), 12, merged_tokens=0) for at in range(1, 5)]
    assert all(collect(handles))
    assert all(len(sizes) == 1 for sizes in shared["target"].batches)


def test_a_long_prompt_does_not_hold_up_other_requests(scheduler, shared):
    shared["target"].gate.clear()
    long = submit(scheduler, shared, (1,) * 2000, 1)
    short = submit(scheduler, shared, (2, 3), 30)
    shared["target"].gate.set()
    collect([long, short])
    batches = shared["target"].batches
    large = [at for at, sizes in enumerate(batches) if max(sizes) == PREFILL_CHUNK]
    between = [later - sooner for sooner, later in zip(large, large[1:], strict=False)]
    answered = len(alone(0, (2, 3), 30)) - 2
    assert answered > 5 and between[:answered] == [2] * answered


@pytest.mark.parametrize("prompt", [2, 40, 300])
def test_a_new_prompt_is_read_before_the_next_chunk_of_a_longer_one(scheduler, shared, prompt):
    """Also where several long ones are read."""
    shared["target"].gate.clear()
    late = []

    def arrives(batch):
        if len(shared["target"].batches) == 29:
            late.append(submit(scheduler, shared, (2, 3) * (prompt // 2), 1))

    shared["target"].fault = arrives
    long = [submit(scheduler, shared, (1, end) * 1000, 1) for end in (4, 5, 6)]
    shared["target"].gate.set()
    collect([*long, *late])
    first = 30  # the forward in which it arrived is over
    chunks = [PREFILL_CHUNK] * (prompt // PREFILL_CHUNK) + [prompt % PREFILL_CHUNK]
    batches = shared["target"].batches
    assert batches[first : first + len(chunks)] == [[size] for size in chunks]
    assert all(len(sizes) == 1 for sizes in batches if max(sizes) == PREFILL_CHUNK)


def read_prompt(model, tokens: int, shared_since: int) -> tuple[list[int], bytes]:
    """The sizes of the forwards of a prompt, and its logits; it is alone before `shared_since`."""
    fair = lambda context: 7 if context > 100 else 30  # noqa: E731
    sizes, reply = [], None
    with model.new_sequence() as sequence:
        work = prefill(sequence, tuple(range(tokens)), fair_chunk=fair)
        while True:
            try:
                run = work.send(reply).run
            except StopIteration as done:
                return sizes, done.value.logits.rows.tobytes()
            sizes.append(len(run.tokens))
            [logits] = model.forward([run])
            reply = Reply(logits, 0.0, shared=sequence.length > shared_since)


def test_a_prompt_is_read_in_fair_chunks_once_there_are_other_requests():
    read = [read_prompt(ToyModel(), 200, since) for since in (1000, 0)]
    assert [sizes for sizes, _ in read] == [[63, 63, 63, 11], [63, 30, 30, *[7] * 11]]
    assert read[0][1] == read[1][1]


def test_requests_are_admitted_only_as_far_as_their_worst_cases_fit_the_cache(scheduler):
    shared = models(limit=12)
    blocks = {PrefixCache(shared["target"]): 5}
    handles = [submit(scheduler, shared, (1, 2, at), 12, blocks=blocks) for at in range(1, 8)]
    assert collect(handles) == [alone(0, (1, 2, at), 12) for at in range(1, 8)]
    assert max(map(len, shared["target"].batches)) == 2, "two worst cases fit"


def test_kept_texts_make_room_for_an_admitted_request(scheduler):
    shared = models(limit=5)
    cache = PrefixCache(shared["target"])
    kept = cache.model.new_sequence()
    kept.tokens = [9] * (5 * BLOCK)
    kept.reserve(len(kept.tokens))
    cache.keep(kept)
    assert len(cache.blocks()) == 5
    collect([submit(scheduler, shared, (1, 2, 3), 12, blocks={cache: 5})])
    assert not cache.blocks()


@one_at_a_time
def test_a_full_queue_refuses_and_waiting_requests_are_told_their_places(scheduler, shared):
    collect([submit(scheduler, shared, (3, 1), 2)])
    shared["target"].gate.clear()
    handles = [submit(scheduler, shared, (1, 1), 9)]
    until(lambda: scheduler.activity.active)
    handles += [submit(scheduler, shared, (1, at), 9, first=at == 3) for at in (2, 3)]
    with pytest.raises(Busy, match="2 requests are waiting"):
        submit(scheduler, shared)
    assert [scheduler.waiting(one).place for one in handles] == [0, 2, 1], "the last was put first"
    events = handles[1].events(every=0.01)
    waiting = next(events)
    assert waiting.place == 2 and waiting.seconds > 0
    shared["target"].gate.set()  # before `events` is dropped, which waits for the request's end
    assert all(collect([handles[0], handles[2]]))


def test_background_work_is_done_beside_requests_while_it_is_asked_for_and_they_know(endless):
    done, enough = [], threading.Event()

    def work():
        for step in range(6):
            done.append(step)
            yield enough.set() if step == 2 else None

    with closing(Scheduler(background=False)) as scheduler:
        handle = submit(scheduler, endless, (1, 2), 100_000)
        events = handle.events()
        scheduler.run_in_background(work())
        next(events)
        assert scheduler.activity.preparing and not done and not handle.compiling
        scheduler.hurry(enough)
        until(enough.is_set)
        next(events)
        assert scheduler.activity.active == 1 and handle.compiling
        assert scheduler.activity.preparing and done == [0, 1, 2]


def test_after_hurried_work_the_request_that_waited_comes_first(monkeypatch):
    monkeypatch.setattr("specdemo.engine.background.QUIET", 30.0)
    done, enough = [], threading.Event()

    def work():
        scheduler._background._busy_at -= 60.0  # this step takes long
        enough.set()
        yield
        done.append(1)

    with closing(Scheduler()) as scheduler:
        scheduler.run_in_background(work())
        scheduler.hurry(enough)
        until(enough.is_set)
        time.sleep(0.05)
        assert not done


def test_work_whose_end_drops_the_engine_and_so_closes_the_scheduler_is_no_fault(caplog):
    scheduler, ended = Scheduler(), threading.Event()
    engine = {ended}  # a set can be referred to weakly
    weakref.finalize(engine, scheduler.close)
    scheduler.run_in_background(step for step, _ in enumerate([engine]))
    scheduler.hurry(ended)
    del engine
    scheduler._thread.join()
    assert not caplog.records


@pytest.mark.parametrize("timed", [False, True])
def test_nothing_is_prepared_beside_a_race(endless, monkeypatch, timed):
    monkeypatch.setattr("specdemo.engine.background.PATIENCE", 0.0)
    done = []
    with closing(Scheduler()) as scheduler:
        events = submit(scheduler, endless, (1, 2), 100_000, timed=timed).events()
        next(events)
        scheduler.run_in_background(done.append(scheduler.activity.active) for _ in range(3))
        for _ in range(20):
            next(events)
        assert any(done) is not timed, "the active requests during each step"


# Stopping


@one_at_a_time
def test_a_request_that_waits_can_be_stopped_before_it_began(scheduler, shared):
    shared["target"].gate.clear()
    running = submit(scheduler, shared, (1, 1), 4)
    stop = threading.Event()
    waiting = submit(scheduler, shared, (1, 2), 4, stop=stop)
    stop.set()
    shared["target"].gate.set()
    assert collect([waiting, running]) == [(), alone(0, (1, 1), 4)] and waiting.stopped


def test_closing_ends_what_runs_and_refuses_what_comes(scheduler, endless):
    handle = submit(scheduler, endless, (1, 2), 5000)
    events = handle.events()
    next(events)
    scheduler.close()
    list(events)
    assert handle.stopped and holds_nothing(endless)
    with pytest.raises(Closed, match="closed"):
        submit(scheduler, endless)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_of_the_process_is_refused_and_the_process_goes_on(scheduler, shared):
    if not (child := os.fork()):
        with suppress(RequestFailed):
            submit(scheduler, shared)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert collect([submit(scheduler, shared, (1, 1), 4)]) == [alone(0, (1, 1), 4)]


# Failures


@pytest.mark.parametrize("error", [ModelError("x"), CacheFull("full"), MemoryError()])
def test_of_a_forward_that_fails_only_the_request_that_failed_is_lost(scheduler, shared, error):
    def fault(batch):
        if any(run.sequence.tokens[:3] == [1, 2, 3] for run in batch):
            raise error

    shared["target"].gate.clear()
    handles = [submit(scheduler, shared, (1, 2, at), 15, 2) for at in range(1, 5)]
    shared["target"].fault = fault
    shared["target"].gate.set()
    expected = [alone(0, (1, 2, at), 15) for at in range(1, 5)]
    assert collect(handles) == [*expected[:2], error, expected[3]]
    assert holds_nothing(shared)


def test_a_request_that_raises_by_itself_fails_alone(scheduler, shared):
    def broken():
        yield from request(shared, (1, 2), 1)
        raise ZeroDivisionError("a bug")

    handle = scheduler.submit(Handle(broken(), shared))
    failed, answered = collect([handle, submit(scheduler, shared, (2, 2), 9)])
    assert isinstance(failed, ZeroDivisionError) and answered == alone(0, (2, 2), 9)


@pytest.mark.parametrize("error", [RuntimeError("a bug in the loop"), SystemExit()])
def test_when_the_engines_loop_fails_its_requests_are_told_and_the_next_one_is_answered(
    scheduler, endless, monkeypatch, error
):
    events = submit(scheduler, endless, (1, 2), 5000).events()
    next(events)
    step = Scheduler.step

    def failing(self):
        monkeypatch.setattr(Scheduler, "step", step)
        raise error

    monkeypatch.setattr(Scheduler, "step", failing)
    with pytest.raises(RequestFailed, match="ask again"):
        list(events)
    assert holds_nothing(endless)
    assert collect([submit(scheduler, models(), (1, 2), 6)]) == [alone(0, (1, 2), 6)]
    assert scheduler.activity.restarts == 1
