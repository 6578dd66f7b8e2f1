"""A target as training needs it: its template and tokenizer, a writer of text, and its weights in torch.

Three sources are known: a PyTorch checkpoint (a folder or a Hub repository), a folder with one GGUF file, and the
embedded pair. A GGUF target writes with the very IR that will be sped up, in the numerics it will run in.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from specdemo.models import templates
from specdemo.models.errors import BadChoice, ZooError
from specdemo.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Request:
    """A text to continue by at most `limit` tokens; `temperature` 0 takes the likeliest token each time."""

    prompt: tuple[int, ...]
    limit: int
    temperature: float
    seed: int


class Writer(Protocol):
    """Continues texts. `at_once` is how many it does together at its best speed."""

    at_once: int

    def write(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """One continuation per request, ended by a stop token where one came before the limit."""


@dataclass(frozen=True, slots=True)
class Target:
    """`gguf` is set for a GGUF target, whose IR is in `ir_folder`; `folder` is the checkpoint otherwise."""

    name: str
    folder: Path
    gguf: Path | None
    ir_folder: Path | None
    tokenizer: Tokenizer
    template: templates.Template
    stop_ids: frozenset[int]

    @property
    def ir_xml(self) -> Path | None:
        """The IR of a GGUF target."""
        return self.ir_folder and self.ir_folder / "openvino_model.xml"

    def writer(self, device: str) -> Writer:
        if self.ir_folder:
            return OpenVINOWriter(self.ir_folder, self.stop_ids)
        return TorchWriter(self.model().to(device), self.stop_ids)

    def model(self) -> PreTrainedModel:
        """The weights in float32, dequantized if need be."""
        import torch
        from transformers import AutoModelForCausalLM

        options = {"gguf_file": self.gguf.name} if self.gguf else {}
        source = self.gguf.parent if self.gguf else self.folder
        return AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, attn_implementation="sdpa", **options
        ).eval()


def open_target(text: str, work: Path) -> Target:
    """The target that `--target` names.

    Args:
        text: "embedded", a folder, or a Hub repository.
        work: where IR of a GGUF file is made if there is none beside it.

    Raises:
        BadChoice: it is none of these. ZooError: fetching or converting failed.
    """
    if text == "embedded":
        from specdemo.models import embedded

        files = embedded.fetch()
        return _gguf_target("SmolLM2-135M-Instruct", files.folder / "source.gguf", files.target, templates.CHATML)
    folder = Path(text).expanduser()
    found = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
    if len(found) > 1:
        raise BadChoice(f"--target {text} holds {len(found)} GGUF files; name a folder with one.")
    if found:
        places = [folder, folder / "target", work / "target"]
        ready = next((place for place in places if (place / "openvino_model.xml").is_file()), None)
        return _gguf_target(folder.resolve().name, found[0], ready or _convert(found[0], work / "target"))
    return _checkpoint_target(text)


def _gguf_target(name: str, gguf: Path, ir_folder: Path, template: templates.Template | None = None) -> Target:
    """`template` None takes the one that the file brings, or none."""
    from specdemo.models import gguf_metadata

    metadata = gguf_metadata.read_metadata(gguf)
    tokens = metadata["tokenizer.ggml.tokens"]
    end = int(metadata["tokenizer.ggml.eos_token_id"])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        gguf_metadata.write_tokenizer(metadata, folder / "tokenizer.json")
        tokenizer = Tokenizer(folder / "tokenizer.json")
        config = {"chat_template": metadata.get("tokenizer.chat_template"), "eos_token": tokens[end]}
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        template = template or templates.chat_template(folder) or templates.PLAIN
    return Target(name, gguf.parent, gguf, ir_folder, tokenizer, template, frozenset({end}))


def _convert(gguf: Path, folder: Path) -> Path:
    from specdemo.models import child

    folder.parent.mkdir(parents=True, exist_ok=True)
    code, said = child.run_module("specdemo.models.convert", [str(gguf), str(folder)], log=folder.parent / "convert.log")
    if code != 0:
        raise ZooError(f"{gguf} could not be converted to OpenVINO IR: {said.strip()[-200:]}")
    return folder


def _checkpoint_target(text: str) -> Target:
    from specdemo.models import ir, models

    source = models.source_of(text, "--target", "int8")
    folder = models.checkpoint(source)
    tokenizer = Tokenizer(folder / "tokenizer.json")
    dolly_end = tokenizer.token_id("### End")
    template = templates.chat_template(folder)
    if template is None:
        template = templates.DOLLY if dolly_end is not None else templates.PLAIN
    stops = ir.read_config(folder).stop_ids | ({dolly_end} if dolly_end is not None else frozenset())
    return Target(source.name, folder, None, None, tokenizer, template, frozenset(stops))


class OpenVINOWriter:
    """openvino_genai's batched pipeline in exact numerics: whatever is batched together, the same greedy text."""

    at_once = 96

    def __init__(self, folder: Path, stop_ids: frozenset[int]) -> None:
        import openvino_genai as genai

        settings = genai.SchedulerConfig()
        settings.cache_size = 3  # GB
        settings.max_num_seqs = self.at_once
        settings.max_num_batched_tokens = 1024
        settings.enable_prefix_caching = True
        self._genai = genai
        self._stop_ids = stop_ids
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(folder), genai.Tokenizer(str(folder)), settings, "CPU",
            INFERENCE_PRECISION_HINT="f32", KV_CACHE_PRECISION="f16",
        )  # fmt: skip
        self._count = 0

    def write(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        import numpy as np
        import openvino as ov

        handles = []
        for request in requests:
            tokens = ov.Tensor(np.array([request.prompt], np.int64))
            handles.append(self._pipeline.add_request(self._count, tokens, self._config(request)))
            self._count += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return [tuple(handle.read_all()[0].generated_ids) for handle in handles]

    def _config(self, request: Request):
        config = self._genai.GenerationConfig()
        config.max_new_tokens = request.limit
        config.set_eos_token_id(min(self._stop_ids))
        config.stop_token_ids = set(self._stop_ids)
        if request.temperature:
            config.do_sample = True
            config.temperature = request.temperature
            config.rng_seed = request.seed
        return config


class TorchWriter:
    """transformers' own generation, greedy and sampled requests in batches of their own."""

    at_once = 64

    def __init__(self, model: PreTrainedModel, stop_ids: frozenset[int]) -> None:
        self._model = model
        self._stop_ids = stop_ids

    def write(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        written: dict[int, tuple[int, ...]] = {}
        for temperature in sorted({request.temperature for request in requests}):
            members = [i for i, request in enumerate(requests) if request.temperature == temperature]
            answers = self._write_alike([requests[i] for i in members])
            written.update(zip(members, answers, strict=True))
        return [written[i] for i in range(len(requests))]

    def _write_alike(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        import torch

        longest = max(len(request.prompt) for request in requests)
        tokens = torch.zeros((len(requests), longest), dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, request in enumerate(requests):
            tokens[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, longest - len(request.prompt) :] = 1
        sampling = {"do_sample": False}
        if requests[0].temperature:
            sampling = {"do_sample": True, "temperature": requests[0].temperature, "top_k": 0, "top_p": 1.0}
        device = self._model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
            torch.manual_seed(requests[0].seed)
            out = self._model.generate(
                input_ids=tokens.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=max(request.limit for request in requests),
                eos_token_id=sorted(self._stop_ids) or None,
                pad_token_id=min(self._stop_ids, default=0),
                **sampling,
            )
        rows = out[:, longest:].tolist()
        return [self._ended(row, request.limit) for row, request in zip(rows, requests, strict=True)]

    def _ended(self, row: Sequence[int], limit: int) -> tuple[int, ...]:
        for position, token in enumerate(row[:limit]):
            if token in self._stop_ids:
                return tuple(row[: position + 1])
        return tuple(row[:limit])
