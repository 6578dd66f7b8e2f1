"""transformers and optimum-intel as peers: both have the same `generate`."""

import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from specdemo.bench.genai_peer import ir_logits
from specdemo.bench.peers import (
    ALL_OFFERED,
    LOOKUP_NGRAM,
    Answer,
    Generate,
    NotOffered,
    Peer,
    hf_tokenizer,
    require_package,
    sampling_options,
)
from specdemo.convert.ir import SOURCE
from specdemo.engine.checkpoint import Checkpoint
from specdemo.errors import BadInput
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Settings


def transformers(loaded: LoadedPair, properties: dict[str, str]) -> Iterator[Peer]:
    """transformers on the same checkpoints, or the GGUF file that a target was converted from. All
    modes share one copy of the weights, with the dtype in `properties`. A draft model that is not
    on a torch device is left out."""
    checkpoint, device = loaded.target, loaded.device
    if not isinstance(checkpoint, Checkpoint):
        checkpoint, device = Checkpoint(checkpoint.with_name(SOURCE)), "torch:cpu"
    if not checkpoint.path.exists():
        raise BadInput("--peers transformers runs checkpoints: choose --device torch:cpu, say.")
    require_package("transformers", "transformers", "torch")
    from specdemo.engine import torch_model

    target = torch_model.load_module(checkpoint, device, properties.get("dtype", "float32"))
    draft = None
    if isinstance(loaded.draft, Checkpoint):
        fast = dict(torch_model.properties(loaded.draft_device, exact=False))
        draft = torch_model.load_module(loaded.draft, loaded.draft_device, fast["dtype"])
    elif loaded.draft is not None:
        why = "the draft model is on no torch device; name one with --draft-device."
        print(f"transformers/speculative was left out: {why}", file=sys.stderr)
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    settings = {"dtype": str(target.dtype), "device": str(target.device)}
    kind = settings["dtype"].removeprefix("torch.")
    yield from _generating("transformers", loaded, folder, target, draft, kind, settings)


def optimum(loaded: LoadedPair, properties: dict[str, str]) -> Iterator[Peer]:
    """optimum-intel on the same IR, with our target's properties."""
    if isinstance(loaded.target, Checkpoint) or isinstance(loaded.draft, Checkpoint):
        raise BadInput("--peers optimum-intel runs IR; on torch devices choose transformers.")
    require_package("optimum", "optimum-intel", "export")
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoConfig

    def model(xml: Path) -> Any:
        gguf = {"gguf_file": SOURCE} if xml.with_name(SOURCE).is_file() else {}
        config = AutoConfig.from_pretrained(xml.parent, **gguf)
        return OVModelForCausalLM.from_pretrained(xml.parent, config=config, ov_config=properties)

    target, draft = model(loaded.target), loaded.draft and model(loaded.draft)
    folder = loaded.target.parent
    yield from _generating("optimum-intel", loaded, folder, target, draft, "IR", properties)


def _generating(
    engine: str,
    loaded: LoadedPair,
    folder: Path,
    target: Any,
    draft: Any,
    kind: str,
    settings: dict[str, str],
) -> Iterator[Peer]:
    """The modes of transformers' `generate`, which optimum-intel's models have too."""
    drafts = {"autoregressive": None, "prompt-lookup": None}
    for mode, assistant in (drafts | ({"speculative": draft} if draft else {})).items():
        load = cache(partial(_load, loaded, folder, target, assistant))
        logits = partial(ir_logits, loaded, tuple(settings.items()))
        if engine == "transformers":
            logits = partial(_module_logits, target)
        offers = ALL_OFFERED - {"schema"}
        yield Peer(loaded, f"{engine}/{mode}", kind, settings, load, None, offers, logits)


def _module_logits(target: Any, prompt: list[int], tokens: list[int], width: int) -> np.ndarray:
    import torch

    ids = torch.tensor([[*prompt, *tokens]], device=target.device)
    with torch.no_grad():
        before = target(ids[:, :-width], use_cache=True).past_key_values
        output = target(ids[:, -width:], past_key_values=before)
    logits: np.ndarray = output.logits[0, -1].float().cpu().numpy()
    return logits


def _load(loaded: LoadedPair, folder: Path, target: Any, draft: Any) -> Generate:
    """The seconds begin after the first round, but its tokens count. This favours the peer."""
    import torch

    def generate(length: int | None, prompts: list[list[int]], settings: Settings) -> list[Answer]:
        return [answer(length, ids, settings) for ids in prompts]

    def answer(length: int | None, ids: list[int], settings: Settings) -> Answer:
        options = sampling_options(settings, 0) | {
            "repetition_penalty": settings.repetition_penalty
        }
        if settings.stop:
            options |= {"stop_strings": list(settings.stop), "tokenizer": hf_tokenizer(folder)}
        if draft is not None:
            options["assistant_model"] = draft
            draft.generation_config.num_assistant_tokens = length
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0
        elif length is not None:
            options |= {"prompt_lookup_num_tokens": length, "max_matching_ngram_size": LOOKUP_NGRAM}
        times: list[float] = []  # of the prompt, then of each round
        torch.manual_seed(settings.seed)
        tokens = torch.tensor([ids], device=target.device)
        options |= {"max_new_tokens": settings.max_new_tokens}
        options["streamer"] = SimpleNamespace(
            put=lambda _: times.append(perf_counter()), end=lambda: None
        )
        options["eos_token_id"] = None if settings.ignore_eos else sorted(loaded.stop_ids) or None
        options["pad_token_id"] = min(loaded.stop_ids, default=0)
        try:
            whole = target.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        except AttributeError as error:
            if "crop" not in str(error):  # of optimum-intel's KV cache
                raise
            raise NotOffered(f"Its KV cache cannot be rolled back: {error}.") from error
        seconds = times[-1] - times[1] if len(times) > 1 else 0.0
        return tuple(whole[0, len(ids) :].tolist()), seconds

    return generate
