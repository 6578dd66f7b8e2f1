"""What the page's HTML holds before any of Gradio's scripts have run: its title, so that something is there to read, and
head.js. Knows HTTP only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

TITLE = "Two models answer faster than one"

_PLACE = (
    "position:absolute;top:2.6rem;left:0;right:0;max-width:1180px;margin:0 auto;padding:0 2rem;box-sizing:border-box;"
    "letter-spacing:-.02em;"
    "font:750 clamp(1.4rem,4vw,1.9rem)/1.15 ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,sans-serif"
)
_STYLE = f"<style>body:not(:has(#sd-header h1))::before{{content:'{TITLE}';{_PLACE}}}</style>"
_SCRIPT = f"<script>{(Path(__file__).parent / 'head.js').read_text(encoding='utf-8')}</script>"
_ADDED = (_STYLE + _SCRIPT).encode()

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Head:
    """ASGI middleware: adds to the head of the page at `/`. Everything else passes untouched."""

    def __init__(self, app: Callable):
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Send) -> None:
        page = scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in ("", "/")
        await self.app(scope, receive, _Insert(send) if page else send)


class _Insert:
    """Sends a response on; one of HTML only when it is complete, with the addition in it."""

    def __init__(self, send: Send):
        self._send = send
        self._start: dict[str, Any] | None = None
        self._body = b""

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kind = dict(message["headers"]).get(b"content-type", b"")
            if kind.startswith(b"text/html"):
                self._start = message
                return
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            start, body = self._start, self._body.replace(b"<head>", b"<head>" + _ADDED, 1)
            headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            await self._send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
            message = {**message, "body": body}
        await self._send(message)
