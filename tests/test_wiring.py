"""What the commands hand on: options, variables and limits reach the servers, and every metric
counts what its name says. The servers are built as they are served, and asked in memory."""

import asyncio
import io
import json
import logging
import signal
from contextlib import ExitStack, suppress
from itertools import count
from unittest.mock import Mock, call

import httpx
import pytest
from conftest import ROOT
from helpers import race_trace, until
from prometheus_client.parser import text_string_to_metric_families
from toy_session import ToySession, byte_pair, toy_clock

from specdemo import cli
from specdemo.commands import option_name, shared
from specdemo.commands import page as page_command
from specdemo.commands import run as run_command
from specdemo.commands import serve as serve_command
from specdemo.commands.page import PageOptions
from specdemo.engine.engine import CacheUse
from specdemo.engine.scheduler import QUEUED, Activity
from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.options import parse
from specdemo.pairs import registry
from specdemo.pairs.registry import EMBEDDED, ModelChoice
from specdemo.runs.settings import Settings
from specdemo.server import metrics as metrics_module
from specdemo.server.host import Host
from specdemo.server.metrics import Record, log_requests
from specdemo.server.page.model_menu import ModelMenu
from specdemo.server.page.routes import PageGuard
from specdemo.server.page.service import Service, Visitor, VisitorLimits
from specdemo.server.request_guard import PRIVATE_NETWORKS, RequestGuard
from specdemo.server.web_server import CONNECTIONS, Server

KEY = {"Authorization": "Bearer s3cret"}
CHAT = {"model": "toy target", "messages": [{"role": "user", "content": "Hi"}]}
FAST = {**CHAT, "max_tokens": 1, "speculative": {"numerics": "fast"}}
ANSWERS = "/v1/chat/completions"
COMMANDS = pytest.mark.parametrize("command", [("serve", "--no-ray"), ("page",)], ids=" ".join)


class Built:
    """A server that a command has built, the address that it listens on, and what was called to
    open its models."""

    def __init__(self, server: Server, address: tuple[str, int], open_session: Mock):
        self.server, self.config, self.address = server, server.config, address
        self.open_session = open_session

    def ask(self, path: str, body: object = None, **headers: str) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.config.app, client=("192.0.2.7", 1))
            url = "http://127.0.0.1"
            async with httpx.AsyncClient(transport=transport, base_url=url) as client:
                method = "POST" if body else "GET"
                return await client.request(method, path, json=body, headers=headers)

        return asyncio.run(send())

    def race(self, **values: object) -> dict:
        """The last message of a race."""
        values = {"question": "Hi", "pair": "embedded", "max_new_tokens": 2, **values}
        response = self.ask("/race", {"visitor": "tab", "values": values})
        return json.loads(response.text.strip().rpartition("data: ")[2])


@pytest.fixture
def build(monkeypatch):
    """Gives the server that a command would run, with toy models."""
    for name in ("SPACE_ID", "SPACE_HOST", "SPECDEMO_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def bound_socket(host: str, port: int):
        addresses.append((host, port))
        return Mock(getsockname=lambda: (host, port))

    def build(command: str, *options: str) -> Built:
        assert cli.main([command, "--pair", "embedded", *options]) == 0
        built = Built(servers.pop(), addresses.pop(), open_session)
        until(lambda: built.ask("/health").status_code == 200)
        return built

    servers: list[Server] = []
    addresses: list[tuple[str, int]] = []
    with toy_clock(), ToySession() as toy:
        open_session = Mock(return_value=toy)
        monkeypatch.setattr("specdemo.runs.session.open_session", open_session)
        monkeypatch.setattr(ModelMenu, "fetch", lambda *_: True)
        monkeypatch.setattr(Server, "run", lambda server, sockets: servers.append(server))
        for module in (serve_command, page_command):
            monkeypatch.setattr(module, "bound_socket", bound_socket)
        yield build


@COMMANDS
def test_a_server_wants_the_key_of_its_environment(build, monkeypatch, command):
    assert build(*command).ask("/metrics").status_code == 200
    monkeypatch.setenv("SPECDEMO_API_KEY", " s3cret\n")  # as files of secrets end
    built = build(*command)
    assert built.ask("/metrics").status_code == 401
    assert built.ask("/metrics", **KEY).status_code == 200
    # All of the API needs the key, which a page of another site does not have.
    by_any_name = built.ask("/metrics", Host="any.example", **KEY).status_code
    assert by_any_name == (403 if command == ("page",) else 200)


@pytest.mark.parametrize("command", [("serve", "--no-ray"), ("serve",), ("page",)])
@pytest.mark.parametrize("key", ["schlüssel", "a\x07b"])
def test_a_key_that_no_header_can_carry_is_refused_at_the_start(monkeypatch, capsys, command, key):
    monkeypatch.setenv("SPECDEMO_API_KEY", key)
    assert cli.main([*command, "--pair", "embedded"]) == 2
    said = capsys.readouterr().err
    assert "SPECDEMO_API_KEY" in said and "printable ASCII" in said and key not in said


@COMMANDS
def test_a_server_answers_to_the_names_and_sites_of_its_options(build, command):
    options = "--allowed-host", "a.example", "--allow-origin", "https://b.example"
    built = build(*command, *options)
    for name, header, status in (
        ("a.example", "Host", 200),
        ("evil.example", "Host", 403),
        ("https://b.example", "Origin", 200),
        ("https://evil.example", "Origin", 403),
    ):
        assert built.ask("/health", **{header: name}).status_code == status, name


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("allow_origin", "https://B.example/", "https://b.example"),
        ("allow_origin", "b.example", None),
        ("allow_origin", "https://b.example/page", None),
        ("allowed_host", "a.example:8000", "a.example:8000"),
        ("allowed_host", "https://a.example", None),
        ("trusted_proxy", "10.0.0.0/8", "10.0.0.0/8"),
        ("trusted_proxy", "10.0.0.1/8", None),
        ("trusted_proxy", "proxy.example", None),
    ],
)
def test_names_that_no_request_can_have_are_refused_at_the_start(option, value, found):
    if found is None:
        with pytest.raises(BadInput, match=f"{option} is '{value}'; it must be an? "):
            parse(PageOptions, {option: [value]})
    else:
        assert getattr(parse(PageOptions, {option: [value]}), option) == (found,)
    assert RequestGuard(["a.example:8000"]).answers_to("a.example")


@COMMANDS
def test_a_server_listens_holds_connections_and_drains_as_it_is_told(build, command):
    built = build(*command, "--host", "127.0.0.2", "--port", "8123", "--drain-seconds", "7")
    assert built.address == ("127.0.0.2", 8123)
    assert built.config.limit_concurrency == CONNECTIONS + 1
    assert built.server._drain_seconds == 7
    assert built.ask("/health", Host="127.0.0.2:8123").status_code == 200


@COMMANDS
@pytest.mark.parametrize("shared", ["--shared", "--private"])
def test_strangers_get_exact_numerics_only(build, command, shared):
    built = build(*command, shared)
    if command == ("page",):
        refused = "exact numerics only" in built.race(numerics="fast").get("note", "")
    else:
        refused = built.ask("/v1/chat/completions", FAST).status_code == 400
    assert refused == (shared == "--shared")


@pytest.mark.parametrize(("shared", "most"), [("--shared", 4096), ("--private", 9_999)])
def test_strangers_get_answers_of_a_bounded_length(build, shared, most):
    models = build("serve", "--no-ray", shared).ask("/v1/models").json()
    assert models["data"][0]["max_answer_tokens"] == most


def test_strangers_choose_no_models_on_the_page(build):
    assert "This server is shared" in build("page", "--shared").race(pair="gpt2-xl")["note"]
    assert "is shared" not in build("page", "--private").race(pair="nonsense")["note"]


@pytest.mark.parametrize("space", [True, False])
def test_a_space_trusts_its_proxies_and_other_pages_those_that_are_named(build, monkeypatch, space):
    monkeypatch.setattr(page_command, "ON_SPACE", space)
    expected = PRIVATE_NETWORKS if space else ""
    assert build("page").config.forwarded_allow_ips == expected
    named = build("page", "--trusted-proxy", "192.0.2.1", "--trusted-proxy", "192.0.2.2").config
    assert (named.proxy_headers, named.forwarded_allow_ips) == (True, "192.0.2.1,192.0.2.2")


def test_the_page_of_a_tunnel_answers_to_its_name_for_strangers(build, monkeypatch):
    monkeypatch.setattr("specdemo.server.page.web_app.public_name", lambda *_: "x.gradio.live")
    built = build("page", "--share")
    assert built.ask("/health", Host="x.gradio.live").status_code == 200
    assert "This server is shared" in built.race(pair="gpt2-xl")["note"]


def test_a_race_is_that_of_the_options_and_inputs_for_its_tab_and_network(build, monkeypatch):
    built = build("page", "--max-new-tokens", "77", "--race-seconds", "0.5")
    assert '"value":77' in built.ask("/config").text.replace(" ", "")
    values = {"max_new_tokens": 3, "draft_tokens": 2, "drafter": "lookup", "temperature": 0.5}
    values |= {"top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 5, "coupling": "maximal"}
    values |= {"presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
    values["json_schema"] = '{"type": "integer"}'
    built.race(**values)
    [asked] = built.open_session.return_value.questions
    assert asked.settings == Settings(**values)
    assert asked.baseline and asked.repeat == 0.5 and asked.candidates and not asked.measured
    monkeypatch.setattr(Service, "request", Mock(side_effect=Busy("Full.")))
    assert built.race()["note"] == "Full."
    assert built.ask("/open", {"run": "{}", "visitor": "tab"}).status_code == 429
    assert Service.request.mock_calls == [call(Visitor("tab", "192.0.2.7/32"))] * 2


def test_the_page_downloads_a_pair_unless_it_may_not(build, monkeypatch):
    started = Mock()
    monkeypatch.setattr(
        "specdemo.server.page.background_download.BackgroundDownload.start", started
    )
    monkeypatch.setattr(registry, "default_pair", lambda: (EMBEDDED, "embedded"))
    monkeypatch.setattr(registry, "pair_to_fetch", lambda pair: registry.find_pair("gpt2-xl"))
    for offline, options, times in ((False, ["--no-fetch"], 0), (True, [], 0), (False, [], 1)):
        is_offline = Mock(return_value=offline)
        monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", is_offline)
        assert cli.main(["page", *options]) == 0
        assert started.call_count == times


def test_a_request_has_the_limit_and_the_drafter_of_the_options_unless_it_names_its_own(build):
    built = build("serve", "--no-ray", "--max-new-tokens", "1", "--drafter", "none")
    named = {"max_tokens": 2, "speculative": {"drafter": "lookup"}}
    for own, length, drafter in (({"speculative": {}}, 1, "none"), (named, 2, "lookup")):
        own["speculative"]["trace"] = True
        answer = built.ask(ANSWERS, CHAT | own).json()
        assert answer["usage"]["completion_tokens"] == length
        assert answer["speculative"]["trace"]["settings"]["drafter"] == drafter


@COMMANDS
def test_the_models_and_their_places_cores_and_cache_are_those_of_the_options(
    build, monkeypatch, command
):
    for kind, name in ((ModelMenu, "fetch"), (ToySession, "prepare")):
        monkeypatch.setattr(kind, name, Mock(return_value=True))
    models = {"pair": "", "model": "a/b", "assistant_model": "c/d", "weight_format": "int4"}
    models |= {"kv_cache": "f16"}
    options = [part for name in models for part in (option_name(name), models[name])]
    places = ["--max-ongoing", "5", "--max-waiting", "7", "--cpus-per-replica", "3"]
    capacity = {"active": 5, "waiting": 7, "threads": 3, "cache_mb": 9}
    if command == ("page",):
        places, capacity = ["--visitors", "5"], {"active": 5, "cache_mb": 9}
    built = build(*command, *options, "--thinking", "--cache-mb", "9", *places)
    [pair, _], found = built.open_session.call_args
    chosen = {name: getattr(pair.choice, name) for name in (*models, "thinking")}
    assert (chosen, found) == (models | {"thinking": True}, capacity)
    # The page fetches before it loads, and compiles the rest between questions.
    assert ModelMenu.fetch.called == (command == ("page",)) != ToySession.prepare.called


@pytest.mark.parametrize("command", [("run", "Hi"), ("bench",), ("audit",)], ids=" ".join)
def test_a_command_opens_the_models_of_its_options_with_their_threads(monkeypatch, command):
    load, opened = Mock(return_value=byte_pair()), Mock(side_effect=RequestFailed("enough"))
    for module in (shared, run_command):
        monkeypatch.setattr(module, "load_pair", load)
    monkeypatch.setattr("specdemo.runs.session.Session", opened)
    models = ["--pair", "embedded", "--kv-cache", "f16"]
    assert cli.main([*command, *models, "--threads", "3"]) == 1
    load.assert_called_once_with(ModelChoice("embedded", kv_cache="f16"))
    options = {"background": False} if "run" in command else {}  # of what ends at once
    opened.assert_called_once_with(load.return_value, threads=3, **options)


def test_a_server_whose_models_cannot_be_loaded_ends_and_says_why(build, monkeypatch, capsys):
    failing = Mock(side_effect=RequestFailed("The disk is full."))
    monkeypatch.setattr("specdemo.runs.session.open_session", failing)
    monkeypatch.setattr(Server, "run", lambda server, _: until(lambda: server.should_exit))
    assert cli.main(["serve", "--no-ray", "--pair", "embedded"]) == 1
    assert "could not be loaded: The disk is full." in capsys.readouterr().err


@COMMANDS
def test_a_server_that_ends_closes_its_models(build, command):
    built = build(*command)
    built.server._finish()
    assert built.ask("/health").json()["detail"] == "The server was stopped."


def test_the_default_pair_is_chosen_once(build, monkeypatch):
    """Replicas and later loads would choose another one once more is here."""
    choose = Mock(side_effect=[(EMBEDDED, ""), (registry.find_pair("gpt2-xl"), "")])
    monkeypatch.setattr(registry, "default_pair", choose)
    [pair, _] = build("serve", "--no-ray", "--pair", "").open_session.call_args.args
    assert pair.name == "embedded"


def test_the_guide_tells_the_limits_of_the_page_as_they_are():
    guide = (ROOT / "docs" / "guide" / "deploy-a-space.md").read_text("utf-8")
    limits, page = VisitorLimits(), PageGuard
    for row in (
        f"| requests that wait | {QUEUED} |",
        f"| characters of a question | {limits.prompt_characters:,} |",
        f"| tokens of an answer | {limits.new_tokens:,} |",
        f"| questions of one visitor at once; a minute | {limits.at_once}; {limits.per_minute} |",
        f"| questions of one network at once; a minute | {limits.of_address}; "
        f"{limits.of_address_per_minute} |",
        f"| requests of one network at work | {page.max_of_network} |",
        f"| a request's body | {page.max_body // 1_000_000} MB;",
        f"| seconds for a question, waiting included | {limits.seconds:g} |",
    ):
        assert row in guide


def test_the_log_begins_at_the_level_of_its_variable(monkeypatch):
    logger = logging.getLogger("specdemo")
    monkeypatch.setattr(logger, "level", logger.level)
    for level, found in (("WARNING", "WARNING"), ("debug", "DEBUG"), ("", "INFO")):
        monkeypatch.setenv("SPECDEMO_LOG", level)
        log_requests()
        assert logging.getLevelName(logger.level) == found
    monkeypatch.setenv("SPECDEMO_LOG", "loud")
    with pytest.raises(BadInput, match="SPECDEMO_LOG is 'loud'; it must be one of DEBUG, INFO,"):
        log_requests()


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("sent", ["from-a-proxy.1", "no id: <b>"])
def test_a_line_of_the_log_has_the_id_of_the_response(build, monkeypatch, log_format, sent):
    written = io.StringIO()
    logger = logging.getLogger("specdemo.requests")
    basic = lambda handlers: logger.addHandler(handlers[0].setStream(written) and handlers[0])  # noqa: E731
    monkeypatch.setattr("logging.basicConfig", basic)
    monkeypatch.setattr(logger, "handlers", [])
    built = build("serve", "--no-ray", "--log-format", log_format)
    answer = built.ask(ANSWERS, {**CHAT, "max_tokens": 2}, **{"X-Request-Id": sent})
    id, line = answer.headers["x-request-id"], written.getvalue()
    assert (id == sent) == (" " not in sent) and len(id) > 10
    if log_format == "text":
        assert f"[{id}] answer length" in line
    else:
        figures = json.loads(line)
        assert (figures["request"], figures["outcome"]) == (id, "length")
        assert figures["tokens"] == {"answer": 2, "baseline": 0}


@pytest.mark.parametrize("command", [("serve", "--no-ray"), ("page",)])
def test_every_line_of_a_server_is_json_where_the_log_is(build, capfd, monkeypatch, command):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logging.getLogger("specdemo"), "level", logging.NOTSET)
    server = build(*command, "--log-format", "json").server
    server._guard.open = 1
    server.handle_exit(signal.SIGTERM, None)
    out, err = capfd.readouterr()
    messages = [json.loads(line)["message"] for line in err.splitlines()]
    assert not out and messages[-1].startswith("Finishing what has begun")


def test_without_a_folder_for_temporary_files_the_page_says_what_to_set(monkeypatch, capsys):
    missing = FileNotFoundError("No usable temporary directory found in ['/tmp']")
    monkeypatch.setattr("tempfile.gettempdir", Mock(side_effect=missing))
    assert cli.main(["page", "--pair", "embedded"]) == 1
    assert "set TMPDIR to one that can" in capsys.readouterr().err


# Metrics


def figures_of(metrics: str) -> dict[str, float]:
    """Every figure by its name and the values of its labels, without the parts of histograms."""
    families = text_string_to_metric_families(metrics)
    figures = (figure for family in families for figure in family.samples)
    return {
        " ".join([figure.name, *figure.labels.values()]): figure.value
        for figure in figures
        if not figure.name.endswith(("_created", "_bucket"))
    }


def test_every_metric_counts_what_its_name_says(monkeypatch):
    ticks = count()  # of a clock: the first token, the end of the answer, and others later
    monkeypatch.setattr(metrics_module, "time", Mock(monotonic=lambda: next(ticks)))
    blocks = {"target": CacheUse(5, 2, 100), "draft": CacheUse(3, 0, 50)}
    session = Mock(activity=Activity(2, 3, 4), engine=Mock(cache_blocks=lambda: blocks))
    pair = ModelChoice("embedded")
    host = Host(pair, lambda *_: session)
    host.load(pair).result(30)
    metrics = host.counters
    trace = race_trace(*"abcdef")  # five rounds draft a token: three are accepted, two are not
    with Record(metrics) as record:
        for event in (*trace.rounds, *trace.baseline.tokens[:4], trace):
            record.count(event)
    for error in (Busy("Full."), KeyError(), GeneratorExit()):
        with suppress(type(error)), Record(metrics):
            raise error
    with ExitStack() as visitors:
        for _ in range(6):
            visitors.enter_context(host.lent_session(pair))
        text = asyncio.run(host.metrics())
    assert figures_of(text) == {
        "specdemo_requests_total baseline length": 1,
        "specdemo_requests_total answer refused": 1,
        "specdemo_requests_total answer error": 1,
        "specdemo_requests_total answer cancelled": 1,
        "specdemo_tokens_total answer": 6,
        "specdemo_tokens_total baseline": 4,
        "specdemo_prompt_tokens_total": 5,
        "specdemo_rounds_total": 6,
        "specdemo_draft_tokens_total": 5,
        "specdemo_draft_tokens_accepted_total": 3,
        "specdemo_errors_total KeyError": 1,
        "specdemo_time_to_first_token_seconds_count": 1,
        "specdemo_time_to_first_token_seconds_sum": 1,
        "specdemo_answer_seconds_count": 1,
        "specdemo_answer_seconds_sum": 2,
        "specdemo_visitors": 6,
        "specdemo_requests_active": 2,
        "specdemo_requests_waiting": 3,
        "specdemo_engine_restarts": 4,
        "specdemo_cache_blocks_used target": 5,
        "specdemo_cache_blocks_used draft": 3,
        "specdemo_cache_blocks_limit target": 100,
        "specdemo_cache_blocks_limit draft": 50,
    }
