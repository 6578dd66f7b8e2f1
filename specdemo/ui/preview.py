"""What other sites show of a link to the page: a title, a sentence, a card of the recorded race.

Gradio's template says "Gradio" in the tags that are read for it, and its `head` is put in by a
script, which those readers do not run; so the tags are replaced in what the server sends.
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
        body = THEIRS.sub(b"", body).replace(b"<head>", b"<head>" + tags(url), 1)
        kept = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
        headers = [*kept, (b"content-length", str(len(body)).encode())]
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def tags(url: str) -> bytes:
    """The tags of a page at `url`."""
    told = {"title": TITLE, "description": DESCRIPTION, "image": url + "card.png"}
    named = {"description": DESCRIPTION, "twitter:card": "summary_large_image"}
    named |= {f"twitter:{name}": value for name, value in told.items()}
    properties = {"type": "website", "url": url, **told}
    lines = [f'<meta name="{name}" content="{html.escape(text)}">' for name, text in named.items()]
    lines += [
        f'<meta property="og:{name}" content="{html.escape(text)}">'
        for name, text in properties.items()
    ]
    return "".join(lines).encode()
