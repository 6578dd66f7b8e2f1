"""The files of a model and its configuration, without importing OpenVINO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specdemo.errors import FetchError

MODEL = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
HEAD = "openvino_head.xml"
"""A draft head (`heads`)."""


def read_config(folder: Path) -> tuple[frozenset[int], int]:
    """Stop ids of the model in `folder`, and its context limit in tokens, 0 if not given. Raises
    FetchError."""
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
