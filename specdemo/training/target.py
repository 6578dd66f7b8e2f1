"""The target of a training run: its weights, its tokenizer, what it writes.

A target is a PyTorch checkpoint (a folder or a Hub repository), a folder with one GGUF file, or the
embedded pair's target. A GGUF target runs as the IR that the draft will serve: torch's arithmetic
on a GGUF file's weights chooses other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specdemo.errors import BadInput
from specdemo.models import ir, templates
from specdemo.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Write = Callable[[Sequence["Request"]], list[tuple[int, ...]]]
"""One continuation per request, ended by a stop token or the limit."""
AT_ONCE = 64
"""Requests that are written together."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to continue by at most `limit` tokens; `temperature` 0 is greedy."""

    prompt: tuple[int, ...]
    limit: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Target:
    """`weights` is the folder of a checkpoint, or a GGUF file, whose IR is in `ir_folder`."""

    name: str
    weights: Path
    ir_folder: Path | None
    tokenizer: Tokenizer
    template: templates.Template
    stop_ids: frozenset[int]

    def load(self) -> PreTrainedModel:
        """The weights in float32, dequantized if need be."""
        import torch
        from transformers import AutoModelForCausalLM

        options = {"gguf_file": self.weights.name} if self.ir_folder else {}
        folder = self.weights.parent if self.ir_folder else self.weights
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", **options
        ).eval()

    def writer(self, device: str) -> Write:
        """What continues texts; `device` is where torch computes."""
        if self.ir_folder:
            return write_with_ir(self.ir_folder, self.stop_ids)
        return write_with_torch(self.load().to(device), self.stop_ids)


def open_target(text: str, work: Path) -> Target:
    """The target that `--target` names: "embedded", a folder, or a Hub repository.

    `work` is where IR of a GGUF file is made if there is none beside it. Raises BadInput for
    anything else, FetchError if fetching or converting failed.
    """
    from specdemo.models import embedded, export, gguf_files, load, sources

    folder = embedded.fetch()[0].folder if text == "embedded" else Path(text).expanduser()
    found = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
    if not found:
        source = sources.source_of(text, "--target", "int8")
        folder = sources.checkpoint(source)
        tokenizer = Tokenizer(folder / "tokenizer.json")
        template, stop_ids = load.fitting_template(folder, tokenizer)
        stop_ids |= ir.read_config(folder)[0]
        return Target(source.name, folder, None, tokenizer, template, stop_ids)
    if len(found) > 1:
        raise BadInput(f"--target {text} holds {len(found)} GGUF files; name a folder with one.")
    ir_folder = folder if (folder / ir.MODEL).is_file() else work / "target"
    if not (ir_folder / ir.MODEL).is_file():
        export.convert_gguf(found[0], ir_folder)
    file = gguf_files.read(found[0])
    gguf_files.write_tokenizer(file, work / "tokenizer.json")
    end = int(gguf_files.value(file, "tokenizer.ggml.eos_token_id"))
    template = templates.PLAIN
    if source := gguf_files.value(file, "tokenizer.chat_template"):
        tokens = {"eos_token": gguf_files.value(file, "tokenizer.ggml.tokens")[end]}
        template = templates.template_of(source, tokens, str(found[0]))
    name = "SmolLM2-135M-Instruct" if text == "embedded" else folder.resolve().name
    tokenizer = Tokenizer(work / "tokenizer.json")
    return Target(name, found[0], ir_folder, tokenizer, template, frozenset({end}))


def write_with_ir(folder: Path, stop_ids: frozenset[int]) -> Write:
    """openvino_genai's batched pipeline in exact numerics: greedy text is the same in any batch."""
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 3  # GB
    scheduler.max_num_seqs = AT_ONCE
    scheduler.max_num_batched_tokens = 1024
    scheduler.enable_prefix_caching = True
    numerics = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16"}
    pipeline = genai.ContinuousBatchingPipeline(
        str(folder), genai.Tokenizer(str(folder)), scheduler, "CPU", **numerics
    )

    def configured(request: Request) -> genai.GenerationConfig:
        config = genai.GenerationConfig()
        config.max_new_tokens = request.limit
        config.set_eos_token_id(min(stop_ids))
        config.stop_token_ids = set(stop_ids)
        config.rng_seed = request.seed
        config.do_sample = request.temperature > 0
        config.temperature = request.temperature or 1.0
        return config

    def write(requests: Sequence[Request]) -> list[tuple[int, ...]]:
        prompts = [ov.Tensor(np.array([request.prompt], np.int64)) for request in requests]
        results = pipeline.generate(prompts, list(map(configured, requests)))
        return [tuple(result.m_generation_ids[0]) for result in results]

    return write


def write_with_torch(model: PreTrainedModel, stop_ids: frozenset[int]) -> Write:
    """transformers' generation, in batches of one temperature each."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def generate(requests: Sequence[Request], temperature: float) -> list[list[int]]:
        prompts = [torch.tensor(request.prompt, device=model.device) for request in requests]
        masks = [torch.ones_like(prompt) for prompt in prompts]
        tokens, mask = (
            pad_sequence(rows, batch_first=True, padding_side="left") for rows in (prompts, masks)
        )
        sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        gpus = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(gpus), torch.no_grad():
            torch.manual_seed(requests[0].seed)
            out = model.generate(
                input_ids=tokens,
                attention_mask=mask,
                max_new_tokens=max(request.limit for request in requests),
                eos_token_id=sorted(stop_ids) or None,
                pad_token_id=min(stop_ids, default=0),
                do_sample=temperature > 0,
                **sampling,
            )
        return out[:, tokens.shape[1] :].tolist()

    def write(requests: Sequence[Request]) -> list[tuple[int, ...]]:
        written: dict[Request, tuple[int, ...]] = {}
        for temperature in sorted({request.temperature for request in requests}):
            alike = [request for request in requests if request.temperature == temperature]
            for request, row in zip(alike, generate(alike, temperature), strict=True):
                ends = (at + 1 for at, token in enumerate(row) if token in stop_ids)
                written[request] = tuple(row[: min(request.limit, next(ends, len(row)))])
        return [written[request] for request in requests]

    return write
