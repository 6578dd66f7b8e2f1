"""`specdemo rehearse PAIR`: what a Dolly pair would cost on this machine, tried with made-up weights in real shapes."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import shutil
import statistics
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

TOKENS = tuple(range(1, 9))
PROMPT = 128
REPEATS = 5
ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
F32 = ("INFERENCE_PRECISION_HINT", "f32")
NUMERICS = {
    "exact, f16 cache": (F32, ("KV_CACHE_PRECISION", "f16")),
    "exact, f32 cache": (F32, ("KV_CACHE_PRECISION", "f32")),
    "exact, f16 cache, activations not quantized": (
        F32, ("KV_CACHE_PRECISION", "f16"), ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0")
    ),
    "the plugin's own": (),
}  # fmt: skip
"""Settings that are compared for the target. The first is the one that a Session takes at these sizes."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A model in one setting: seconds of a forward over each of TOKENS, and whether those agree bitwise."""

    numerics: str
    step_seconds: tuple[float, ...]
    invariance: str


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What one model cost. Bytes and seconds; `step_seconds[i]` is the median forward over i + 1 tokens.

    `weights_bytes` is the real model's file, which is mapped while it is in use and may be dropped from memory at any
    time; `own_bytes` what the compiled model takes beside it, `peak_bytes` the most that was taken on the way there;
    `cache_bytes` are the keys and values of a full context.
    """

    model: str
    weights_bytes: int
    own_bytes: int
    peak_bytes: int
    cache_bytes: int
    load_seconds: float
    prefill_seconds: float
    step_seconds: tuple[float, ...]
    settings: tuple[Stepped, ...] = ()


@dataclass(frozen=True, slots=True)
class Prospect:
    """For an acceptance rate: the number of draft tokens that pays best, tokens a round, and the speed-up."""

    acceptance_rate: float
    draft_tokens: int
    tokens_per_round: float
    speedup: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pair", metavar="PAIR", help="a Dolly pair that `specdemo pairs` lists")
    parser.add_argument("--quick", action="store_true", help="leave out the comparison of numerics")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON ('-' for standard output)")


def main(args: argparse.Namespace) -> int:
    from specdemo.cli import write_json
    from specdemo.commands.progress_bar import ProgressBar
    from specdemo.models import machine
    from specdemo.models.errors import BadChoice
    from specdemo.models.home import cache_home, make_folder, only_one_in, require_space
    from specdemo.models.pairs import PAIRS, find_pair
    from specdemo.models.rehearsal import shape_of

    pair = find_pair(args.pair, option="PAIR")
    made = [(source.name, shape_of(source)) for source in (pair.target, pair.draft) if source]
    if any(shape is None for _, shape in made):
        known = ", ".join(one.name for one in PAIRS if shape_of(one.target))
        raise BadChoice(f"PAIR {args.pair!r} cannot be rehearsed, its shapes are not written down; choose {known}.")
    home = make_folder(cache_home() / "rehearsal")
    _require_memory(pair.name, [shape.bytes(bits) + shape.cache_bytes(PROMPT) for _, (shape, bits) in made])
    largest = max(shape.bytes(bits) for _, (shape, bits) in made)
    require_space(home, largest + 1_000_000_000, f"Rehearsing {pair.name}")
    bar = ProgressBar()
    rehearsed = []
    with only_one_in(home):
        for leftover in home.glob("made-up-*"):  # of a rehearsal that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        for name, (shape, bits) in made:
            folder = Path(tempfile.mkdtemp(prefix="made-up-", dir=home))
            try:
                is_target = not rehearsed
                rehearsed.append(rehearse(name, shape, bits, folder, bar, compare=is_target and not args.quick))
            finally:
                bar.close()
                shutil.rmtree(folder, ignore_errors=True)
            gc.collect()
    target, draft = rehearsed
    outlook = [prospect(target.step_seconds, draft.step_seconds[0], alpha) for alpha in ALPHAS]
    if args.json:
        figures = {
            "machine": machine.describe(),
            "weights": "made up",
            "pair": pair.name,
            "models": [dataclasses.asdict(one) for one in rehearsed],
            "prospects": [dataclasses.asdict(one) for one in outlook],
        }
        write_json(json.dumps(figures, indent=1), args.json)
    if args.json != "-":
        print("\n".join(table(pair.name, machine.describe(), rehearsed, outlook)))
    return 0


def rehearse(name: str, shape, bits: int, folder: Path, report, *, compare: bool = False) -> Rehearsed:
    """Make the model up in `folder`, load it with the settings of exact numerics, and time it; with `compare`, in all
    of NUMERICS, one after the other."""
    from specdemo.engine.model import ModelSettings, PagedModel, Run
    from specdemo.models import machine
    from specdemo.models.progress import Progress
    from specdemo.models.rehearsal import CONTEXT, write_ir

    xml = write_ir(shape, bits, folder, report)
    gc.collect()
    first, *others = NUMERICS.items()
    report(Progress(f"Loading {name}"))
    before, began = machine.own_bytes(), perf_counter()
    with _Peak() as peak:
        model = PagedModel(xml, ModelSettings("CPU", first[1]))
        with model.new_sequence() as sequence:
            model.forward([Run(sequence, [1, 1], 1)])
        load_seconds = perf_counter() - began
        with model.new_sequence() as sequence:
            began = perf_counter()
            model.forward([Run(sequence, [1] * PROMPT, 1)])
            prefill_seconds = perf_counter() - began
    after = machine.own_bytes()
    settings = [_stepped(first[0], model, name, report, check=compare)]
    del model
    for numerics, properties in others if compare else ():
        gc.collect()
        report(Progress(f"Loading {name} ({numerics})"))
        settings.append(_stepped(numerics, PagedModel(xml, ModelSettings("CPU", properties)), name, report, check=True))
    return Rehearsed(
        model=name,
        weights_bytes=shape.bytes(bits),
        own_bytes=after - before,
        peak_bytes=peak.bytes - before,
        cache_bytes=shape.cache_bytes(CONTEXT),
        load_seconds=load_seconds,
        prefill_seconds=prefill_seconds,
        step_seconds=settings[0].step_seconds,
        settings=tuple(settings) if compare else (),
    )


def _stepped(numerics: str, model, name: str, report, *, check: bool) -> Stepped:
    """Time forwards of all sizes, interleaved, so that a slow spell touches all of them; then compare their logits."""
    from specdemo.engine.model import Run
    from specdemo.engine.numerics import measure_invariance
    from specdemo.models.progress import Progress

    report(Progress(f"Timing {name} ({numerics})"))
    times: dict[int, list[float]] = {count: [] for count in TOKENS}
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, [1] * PROMPT, 1)])
        for _ in range(REPEATS):
            for count in TOKENS:
                before = perf_counter()
                model.forward([Run(sequence, [1] * count, count, stepwise=True)])
                times[count].append(perf_counter() - before)
                sequence.truncate(PROMPT)
    found = str(measure_invariance(model)) if check else ""
    return Stepped(numerics, tuple(statistics.median(times[count]) for count in TOKENS), found)


def _require_memory(pair: str, needed: list[int]) -> None:
    """Raise ZooError if one of the models, which are tried one after the other, cannot fit into this machine."""
    from specdemo.models import machine
    from specdemo.models.errors import ZooError

    memory = machine.memory_bytes()
    largest = max(needed) + 1_000_000_000
    if largest > memory:
        raise ZooError(
            f"Rehearsing {pair} needs {largest / 1e9:.1f} GB of memory and this machine has {memory / 1e9:.1f} GB; "
            "rehearse a smaller pair."
        )


def prospect(target_seconds: tuple[float, ...], draft_seconds: float, alpha: float) -> Prospect:
    """What drafting pays at acceptance rate `alpha`: Leviathan et al. section 3.3, with measured costs.

    A round drafts k tokens one by one and verifies k + 1 at once; it yields (1 - alpha^(k+1)) / (1 - alpha) tokens.
    Compared with the target's own one-token forward.
    """
    choices = []
    for count in range(1, len(target_seconds)):
        tokens = (1 - alpha ** (count + 1)) / (1 - alpha)
        seconds = count * draft_seconds + target_seconds[count]
        choices.append(Prospect(alpha, count, tokens, tokens * target_seconds[0] / seconds))
    return max(choices, key=lambda one: one.speedup)


def table(pair: str, machine: str, rehearsed: list[Rehearsed], outlook: list[Prospect]) -> list[str]:
    """The figures as Markdown."""
    lines = [
        f"{pair} rehearsed on {machine}: made-up weights in the real shapes, f32 activations, f16 cache, batch 1, "
        f"{PROMPT} tokens of context.",
        "",
        "| model | weights file | memory of its own | peak while loading | cache of a full context | load and first "
        "forward | prefill of 128 |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in rehearsed:
        sizes = (one.weights_bytes, one.own_bytes, one.peak_bytes, one.cache_bytes)
        cells = [one.model, *(f"{size / 1e9:.2f} GB" for size in sizes)]
        cells += [f"{one.load_seconds:.1f} s", f"{one.prefill_seconds:.2f} s"]
        lines.append(f"| {' | '.join(cells)} |")
    total = sum(one.own_bytes + one.cache_bytes for one in rehearsed)
    lines += [
        "",
        f"Together {total / 1e9:.1f} GB must stay in memory; the weights files, "
        f"{sum(one.weights_bytes for one in rehearsed) / 1e9:.1f} GB, are read once while loading.",
        "",
        f"| milliseconds a forward of n tokens | {' | '.join(map(str, TOKENS))} |",
        "|---" * (len(TOKENS) + 1) + "|",
    ]
    for one in rehearsed:
        lines.append(_row(one.model, one.step_seconds))
    compared = [(one.model, setting) for one in rehearsed for setting in one.settings]
    if compared:
        lines += ["", f"| numerics of {compared[0][0]}, ms for n = | {' | '.join(map(str, TOKENS))} | logits |",
                  "|---" * (len(TOKENS) + 2) + "|"]  # fmt: skip
        lines += [f"{_row(setting.numerics, setting.step_seconds)} {setting.invariance} |" for _, setting in compared]
    lines += [
        "",
        "| acceptance rate | " + " | ".join(f"{one.acceptance_rate:.1f}" for one in outlook) + " |",
        "|---" * (len(outlook) + 1) + "|",
        "| best number of draft tokens | " + " | ".join(str(one.draft_tokens) for one in outlook) + " |",
        "| tokens per round | " + " | ".join(f"{one.tokens_per_round:.2f}" for one in outlook) + " |",
        "| speed-up over one token a forward | " + " | ".join(f"{one.speedup:.2f}" for one in outlook) + " |",
    ]
    return lines


def _row(name: str, seconds: tuple[float, ...]) -> str:
    return f"| {name} | {' | '.join(f'{one * 1000:.1f}' for one in seconds)} |"


class _Peak:
    """The most memory of its own that this process had while the block ran, looked at fifty times a second."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Peak:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watching.join()

    def _watch(self) -> None:
        from specdemo.models import machine

        while True:
            self.bytes = max(self.bytes, machine.own_bytes())
            if self._over.wait(0.02):
                return
