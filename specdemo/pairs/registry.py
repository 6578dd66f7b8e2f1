"""The models that a user may name, and the known pairs: repositories, sizes, drafts."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.engine.profile import Profile
from specdemo.errors import InvalidOption
from specdemo.machine import hardware, measured
from specdemo.machine.hardware import on_torch, require_device
from specdemo.options import CONFIG, Line, option
from specdemo.pairs import embedded, sources
from specdemo.pairs.sources import EMBEDDED_DRAFT, EMBEDDED_TARGET, Source

MB = 1_000_000
OWN = "own"  # name of a pair that is not in PAIRS
NO_DRAFT = "none"  # instead of a draft's name: n-gram lookup only
EMBEDDED_TOKENS = 4.7
"""Tokens of the embedded target in the time that another model takes for one token and each GB of
its weights: 2.9 to 4.1 in docs/results/rehearsals.md with 8 bits, and 1.35 times that with 4."""

Name = Annotated[str, Field(max_length=4096)]  # a model may be named by its folder
WeightFormat = Literal["auto", "int8", "int4", "fp16"]


@dataclass(frozen=True, slots=True, config=CONFIG)
class ModelChoice:
    """Which models, and where they run."""

    pair: Line = option(
        "",
        "a pair that `pairs` lists; without one the largest Dolly pair that is on this disk and "
        "fits, else embedded",
    )
    model: Line = option(
        "",
        "your own target model: a folder, a GGUF file or a Hub repository (for a GGUF file there "
        "OWNER/NAME:FILE.gguf or OWNER/NAME:Q4_K_M)",
        metavar="DIR_OR_REPO",
    )
    assistant_model: Line = option(
        "", "the draft model that goes with it, or one of a pair's", metavar="DIR_OR_REPO"
    )
    weight_format: WeightFormat = option(
        "auto",
        "precision that a PyTorch checkpoint or a GGUF file is converted to; auto: int8, or int4 "
        "if that takes more than half of the memory",
    )
    thinking: bool = option(False, "let a model that can (Qwen3, gpt-oss) think before it answers")
    device: Line = option(
        "CPU",
        "device of the target model: CPU (OpenVINO), or one of PyTorch's (torch:cpu, torch:cuda, "
        "torch:xpu, torch:mps, torch:hpu)",
    )
    draft_device: Line = option("CPU", "device of the draft model, likewise")
    kv_cache: Literal["auto", "f32", "f16", "u8"] = option(
        "auto", "precision of the KV cache; what it does to exactness is measured and reported"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class PairInfo:
    """The names, formats and revisions of a run's models, and what the numerics are on this
    machine."""

    name: Name
    target: Name
    draft: Name | None
    target_revision: Name = ""
    draft_revision: Name = ""
    numerics_found: Name = ""
    target_weights: Name = ""
    draft_weights: Name = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A target model and the models that can draft for it."""

    name: str
    title: str
    memory_bytes: int  # weights, caches, working space
    target: Source
    drafts: tuple[Source, ...] = ()
    use: str = ""  # what its answers are good for
    choice: ModelChoice = ModelChoice()  # that named it

    @property
    def embedded(self) -> bool:
        return not self.target.repo

    @property
    def subject(self) -> dict[str, str]:
        """The key of the pair's stored measurements."""
        if self.name == OWN:
            return {"target": self.target.repo, "weight_format": self.target.export}
        changed = {"weight_format": self.choice.weight_format}
        return {"pair": self.name} | (changed if self.choice.weight_format != "auto" else {})

    @property
    def draft(self) -> Source | None:
        return self.drafts[0] if self.drafts else None

    @property
    def download_bytes(self) -> int:
        return sum(source.download_bytes for source in (self.target, *self.drafts[:1]))

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= hardware.memory_bytes()

    def is_here(self) -> bool:
        """Whether the target and one of the drafts are on this disk."""
        drafts_here = not self.drafts or any(map(sources.here, self.drafts))
        return drafts_here and sources.here(self.target)

    def read_facts(self) -> str:
        """What was measured here, as text: seconds a token, agreement with another pair."""
        tuned = measured.read("tuned", self.subject, measured.TuningResult)
        steps = measured.read("steps", {"model": self.target.name}, list[float])
        facts: list[str] = []
        if seconds := tuned.rows[0].target_seconds if tuned else steps and steps[0]:
            facts.append(f"{seconds * 1000:.0f} ms a token")
        if agreement := measured.read("agreement", {"pair": self.name}, tuple[str, float]):
            other, share = agreement
            facts.append(f"chooses as {other} on {100 * share:.1f} % of tokens")
        return ", ".join(facts)

    def read_expected_speed(self) -> str:
        """Estimate tokens/s from no drafting up to half of the draft tokens accepted, as text,
        from the costs of the embedded pair here; "" if they have not been measured, and for a model
        with experts."""
        profile = _embedded_profile()
        if profile is None or self.target.experts:
            return ""
        costs = profile.targets["exact"].costs
        drafted = np.arange(9)  # tokens in a round
        verify = np.interp(drafted + 1, [*costs], [*costs.values()]) * _relative_cost(self.target)
        step = profile.draft.costs.get(1, 0.0)
        if self.draft and not self.embedded:
            step = costs[1] * _relative_cost(self.draft)
        speeds = (2 - 0.5**drafted) / (drafted * step + verify)  # 1 + 1/2 + 1/4 ... tokens a round
        bounds = speeds[0], speeds.max()
        texts = [f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}" for speed in bounds]
        return f"{' to '.join(dict.fromkeys(texts))} tokens/s expected"

    def in_format(self, weight_format: WeightFormat) -> Self:
        """This pair with the models that are converted here in another format. Raises InvalidOption
        where the target is not."""
        if weight_format in ("auto", self.target.export):
            return self
        if not self.target.export:
            wrong = "{} {weight_format}: the files of {name} are OpenVINO IR already, which is not "
            wrong += "converted; leave it out, or choose another pair."
            raise InvalidOption(wrong, "weight_format", weight_format=weight_format, name=self.name)

        def converted(source: Source) -> Source:
            return replace(source, export=weight_format, ir_bytes=0) if source.export else source

        title = f"{self.title.partition(',')[0]}, {weight_format}"
        drafts = tuple(map(converted, self.drafts))
        return replace(self, title=title, target=converted(self.target), drafts=drafts)

    def with_draft(self, name: str) -> Self:
        """This pair with the draft `name`: one of its own, a folder, a Hub repository, or NO_DRAFT.
        Raises InvalidOption."""
        drafts = tuple(draft for draft in self.drafts if draft.name == name)
        if name != NO_DRAFT and not drafts:
            weight_format = self.choice.weight_format
            drafts = (sources.source_of(name, "assistant_model", weight_format),)
        return replace(self, drafts=drafts, choice=replace(self.choice, assistant_model=name))


def _embedded_profile() -> Profile | None:
    for subject, profile in measured.profiles():
        on_cpu = subject["machine"] == hardware.describe() and subject["devices"] == "CPU, CPU"
        costs = profile.targets["exact"].costs if "exact" in profile.targets else {}
        if on_cpu and str(subject["target"]).startswith(f"{embedded.TARGET} ") and 1 in costs:
            return profile
    return None


def _relative_cost(source: Source) -> float:
    """Seconds a token relative to the embedded target."""
    weights = source.ir_bytes or source.download_bytes
    return EMBEDDED_TOKENS * weights / 1e9 if source.repo else 1.0


def _hub(repo: str, size: int, export: str = "", ir_size: int = 0, name: str = "") -> Source:
    """Sizes are in MB."""
    name = name or repo.rpartition("/")[2].removesuffix("-GGUF:Q4_K_M")
    return Source(repo, name, size * MB, export, ir_size * MB)


_DOLLY_3B_INT4 = _hub("OpenVINO/dolly-v2-3b-int4-ov", 1_570)
_DOLLY_3B_INT8 = _hub("OpenVINO/dolly-v2-3b-int8-ov", 2_780)
_DOLLY_7B_INT4 = _hub("OpenVINO/dolly-v2-7b-int4-ov", 4_420)
_DOLLY_7B_INT8 = _hub("OpenVINO/dolly-v2-7b-int8-ov", 6_900)
_DOLLY_12B_INT8 = _hub("OpenVINO/dolly-v2-12b-int8-ov", 11_900)
# Not pythia-1.4b-int4-ov or -int8-ov: the files of those names are a model of 12 billion weights.
_PYTHIA_1B = _hub("OpenVINO/pythia-1b-int4-ov", 627)
_PYTHIA_160M = _hub("EleutherAI/pythia-160m", 375, "int8", 162)
_PYTHIA_70M = _hub("EleutherAI/pythia-70m", 166, "int8", 70)
_SMOLLM = "SmolLM2-1.7B-Instruct"
_SMOLLM_INT4 = _hub(f"AIFunOver/{_SMOLLM}-openvino-4bit", 969, name=f"{_SMOLLM}-int4")
_SMOLLM_INT8 = _hub(f"hsuwill000/{_SMOLLM}-openvino", 1_710, name=f"{_SMOLLM}-int8")
_GPT2_XL = _hub("openai-community/gpt2-xl", 6_430, "int8", 1_558)
_GPT2 = _hub("openai-community/gpt2", 548, "int8", 124)
_QWEN3_17B = _hub("OpenVINO/Qwen3-1.7B-int8-ov", 1_730)
_QWEN3_4B = _hub("OpenVINO/Qwen3-4B-int4-ov", 2_300)
_QWEN3_06B = _hub("OpenVINO/Qwen3-0.6B-int8-ov", 610)
_QWEN3_30B = replace(_hub("OpenVINO/Qwen3-30B-A3B-int4-ov", 16_350), experts=True)
_GPT_OSS_20B = replace(_hub("OpenVINO/gpt-oss-20b-int4-ov", 12_000), experts=True)
# EAGLE-3 heads; their sizes are computed from their shapes.
_HEAD_17B = _hub("AngelSlim/Qwen3-1.7B_eagle3", 274, "int8", 137)
_HEAD_4B = _hub("AngelSlim/Qwen3-4B_eagle3", 436, "int8", 218)
_CODER_15B = _hub("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M", 1_117, "auto", 1_361)
_CODER_05B = _hub("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M", 491, "auto", 612)
_GEMMA_4B = _hub("unsloth/gemma-3-4b-it-GGUF:Q4_K_M", 2_490, "int4", 2_672)
_GEMMA_1B = _hub("unsloth/gemma-3-1b-it-GGUF:Q4_K_M", 806, "int8", 1_000)
_GEMMA_270M = _hub("unsloth/gemma-3-270m-it-GGUF:Q8_0", 292, "int8", 268, "gemma-3-270m-it")
_LLAMA_3B = _hub("bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", 2_019, "int4", 2_050)
_LLAMA_1B = _hub("bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", 808, "int8", 1_236)

# The order of drafts follows the estimates in docs/results/rehearsals.md.
_TINY_FIRST = _PYTHIA_70M, _PYTHIA_160M, _PYTHIA_1B
_SMALL_FIRST = _PYTHIA_160M, _PYTHIA_1B
_LARGE_FIRST = _PYTHIA_1B, _PYTHIA_160M
_PAPER = (_DOLLY_3B_INT4,)
_SMALLEST = (EMBEDDED_TARGET,)  # it is here anyway and has the vocabulary of SmolLM2 1.7B

EMBEDDED = Pair(
    "embedded",
    "SmolLM2-135M-Instruct, 4 bits",
    1_500 * MB,  # a page's server, most it took in races: 1.49 GB
    replace(EMBEDDED_TARGET, download_bytes=embedded.WHEEL_BYTES),
    (EMBEDDED_DRAFT,),
    "a first look, simple English",
)

# Memory: the target's weights twice (exact and fast numerics are two compiled models), the draft's
# weights, KV caches of a full context of at most 8,192 tokens, 1 GB of working space. Without fast
# numerics little more than half of it is used.
_ENGLISH, _LANGUAGES = "everyday English", "many languages"
_THINKING = f"{_LANGUAGES}, and thinking if asked to"
_DOLLY = "the paper's model family, English"
_TABLE: tuple[tuple[str, str, int, Source, tuple[Source, ...], str], ...] = (
    ("smollm2-1.7b", "SmolLM2 1.7B, 4 bits", 6_500, _SMOLLM_INT4, _SMALLEST, _ENGLISH),
    ("smollm2-1.7b-int8", "SmolLM2 1.7B, 8 bits", 8_000, _SMOLLM_INT8, _SMALLEST, _ENGLISH),
    ("dolly-3b-int4", "Dolly V2 3B, 4 bits", 5_700, _DOLLY_3B_INT4, _TINY_FIRST, _DOLLY),
    ("dolly-3b", "Dolly V2 3B, 8 bits", 8_100, _DOLLY_3B_INT8, _TINY_FIRST, _DOLLY),
    ("dolly-7b-int4", "Dolly V2 7B, 4 bits", 12_300, _DOLLY_7B_INT4, _SMALL_FIRST, _DOLLY),
    ("dolly-7b", "Dolly V2 7B, 8 bits", 17_200, _DOLLY_7B_INT8, _SMALL_FIRST, _DOLLY),
    ("dolly-12b", "Dolly V2 12B, 8 bits", 28_500, _DOLLY_12B_INT8, _LARGE_FIRST, _DOLLY),
    ("dolly-12b-paper", "Dolly V2 12B with Dolly V2 3B", 31_000, _DOLLY_12B_INT8, _PAPER, _DOLLY),
    ("qwen3-1.7b", "Qwen3 1.7B, 8 bits", 7_000, _QWEN3_17B, (_QWEN3_06B, _HEAD_17B), _THINKING),
    ("qwen3-4b", "Qwen3 4B, 4 bits", 8_400, _QWEN3_4B, (_QWEN3_06B, _HEAD_4B), _THINKING),
    ("qwen3-30b-a3b", "Qwen3 30B-A3B, 4 bits", 36_000, _QWEN3_30B, (_QWEN3_06B,), _THINKING),
    ("gpt-oss-20b", "gpt-oss 20B, 4 bits", 25_400, _GPT_OSS_20B, (), _LANGUAGES),
    ("gemma3-1b", "Gemma 3 1B, 8 bits", 3_700, _GEMMA_1B, (_GEMMA_270M,), _LANGUAGES),
    ("gemma3-4b", "Gemma 3 4B, 4 bits", 8_000, _GEMMA_4B, (_GEMMA_270M, _GEMMA_1B), _LANGUAGES),
    ("llama3.2-3b", "Llama 3.2 3B, 4 bits", 7_600, _LLAMA_3B, (_LLAMA_1B,), _ENGLISH),
    ("qwen2.5-coder", "Qwen2.5-Coder 1.5B, 4 and 8 bits", 5_600, _CODER_15B, (_CODER_05B,), "code"),
    ("gpt2-xl", "GPT-2 XL with GPT-2", 15_000, _GPT2_XL, (_GPT2,), "continuing a text"),
)
PAIRS = (
    EMBEDDED,
    *(
        Pair(name, title, memory * MB, target, drafts, use)
        for name, title, memory, target, drafts, use in _TABLE
    ),
)

_DEFAULTS = ("dolly-12b", "dolly-7b", "dolly-3b", "dolly-3b-int4")  # largest first
_UNASKED = "dolly-3b-int4"
"""Fetched by default, 1.7 GB: 1.2 to 1.3 times as fast as `dolly-3b` with VNNI and acceptance rates
from 0.3 to 0.9 (docs/results/rehearsals.md)."""


def find_pair(name: str) -> Pair:
    """The pair called `name`. Raises InvalidOption."""
    pairs = {pair.name: pair for pair in PAIRS}
    if name not in pairs:
        wrong = "{} {name!r} is not a pair; choose one of {pairs}."
        raise InvalidOption(wrong, "pair", name=name, pairs=", ".join(pairs))
    return pairs[name]


def choice_of(text: str, weight_format: WeightFormat = "auto") -> ModelChoice:
    """The models that `text` names: a pair of PAIRS, else a target as `ModelChoice.model`."""
    if any(pair.name == text for pair in PAIRS):
        return ModelChoice(pair=text, weight_format=weight_format)
    return ModelChoice(model=text, weight_format=weight_format)


def chosen_pair(
    choice: ModelChoice, default: Callable[[], Pair] = lambda: default_pair()[0]
) -> Pair:
    """The pair that `choice` names, or `default()` if it names none. Raises InvalidOption or
    MissingPackage."""
    require_device(choice.device, "device")
    require_device(choice.draft_device, "draft_device")
    if choice.kv_cache != "auto" and any(map(on_torch, (choice.device, choice.draft_device))):
        wrong = "{} {precision} is for OpenVINO devices only."
        raise InvalidOption(wrong, "kv_cache", precision=choice.kv_cache)
    if choice.model and choice.pair:
        raise InvalidOption(
            "{} {pair} and {} {model:.100} name two targets; leave one of them out.",
            *("pair", "model"),
            pair=choice.pair,
            model=choice.model,
        )
    if choice.model:
        target = sources.source_of(choice.model, "model", choice.weight_format)
        pair = Pair(OWN, target.name, 0, target)
    elif choice.pair:
        pair = find_pair(choice.pair).in_format(choice.weight_format)
    elif choice.assistant_model:
        fields = "assistant_model", "model", "pair"
        raise InvalidOption("{} needs {} or {} beside it.", *fields)
    else:
        pair = default()
    pair = replace(pair, choice=choice)
    return pair.with_draft(choice.assistant_model) if choice.assistant_model else pair


def default_pair() -> tuple[Pair, str]:
    """The largest Dolly pair on this disk that fits into memory, else the embedded pair; and the
    reason in one sentence. Uses no network. Never raises."""
    for pair in map(find_pair, _DEFAULTS):
        if pair.fits and pair.is_here():
            return pair, f"{pair.name}: the largest Dolly pair that is here and fits."
    why = "no Dolly pair fits this machine."
    if pair_to_fetch(EMBEDDED):
        why = f"no Dolly pair is here; `specdemo fetch {_UNASKED}` gets one that fits."
    return EMBEDDED, f"embedded: {why}"


def pair_to_fetch(default: Pair) -> Pair | None:
    """The pair that suits this machine better than the embedded pair as the `default`, if any."""
    pair = find_pair(_UNASKED)
    return pair if default.embedded and pair.fits else None
