"""The files of a model: their names, and what tells that they changed."""

import hashlib
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

from specdemo.errors import BadInput

MODEL = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
HEAD = "openvino_head.xml"  # a draft head (`heads`)
SOURCE = "source.gguf"  # the GGUF file that the IR was made of, or a link to it
MANIFEST = "sha256.json"  # hashes of the files in a folder that this program wrote
FURTHER_TEMPLATES = "additional_chat_templates"  # a folder, as transformers 5 saves them
GGUF_END = re.compile(r"(-\d{5}-of-(?P<count>\d{5}))?\.gguf$", re.I)

_CONSTANT = re.compile(rb'<data element_type="(\w+)"[^>]* size="(\d+)"')
_FORMATS = {"u4": "int4", "i4": "int4", "u8": "int8", "i8": "int8", "f16": "fp16"}


def weight_format(folder: Path) -> str:
    """The format of most weights of the IR in `folder`, as `ModelChoice.weight_format` names it; ""
    if none of these."""
    model = next(filter(Path.is_file, (folder / MODEL, folder / HEAD)), None)
    totals: Counter[str] = Counter()
    for kind, count in _CONSTANT.findall(model.read_bytes()) if model else ():
        bits = int(kind[1:]) if kind.decode() in _FORMATS else 8
        totals[_FORMATS.get(kind.decode(), "")] += int(count) * 8 // bits
    [(most, _)] = totals.most_common(1) or [("", 0)]
    return most


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
    match = GGUF_END.search(path.name)
    if not match or not match["count"]:
        return [path]
    stem, count, suffix = path.name[: match.start()], match["count"], path.suffix
    files = []
    for part in range(1, int(count) + 1):
        files.append(path.with_name(f"{stem}-{part:05}-of-{count}{suffix}"))
        if not files[-1].is_file():
            why = f"is one part of {int(count)}; {files[-1].name} is not beside it"
            raise BadInput(f"{path.name} {why}.")
    return files


def is_gguf(path: Path) -> bool:
    """Whether `path` is a GGUF file, by its name or its content."""
    if path.suffix.lower() == ".gguf" or not path.is_file():
        return path.is_file()
    with suppress(OSError), open(path, "rb") as file:
        return file.read(4) == b"GGUF"
    return False
