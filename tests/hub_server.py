"""A Hub on 127.0.0.1 for the huggingface_hub client, which misbehaves on demand.

Model metadata, HEAD and GET of files, ETags, ranges, error codes; the upload of a Space.
"""

import base64
import hashlib
import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, Self

from huggingface_hub.utils.sha import git_hash

LARGE = 100_000
COMMIT = "0123456789abcdef0123456789abcdef01234567"
XML, BIN = "openvino_model.xml", "openvino_model.bin"


@dataclass
class Repository:
    """Files by name."""

    files: dict[str, bytes | memoryview]
    _digests: dict[str, str] = field(default_factory=dict)

    def digest(self, name: str) -> str:
        """SHA-256 of large content, git's hash of small content: the ETag."""
        if name not in self._digests:
            content = self.files[name]
            digest = hashlib.sha256(content).hexdigest
            self._digests[name] = digest() if len(content) >= LARGE else git_hash(content)
        return self._digests[name]


class Served(NamedTuple):
    """One answered request for a file: the first byte asked for, and how many bytes were sent."""

    name: str
    start: int
    sent: int


class Hub:
    """`with Hub() as hub:` serves `hub.repositories` at `hub.url` until the block ends or `stop`.

    `space` holds the files that `hf upload --repo-type space` committed; binary ones must come as
    blobs of Git LFS, as on the Hub. Files named in `corrupt` are served so. While `go_on` is not
    set, each large file stops in its middle. While it is `lost` no request is answered, and files
    break off.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.space: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.corrupt: set[str] = set()
        self.go_on = threading.Event()
        self.go_on.set()
        self.lost = False
        self.served: list[Served] = []
        self.requests: list[str] = []
        self.sending = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_folder(self, name: str, folder: Path) -> None:
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.repositories[name] = repository = Repository(files)
        for file in files:  # now, since large ones take longer than a client waits
            repository.digest(file)

    def finish_transfers(self) -> None:
        """Wait until no file is being sent, and forget those that were."""
        while self.sending:
            time.sleep(0.01)
        self.served.clear()


def decoder_files(weights: bytes = b"w" * 300_000, **changed: bytes | None) -> dict[str, bytes]:
    """Files that pass for a decoder's IR, but for those that are `changed`, None if missing."""
    files = {
        XML: b"<net/>",
        BIN: weights,
        "config.json": b'{"max_position_embeddings": 64, "eos_token_id": 0}',
        "tokenizer.json": b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
        "pytorch_model.bin": b"not wanted",
    }
    return {name: content for name, content in (files | changed).items() if content}


def is_binary(content: bytes) -> bool:
    """Whether the Hub takes these bytes for a binary file, which it keeps out of Git."""
    try:
        return "\0" in content[:8000].decode()
    except UnicodeDecodeError as error:
        return error.end < len(content[:8000]) or error.reason != "unexpected end of data"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *connection: object) -> None:
        self.hub = hub
        super().__init__(*connection)

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.hub.lost:
            self.close_connection = True
            return
        path = self.path.partition("?")[0]
        self.hub.requests.append(path)
        if path.startswith("/api/spaces/"):  # the files that are there before an upload
            self.answer([])
            return
        match = re.fullmatch(r"/api/models/(.+?)(?:/revision/([^/]+))?()", path)
        match = match or re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
        repo, revision, name = match.groups() if match else ("", None, "")
        repository = self.hub.repositories.get(repo)
        if repository is None:
            self.fail(401, "RepoNotFound")
        elif revision not in (None, "main", COMMIT):
            self.fail(404, "RevisionNotFound")
        elif not name:
            self.metadata(repository, repo)
        elif name in repository.files:
            self.send(repository, name)
        else:
            self.fail(404, "EntryNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        hub.requests.append(path)
        if path.endswith("/repos/create"):
            wish = json.loads(body)
            self.answer({"url": f"{hub.url}/spaces/{wish['organization']}/{wish['name']}"})
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            for entry in files:
                binary = is_binary(base64.b64decode(entry.pop("sample")))
                entry |= {"uploadMode": "lfs" if binary else "regular", "shouldIgnore": False}
            self.answer({"files": [{**entry, "oid": None} for entry in files]})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            for entry in objects:
                entry["actions"] = {"upload": {"href": f"{hub.url}/blobs/{entry['oid']}"}}
            self.answer({"objects": objects, "transfer": "basic"})
        elif "/commit/" in path:
            self.commit([json.loads(line) for line in body.splitlines()])
        else:
            self.fail(404, "EntryNotFound")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.blobs[self.path.rpartition("/")[2]] = content
        self.answer({})

    def commit(self, operations: list[dict]) -> None:
        files = {}
        for kind, entry in map(dict.values, operations):
            if kind == "lfsFile":
                files[entry["path"]] = self.hub.blobs[entry["oid"]]
            elif kind == "file":
                files[entry["path"]] = base64.b64decode(entry["content"])
                if is_binary(files[entry["path"]]):
                    self.fail(400, "BadRequest")  # as a git push of a binary file is
                    return
        self.hub.space |= files
        space = self.path.removeprefix("/api").partition("/commit/")[0]
        url = f"{self.hub.url}{space}/commit/{COMMIT}"
        self.answer({"commitUrl": url, "commitOid": COMMIT, "success": True})

    def answer(self, value: dict | list) -> None:
        body = json.dumps(value).encode()
        self.head(200, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)

    def metadata(self, repository: Repository, repo: str) -> None:
        siblings = []
        for name, content in repository.files.items():
            digest, size = repository.digest(name), len(content)
            lfs = {"sha256": digest, "size": size, "pointerSize": 134} if size >= LARGE else None
            siblings.append({"rfilename": name, "size": size, "blobId": digest, "lfs": lfs})
        about = {"_id": "1", "id": repo, "sha": COMMIT, "siblings": siblings}
        with suppress(KeyError, ValueError):
            about["config"] = json.loads(bytes(repository.files["config.json"]))
        self.answer(about)

    def send(self, repository: Repository, name: str) -> None:
        hub, content = self.hub, repository.files[name]
        if name in hub.corrupt:
            content = bytes(byte ^ 1 for byte in content[:1000]) + content[1000:]
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        body = content[start:]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{repository.digest(name)}"'}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.head(206 if wanted else 200, len(body), headers)
        if self.command == "HEAD":
            return
        sent, half = 0, len(body) // 2
        hub.sending += 1
        try:
            for piece in (body[:half], body[half:]):
                if hub.lost:
                    raise ConnectionResetError
                self.wfile.write(piece)
                sent += len(piece)
                if len(body) >= LARGE:
                    hub.go_on.wait()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        hub.served.append(Served(name, start, sent))
        hub.sending -= 1

    def fail(self, status: int, code: str) -> None:
        self.head(status, 0, {"X-Error-Code": code, "X-Error-Message": "refused"})

    def head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
