"""Checks of OpenVINO IR and of a model's configuration, without importing OpenVINO."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from specdemo.errors import BadInput, FetchError

MODEL = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
HEAD = "openvino_head.xml"
"""A draft head (`heads`)."""


def check_decoder(folder: Path) -> None:
    """Raise BadInput if the IR in `folder` is no stateful decoder, FetchError if it is damaged."""
    xml, weights = folder / MODEL, folder / WEIGHTS
    try:
        text = xml.read_text(encoding="utf-8", errors="replace")
        size = weights.stat().st_size
    except OSError as error:
        raise FetchError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if not text.rstrip().endswith("</net>"):
        raise FetchError(f"{xml} is damaged (its XML does not parse); fetch or export it again.")
    pieces = re.findall(r'offset="(\d+)" size="(\d+)"', text)
    end = max((int(offset) + int(length) for offset, length in pieces), default=0)
    if size < end:
        raise FetchError(
            f"{weights} is truncated: {size:,} bytes where the model has {end:,}; "
            "fetch or export it again."
        )
    if not re.search('[",]input_ids[",]', text):
        raise BadInput(
            f"The model in {folder} is not a text decoder: it has no input named input_ids."
        )
    if not re.search('[",]beam_idx[",]', text):
        raise BadInput(
            f"The model in {folder} is not a decoder that keeps its own KV cache (it has no input "
            "named beam_idx); export it again as text-generation-with-past."
        )


def read_config(folder: Path) -> tuple[frozenset[int], int]:
    """Stop ids of the model in `folder`, and its context limit in tokens, 0 if unsaid. Raises
    FetchError."""
    if not (folder / "config.json").is_file():
        raise FetchError(
            f"There is no config.json in {folder}; it says what kind of model this is."
        )
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
