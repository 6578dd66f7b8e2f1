"""The gateway against scripted replicas that die, are full or are missing; the command."""

import asyncio
from contextlib import aclosing
from threading import Event
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from specdemo import cli
from specdemo.engine.rounds import EmittedToken, Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.pairs.registry import ModelChoice, PairInfo
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace
from specdemo.server import ray
from specdemo.server.backend import NotReady, Piece
from specdemo.server.host import Host, Load
from specdemo.server.schema import CompletionRequest
from specdemo.server.server_options import ServeOptions
from specdemo.server.web_server import bound_socket

DIED, FAULTS = RayActorError(), (RayError, BackPressureError, DeploymentUnavailableError)
PAIR = PairInfo("p", "t", None)
TRACE = Trace("q", 3, 0, PAIR, Settings(), 0.0, (), "length", 0.0, 0.0)
BEGUN = Piece(Waiting(0, None))
SAID = Piece(Round((), EmittedToken(1, "first"), 0.0, 0.0, 0.0), "a")
OVER = Piece(TRACE)
ASKED = CompletionRequest(model="t", prompt="q")
METRICS = asyncio.run(Host(ModelChoice("embedded"), Mock()).metrics())


class Stream:
    """What one call of a replica yields or raises, in turn; a number is a wait in seconds."""

    def __init__(self, script):
        self._script = iter(script)
        self.cancelled = False

    async def __anext__(self):
        for step in self._script:
            if isinstance(step, FAULTS):
                raise step
            if not isinstance(step, float):
                return step
            await asyncio.sleep(step)
        raise StopAsyncIteration

    def cancel(self):
        self.cancelled = True
        raise RayActorError  # as Ray's does for a call that has failed


class Handle:
    """Answers its calls from scripts, one after another; reports as many replicas as it is told."""

    def __init__(self, *scripts, replicas: int = 1):
        self.streams = [Stream(script) for script in scripts]
        self.calls = 0
        figures = {"metrics": METRICS, "model": {"id": "t"}}
        own = ({"replica": f"r{number}", "in_flight": number} for number in range(replicas))
        self.reports = [report | figures for report in own]
        self.answer = self
        self.backend = ray.ReplicaBackend(self)

    def options(self, *, stream):
        return self

    def remote(self, *arguments):
        self.calls, self.arguments = self.calls + 1, arguments
        return self.streams[self.calls - 1]

    def broadcast(self, method):
        return self

    async def results_async(self, **_):
        return [*self.reports, DIED]


def events(handle: Handle, most: int = 100) -> list:
    """Reads so many and leaves."""

    async def collect():
        async with aclosing(handle.backend.answer(ASKED)) as coming:
            received = []
            async for event in coming:
                received.append(event)
                if len(received) == most:
                    break
            return received

    return asyncio.run(collect())


@pytest.mark.parametrize("before", [[DIED], [None, DIED], [BEGUN, DIED]])
def test_a_request_whose_replica_dies_before_it_says_anything_goes_to_another(before):
    handle = Handle(before, [BEGUN, SAID, OVER])
    assert events(handle)[-3:] == [BEGUN, SAID, OVER]
    assert handle.calls == 2 and all(stream.cancelled for stream in handle.streams)


def test_an_answer_whose_replica_dies_after_it_has_said_something_ends_with_a_clear_error():
    handle = Handle([BEGUN, SAID, DIED], [BEGUN, SAID, OVER])
    with pytest.raises(RequestFailed, match="has died; send the request again"):
        events(handle)
    assert handle.calls == 1, "what the client has read is not repeated"


@pytest.mark.parametrize(
    ("scripts", "raised"),
    [
        ([[BackPressureError(1, 1)]], Busy),
        ([[RayError()]], NotReady),
        ([[DeploymentUnavailableError(None)]], NotReady),
        ([[]], RequestFailed),
        ([[5.0]], NotReady),
        ([[DIED]] * ray.ATTEMPTS, NotReady),
    ],
)
def test_no_replica_to_answer_is_told_apart_from_busy_ones(scripts, raised, monkeypatch):
    monkeypatch.setattr(ray, "START_SECONDS", 0.05)
    handle = Handle(*scripts)
    with pytest.raises(raised):
        events(handle)
    assert all(stream.cancelled for stream in handle.streams)


def test_what_a_replica_refuses_is_refused_in_its_words():
    with pytest.raises(BadInput, match="too long") as caught:
        events(Handle([BadInput("too long", "prompt", "context_length_exceeded")]))
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")


def test_a_replica_answers_with_the_id_of_the_request_for_its_log():
    async def answer(request):
        yield request, ray.metrics.REQUEST_ID.get()

    replica = SimpleNamespace(_backend=SimpleNamespace(answer=answer))
    ray.metrics.REQUEST_ID.set("from-a-proxy.1")
    events(handle := Handle([BEGUN, OVER]))
    ray.metrics.REQUEST_ID.set("-")
    pieces = ray.EngineReplica.func_or_class.answer(replica, *handle.arguments)
    assert asyncio.run(anext(pieces)) == (ASKED, "from-a-proxy.1")


def test_leaving_in_the_middle_cancels_the_replicas_work():
    handle = Handle([BEGUN, SAID, OVER])
    events(handle, most=1)
    assert handle.streams[0].cancelled


def test_health_model_and_metrics_are_those_of_the_replicas_that_answer():
    backend = Handle(replicas=2).backend
    health = asyncio.run(backend.health())
    assert health == {"status": "ready", "replicas": 2, "in_flight": 1}
    assert 'specdemo_visitors{replica="r1"} 0.0' in asyncio.run(backend.metrics())
    assert asyncio.run(backend.model())["id"] == "t"


def test_a_replica_whose_model_cannot_be_loaded_again_is_replaced():
    check = ray.EngineReplica.func_or_class.check_health

    def health(kind: str) -> None:
        state = Load(ModelChoice("embedded"))
        state.line, state.kind = "The model could not be loaded.", kind
        asyncio.run(check(SimpleNamespace(_backend=SimpleNamespace(state=state))))

    for kind in ("loading", "ready"):
        health(kind)
    with pytest.raises(RequestFailed, match="could not be loaded"):
        health("failed")


def test_without_a_replica_there_is_no_model_to_describe():
    backend = Handle(replicas=0).backend
    assert asyncio.run(backend.health())["status"] == "loading"
    with pytest.raises(NotReady):
        asyncio.run(backend.model())


@pytest.mark.parametrize(
    ("replicas", "engines", "gateways"),
    [({"replicas": 2, "gateways": 3}, 2, 3), ({"replicas": 2, "max_replicas": 4}, (2, 4), 1)],
)
def test_the_application_on_ray_is_gateways_in_front_of_engines(
    monkeypatch, replicas, engines, gateways
):
    gateway = ray.app(replicas)._bound_deployment
    [engine, options] = gateway.init_args
    engine = engine._bound_deployment
    found = engine.num_replicas
    if scaling := engine._deployment_config.autoscaling_config:
        found = scaling.min_replicas, scaling.max_replicas
        assert scaling.target_ongoing_requests == 4, "half of --max-ongoing"
    assert (found, gateway.num_replicas) == (engines, gateways)
    assert (engine.name, options.pair, options.strangers) == (ray.ENGINE, "embedded", True)
    api = gateway.func_or_class.__serve_build_asgi_app__
    monkeypatch.setattr(ray.metrics, "log_requests", log := Mock())
    described = api(SimpleNamespace(_backend=None, _options=options)).openapi()
    assert "/v1/completions" in described["paths"] and log.mock_calls == [call("text")]


def test_an_engine_on_ray_has_the_places_cores_time_and_log_of_the_options(monkeypatch):
    options = {"cpus_per_replica": 2, "max_ongoing": 5, "max_waiting": 7, "drain_seconds": 9}
    gateway = ray.app(options)._bound_deployment
    engine = gateway.init_args[0]._bound_deployment
    limits = engine._deployment_config
    assert (limits.max_ongoing_requests, limits.max_queued_requests) == (5, 7)
    assert limits.graceful_shutdown_timeout_s == 9 and engine.ray_actor_options["num_cpus"] == 2
    monkeypatch.setattr(ray, "LocalBackend", backend := Mock())
    monkeypatch.setattr(ray.metrics, "log_requests", log := Mock())
    for cores, used in ((None, 1), (2, 2)):
        ray.EngineReplica.func_or_class(ServeOptions(cpus_per_replica=cores, log_format="json"))
        assert backend.call_args.args[0].cpus_per_replica == used
        log.assert_called_with("json")


def test_a_gateway_on_ray_has_the_key_names_and_sites_of_its_environment_and_options(monkeypatch):
    def guard():
        return api(SimpleNamespace(_backend=None, _options=options)).state.guard

    gateway = ray.app({"allowed_host": ("a.example",), "allow_origin": ("https://b.example",)})
    api = gateway._bound_deployment.func_or_class.__serve_build_asgi_app__
    options = gateway._bound_deployment.init_args[1]
    monkeypatch.setattr(ray.metrics, "log_requests", Mock())
    monkeypatch.delenv("SPECDEMO_API_KEY", raising=False)
    assert guard().key is None and guard().answers_to("a.example")
    assert not guard().answers_to("evil.example")
    assert guard().allow_origins == ("https://b.example",)
    monkeypatch.setenv("SPECDEMO_API_KEY", "s3cret")
    assert guard().key == "s3cret"


def test_the_service_has_a_cluster_of_its_own_and_says_why_it_did_not_start(monkeypatch):
    with bound_socket("127.0.0.2", 0) as probe:
        options = ServeOptions("embedded", host="127.0.0.2", port=probe.getsockname()[1])
    init, failing = Mock(), Mock(side_effect=RuntimeError("Traceback\n  of Ray\nFailed to bind."))
    for module, name, double in (
        (ray.ray, "init", init),
        (ray.ray, "shutdown", Mock()),
        (ray.signal, "signal", Mock()),
        (ray.serve, "start", failing),
    ):
        monkeypatch.setattr(module, name, double)
    with pytest.raises(RequestFailed, match=r"did not start: Failed to bind\.$"):
        ray.on_ray(options, Event()).__enter__()
    assert init.call_args.args == ("local",), "a cluster of others may be here, or have been"
    assert init.call_args.kwargs["_node_ip_address"] == "127.0.0.1"
    http = failing.call_args.kwargs["http_options"]
    assert (http.host, http.port) == ("127.0.0.2", options.port)


# The command


def serve(capsys, *arguments: str) -> tuple[int, str]:
    code = cli.main(["serve", "--pair", "embedded", *arguments])
    message = capsys.readouterr().err.strip()
    assert "\n" not in message, "one sentence"
    return code, message


def test_without_ray_the_command_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, message = serve(capsys)
    assert code == 1 and "pip install 'specdemo[serve]'" in message and "--no-ray" in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--no-ray", "--replicas", "2"), "--replicas"),
        (("--no-ray", "--max-replicas", "2"), "--max-replicas"),
        (("--no-ray", "--host", "192.0.2.77"), "--host 192.0.2.77 --port 8000 cannot be used"),
        (("--no-ray", "--model", "a/b"), "--pair embedded and --model a/b name two targets"),
        (("--replicas", "30", "--cpus-per-replica", "20"), "need 600 cores"),
    ],
)
def test_unusable_options_of_the_command_are_named(capsys, monkeypatch, arguments, named):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    code, message = serve(capsys, *arguments)
    assert code == 2 and named in message


def test_replicas_which_run_elsewhere_get_whole_paths(monkeypatch, tmp_path):
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "on_ray", started := Mock(side_effect=RequestFailed("No cluster.")))
    assert cli.main(["serve", "--model", "own", "--assistant-model", "a/b"]) == 1
    options = started.call_args.args[0]
    assert (options.model, options.assistant_model) == (str(tmp_path / "own"), "a/b")
