"""OpenVINO GenAI as a peer, on the same IR."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from specdemo.audit import engines
from specdemo.errors import RequestFailed
from specdemo.machine.hardware import available_bytes
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Settings

TOKENIZER = "openvino_tokenizer.xml"
MEMORY_PER_WEIGHT_BYTE = 1.6  # of a pipeline: measured 1.2 to 1.5
WAYS = (
    (engines.AUTOREGRESSIVE, "PA"),
    (engines.AUTOREGRESSIVE, "SDPA"),
    ("prompt-lookup", "PA"),
    ("speculative", "PA"),
)
"""The methods, each with its attention backend."""


def genai(loaded: LoadedPair, properties: dict[str, str]) -> Iterator[engines.Peer]:
    """OpenVINO GenAI: each way with our target's `properties`, then with the plugin's own."""
    engines.require_ir(loaded, "openvino-genai")
    engines.require_package("openvino_genai", "openvino-genai", "peers")
    sets = {"": properties}
    if properties:  # else our target runs with the plugin's own, too
        sets[engines.OWN_PROPERTIES] = {}
    for suffix, chosen in sets.items():
        for method, backend in WAYS if loaded.draft else WAYS[:-1]:
            yield engines.Peer(
                loaded=loaded,
                name="openvino-genai",
                method=method + suffix,
                variant=f"{backend} backend",
                properties=chosen,
                load=cache(partial(_load, loaded, method, chosen, backend)),
                offers=engines.ALL_OFFERED | {"batch"},
                logits=partial(ir_logits, loaded, tuple(chosen.items())),
                self_draft=partial(_self_draft, loaded, chosen),
            )


def _load(
    loaded: LoadedPair, method: str, properties: dict[str, str], backend: str
) -> engines.Generate:
    """The seconds of answers are from GenAI's own metrics."""
    ask = _pipeline(loaded, method, properties, backend)

    def generate(prompts: engines.Prompts, settings: Settings) -> engines.TimedAnswers:
        result = ask(prompts, settings)
        times = result.perf_metrics.raw_metrics.m_new_token_times  # milliseconds
        seconds = (times[-1] - times[0]) / 1e3 if len(times) else 0.0
        return [(tuple(tokens), seconds) for tokens in result.tokens]

    return generate


def _self_draft(
    loaded: LoadedPair, properties: dict[str, str], prompts: engines.Prompts, settings: Settings
) -> tuple[int, int]:
    """As `engines.SelfDrafted`."""
    target = engines.require_ir(loaded, "openvino-genai")
    drafted = accepted = 0
    with tempfile.TemporaryDirectory() as scratch:
        itself = Path(scratch) / target.name
        for file in target.parent.iterdir():
            itself.with_name(file.name).symlink_to(file.resolve())
        # A draft model's tokenizer is read from its folder.
        if not itself.with_name(TOKENIZER).is_file() and not _converted(target.parent, scratch):
            raise engines.NotOffered("GenAI's draft models need a tokenizer of OpenVINO.")
        pair = replace(loaded, target=itself, draft=itself, draft_device=loaded.device)
        ask = _pipeline(pair, "speculative", properties, "PA")
        for prompt in prompts:
            metrics = ask([prompt], settings).extended_perf_metrics
            accepted += metrics.get_num_accepted_tokens()
            drafted += metrics.get_num_accepted_tokens() + metrics.get_num_rejected_tokens()
    return drafted, accepted


def _pipeline(
    loaded: LoadedPair, method: str, properties: dict[str, str], backend: str
) -> Callable[[engines.Prompts, Settings], Any]:
    """A function that gives GenAI's result for prompts."""
    import openvino_genai as genai

    target = engines.require_ir(loaded, "openvino-genai")
    draft = loaded.draft if method == "speculative" else None
    assert isinstance(draft, Path | None)
    size = sum(xml.with_suffix(".bin").stat().st_size for xml in (target, draft) if xml)
    needed, free = MEMORY_PER_WEIGHT_BYTE * size / 1e9, available_bytes() / 1e9
    if needed > 0.9 * free:
        raise RequestFailed(f"it needs {needed:.1f} GB of memory, {free:.1f} GB are free")
    tokenizer = _tokenizer(target.parent)
    options: dict[str, Any] = {"ATTENTION_BACKEND": backend}
    if draft:
        if tokenizer is None:
            raise engines.NotOffered("GenAI's draft models need a tokenizer of OpenVINO.")
        model = genai.draft_model(str(draft.parent), loaded.draft_device, **properties)
        options = {"draft_model": model}
    elif method == "prompt-lookup":
        options = {"prompt_lookup": True}
    model_files = (str(target.parent), tokenizer) if tokenizer else (str(target.parent),)
    pipeline = genai.LLMPipeline(*model_files, loaded.device, **properties, **options)

    def ask(prompts: engines.Prompts, settings: Settings) -> Any:
        if (settings.stop or settings.json_schema) and tokenizer is None:
            raise engines.NotOffered("The model has no tokenizer of OpenVINO, which this needs.")
        config = genai.GenerationConfig(
            **engines.sampling_options(settings, 2**64 - 1),
            rng_seed=settings.seed,
            presence_penalty=settings.presence_penalty,
            frequency_penalty=settings.frequency_penalty,
            ignore_eos=settings.ignore_eos,
            stop_strings=set(settings.stop),
            stop_token_ids=set(loaded.stop_ids),
            # Without one it takes -1 from a folder without generation_config.json, and refuses it.
            eos_token_id=min(loaded.stop_ids, default=-1),
        )
        if settings.draft_tokens is not None:
            config.num_assistant_tokens = settings.draft_tokens
        if method == "prompt-lookup":
            config.max_ngram_size = engines.LOOKUP_NGRAM
        if settings.json_schema:
            structured = genai.StructuredOutputConfig(json_schema=settings.json_schema)
            config.structured_output_config = structured
        longest = max(map(len, prompts))
        padded = [[0] * (longest - len(ids)) + ids for ids in prompts]
        mask = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]
        inputs = [ov.Tensor(np.array(rows, np.int64)) for rows in (padded, mask)]
        return pipeline.generate(genai.TokenizedInputs(*inputs), config)

    return ask


def _tokenizer(folder: Path) -> Any:
    """GenAI's tokenizer of a model, converted if the folder has none; None without the packages."""
    import openvino_genai as genai

    if (folder / TOKENIZER).is_file():
        return genai.Tokenizer(str(folder))
    with tempfile.TemporaryDirectory() as scratch:
        return genai.Tokenizer(scratch) if _converted(folder, scratch) else None


def _converted(folder: Path, into: str) -> bool:
    """Whether the tokenizer of a model could be converted and saved."""
    if not find_spec("openvino_tokenizers") or not find_spec("transformers"):
        return False
    from openvino_tokenizers import convert_tokenizer

    try:
        parts = convert_tokenizer(engines.hf_tokenizer(folder), with_detokenizer=True)
    except RuntimeError:  # a tokenizer without merges
        return False
    for name, part in zip((TOKENIZER, "openvino_detokenizer.xml"), parts, strict=True):
        ov.save_model(part, f"{into}/{name}")
    return True


@cache
def _ir_model(xml: Path, device: str, properties: tuple[tuple[str, str], ...]) -> ov.CompiledModel:
    return ov.Core().compile_model(xml, device, dict(properties))


def ir_logits(
    loaded: LoadedPair,
    properties: tuple[tuple[str, str], ...],
    prompt: list[int],
    tokens: list[int],
    width: int,
) -> np.ndarray:
    """As `engines.Logits`, of the target's IR."""
    model = _ir_model(loaded.target, loaded.device, properties)
    request, ids = model.create_infer_request(), [*prompt, *tokens]
    names = {port.get_any_name() for port in model.inputs}
    for begin, end in ((0, len(ids) - width), (len(ids) - width, len(ids))):
        values = {
            "input_ids": np.array([ids[begin:end]], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(begin, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        request.infer({name: values[name] for name in names})
    logits: np.ndarray = request.get_tensor("logits").data[0, -1].copy()
    return logits
