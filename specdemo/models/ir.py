"""Look into OpenVINO IR and a model's configuration: is it a decoder, is it whole, how long a context has it.

Reads XML and JSON only; OpenVINO itself is not imported.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdemo.models.errors import BadChoice, ZooError

MODEL = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
REQUIRED = (MODEL, WEIGHTS, "config.json", "tokenizer.json")
OPTIONAL = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "openvino_config.json",
    "openvino_tokenizer.xml",
    "openvino_tokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_detokenizer.bin",
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a decoder's configuration files say. `context_limit` and `vocabulary_size` are tokens, 0 if unsaid."""

    stop_ids: frozenset[int]
    context_limit: int
    vocabulary_size: int
    model_type: str


def check_decoder(folder: Path) -> None:
    """Raise a sentence if the IR in `folder` is not a whole stateful decoder.

    BadChoice for another kind of model, ZooError for damaged or truncated files.
    """
    xml, weights = folder / MODEL, folder / WEIGHTS
    inputs: set[str] = set()
    end = 0
    try:
        for _, element in ElementTree.iterparse(xml):
            if element.tag == "layer":
                if element.get("type") == "Parameter":
                    inputs.add(element.get("name", ""))
                    inputs.update((element.get("names") or "").split(","))
                    inputs.update(
                        name for port in element.iter("port") for name in (port.get("names") or "").split(",")
                    )
                element.clear()
            elif element.tag == "data" and element.get("offset"):
                end = max(end, int(element.get("offset")) + int(element.get("size", 0)))
        size = weights.stat().st_size
    except (ElementTree.ParseError, ValueError) as error:
        raise ZooError(f"{xml} is damaged (its XML does not parse); fetch or export it again.") from error
    except OSError as error:
        raise ZooError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if size < end:
        raise ZooError(f"{weights} is truncated: {size:,} bytes where the model has {end:,}; fetch or export it again.")
    if "input_ids" not in inputs:
        raise BadChoice(f"The model in {folder} is not a text decoder: it has no input named input_ids.")
    if "beam_idx" not in inputs:
        raise BadChoice(
            f"The model in {folder} is not a decoder that keeps its own KV cache (it has no input named beam_idx); "
            "export it again as text-generation-with-past."
        )


def read_config(folder: Path) -> ModelConfig:
    """Stop ids, context and vocabulary of the model in `folder`. Raises ZooError for a missing or damaged file."""
    config = _json(folder / "config.json", required=True)
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    generation = _json(folder / "generation_config.json", required=False)
    stops = [value.get("eos_token_id") for value in (generation, config, text)]
    return ModelConfig(
        stop_ids=frozenset(id for stop in stops for id in _ids(stop)),
        context_limit=_first_number(text, "max_position_embeddings", "n_positions", "n_ctx", "seq_length"),
        vocabulary_size=_first_number(text, "vocab_size"),
        model_type=str(config.get("model_type", "")),
    )


def _json(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if required:
            raise ZooError(f"There is no {path.name} in {path.parent}; it says what kind of model this is.") from error
        return {}
    except (OSError, ValueError) as error:
        raise ZooError(f"{path} is damaged; fetch it again.") from error
    return data if isinstance(data, dict) else {}


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [id for id in values if isinstance(id, int) and not isinstance(id, bool) and id >= 0]


def _first_number(config: dict[str, Any], *names: str) -> int:
    values = (config.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), 0)
