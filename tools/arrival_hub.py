"""Serves a Dolly pair and all its drafts, in their real shapes with made-up weights, from a Hub on
127.0.0.1, to test how the page fetches and tunes a pair. Run `python tools/arrival_hub.py dolly-3b
[MEGABYTES_PER_SECOND]`, then start the page with the command that it prints."""

from __future__ import annotations

import mmap
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from hub_server import LARGE, Hub, Repository  # noqa: E402
from tiny_models import write_neox_tokenizer  # noqa: E402

from specdemo.pairs.registry import find_pair  # noqa: E402
from tools.made_up import write_made_up  # noqa: E402
from tools.rehearse import shape_of  # noqa: E402


def served(path: Path) -> bytes | memoryview:
    """The content of a file; a large one is mapped into memory, not read."""
    if path.stat().st_size < LARGE:
        return path.read_bytes()
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def main(name: str, megabytes_per_second: float = 0) -> None:
    pair = find_pair(name, option="PAIR")
    with tempfile.TemporaryDirectory(prefix="arrival-hub-") as home, Hub() as hub:
        for source in (pair.target, *pair.drafts):
            folder = Path(home) / source.name
            write_made_up(*shape_of(source), folder)
            write_neox_tokenizer(folder, dolly=source is pair.target)
            config = b'{"max_position_embeddings": 2048, "eos_token_id": 0}'
            files = {path.name: served(path) for path in folder.iterdir()}
            repository = Repository({**files, "config.json": config})
            for file in repository.files:  # now, since it takes longer than a client waits
                repository.digest(file)
            hub.repositories[source.repo] = repository
        hub.bytes_per_second = round(megabytes_per_second * 1e6)
        print(f"HF_ENDPOINT={hub.url} HF_HOME=$(mktemp -d) python app.py", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
