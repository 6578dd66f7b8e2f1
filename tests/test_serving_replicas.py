"""The gateway against scripted replicas that die, are full or are missing; options; the plan."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing

import pytest

from specdemo import cli
from specdemo.engine.rounds import EmittedToken, Round
from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.metrics import Metrics
from specdemo.serving import load
from specdemo.serving.backend import Event, NotReady
from specdemo.serving.command import PlanOptions, best_level, plan
from specdemo.serving.door import bound_socket
from specdemo.serving.options import ServeOptions
from specdemo.serving.replicas import ATTEMPTS, Failures, ReplicaBackend
from specdemo.serving.schema import Job
from specdemo.serving.server import require_cores
from specdemo.settings import Settings, parse
from specdemo.trace import PairInfo, Trace


class Died(Exception): ...


class Full(Exception): ...


class Impossible(Exception): ...


PAIR = PairInfo("p", "t", None)
TRACE = Trace("q", 3, 0, PAIR, Settings(), 0.0, (), "length", 0.0, 0.0)
BEGUN = Event(3)
SAID = Event(Round((), EmittedToken(1, "first"), 0.0, 0.0, 0.0), "a")
OVER = Event(TRACE, reason="length")
JOB = Job(Settings(), text="q")


class Stream:
    """What one call of a replica yields or raises, in turn; a number is a wait in seconds."""

    def __init__(self, script):
        self._script = iter(script)
        self.cancelled = False

    async def __anext__(self):
        for step in self._script:
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, type):
                raise step
            else:
                return step
        raise StopAsyncIteration

    def cancel(self):
        self.cancelled = True
        raise Died  # as Ray's does for a call that has failed


class Handle:
    """Answers its calls from scripts, one after another; reports as many replicas as it is told."""

    def __init__(self, *scripts, replicas: int = 1):
        self.streams = [Stream(script) for script in scripts]
        self.calls = 0
        figures = {"metrics": Metrics().text().decode(), "model": {"id": "t"}}
        self.told = [{"replica": f"r{at}", "in_flight": at, **figures} for at in range(replicas)]
        self.answer = self

    def options(self, *, stream):
        return self

    def remote(self, argument):
        self.calls += 1
        return self.streams[self.calls - 1]

    def broadcast(self, method):
        return self

    async def results_async(self, **_):
        return [*self.told, Died()]


def backend(handle: Handle, start_seconds: float = 5.0) -> ReplicaBackend:
    failures = Failures(Died, Full, Impossible, Exception)
    return ReplicaBackend(handle, failures, start_seconds=start_seconds)


def events(handle: Handle, **more) -> list:
    async def collect():
        async with aclosing(backend(handle, **more).answer(JOB)) as coming:
            return [event async for event in coming]

    return asyncio.run(collect())


@pytest.mark.parametrize("before", [[Died], [BEGUN, Died]])
def test_a_request_whose_replica_dies_before_it_says_anything_goes_to_another(before):
    handle = Handle(before, [BEGUN, SAID, OVER])
    found = events(handle)
    assert found == [BEGUN, SAID, OVER], "and its beginning is told once"
    assert handle.calls == 2 and all(stream.cancelled for stream in handle.streams)


def test_an_answer_whose_replica_dies_after_it_has_said_something_ends_with_a_clear_error():
    handle = Handle([BEGUN, SAID, Died], [BEGUN, SAID, OVER])
    with pytest.raises(RequestFailed, match="has died; send the request again"):
        events(handle)
    assert handle.calls == 1, "what the client has read is not repeated"


def test_a_request_that_kills_every_replica_is_given_up():
    handle = Handle(*[[Died]] * (ATTEMPTS + 1))
    with pytest.raises(NotReady, match=f"{ATTEMPTS} replicas died"):
        events(handle)
    assert handle.calls == ATTEMPTS


@pytest.mark.parametrize(
    ("script", "replicas", "raised"),
    [
        ([Full], 1, Busy),
        ([Impossible], 0, NotReady),
        ([], 0, RequestFailed),
        ([5.0], 1, Busy),
        ([5.0], 0, NotReady),
    ],
)
def test_no_replica_to_answer_is_told_apart_from_busy_ones(script, replicas, raised):
    handle = Handle(script, replicas=replicas)
    with pytest.raises(raised):
        events(handle, start_seconds=0.05)
    assert handle.streams[0].cancelled


def test_what_a_replica_refuses_is_refused_in_its_words():
    with pytest.raises(BadInput, match="too long") as caught:
        events(Handle([BadInput("too long", "prompt", "context_length_exceeded")]))
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")


def test_leaving_in_the_middle_cancels_the_replicas_work():
    handle = Handle([BEGUN, SAID, OVER])

    async def leave():
        async with aclosing(backend(handle).answer(JOB)) as coming:
            await anext(coming)

    asyncio.run(leave())
    assert handle.streams[0].cancelled


def test_health_model_and_metrics_are_those_of_the_replicas_that_answer():
    async def ask(one):
        return await one.health(), await one.metrics(), await one.model()

    health, metrics, model = asyncio.run(ask(backend(Handle(replicas=2))))
    assert health == {"status": "ready", "replicas": 2, "in_flight": 1}
    assert 'specdemo_visitors{replica="r1"} 0.0' in metrics
    assert "specdemo_requests_moved_total 0.0" in metrics
    assert model["id"] == "t"


def test_without_a_replica_there_is_no_model_to_describe():
    assert asyncio.run(backend(Handle(replicas=0)).health())["status"] == "loading"
    with pytest.raises(NotReady):
        asyncio.run(backend(Handle(replicas=0)).model())


# Options


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replicas": 2, "max_replicas": 3}, "fixed number"),
        ({"min_replicas": 3, "max_replicas": 2}, "more than --max-replicas"),
        ({"replcas": 2}, "no setting 'replcas'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given, said):
    with pytest.raises(BadInput, match=said):
        parse(ServeOptions, given)


def test_replicas_that_this_machine_has_no_cores_for_are_refused():
    require_cores(ServeOptions(replicas=2, cpus_per_replica=2), 4)
    with pytest.raises(BadInput, match="3 replicas of 2 cores each need 6 cores"):
        require_cores(ServeOptions(max_replicas=3, cpus_per_replica=2), 4)


# The command


def serve(capsys, *arguments: str) -> tuple[int, str]:
    code = cli.main(["serve", "--pair", "embedded", *arguments])
    said = capsys.readouterr().err.strip()
    assert "\n" not in said, "one sentence"
    return code, said


def test_without_ray_the_command_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, said = serve(capsys)
    assert code == 1 and "pip install -r requirements-serve.txt" in said and "--no-ray" in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--no-ray", "--replicas", "2"), "--replicas"),
        (("--no-ray", "--max-replicas", "2"), "--max-replicas"),
        (("--no-ray", "--json", "x"), "--json"),
        (("--no-ray", "--host", "192.0.2.77"), "--host"),
    ],
)
def test_options_of_the_command_that_cannot_be_used_are_named(capsys, arguments, named):
    code, said = serve(capsys, *arguments)
    assert code == 2 and named in said


def test_a_port_in_use_is_named(capsys):
    with bound_socket("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        code, said = serve(capsys, "--no-ray", "--port", port)
    assert code == 2 and f"--port {port}" in said


# The plan


def test_a_plan_has_replicas_for_the_tokens_and_for_the_answers_in_flight():
    rates = {"visitors": 8, "tokens_per_s": 200.0, "first_token_s": 0.5}
    found = plan(
        PlanOptions(1000, price_per_core_hour=0.04), {**rates, "cores": 2, "memory_bytes": 10**9}
    )
    assert found["demand_tokens_per_s"] == 2500
    assert found["answer_s"] == 0.5 + 150 / 25
    assert found["in_flight"] == pytest.approx(1000 / 60 * 6.5)
    assert found["replicas"] == 18, "2500 / (0.7 * 200) are more than 108 answers / 8"
    assert (found["cores"], found["memory_bytes"]) == (36, 18 * 10**9)
    assert found["per_million_tokens"] == pytest.approx(36 * 0.04 / (2500 * 3600) * 1e6)


def test_a_plan_takes_the_fastest_level_at_which_nobody_waits_long(tmp_path, capsys):
    names = ("visitors", "tokens_per_s", "ttft_p50_s", "ttft_p95_s", "errors")
    rows = (1, 60, 0.1, 0.2, 0), (8, 180, 0.5, 0.9, 0), (32, 240, 3, 6, 0), (9, 900, 0.1, 0.1, 3)
    levels = [dict(zip(names, row, strict=True)) for row in rows]
    figures = tmp_path / "load.json"
    figures.write_text(json.dumps({"levels": levels}))
    assert best_level(str(figures), 2, 0)["visitors"] == 8
    arguments = ["--plan", "1000", "--figures", str(figures), "--cpus-per-replica", "2"]
    assert cli.main(["serve", "--pair", "embedded", *arguments]) == 0
    assert re.search(r" 20 +40 +68000000000 ", capsys.readouterr().out), "replicas, cores, bytes"
    figures.write_text("{}")
    for wrong in (figures, tmp_path / "missing"):
        with pytest.raises(BadInput, match="--figures"):
            best_level(str(wrong), 2, 0)


def test_a_request_of_the_load_test_has_finished_or_failed_or_was_left():
    finished = load.Asked(0.0, [(1.0, 2)], text="x")
    failed = load.Asked(0.0, error="status 500")
    assert [one.left for one in (finished, failed, load.Asked(0.0, [(1.0, 2)]))] == [0, 0, 1]
    assert load.Asked(0.0, [(1.0, 2), (3.0, 9)]).tokens_until(2.0) == 2
