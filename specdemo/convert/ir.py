"""The files of a model and its configuration, without importing OpenVINO."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from specdemo.errors import BadInput, FetchError

MODEL = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
HEAD = "openvino_head.xml"  # a draft head (`heads`)
SOURCE = "source.gguf"  # the GGUF file that the IR was made of, or a link to it
MANIFEST = "sha256.json"  # hashes of the files in a folder that this program wrote
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


def read_config(folder: Path) -> tuple[frozenset[int], int]:
    """Stop ids and context limit (tokens, 0: not given) of a model. Raises FetchError."""
    if not (folder / "config.json").is_file():
        raise FetchError(f"There is no config.json in {folder}.")
    config = read_json(folder / "config.json")
    text = config.get("text_config") or config
    stop_ids: set[int] = set()
    for source in (config, text, read_json(folder / "generation_config.json")):
        stop = source.get("eos_token_id")
        stop_ids.update(id for id in (stop if isinstance(stop, list) else [stop]) if id is not None)
    names = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")
    return frozenset(stop_ids), next(filter(None, map(text.get, names)), 0)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, {} if there is no file. Raises FetchError if it is damaged."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FetchError(f"{path} is damaged; fetch it again.") from error
    return data if isinstance(data, dict) else {}


def fingerprint(source: Path) -> str:
    """A hash of names, sizes and times of a folder's files, or of a GGUF file's parts. Raises
    BadInput."""
    total = hashlib.sha256(str(source.resolve()).encode())
    files = gguf_parts(source) if source.is_file() else sorted(source.glob("*"))
    for path in filter(Path.is_file, files):
        status = path.stat()
        total.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return total.hexdigest()[:16]


def gguf_parts(path: Path) -> list[Path]:
    """The files of a model that is split into -00001-of-0000N.gguf; of others, the file itself.
    Raises BadInput if one is missing."""
    found = _PART.search(path.name)
    if not found:
        return [path]
    stem, count = path.name[: found.start()], int(found[1])
    files = [path.with_name(f"{stem}-{at:05}-of-{found[1]}.gguf") for at in range(1, count + 1)]
    if lacking := [file.name for file in files if not file.is_file()]:
        raise BadInput(f"{path.name} is one part of {count}; {lacking[0]} is not beside it.")
    return files
