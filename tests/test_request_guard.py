"""Who may ask a server, how large and how slow a request may be, and how a server ends."""

import asyncio
import json
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext, suppress
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from helpers import page_application, page_server, running, service_of
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from toy_session import ToySession

from specdemo.errors import BadInput
from specdemo.server import request_guard, web_server
from specdemo.server.page import routes
from specdemo.server.request_guard import RequestGuard
from specdemo.server.server_options import ServerOptions
from specdemo.server.web_server import Server, bound_socket

JSON = {"Content-Type": "application/json"}


def app_of(guard: RequestGuard, answer) -> Starlette:
    """An application that answers every path behind the guard."""
    routes = [Route("/{path:path}", answer, methods=["GET", "POST"])]
    return Starlette(routes=routes, middleware=guard.middleware())


async def length(request):
    return PlainTextResponse(str(len(await request.body())))


URL = "http://127.0.0.1:8000/"


def ask(guard: RequestGuard, method: str = "GET", url: str = URL, **sent):
    """The response of an application that says the length of what it was sent."""
    transport = httpx.ASGITransport(app_of(guard, length))

    async def send():
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.request(method, url, **sent)

    return asyncio.run(send())


def statuses(app: Starlette, addresses: list[str], go_on: asyncio.Event, body=None) -> list[int]:
    """Of requests from these addresses, with the content that `body` makes; `go_on` is set when all
    are at work."""

    async def send():
        tasks = []
        for address in addresses:
            client = httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(address, 1)))
            sent = {"headers": JSON, "content": body()} if body else {}
            sending = client.request("POST" if body else "GET", URL, **sent)
            tasks.append(asyncio.create_task(sending))
            for _ in range(100):  # far more steps than it takes to the guard
                await asyncio.sleep(0)
        go_on.set()
        return [response.status_code for response in await asyncio.gather(*tasks)]

    return asyncio.run(send())


def message_of(response: httpx.Response) -> str:
    return response.json()["error"]["message"]


# Who may ask

OWN = ["LOCALHOST:1", "[::1]:8000", "192.0.2.7", "demo.example", "somebody-demo.hf.space"]
OTHER = ["evil.example", "127.0.0.1.evil.example", "", "[::1"]


@pytest.mark.parametrize("host", OWN + OTHER)
def test_a_server_answers_to_its_own_names_and_to_addresses_only(monkeypatch, host):
    monkeypatch.setenv("SPACE_HOST", "somebody-demo.hf.space")
    response = ask(RequestGuard(["demo.example"]), headers={"Host": host})
    assert response.status_code == (200 if host in OWN else 403)
    assert host in OWN or "--allowed-host" in message_of(response)


FRIENDS = ["http://localhost:8000", "https://friend.example", "https://demo.example"]
OTHERS = "localhost:9000 127.0.0.1:1 evil.example 192.0.2.7:8000".split()
STRANGERS = ["null", *map("http://{}".format, OTHERS)]


@pytest.mark.parametrize("origin", FRIENDS + STRANGERS)
def test_pages_of_other_sites_may_not_ask_unless_they_are_allowed(origin):
    names = ["127.0.0.1", "demo.example"]
    guard = RequestGuard(names, allow_origins=["https://friend.example"])
    url, headers = "http://localhost:8000/", {"Origin": origin, **JSON}
    status = ask(guard, "POST", url, headers=headers, content="{}").status_code
    assert status == (200 if origin in FRIENDS else 403)
    wanted = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    allowed = ask(guard, "OPTIONS", url, headers=wanted).headers.get("access-control-allow-origin")
    assert allowed == ("https://friend.example" if "friend" in origin else None)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_form_of_another_site_can_send_is_not_read(kind):
    response = ask(RequestGuard(), "POST", headers={"Content-Type": kind}, content="{}")
    assert response.status_code == 415 and "application/json" in message_of(response)
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize("space", [True, False])
def test_browsers_keep_to_types_and_the_page_stays_out_of_strangers_frames(monkeypatch, space):
    if space:
        monkeypatch.setenv("SPACE_ID", "a/b")
    headers = ask(RequestGuard(allow_origins=["https://a.example"])).headers
    assert headers["x-content-type-options"] == "nosniff"
    policy = None if space else "frame-ancestors 'self' https://a.example"
    assert headers.get("content-security-policy") == policy


def test_without_the_key_no_body_is_read():
    pieces = []

    async def body():
        pieces.append(b"{}")
        yield pieces[-1]

    response = ask(RequestGuard(key="s3cret"), "POST", headers=JSON, content=body())
    assert response.status_code == 401 and not pieces


def test_one_network_cannot_hold_every_connection():
    guard, go_on = RequestGuard(), asyncio.Event()
    guard.max_of_network = 2

    async def wait(request):
        await go_on.wait()
        return PlainTextResponse("")

    addresses = ["192.0.2.7"] * 3 + ["192.0.2.8", "127.0.0.1"]
    expected = [200, 200, 429, 200, 200]
    assert statuses(app_of(guard, wait), addresses, go_on) == expected
    assert not guard._of_network


def test_bodies_that_never_end_take_little_memory(monkeypatch):
    monkeypatch.setattr(request_guard, "MAX_UNREAD", 10_000)
    guard, go_on = RequestGuard(), asyncio.Event()

    async def endless():
        yield b"x" * 6_000
        await go_on.wait()

    app, addresses = app_of(guard, length), ["192.0.2.7", "192.0.2.7", "192.0.2.8"]
    assert statuses(app, addresses, go_on, endless) == [400, 429, 400]
    assert not guard._unread


def test_strangers_share_a_server_that_others_reach_unless_an_option_says_otherwise(monkeypatch):
    monkeypatch.delenv("SPACE_ID", raising=False)
    own = ["127.0.0.1", "localhost", "::1", "127.0.0.2"]
    assert not any(ServerOptions(host=host).strangers for host in own)
    others = "0.0.0.0", "::", "192.0.2.7", "demo.example"
    assert all(ServerOptions(host=host).strangers for host in others)
    assert ServerOptions(share=True).strangers
    assert not ServerOptions(host="::", shared=False).strangers
    monkeypatch.setenv("SPACE_ID", "somebody/demo")
    assert ServerOptions().strangers


# Size and time


def test_a_body_over_the_limit_is_refused_while_it_is_read():
    async def spaces(count: int):
        yield b"1"
        for _ in range(count):
            yield b" " * 1_000_000

    responses = [ask(RequestGuard(), "POST", headers=JSON, content=spaces(n)) for n in (3, 4)]
    assert [response.status_code for response in responses] == [200, 413]
    assert responses[0].text == "3000001" and "4,000,000 bytes" in message_of(responses[1])


@pytest.fixture
def serving():
    """Starts a server behind a guard; gives it and its address."""
    with ExitStack() as stack:

        def start(answer=length, guard: RequestGuard | None = None, drain=1, **options):
            guard = guard or RequestGuard()
            server = Server(app_of(guard, answer), guard, drain, **options)
            url = httpx.URL(stack.enter_context(running(server)))
            return server, (url.host, url.port)

        yield start


def exchange(address, sent: bytes, *, loose: bool = False) -> bytes:
    """What a server answers until it closes the connection. The client sends as much as is taken
    (`loose`)."""
    with socket.create_connection(address) as connection:
        connection.settimeout(30)
        with suppress(ConnectionError) if loose else nullcontext():
            connection.sendall(sent)
        answer = b""
        with suppress(ConnectionResetError):
            while piece := connection.recv(10_000):
                answer += piece
    return answer


def statuses_of(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", answer)]


@pytest.fixture(scope="module")
def address():
    """Of a server with a key that answers with a request's host, in a moment."""

    async def host(request):
        await asyncio.sleep(0.01)
        text = request.headers.get("host", "localhost")
        if request.url.query == "stream":
            return StreamingResponse(iter([text[:2], text[2:]]))
        return PlainTextResponse(text)

    guard = RequestGuard(key="s3cret")
    with running(Server(app_of(guard, host), guard, 1)) as url:
        yield "127.0.0.1", httpx.URL(url).port


HOST = b" HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /health" + HOST + b"\r\n"
LAST = GET[:-2] + b"Connection: close\r\n\r\n"
POST = b"POST /health" + HOST + b"Content-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
TINY = CHUNKED + b"\r\n" + b"1\r\n1\r\n" * 20_000


@pytest.mark.parametrize("sent", [b"", GET[:-9], GET + b"GET"])
def test_a_connection_that_stops_before_its_request_is_whole_is_closed(serving, monkeypatch, sent):
    monkeypatch.setattr(web_server, "HEAD_SECONDS", 0.1)
    exchange(serving()[1], sent)


def test_a_body_that_does_not_come_is_answered_with_408(serving, monkeypatch):
    monkeypatch.setattr(request_guard, "BODY_SECONDS", 0.1)
    assert statuses_of(exchange(serving()[1], POST + b"Content-Length: 100\r\n\r\n{")) == [408]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (GET.replace(b"1.1", b"9.9"), [505]),
        (GET.replace(b"1.1", b"2.0"), [505]),
        (GET.replace(b"1.1", b"1.0"), [200]),
        (GET.replace(b"1.1", b"1.0").replace(b"health", b"health?stream"), [200]),
        (GET.replace(b"1.1\r\nHost: localhost", b"1.0"), [200]),
        (GET.replace(b"1.1\r\nHost: localhost", b"1.0\r\nOrigin: http://a.example"), [403]),
        (GET.replace(b"Host", b"Hosts"), [400]),
        (GET.replace(b"\r\n", b"\r\nHost: localhost\r\n", 1), [400]),
        (GET.replace(b"\r\n", b"\n"), [400]),
        (LAST.replace(b"/health", b"http://localhost:1/health?b", 1), [200]),
        (LAST.replace(b"/health", b"http://[::1]?b", 1), [401]),
        (LAST.replace(b"/health", b"http://evil.example/health", 1), [403]),
        (CHUNKED + b"Content-Length: 1\r\n\r\n1\r\n1\r\n0\r\n\r\n", [400]),
        (CHUNKED + b"\r\n1\r\n1\r\n0\r\nHost: evil.example\r\n\r\n" + LAST, [200, 200]),
        (GET * 9 + LAST, [200] * 10),
        (GET + b"nonsense\r\n\r\n", [200]),
        (GET[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + LAST, [200, 200]),
    ],
)
def test_requests_are_read_and_connections_closed_as_rfc_9112_says(address, sent, expected):
    answer = exchange(address, sent)
    assert statuses_of(answer) == expected and b"\r\n\r\nevil" not in answer
    assert b"1.0" not in sent or expected != [200] or answer.endswith(b"\r\n\r\nlocalhost")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("end", [socket.socket.close, lambda own: own.shutdown(socket.SHUT_WR)])
def test_a_client_that_closes_its_side_counts_as_gone(serving, version, end):
    begun, gone = threading.Event(), threading.Event()

    async def slow(request):
        begun.set()
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        gone.set()

    with socket.create_connection(serving(slow)[1]) as connection:
        connection.sendall(GET.replace(b"1.1", version))
        assert begun.wait(30)
        end(connection)
        assert gone.wait(30)


EVIL = TINY.replace(b"POST", b"OPTIONS").replace(b"json", b"json\r\nOrigin: http://evil.example")
FLOODS = {
    "chunks of a byte": (TINY, 400),
    "chunks of a byte without the key": (TINY.replace(b"health", b""), 401),
    "chunks of a byte to a method without a body": (TINY.replace(b"POST /health", b"GET /"), 401),
    "chunks of a byte before a page may ask": (EVIL, 403),
    "extensions of a chunk": (CHUNKED + b"\r\n1;" + b"x" * 90_000, 400),
    "trailers": (CHUNKED + b"\r\n0\r\n" + b"a:b\r\n" * 20_000, 400),
    "headers": (GET[:-2] + b"a:b\r\n" * 20_000, 400),
    "a header": (GET[:-2] + b"a:" + b"b" * 90_000, 400),
    "an address": (b"GET /" + b"a" * 90_000, 400),
    "empty lines": (b"\r\n" * 90_000, 400),
}


@pytest.mark.parametrize("name", FLOODS)
def test_what_a_client_sends_without_end_is_not_read_to_it(address, name):
    sent, status = FLOODS[name]
    assert statuses_of(exchange(address, sent, loose=True)) in ([status], [])


def test_more_requests_than_may_wait_are_not_read(serving):
    made = []

    async def count(request):
        made.append(await asyncio.sleep(0.001))
        return PlainTextResponse("")

    exchange(serving(count)[1], GET * 3_000, loose=True)
    assert 1 <= len(made) <= web_server.PIPELINED + 2


def test_silent_connections_make_room_for_others(serving, monkeypatch):
    monkeypatch.setattr(web_server, "CONNECTIONS", 40)
    address = serving()[1]
    with ExitStack() as stack:
        visitor = stack.enter_context(closing(HTTPConnection(*address)))
        visitor.request("GET", "/")
        assert visitor.getresponse().read()
        for number in range(90):
            silent = stack.enter_context(socket.create_connection(address))
            silent.sendall([b"", GET[:9], POST + b"Content-Length: 9\r\n\r\n{"][number % 3])
        assert statuses_of(exchange(address, LAST)) == [200]
        visitor.auto_open = 0  # its connection is still there
        visitor.request("GET", "/")
        assert visitor.getresponse().status == 200


def test_of_active_connections_those_of_a_large_network_make_room():
    def connection(network: str, since: int, waiting=False):
        return Mock(network=network, since=since, waiting=waiting)

    large = [connection("192.0.2.0", since) for since in range(600)]
    small = [connection("", since) for since in range(200)]
    silent = [connection(f"198.51.100.{since}", since, waiting=True) for since in range(20)]
    small += [connection(f"203.0.113.{since}", since) for since in range(180)]
    everyone = large + silent + small
    web_server.make_room({*everyone[1:]})
    web_server.make_room({*everyone})
    assert [each for each in everyone if each.transport.abort.called] == large[:30] + silent


def test_a_response_that_nobody_reads_is_not_kept_long(serving, monkeypatch):
    monkeypatch.setattr(web_server, "HEAD_SECONDS", 0.1)
    written = threading.Event()

    async def large(request):
        return PlainTextResponse(b"x" * 30_000_000, background=BackgroundTask(written.set))

    with socket.create_connection(serving(large)[1]) as connection:
        connection.sendall(GET)
        assert written.wait(30)


@pytest.mark.parametrize(
    ("trusted", "told"), [("", "127.0.0.1"), (request_guard.PRIVATE_NETWORKS, "192.0.2.7")]
)
def test_the_visitors_address_is_what_a_trusted_proxy_says_and_nobody_else(serving, trusted, told):
    async def who(request):
        return PlainTextResponse(request.client.host)

    host, port = serving(who, trusted_proxies=trusted)[1]
    forwarded = {"X-Forwarded-For": "192.0.2.99, 192.0.2.7, 10.0.0.1"}
    assert httpx.get(f"http://{host}:{port}/", headers=forwarded).text == told


# The end


def test_a_server_that_is_stopped_finishes_what_has_begun_and_refuses_the_rest(serving):
    begun, go, finished = threading.Event(), threading.Event(), threading.Event()

    async def slow(request):
        begun.set()
        while not go.is_set():
            await asyncio.sleep(0.01)
        return PlainTextResponse("the whole answer")

    server, (host, port) = serving(slow, drain=60, finish=finished.set)
    url = f"http://{host}:{port}/"
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(httpx.post, url, json={}, timeout=60)
        assert begun.wait(30)
        server.handle_exit(signal.SIGTERM, None)
        refused = httpx.post(url, json={})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
        assert not finished.is_set()
        go.set()
        assert asking.result(30).text == "the whole answer"
    assert finished.wait(30)


def test_a_second_signal_ends_a_server_at_once(serving):
    guard, finished = RequestGuard(), threading.Event()
    guard.open = 1  # somebody never comes to an end
    server, _ = serving(guard=guard, drain=10_000, finish=finished.set)
    server.handle_exit(signal.SIGINT, None)
    assert not finished.wait(0.2)
    server.handle_exit(signal.SIGINT, None)
    assert finished.wait(30)


# The page


@pytest.fixture(scope="module")
def application():
    """A page and its guard. The figures need the key s3cret."""
    service = service_of(ToySession())
    return page_application(service, key="s3cret"), service


@pytest.fixture(scope="module")
def page(application):
    """The URL of the page."""
    built, service = application
    with page_server(service, application=built) as url:
        yield url


def routes_of(app, prefix: str = "") -> set[tuple[str, str]]:
    """(method, path) of every route of an application and of its parts; "{}" for a parameter."""
    pairs = set()
    for route in app.routes:
        part = getattr(route, "original_router", None) or getattr(route, "app", None)
        path = prefix + re.sub("{.*?}", "{}", getattr(route, "path", ""))
        if hasattr(part, "routes"):
            pairs |= routes_of(part, path.rstrip("/"))
        for method in getattr(route, "methods", None) or ():
            pairs.add((method.replace("HEAD", "GET"), path))
    return pairs


NAMED = {*product(["GET"], routes.READS), *product(["POST"], routes.CALLS)}
OPEN = {(method, re.sub("{.*?}", "{}", path)) for method, path in NAMED}


def test_each_route_of_gradio_is_named_or_refused(application):
    (app, guard), _ = application
    there = routes_of(app)
    assert len(there) > 60 and len(there & OPEN) > 15
    for method, path in there - OPEN:
        for part in ("x", "static/img/logo.svg", "tmp/gradio/a.json"):
            scope = {"method": method, "path": path.replace("{}", part), "query_string": b""}
            with pytest.raises(HTTPException) as refused:
                guard.largest_body(scope)
            assert refused.value.status_code == 404, (method, path)


def test_security_md_names_the_open_routes():
    text = (Path(__file__).parents[1] / "SECURITY.md").read_text("utf-8")
    named = set(re.findall(r"`(GET|POST) (/\S*)`", text))
    assert named == NAMED


SESSION = {"session_hash": "a"}
EVENT = {"data": [], "fn_index": 0, **SESSION}
FILE = {"path": "http://192.0.2.1/big", "meta": {"_type": "gradio.FileData"}}
ARGUMENTS = ["hi", 5, "auto", "auto", 0, 1, 0, 0, "exact"]
WRONG_CALLS = [
    ("gradio_api/call/v2/generate", {}, 400),
    ("gradio_api/call/v2/generate", {"instruction": FILE}, 400),
    ("gradio_api/call/v2/generate", {"instruction": "hi", "temprature": 1}, 400),
    ("gradio_api/call/v2/_race", {"instruction": "hi"}, 404),
    ("gradio_api/call/v2/generate/", {"instruction": "hi"}, 404),
    ("gradio_api/call/generate", {"data": [FILE, *ARGUMENTS[1:]]}, 400),
    ("gradio_api/call/generate", {"data": [[FILE], *ARGUMENTS[1:]]}, 400),
    ("gradio_api/call/unknown", {"data": []}, 404),
    ("gradio_api/call/generate", {"data": ["too few"]}, 400),
    ("gradio_api/call/generate", [1], 400),
    ("gradio_api/run/_race", {"data": [FILE] * 17}, 404),
    ("gradio_api/api/generate", {"data": ARGUMENTS}, 404),
    ("gradio_api/queue/join", {**EVENT, "fn_index": 9999}, 404),
    ("gradio_api/queue/join", {**EVENT, "fn_index": ["x"]}, 400),
    ("gradio_api/queue/join", {**EVENT, "fn_index": True}, 400),
    ("gradio_api/queue/join", {**EVENT, "session_hash": None}, 400),
    ("gradio_api/queue/join", {**EVENT, "session_hash": "../../etc"}, 400),
    ("gradio_api/queue/join", {**EVENT, "data": {"path": "/etc/passwd"}}, 400),
    ("gradio_api/cancel", {"session_hash": 1}, 400),
    ("gradio_api/component_server/", {"data": "", "component_id": 1, **SESSION}, 404),
    ("gradio_api/upload", {}, 404),
    ("gradio_api/stream/x", {"data": []}, 404),
]
BAD_JSON = [
    b"",
    b"{",
    b"\xff\xfe{\x00}\x00",
    b'{"data": NaN}',
    b'{"data": "\\ud800"}',
    b"[" * 100_000,
    b"1" * 10_000,
    b'{"data": ["hi", 1e999, "auto", "auto", 0, 1, 0, 0, "exact"]}',
]
BAD_RUNS = [
    {},
    {"visitor": "../x", "values": {}},
    {"visitor": "a", "values": {"question": FILE}},
    {"visitor": "a", "values": {"question": [FILE]}},
    {"visitor": "a", "values": {"../x": 1}, "run": 1},
    [1],
]
WRONG_CALLS += [("gradio_api/call/generate", body, 400) for body in BAD_JSON]
RUNS = "race", "drafts", "benchmark", "stop", "open"
WRONG_CALLS += [(path, body, 400) for path, body in product(RUNS, BAD_RUNS)]


@pytest.mark.parametrize(("path", "body", "status"), WRONG_CALLS)
def test_a_wrong_call_is_refused_in_a_sentence(page, capfd, path, body, status):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = httpx.post(f"{page}/{path}", content=content, headers=JSON)
    assert response.status_code == status, response.text
    error = response.json()
    sentence = error.get("detail") or error["error"]["message"]
    assert sentence.endswith(".") and "Traceback" not in capfd.readouterr().err


def test_gradio_gets_the_fields_that_were_checked_and_no_others(application):
    (app, guard), _ = application
    functions = app.routes[-1].app.get_blocks().fns
    number = next(number for number, one in functions.items() if one.api_name == "status_lines")
    event = {**EVENT, "fn_index": number, "trigger_id": None}
    sent = {**event, "event_data": FILE, "oauth_token": "x", "batched": True}
    scope = {"method": "POST", "path": "/gradio_api/queue/join", "headers": []}
    read = guard.validate_request(scope, json.dumps(sent).encode())
    assert json.loads(read) == event


@pytest.mark.parametrize(
    "path",
    [
        "call/generate/none",
        "call/v2/generate/none",
        "queue/data?session_hash=none",
        "proxy=http://127.0.0.1:78x12",
        "file=http://192.0.2.1/big",
        "file=/etc/passwd",
        "file=/etc/passwd/../specdemo-bench.json",
        "deep_link?session_hash=a",
        "upload_progress?upload_id=a",
        "..%2f..%2fetc%2fpasswd",
        "/openapi.json",
        "%67radio_api/login_check",
        "info/",
    ],
)
def test_what_is_not_open_is_not_found(page, path):
    assert httpx.get(f"{page}/gradio_api/{path}").status_code == 404


def test_nobody_makes_the_page_give_others_another_address(page):
    url = f"{page}/gradio_api/info"
    false = {"Host": "192.0.2.66", "X-Forwarded-Host": "evil.example", "X-Gradio-Server": "evil"}
    httpx.get(url, headers=false)
    text = httpx.get(url).text
    assert page in text and "192.0.2.66" not in text and "evil" not in text
    assert "evil" not in httpx.get(f"{page}/config", headers=false).text
    assert httpx.get(f"{page}/config", headers={"Host": "evil.example"}).status_code == 403


def test_the_files_of_the_page_are_kept_by_browsers_and_others_are_not_there(page):
    head = httpx.get(page).text
    [root] = set(re.findall(r"\./(page/\w{12}/)", head))
    for name, kind in {"main.js": "text/javascript", "style.css": "text/css"}.items():
        response = httpx.get(f"{page}/{root}{name}")
        assert response.headers["content-type"].startswith(kind)
        assert "immutable" in response.headers["cache-control"]
    assert "Plotly" in httpx.get(f"{page}/{root}plotly.min.js").text
    other = root.replace(root[5:17], "0" * 12)
    for name in ("main.js", "plotly.min.js", "style.css"):
        assert httpx.get(f"{page}/{other}{name}").status_code == 404
    for name in ("race.html", "../main.js", "layout.py", "%2e%2e/layout.py"):
        assert httpx.get(f"{page}/{root}{name}").status_code == 404


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("gzip", "gzip"), ("br, gzip;q=0.5", "gzip"), ("*", "gzip"), ("identity", None)]
    + [("gzip;q=0, identity", None), ("", None)],
)
def test_plotly_is_compressed_for_browsers_that_can_read_it(page, accepted, encoding):
    [root] = set(re.findall(r"\./(page/\w{12}/)", httpx.get(page).text))
    headers = {"Accept-Encoding": accepted}
    response = httpx.get(f"{page}/{root}plotly.min.js", headers=headers)
    assert response.headers.get("content-encoding") == encoding and "Plotly" in response.text
    assert "Accept-Encoding" in response.headers["vary"]


def test_a_link_to_the_page_is_shown_with_its_own_card(page):
    head = httpx.get(page).text
    assert 'content="Gradio"' not in head and "try out the app" not in head
    assert '<meta property="og:title" content="Speculative decoding on OpenVINO' in head
    image = re.search(r'og:image" content="([^"]+)"', head)[1]
    assert httpx.get(image).headers["content-type"] == "image/png"


def test_scripts_of_a_module_begin_after_the_first_frame(page):
    text = httpx.get(page).text
    assert 'type="module"' not in text
    assert len(re.findall(r'painted\.then\(\(\) => import\("[^"]+\.js"\)', text)) == 2


def test_the_page_of_a_link_has_its_inputs_from_the_first_moment_and_no_other_page_has(page):
    def inputs(query: dict[str, str]) -> dict[str, object]:
        text = httpx.get(page, params=query).text
        config = re.search(r"window.gradio_config = (.*?);</script>", text)
        parts = [part["props"] for part in json.loads(config[1])["components"]]
        known = (part for part in parts if {"elem_id", "value"} <= part.keys())
        return {part["elem_id"]: part["value"] for part in known}

    usual = inputs({})
    asked = {"question": "</script><head>Why?" * 400, "temperature": "0.5", "draft_tokens": "3"}
    shown = usual | {"sd-question": asked["question"]}
    shown |= {"sd-temperature": 0.5, "sd-draft_tokens": "3"}
    assert inputs({**asked, "seed": "x", "device": "GPU", "other": "1"}) == shown != usual
    assert inputs({}) == usual


def test_a_tab_that_is_open_holds_up_no_server_that_ends(page, application):
    (_, guard), _ = application
    with httpx.stream("GET", f"{page}/gradio_api/heartbeat/a") as beats:
        assert beats.status_code == 200 and guard.open == 0


def test_with_a_key_figures_are_for_those_who_have_it_and_health_tells_its_status_alone(page):
    url, key = page, {"Authorization": "Bearer s3cret"}
    assert httpx.get(f"{url}/health").json() == {"status": "ready"}
    assert httpx.get(f"{url}/health", headers=key).json()["active"] == 0
    assert httpx.get(f"{url}/metrics").status_code == 401
    assert "specdemo_visitors" in httpx.get(f"{url}/metrics", headers=key).text


def test_what_is_accepted_sends_small_writes_at_once():
    with bound_socket("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY for these only


def test_an_address_that_cannot_be_used_is_named_with_the_reason():
    with bound_socket("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(BadInput, match=rf"--port {port} cannot be used: Address .* in use\.$"):
            bound_socket("127.0.0.1", port)
    with pytest.raises(BadInput, match=r"cannot be used: [^\d(]+\.$"):
        bound_socket("no host", 0)
