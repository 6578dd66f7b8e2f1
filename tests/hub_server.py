"""A Hub on 127.0.0.1 for the huggingface_hub client, which misbehaves on demand.

Model metadata, HEAD and GET of files, ETags, ranges, redirects, error codes.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LARGE = 100_000
COMMIT = "0123456789abcdef0123456789abcdef01234567"
XML, BIN = "openvino_model.xml", "openvino_model.bin"


@dataclass
class Repository:
    """Files by name. `error` makes every request fail: (HTTP status, the Hub's X-Error-Code). In
    the middle of its first large file `trouble` is called, once, and the connection breaks off."""

    files: dict[str, bytes | memoryview]
    commit: str = COMMIT
    error: tuple[int, str] | None = None
    token: str = ""
    moved_to: str = ""
    trouble: Callable[[], None] | None = None
    _digests: dict[str, str] = field(default_factory=dict)

    def digest(self, name: str) -> str:
        """SHA-256 of large content, git's hash of small content: the ETag."""
        if name not in self._digests:
            content = self.files[name]
            if len(content) >= LARGE:
                found = hashlib.sha256(content)
            else:
                found = hashlib.sha1(f"blob {len(content)}\0".encode() + content)
            self._digests[name] = found.hexdigest()
        return self._digests[name]


@dataclass(frozen=True)
class Served:
    """One answered request for a file: the first byte asked for, and how many bytes were sent."""

    name: str
    start: int
    sent: int


class Hub:
    """`with Hub() as hub:` serves `hub.repositories` at `hub.url` until the block ends or `stop`.

    Files named in `corrupt` are served so. `bytes_per_second` above 0 slows all files down. While
    it is `lost` no request is answered.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.corrupt: set[str] = set()
        self.bytes_per_second = 0
        self.lost = False
        self.served: list[Served] = []
        self.requests: list[str] = []
        self.sending = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_folder(self, name: str, folder: Path) -> None:
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.repositories[name] = Repository(files)

    def finish_transfers(self) -> None:
        """Wait until no file is being sent, and forget those that were."""
        while self.sending:
            time.sleep(0.01)
        self.served.clear()


def decoder_files(weights: bytes = b"w" * 300_000, **changed: bytes | None) -> dict[str, bytes]:
    """Files that pass for a decoder's IR; `changed` by the part of the name before the dot or by
    `xml` and `bin`, None for a missing file."""
    names = ("input_ids", "beam_idx")
    layers = "".join(f'<layer name="{name}" type="Parameter"/>' for name in names)
    constant = f'<layer type="Const"><data offset="0" size="{len(weights)}"/></layer>'
    files = {
        XML: f"<net><layers>{layers}{constant}</layers></net>".encode(),
        BIN: weights,
        "config.json": b'{"max_position_embeddings": 64, "eos_token_id": 0}',
        "tokenizer.json": b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
        "README.md": b"not wanted",
        "pytorch_model.bin": b"not wanted either",
    }
    shorthand = {"xml": XML, "bin": BIN, "config": "config.json", "tokenizer": "tokenizer.json"}
    files |= {shorthand[name]: content for name, content in changed.items()}
    return {name: content for name, content in files.items() if content is not None}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.hub.lost:
            self.close_connection = True
            return
        # A proxy is asked for whole addresses.
        path = re.sub(r"^http://[^/]+", "", self.path.partition("?")[0])
        self.hub.requests.append(f"{self.command} {path}")
        for pattern, answer in (
            (r"/api/models/(?P<repo>.+?)(?:/revision/(?P<revision>[^/]+))?", self.metadata),
            (r"/(?P<repo>.+?)/resolve/(?P<revision>[^/]+)/(?P<name>.+)", self.resolve),
        ):
            if found := re.fullmatch(pattern, path):
                repo, revision = found["repo"], found["revision"]
                repository = self.hub.repositories.get(repo)
                if repository is None:
                    self.fail(401, "RepoNotFound")
                elif repository.error:
                    self.fail(*repository.error)
                elif repository.moved_to:
                    self.say(307, b"", {"Location": self.path.replace(repo, repository.moved_to)})
                elif repository.token not in self.headers.get("Authorization", ""):
                    self.fail(401, "GatedRepo")
                elif revision not in (None, "main", repository.commit):
                    self.fail(404, "RevisionNotFound")
                else:
                    answer(repository, **found.groupdict())
                return
        self.say(200)

    do_HEAD = do_GET

    def metadata(self, repository: Repository, repo: str, revision: str | None) -> None:
        siblings = []
        for name, content in repository.files.items():
            entry = {"rfilename": name, "size": len(content), "blobId": repository.digest(name)}
            if len(content) >= LARGE:
                sha256 = repository.digest(name)
                entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        body = {"_id": "1", "id": repo, "modelId": repo, "sha": repository.commit}
        body |= {"siblings": siblings, "private": False, "gated": False, "tags": []}
        self.say(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def resolve(self, repository: Repository, repo: str, revision: str, name: str) -> None:
        content = repository.files.get(name)
        if content is None:
            self.fail(404, "EntryNotFound")
            return
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.digest(name)}"'}
        if name in self.hub.corrupt:
            content = bytes(byte ^ 1 for byte in content[:1000]) + content[1000:]
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = content[start:]
        self.head(206 if wanted else 200, len(body), headers)
        if self.command == "GET":
            self.send(repository, name, start, body)

    def send(self, repository: Repository, name: str, start: int, body: bytes) -> None:
        hub, whole = self.hub, len(body)
        trouble = repository.trouble if whole >= LARGE else None
        if trouble:
            repository.trouble = None
            body = body[: whole // 2]
        hub.sending += 1
        sent = 0
        try:
            while sent < len(body):
                rate = hub.bytes_per_second
                piece = body[sent : sent + (rate // 20 or 1 << 20)]
                self.wfile.write(piece)
                sent += len(piece)
                time.sleep(len(piece) / rate if rate else 0)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        hub.served.append(Served(name, start, sent))
        hub.sending -= 1
        if trouble:
            trouble()
            self.close_connection = True

    def fail(self, status: int, code: str) -> None:
        self.say(status, b"", {"X-Error-Code": code, "X-Error-Message": "refused"})

    def say(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.head(status, len(body), headers or {})
        if self.command != "HEAD":
            self.wfile.write(body)

    def head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
