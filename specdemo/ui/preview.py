"""What has to be in the page as the server sends it, since Gradio's own `head` is put in late, by a
script: what other sites show of a link to the page (a title, a sentence, a card of the recorded
race; Gradio's template says "Gradio"), and what ends the loop of Gradio's loading screen.
"""

from __future__ import annotations

import html
import os
import re
from typing import TYPE_CHECKING

from specdemo.ui.page import DESCRIPTION, STATIC, TITLE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CARD = STATIC / "card.png"
"""The card of the recorded race; `tools/page_pictures.py` makes it."""

STOP_LOOP = b"""<script>{
  const frame = requestAnimationFrame;
  window.requestAnimationFrame = (draw) =>
    window.specdemo?.stage && String(draw).includes("performance.now()") ? 0 : frame(draw);
}</script>"""
"""Gradio 6.31's loading screen leaves a loop behind that asks for sixty frames a second, which take
5 % of a core. It ends once the page is there."""

THEIRS = re.compile(rb'<meta\s+(?:property|name)="(?:og|twitter):[^>]*>\s*')


class Preview:
    """ASGI middleware: serves /card.png, and names the page and the card in the page's head."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import Request
        from starlette.responses import FileResponse

        if scope["type"] != "http" or scope["path"] not in ("/", "/card.png"):
            return await self._app(scope, receive, send)
        if scope["path"] == "/card.png":
            return await FileResponse(CARD)(scope, receive, send)
        parts: list[Message] = []

        async def gather(message: Message) -> None:
            parts.append(message)

        await self._app(scope, receive, gather)
        start, body = parts[0], b"".join(part.get("body", b"") for part in parts[1:])
        host = os.environ.get("SPACE_HOST")
        url = f"https://{host}/" if host else str(Request(scope).base_url)
        body = THEIRS.sub(b"", body).replace(b"<head>", b"<head>" + STOP_LOOP + tags(url), 1)
        kept = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
        headers = [*kept, (b"content-length", str(len(body)).encode())]
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def tags(url: str) -> bytes:
    """The tags of a page at `url`."""
    told = {"title": TITLE, "description": DESCRIPTION, "image": url + "card.png"}
    named = {"description": DESCRIPTION, "twitter:card": "summary_large_image"}
    named |= {f"twitter:{name}": text for name, text in told.items()}
    named |= {f"og:{name}": text for name, text in {"type": "website", "url": url, **told}.items()}
    lines = (
        f'<meta {"property" if name.startswith("og:") else "name"}="{name}" '
        f'content="{html.escape(text)}">'
        for name, text in named.items()
    )
    return "".join(lines).encode()
