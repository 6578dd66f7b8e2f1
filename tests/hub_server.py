"""A Hub on 127.0.0.1 that speaks as much of the protocol as the huggingface_hub client needs, and misbehaves on demand.

Model metadata, HEAD and GET of files, redirects to a file store for large ones, ETags, ranges, error codes.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LARGE = 100_000
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """Files by name. `error` makes every request fail: (HTTP status, the Hub's X-Error-Code)."""

    files: dict[str, bytes]
    commit: str = COMMIT
    error: tuple[int, str] | None = None
    token: str = ""


@dataclass
class Behaviour:
    """How the file store misbehaves, by file name. `bytes_per_second` slows everything down."""

    bytes_per_second: float = 0
    corrupt: set[str] = field(default_factory=set)
    truncated: set[str] = field(default_factory=set)
    cut_after: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Served:
    """One answered request for file content: the first byte asked for, and how many bytes were sent."""

    name: str
    start: int
    sent: int


class Hub:
    """`with Hub() as hub:` serves `hub.repositories` at `hub.url` until the block ends, or `hub.stop()`."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.behaviour = Behaviour()
        self.served: list[Served] = []
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_folder(self, name: str, folder: Path) -> Repository:
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.repositories[name] = Repository(files)
        return self.repositories[name]

    def bytes_served(self, name: str) -> int:
        return sum(one.sent for one in self.served if one.name == name)

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def answer(self) -> None:
                path = re.sub(r"^http://[^/]+", "", self.path.partition("?")[0])  # a proxy is asked for whole addresses
                hub.requests.append(f"{self.command} {path}")
                for pattern, method in (
                    (r"/api/models/(?P<repo>.+?)(?:/revision/(?P<revision>[^/]+))?", self.metadata),
                    (r"/(?P<repo>.+?)/resolve/(?P<revision>[^/]+)/(?P<name>.+)", self.resolve),
                    (r"/store/(?P<digest>[0-9a-f]{64})", self.store),
                ):
                    if found := re.fullmatch(pattern, path):
                        method(**found.groupdict())
                        return
                self.say(200, b"")

            def repository(self, name: str, revision: str | None) -> Repository | None:
                """The repository, None if an error was answered instead."""
                repository = hub.repositories.get(name)
                if repository is None:
                    self.fail(401, "RepoNotFound", "Invalid username or password.")
                elif repository.error:
                    self.fail(*repository.error, "refused")
                elif repository.token and self.headers.get("Authorization") != f"Bearer {repository.token}":
                    self.fail(401, "GatedRepo", "Access to this model is restricted.")
                elif revision not in (None, "main", repository.commit):
                    self.fail(404, "RevisionNotFound", "Invalid rev id")
                else:
                    return repository
                return None

            def metadata(self, repo: str, revision: str | None) -> None:
                if (repository := self.repository(repo, revision)) is None:
                    return
                siblings = []
                for name, content in repository.files.items():
                    entry = {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
                    if len(content) >= LARGE:
                        digest = hashlib.sha256(content).hexdigest()
                        entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
                    siblings.append(entry)
                body = {"_id": "1", "id": repo, "modelId": repo, "sha": repository.commit, "siblings": siblings,
                        "private": False, "gated": False, "tags": [], "downloads": 0, "likes": 0}  # fmt: skip
                self.say(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

            def resolve(self, repo: str, revision: str, name: str) -> None:
                if (repository := self.repository(repo, revision)) is None:
                    return
                content = repository.files.get(name)
                if content is None:
                    self.fail(404, "EntryNotFound", "Entry not found")
                    return
                headers = {"X-Repo-Commit": repository.commit}
                if len(content) < LARGE:
                    self.content(name, content, {**headers, "ETag": f'"{git_hash(content)}"'})
                    return
                digest = hashlib.sha256(content).hexdigest()
                headers |= {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(content))}
                self.say(302, b"", {**headers, "Location": f"{hub.url}/store/{digest}"})

            def store(self, digest: str) -> None:
                for repository in hub.repositories.values():
                    for name, content in repository.files.items():
                        if hashlib.sha256(content).hexdigest() == digest:
                            self.content(name, content, {"ETag": f'"{digest}"'})
                            return
                self.say(404, b"")

            def content(self, name: str, content: bytes, headers: dict[str, str]) -> None:
                size = len(content)
                if name in hub.behaviour.corrupt:
                    content = bytes(byte ^ 1 for byte in content[:1000]) + content[1000:]
                if name in hub.behaviour.truncated:
                    content = content[: size // 2]
                wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
                start = int(wanted[1]) if wanted else 0
                headers = {**headers, "Accept-Ranges": "bytes"}
                if wanted:
                    headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                body = content[start:]
                self.head(206 if wanted else 200, len(body), headers)
                if self.command == "HEAD":
                    return
                limit = hub.behaviour.cut_after.pop(name, None)
                self.send_slowly(name, start, body if limit is None else body[:limit])
                if limit is not None:
                    self.close_connection = True

            def send_slowly(self, name: str, start: int, body: bytes) -> None:
                sent = 0
                try:
                    while sent < len(body):
                        rate = hub.behaviour.bytes_per_second
                        piece = body[sent : sent + (max(1, int(rate / 20)) if rate else 1 << 20)]
                        self.wfile.write(piece)
                        self.wfile.flush()
                        sent += len(piece)
                        if rate:
                            time.sleep(len(piece) / rate)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                finally:
                    hub.served.append(Served(name, start, sent))

            def fail(self, status: int, code: str, message: str) -> None:
                self.say(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

            def say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                self.head(status, len(body), headers or {})
                if self.command != "HEAD":
                    self.wfile.write(body)

            def head(self, status: int, length: int, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(length), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()

        return Handler


def git_hash(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
