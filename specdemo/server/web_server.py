"""The web server under the page and the API: how it starts and shuts down, and what each of its
connections may cost before a request has reached the RequestGuard."""

import asyncio
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import nsmallest
from types import FrameType
from typing import Any, cast

import httptools
import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from specdemo.errors import BadInput
from specdemo.server.metrics import announce
from specdemo.server.request_guard import CONNECTIONS, RequestGuard, network_of

READ_BYTES = 8192
"""Bytes of a connection that are read in a turn of the event loop: 1,365 chunks of one byte, which
take half a millisecond."""
SURPLUS_BYTES = 65_536
"""Bytes of a request besides its body: head, sizes and extensions of chunks, trailers. A tenth of
the body is added to it."""
PIPELINED = 32  # requests that wait for the response to an earlier one of their connection
HEAD_SECONDS = 20.0  # that a client may take for a request's head, or read nothing of a response
BACKLOG = 512  # connections that are accepted in a turn of the event loop


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """HTTP/1.1 by RFC 9112, in bounded steps. The connection is closed if the head of its next
    request does not come in HEAD_SECONDS, if as long nothing of a response is read, when the client
    closes its side, and after a response that came before the request's body."""

    def connection_made(  # type: ignore[override]  # uvicorn's own parameter
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._buffer, self._surplus = bytearray(READ_BYTES), 0
        self.since = time.monotonic()
        self.network = network_of(self.client[0] if self.client else "")
        make_room(cast(set[Connection], self.connections))
        self._close_stalled(..., 0)

    @property
    def idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def waiting(self) -> bool:
        """Whether the client has the next step: to send a request, its body, or to read."""
        return self.idle or self.cycle.more_body or self.flow.write_paused

    def _close_stalled(self, latest: object, unread_before: int) -> None:
        """Close if since the last call no request has come, or nothing of a response was read."""
        unread = self.transport.get_write_buffer_size() if self.flow.write_paused else 0
        if self.idle and self.cycle is latest or unread and unread == unread_before:
            self.transport.abort()
        if not self.transport.is_closing():
            self.loop.call_later(HEAD_SECONDS, self._close_stalled, self.cycle, unread)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._surplus += nbytes
        self.data_received(bytes(self._buffer[:nbytes]))
        if self._surplus > SURPLUS_BYTES:
            self._refuse(400)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    data = b""
                except httptools.HttpParserUpgrade as upgrade:  # to no protocol of this server
                    data = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            wrong_version = "HTTP version" in f"{error} {error.__context__}"
            self._refuse(505 if wrong_version else 400)

    def _refuse(self, status: int) -> None:
        """Close the connection, after the responses to earlier requests."""
        if self.idle or self.cycle.more_body and not (self.pipeline or self.cycle.response_started):
            self.transport.write(STATUS_LINE[status] + b"Connection: close\r\n\r\n")
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._surplus = 0

    def on_headers_complete(self) -> None:
        """Raises ValueError, upon which the parser stops."""
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError("another HTTP version")
        url = httptools.parse_url(self.url)
        if url.host:  # the absolute form, whose host counts
            host = b"[%b]" % url.host if b":" in url.host else url.host
            host += b":%d" % url.port if url.port else b""
            self.headers[:] = [header for header in self.headers if header[0] != b"host"]
            self.headers.append((b"host", host))
            self.url = (url.path or b"/") + (b"?%b" % url.query if url.query else b"")
        hosts = [name for name, _ in self.headers].count(b"host")
        named = hosts == 1 or hosts == 0 and self.parser.get_http_version() == "1.0"
        if not named or len(self.pipeline) > PIPELINED:
            raise ValueError("no host, or several; or too many requests")
        super().on_headers_complete()
        self.headers = []  # for trailers, which are not read
        if self.parser.get_http_version() == "1.0":
            send = partial(send_until_close, self.cycle, self.cycle.send)
            self.cycle.send = send  # type: ignore[method-assign]

    def on_body(self, body: bytes) -> None:
        self._surplus -= len(body) + len(body) // 10
        super().on_body(body)

    def on_response_complete(self) -> None:
        if not self.pipeline and self.cycle.more_body:
            self.transport.close()
        self.since = time.monotonic()
        super().on_response_complete()


async def send_until_close(cycle: RequestResponseCycle, send: Any, message: Any) -> None:
    """`send` for HTTP/1.0, which knows no chunks: what has no length ends with the connection."""
    if message["type"] == "http.response.start":
        if "content-length" not in Headers(raw=message["headers"]):
            cycle.chunked_encoding = False
    elif not cycle.expected_content_length:
        cycle.expected_content_length = len(message.get("body", b""))
    await send(message)


def make_room(connections: set[Connection]) -> None:
    """At CONNECTIONS, close a twentieth: first those that wait for their client, then those of a
    network that has more than a tenth; of the largest network first, those that never got a
    response first, since the next request of others may be on its way, and the oldest first."""
    if len(connections) < CONNECTIONS:
        return
    sizes = Counter(connection.network for connection in connections)
    sizes[""] = 0  # not one network

    def order(connection: Connection) -> tuple[bool, int, bool, float]:
        size, answered = sizes[connection.network], connection.idle and connection.cycle is not None
        return not connection.waiting, -size, answered, connection.since

    large = {network for network, size in sizes.items() if size > CONNECTIONS // 10}
    closable = (each for each in connections if each.waiting or each.network in large)
    for connection in nsmallest(CONNECTIONS // 20, closable, key=order):
        connections.discard(connection)
        connection.transport.abort()


class Server(uvicorn.Server):
    """Serves until SIGINT or SIGTERM. Then running responses may finish within `drain_seconds`, or
    until a second signal; new requests get 503. `finish` ends the responses that would never end.
    X-Forwarded-For counts only from `trusted_proxies` (with commas between)."""

    def __init__(
        self,
        app: ASGIApp,
        guard: RequestGuard,
        drain_seconds: float,
        *,
        trusted_proxies: str = "",
        finish: Callable[[], None] = lambda: None,
    ):
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                loop="asyncio",  # which reads into the buffer of a Connection, unlike uvloop
                ws="none",
                backlog=BACKLOG,
                log_config=None,  # its warnings are lines of the log as all others are
                log_level="warning",
                access_log=False,
                proxy_headers=bool(trusted_proxies),
                forwarded_allow_ips=trusted_proxies,
                limit_concurrency=CONNECTIONS + 1,  # further requests get 503
                timeout_graceful_shutdown=3,  # seconds, for responses that `finish` ends
            )
        )
        self._guard, self._drain_seconds, self._finish = guard, drain_seconds, finish
        self._until = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._until = 0.0
        if self._guard.open and not self.should_exit:
            self._until = time.monotonic() + self._drain_seconds
            words = f"Finishing what has begun, for up to {self._drain_seconds:g} s"
            announce(f"{words}; Ctrl-C ends it now.", sys.stderr)
        self._guard.closing = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        while self._guard.open and time.monotonic() < self._until:
            await asyncio.sleep(0.1)
        await asyncio.to_thread(self._finish)
        await super().shutdown(sockets)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on the address. Raises BadInput if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        bound = socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise BadInput(f"--host {host} --port {port} cannot be used: {reason}.") from error
    # asyncio sends small writes at once only if the socket names its protocol; else 40 ms later.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, bound.detach())


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
