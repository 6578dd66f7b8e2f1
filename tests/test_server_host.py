"""The host of a server's models: loading for several who wait, changing, damaged files."""

import asyncio
import threading
from contextlib import aclosing
from unittest.mock import Mock

import pytest
from helpers import until
from toy_session import ToySession

from specdemo.errors import DamagedModel, RequestFailed
from specdemo.pairs.registry import ModelChoice, PairInfo
from specdemo.server.backend import LocalBackend, NotReady
from specdemo.server.host import Host
from specdemo.server.schema import CompletionRequest
from specdemo.server.server_options import ServeOptions

SMALL, LARGE = ModelChoice("small"), ModelChoice("large")


class Loading:
    """A host that answers with SMALL; LARGE is loaded once `go` is set, or fails with `error`."""

    def __init__(self) -> None:
        self.go, self.error, self.opened = threading.Event(), "", []
        self.host = Host(SMALL, self.open)
        self.host.load(SMALL).result(30)

    def open(self, pair: ModelChoice, report) -> ToySession:
        self.opened.append(pair)
        if pair == LARGE:
            self.go.wait(30)
            if self.error:
                raise RequestFailed(self.error)
        return ToySession(info=PairInfo(pair.pair, pair.pair, None))

    def states(self, pair: ModelChoice = LARGE):
        return self.host.states(pair, threading.Event())


@pytest.fixture
def loading():
    made = Loading()
    yield made
    made.error = (
        "The test has ended."  # toy sessions of two threads would patch each other's models
    )
    made.go.set()
    made.host.close()


@pytest.mark.parametrize("leaves", ["first", "last"])
def test_one_who_stops_waiting_takes_the_pair_from_nobody_else(loading, leaves):
    first, last = loading.states(), loading.states()
    assert next(first).kind == next(last).kind == "loading"
    leaving, staying = (first, last) if leaves == "first" else (last, first)
    leaving.close()
    loading.go.set()
    assert list(staying) in ([], [loading.host.state])
    assert loading.host.ready(LARGE) and loading.opened == [SMALL, LARGE]


def test_work_that_awaits_a_pair_gets_it_although_a_visitor_leaves(loading):
    awaited, visitor = loading.host.load(LARGE), loading.states()
    next(visitor)
    visitor.close()
    loading.go.set()
    awaited.result(30)
    assert loading.host.ready(LARGE)


def test_all_who_wait_for_a_pair_read_why_it_cannot_be_loaded(loading):
    waiting = [loading.states(), loading.states()]
    for each in waiting:
        next(each)
    awaited, loading.error = loading.host.load(LARGE), "The disk is full."
    loading.go.set()
    for each in waiting:
        with pytest.raises(RequestFailed, match="could not be loaded: The disk is full."):
            list(each)
    with pytest.raises(RequestFailed, match="The disk is full."):
        awaited.result(30)
    assert loading.host.ready(SMALL) and loading.host.state.pair == SMALL


def test_a_pair_that_nobody_waits_for_any_more_is_given_up(loading):
    waiting = loading.states()
    next(waiting)
    waiting.close()
    assert loading.host.state.kind == "ready" and loading.host.ready(SMALL)


def test_a_pair_that_is_asked_for_takes_the_place_of_one_that_is_being_loaded(loading):
    waiting = loading.states()
    next(waiting)
    middle = ModelChoice("middle")
    loading.host.load(middle).result(30)
    with pytest.raises(RequestFailed, match="Another pair was chosen meanwhile"):
        list(waiting)
    with loading.host.lent_session(middle) as session:
        assert session.info.name == "middle"


def test_a_visitor_who_stops_while_a_pair_is_loaded_reads_so(loading):
    stop = threading.Event()
    waiting = loading.host.states(LARGE, stop)
    next(waiting)
    stop.set()
    with pytest.raises(RequestFailed, match="Stopped before the models were ready"):
        list(waiting)


@pytest.mark.parametrize("fails", [False, True])
def test_the_api_loads_a_damaged_model_again_and_logs_why(monkeypatch, fails, caplog):
    """If that fails, the next request tries once more."""
    damaged, again = ToySession(), ToySession()
    error = DamagedModel("openvino_model.bin changed.")
    monkeypatch.setattr(damaged, "ask", Mock(side_effect=error))
    opened = Mock(side_effect=[damaged, *([RequestFailed("No network.")] * fails), again])
    options = ServeOptions(max_new_tokens=2)
    backend = LocalBackend(options, opened)
    backend.load(options).result(30)

    async def ask() -> list:
        request = CompletionRequest(model="toy target", prompt="a", max_tokens=2)
        async with aclosing(backend.answer(request)) as pieces:
            return [piece async for piece in pieces]

    def status() -> str:
        return asyncio.run(backend.health())["status"]

    with pytest.raises(DamagedModel):
        asyncio.run(ask())
    assert "loaded again: openvino_model.bin changed" in caplog.text
    until(lambda: damaged.closed and backend.state.kind == ("failed" if fails else "ready"))
    if fails:
        with pytest.raises(NotReady, match="No network"):
            asyncio.run(ask())
        until(lambda: status() == "ready")
    assert asyncio.run(ask())
    backend.close()
