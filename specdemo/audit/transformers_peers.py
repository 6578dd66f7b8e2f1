"""transformers and optimum-intel as peers: both have the same `generate`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from specdemo.audit import engines
from specdemo.audit.genai_peer import ir_logits
from specdemo.audit.own_engine import checkpoint, torch_models
from specdemo.convert.model_files import SOURCE
from specdemo.errors import BadInput
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Settings


def transformers(loaded: LoadedPair, properties: dict[str, str]) -> Iterator[engines.Peer]:
    """transformers on the same checkpoints, or the GGUF files that IR was converted from. All
    methods share one copy of the weights, the target's with the dtype in `properties`. Another
    draft model is left out."""
    target, draft = map(checkpoint, (loaded.target, loaded.draft))
    if target is None:
        raise BadInput("--peers transformers runs checkpoints: choose --device torch:cpu, say.")
    engines.require_package("transformers", "transformers", "torch")
    if loaded.draft is not None and draft is None:
        why = "the draft model is IR, not of a GGUF file; name one with --draft-device torch:cpu."
        print(f"transformers/speculative was left out: {why}", file=sys.stderr)
    module, assistant = torch_models(loaded, target, draft, properties.get("dtype", "float32"))
    path = target.path
    models = _Models(loaded, path if path.is_dir() else path.parent, module, assistant)
    facts = {"dtype": str(module.dtype), "device": str(module.device)}
    variant = facts["dtype"].removeprefix("torch.")
    yield from models.ways("transformers", variant, facts, models.logits)


def optimum(loaded: LoadedPair, properties: dict[str, str]) -> Iterator[engines.Peer]:
    """optimum-intel on the same IR, with our target's properties."""
    files = engines.require_ir(loaded, "optimum-intel")
    engines.require_package("optimum", "optimum-intel", "export")
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoConfig

    def model(xml: Any) -> Any:
        gguf = {"gguf_file": SOURCE} if xml.with_name(SOURCE).is_file() else {}
        config = AutoConfig.from_pretrained(xml.parent, **gguf)
        return OVModelForCausalLM.from_pretrained(xml.parent, config=config, ov_config=properties)

    models = _Models(loaded, files.parent, model(files), loaded.draft and model(loaded.draft))
    logits = partial(ir_logits, loaded, tuple(properties.items()))
    yield from models.ways("optimum-intel", "IR", properties, logits)


@dataclass(frozen=True, slots=True)
class _Models:
    """A target and a draft model with transformers' `generate`."""

    loaded: LoadedPair
    folder: Path
    target: Any
    draft: Any

    def ways(
        self, engine: str, variant: str, properties: dict[str, str], logits: engines.Logits
    ) -> Iterator[engines.Peer]:
        drafted = ["speculative"] if self.draft is not None else []
        for method in (engines.AUTOREGRESSIVE, "prompt-lookup", *drafted):
            yield engines.Peer(
                loaded=self.loaded,
                name=engine,
                method=method,
                variant=variant,
                properties=properties,
                load=cache(lambda method=method: partial(self.answers, method)),
                offers=engines.ALL_OFFERED - {"schema"},
                logits=logits,
            )

    def answers(
        self, method: str, prompts: engines.Prompts, settings: Settings
    ) -> engines.TimedAnswers:
        """The seconds begin after the first round, but its tokens count. This favours the peer."""
        import torch

        [ids] = prompts
        times: list[float] = []  # of the prompt, then of each round
        stop_ids = self.loaded.stop_ids
        options = engines.sampling_options(settings, 0) | {
            # Prompt lookup needs an end token, which may be none of the vocabulary.
            "eos_token_id": [-1] if settings.ignore_eos else sorted(stop_ids) or [-1],
            "pad_token_id": min(stop_ids, default=0),
            "streamer": SimpleNamespace(put=lambda _: times.append(perf_counter()), end=list),
        }
        if settings.stop:
            tokenizer = engines.hf_tokenizer(self.folder)
            options |= {"stop_strings": list(settings.stop), "tokenizer": tokenizer}
        if method == "speculative":
            options["assistant_model"] = self.draft
            config = self.draft.generation_config
            config.num_assistant_tokens = settings.draft_tokens
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0
        elif method == "prompt-lookup":
            options["prompt_lookup_num_tokens"] = settings.draft_tokens
            options["max_matching_ngram_size"] = engines.LOOKUP_NGRAM
        torch.manual_seed(settings.seed)
        tokens = torch.tensor([ids], device=self.target.device)
        try:
            answer = self.target.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        except AttributeError as error:
            if "crop" not in str(error):  # of optimum-intel's KV cache
                raise
            raise engines.NotOffered(f"Its KV cache cannot be rolled back: {error}.") from error
        seconds = times[-1] - times[1] if len(times) > 1 else 0.0
        return [(tuple(answer[0, len(ids) :].tolist()), seconds)]

    def logits(self, prompt: list[int], tokens: list[int], width: int) -> np.ndarray:
        """As `engines.Logits`, of a target in torch."""
        import torch

        ids = torch.tensor([[*prompt, *tokens]], device=self.target.device)
        with torch.no_grad():
            before = self.target(ids[:, :-width], use_cache=True).past_key_values
            output = self.target(ids[:, -width:], past_key_values=before)
        logits: np.ndarray = output.logits[0, -1].float().cpu().numpy()
        return logits
