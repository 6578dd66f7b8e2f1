"""transformers' own generation on the same checkpoints, devices and prompts: a peer for pairs on
torch devices. Imports torch only when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from specdemo.bench.peers import LENGTHS, LOOKUP_NGRAM, Peer
from specdemo.engine.checkpoint import Checkpoint
from specdemo.errors import BadInput, RequestFailed
from specdemo.models.load import LoadedPair
from specdemo.settings import Settings


@dataclass(slots=True)
class Clock:
    """A streamer of `generate`: when the prompt and then each round of tokens came. Seconds."""

    times: list[float] = field(default_factory=list)

    def put(self, tokens: Any) -> None:
        self.times.append(perf_counter())

    def end(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class TransformersPeer(Peer):
    """`generate` with one draft length. `pipeline` is the target's module and the draft's."""

    def answer(self, instruction: str, settings: Settings) -> tuple[tuple[int, ...], float]:
        """Token ids, with the stop token, and the seconds after the first round, whose tokens count
        all the same: in the peer's favour. Raises RequestFailed with what transformers says."""
        import torch

        target, draft = self.pipeline
        ids = self.loaded.template.render(instruction, self.loaded.tokenizer)
        options: dict[str, Any] = {"do_sample": settings.temperature > 0}
        if settings.temperature:
            options |= {"temperature": settings.temperature, "top_p": settings.top_p}
            options["top_k"] = settings.top_k  # 0: all
        if draft is not None:
            options["assistant_model"] = draft
            draft.generation_config.num_assistant_tokens = self.length
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0
        elif self.length is not None:
            options["prompt_lookup_num_tokens"] = self.length
            options["max_matching_ngram_size"] = LOOKUP_NGRAM
        clock = Clock()
        torch.manual_seed(settings.seed)
        try:
            tokens = torch.tensor([ids], device=target.device)
            answer = target.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=settings.max_new_tokens,
                eos_token_id=sorted(self.loaded.stop_ids) or None,
                pad_token_id=min(self.loaded.stop_ids, default=0),
                streamer=clock,
                **options,
            )
        except (RuntimeError, ValueError, AttributeError, TypeError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise RequestFailed(f"{self.name} failed: {lines[0][:200]}") from error
        seconds = clock.times[-1] - clock.times[1] if len(clock.times) > 1 else 0.0
        return tuple(answer[0, len(ids) :].tolist()), seconds


def open_all(loaded: LoadedPair, properties: dict[str, str]) -> tuple[list[Peer], list[str]]:
    """Every mode with every draft length; all share one copy of the weights, in the type of our
    target's `properties`. Gives the peers, and one sentence for a mode left out.

    Raises BadInput for a pair that is not on a torch device, ModelError when it cannot be opened.
    """
    pipeline = _open(loaded, properties)
    left_out = []
    if loaded.draft_xml is not None and pipeline[1] is None:
        left_out = [
            "transformers/speculative was left out: the draft model is on no torch device; name "
            "one with --draft-device."
        ]
    peers = [
        _peer(loaded, pipeline, mode, length)
        for mode in _modes(pipeline)
        for length in LENGTHS[mode]
    ]
    return peers, left_out


def to_audit(
    loaded: LoadedPair, properties: dict[str, str], length: int
) -> dict[str, Callable[[], list[Peer]]]:
    """What gives each mode to audit; autoregressive decoding comes first."""
    pipeline = _open(loaded, properties)

    def open_one(mode: str) -> list[Peer]:
        return [_peer(loaded, pipeline, mode, None if mode == "autoregressive" else length)]

    return {f"transformers/{mode}": partial(open_one, mode) for mode in _modes(pipeline)}


def _modes(pipeline: Sequence[Any]) -> list[str]:
    return [mode for mode in LENGTHS if mode != "speculative" or pipeline[1] is not None]


def _peer(loaded: LoadedPair, pipeline: Sequence[Any], mode: str, length: int | None) -> Peer:
    target, draft = pipeline
    draft = draft if mode == "speculative" else None
    variant = f"K={length}" if length else str(target.dtype).removeprefix("torch.")
    settings = {"variant": variant, "dtype": str(target.dtype), "device": str(target.device)}
    return TransformersPeer(
        f"transformers/{mode}", variant, settings, loaded, (target, draft), length
    )


def _open(loaded: LoadedPair, properties: dict[str, str]) -> tuple[Any, Any]:
    """The modules of target and draft, None for a draft that is on no torch device."""
    if not isinstance(loaded.target_xml, Checkpoint):
        raise BadInput(
            f"--peers transformers runs checkpoints; --device {loaded.device} runs IR: choose "
            "--device torch:cpu or another of torch's."
        )
    from specdemo.engine import torch_model

    target = torch_model.load_module(loaded.target_xml, loaded.device, properties["dtype"])
    draft = None
    if isinstance(loaded.draft_xml, Checkpoint):
        fast = dict(torch_model.properties(loaded.draft_device, exact=False))
        draft = torch_model.load_module(loaded.draft_xml, loaded.draft_device, fast["dtype"])
    return target, draft
