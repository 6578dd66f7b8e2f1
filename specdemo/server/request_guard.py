"""The checks in front of all routes of both servers: which hosts and origins may ask, how large and
how slow a request may be; and the response to a refused one."""

import asyncio
import hmac
import ipaddress
import os
import re
import socket
import uuid
from collections import Counter
from collections.abc import Iterable, MutableMapping
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from specdemo.errors import BadInput, SpecdemoError
from specdemo.options import wrong_parameter
from specdemo.server.metrics import REQUEST_ID

MAX_BODY = 4_000_000  # bytes; no prompt that fits a context is longer, and there are no uploads
MAX_UNREAD = 10 * MAX_BODY  # bytes, of one network

MAX_PIECE = 65_536  # bytes of a response that wait for a slow reader

CODES = {429: "rate_limit_exceeded", 500: "answer_interrupted", 503: "model_not_ready"}

CONNECTIONS = 1000
BODY_SECONDS = 60.0  # that a body may take
PRIVATE_NETWORKS = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,::1,fc00::/7"
"""The networks of a Space's proxies. In X-Forwarded-For the visitor's address is before theirs."""


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class RequestGuard:
    """The rules of one server, as ASGI middleware, checked before the body is read.

    The Host of a request must be localhost, an address, the name of the machine or of the Space, or
    one of `allowed_hosts` ("*" for any): a page of another site could reach the server through a
    name of that site (DNS rebinding). A browser's Origin must be that host or an allowed one. With
    a `key`, a path that `needs_key` is answered only with it. Once `closing` is set, /health and
    all but GET, HEAD and OPTIONS get 503. `open` does not count responses of `endless` paths.
    """

    endless: tuple[str, ...] = ()
    max_of_network: int = CONNECTIONS
    max_body: int = MAX_BODY  # bytes

    def __init__(
        self,
        allowed_hosts: Iterable[str] = (),
        allow_origins: Iterable[str] = (),
        key: str | None = None,
    ):
        self._space = "SPACE_ID" in os.environ
        self._machine = {"localhost", socket.gethostname().lower()}
        named = os.environ.get("SPACE_HOST", ""), *allowed_hosts
        self.hosts = {_name(name.lower()) for name in named} - {""} | self._machine
        self.allow_origins = tuple(allow_origins)
        self.key = key
        self.closing = False
        self.open = 0
        self._of_network: Counter[str] = Counter()
        self._unread: Counter[str] = Counter()  # bytes of bodies that are not whole yet

    def middleware(self) -> list[Middleware]:
        """For a Starlette application. Of other origins only allowed ones may read answers."""
        methods = headers = ["*"]
        cors = Middleware(CORSMiddleware, self.allow_origins, methods, headers)
        return [cors, Middleware(lambda app: partial(self._serve, app))]

    def needs_key(self, path: str) -> bool:
        return path not in ("/health", "/openapi.json")

    def largest_body(self, scope: Scope) -> int:
        """The most bytes of a request's body. Raises HTTPException for an address of no use."""
        return self.max_body

    def validate_request(self, scope: Scope, body: bytes) -> bytes:
        """The body that the application gets. Raises BadInput for one that is not JSON, or
        HTTPException."""
        if body:
            parsed(body)
        return body

    def answers_to(self, host: str) -> bool:
        """Whether HOST:PORT is this server."""
        name = _name(host.lower())
        return bool({name, "*"} & self.hosts or address_of(name))

    async def _serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("x-request-id", "")
        REQUEST_ID.set(sent if re.fullmatch(r"[\w.-]{1,64}", sent, re.ASCII) else uuid.uuid4().hex)
        scope.setdefault("state", {})["request_id"] = REQUEST_ID.get()
        counted = not scope["path"].startswith(self.endless)
        network = network_of(scope["client"][0] if scope["client"] else "")
        self.open += counted
        self._of_network[network] += 1
        try:
            self._check(scope)
            if network and self._of_network[network] > self.max_of_network:
                detail = f"{self.max_of_network} requests from your network are at work already."
                raise HTTPException(429, detail, {"Retry-After": "10"})
            body = self.validate_request(scope, await self._read_body(scope, receive, network))
        except ClientDisconnect:
            pass
        except (HTTPException, BadInput) as error:
            response = refusal(error)
            if isinstance(error, HTTPException) and scope["method"] == "POST":
                response.headers["Connection"] = "close"  # its body was perhaps not read
            await response(scope, receive, self._protected(send))
        else:
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def replayed() -> MutableMapping[str, Any]:
                return messages.pop() if messages else await receive()

            await app(scope, replayed, self._protected(send))
        finally:
            self.open -= counted
            self._of_network -= Counter([network])  # forgets a network without requests

    def _protected(self, send: Send) -> Send:
        """`send` in pieces, of which one waits for its reader, with headers: browsers do not guess
        the type of a file, and show the page in frames of its own site and of allowed origins only.
        A Space is shown in a frame of the Hub."""
        frames = " ".join(["'self'", *self.allow_origins])
        headers = [(b"x-content-type-options", b"nosniff")]
        headers.append((b"x-request-id", REQUEST_ID.get().encode()))
        if not self._space:
            policy = f"frame-ancestors {frames}".encode()
            headers.append((b"content-security-policy", policy))

        async def protected(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            body, begin = message.get("body", b""), 0
            while len(body) - begin > MAX_PIECE:
                await send({**message, "body": body[begin : begin + MAX_PIECE], "more_body": True})
                begin += MAX_PIECE
            await send({**message, "body": body[begin:]})

        return protected

    def _check(self, scope: Scope) -> None:
        """Raises HTTPException for a request that is not allowed, whatever its body is."""
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        site = origin.partition("://")[2]
        # HTTP/1.0, as health checks of balancers speak it, has no Host; browsers send theirs.
        nameless = not host and scope["http_version"] == "1.0"
        if not (nameless or self.answers_to(host)):
            detail = f"This server does not answer to the name {_name(host)!r:.80}; start it with "
            raise HTTPException(403, detail + "--allowed-host to allow it.")
        allowed = {origin, "*"} & {"", *self.allow_origins}
        # Other ports of this machine are other sites.
        proxied = _name(site) in self.hosts - self._machine and not address_of(_name(site))
        if not (allowed or site == host or proxied):
            detail = f"Pages of {origin!r:.80} may not ask this server; start it with "
            raise HTTPException(403, detail + "--allow-origin to allow them.")
        changes = method not in ("GET", "HEAD", "OPTIONS")
        if self.closing and (changes or path == "/health"):
            detail = "The server is being stopped and finishes what has begun; ask again later."
            raise HTTPException(503, detail, {"Retry-After": "30"})
        if self.needs_key(path) and not has_key(Request(scope), self.key):
            detail = "Send the server's API key, as in 'Authorization: Bearer YOUR_KEY'."
            raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        sent = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if method == "POST" and sent and kind != "application/json":
            detail = f"The Content-Type is {kind!r:.60}; this server takes application/json."
            raise HTTPException(415, detail)

    async def _read_body(self, scope: Scope, receive: Receive, network: str) -> bytes:
        """The body. Raises HTTPException over `largest_body`, MAX_UNREAD or BODY_SECONDS."""
        largest, body = self.largest_body(scope), bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for piece in Request(scope, receive).stream():
                    body += piece
                    self._unread[network] += len(piece)
                    if len(body) > largest:
                        detail = f"The request's body is larger than {largest:,} bytes."
                        raise HTTPException(413, detail)
                    if network and self._unread[network] > MAX_UNREAD:
                        detail = "Too much is being sent from your network at once."
                        raise HTTPException(429, detail, {"Retry-After": "10"})
        except TimeoutError:
            detail = f"The request's body was not here within {BODY_SECONDS:g} seconds."
            raise HTTPException(408, detail, {"Connection": "close"}) from None
        finally:
            self._unread -= Counter({network: len(body)})  # forgets a network that sends nothing
        return bytes(body)


def network_of(address: str) -> str:
    """The rate-limit key of an address: itself, or the /64 network of an IPv6 subscriber. Empty for
    this machine and for no address."""
    ip = address_of(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip is None or ip.is_loopback:
        return ""
    return str(ipaddress.ip_network((ip, 32 if ip.version == 4 else 64), strict=False))


def parsed(body: bytes) -> Any:
    """The JSON value of a body. Raises BadInput, also for halves of surrogate pairs."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadInput(f"The request's body is not JSON: {error}.") from None


def _name(place: str) -> str:
    """The name or address in HOST:PORT."""
    return re.sub(r":\d*$", "", place).rstrip(".").strip("[]")


def refusal(error: Exception) -> JSONResponse:
    """The response to OpenAI's clients for an exception; of an unexpected one only its class."""
    status, headers, param, code = 500, None, None, None
    message = f"The server had an error while processing your request ({type(error).__name__})."
    if isinstance(error, RequestValidationError):
        for finding in (findings := error.errors()):
            finding["loc"] = finding["loc"][1:]  # without "body"
        error = wrong_parameter(findings, error.body)
    if isinstance(error, HTTPException):
        status, message, headers = error.status_code, error.detail, error.headers
        code = {401: "invalid_api_key", 413: "request_too_large"}.get(status)
    elif isinstance(error, BadInput):
        message, param, code = str(error), error.param, error.code or "invalid_value"
        status = 404 if code == "model_not_found" else 400
    elif isinstance(error, SpecdemoError):
        status, message = error.http_status, str(error)
        code = CODES.get(status)
        headers = {"Retry-After": "1"} if status in (429, 503) else None
    kind = "invalid_request_error" if status < 500 else "server_error"
    kind = "requests" if status == 429 else kind
    body = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": body}, status, headers)


def has_key(request: Request, key: str | None) -> bool:
    """Whether the request has the key, or none is needed. Compares in constant time."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(token.strip().encode(), (key or "").encode())
    return key is None or same and scheme.lower() == "bearer"
