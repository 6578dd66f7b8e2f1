"""`specdemo rehearse PAIR`: what a Dolly pair would cost on this machine, tried with made-up weights in real shapes."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

TOKENS = tuple(range(1, 9))
PROMPT = 128
REPEATS = 5
ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What one model cost. Bytes and seconds; `step_seconds[i]` is the median forward over i + 1 tokens."""

    model: str
    weights_bytes: int
    anonymous_bytes: int
    mapped_bytes: int
    peak_bytes: int
    load_seconds: float
    prefill_seconds: float
    step_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Prospect:
    """For an acceptance rate: the number of draft tokens that pays best, tokens a round, and the speed-up."""

    acceptance_rate: float
    draft_tokens: int
    tokens_per_round: float
    speedup: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pair", metavar="PAIR", help="a Dolly pair that `specdemo pairs` lists")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON ('-' for standard output)")


def main(args: argparse.Namespace) -> int:
    from specdemo.cli import write_json
    from specdemo.commands.progress_bar import ProgressBar
    from specdemo.zoo import machine
    from specdemo.zoo.errors import BadChoice
    from specdemo.zoo.home import cache_home, make_folder, only_one_in, require_space
    from specdemo.zoo.pairs import PAIRS, find_pair
    from specdemo.zoo.rehearsal import shape_of

    pair = find_pair(args.pair, option="PAIR")
    made = [(source.name, shape_of(source)) for source in (pair.target, pair.draft) if source]
    if any(shape is None for _, shape in made):
        known = ", ".join(one.name for one in PAIRS if shape_of(one.target))
        raise BadChoice(f"PAIR {args.pair!r} cannot be rehearsed, its shapes are not written down; choose {known}.")
    home = make_folder(cache_home() / "rehearsal")
    largest = max(shape.bytes(bits) for _, (shape, bits) in made)
    require_space(home, 2 * largest + 1_000_000_000, f"Rehearsing {pair.name}")
    bar = ProgressBar()
    rehearsed = []
    with only_one_in(home):
        for leftover in home.glob("made-up-*"):  # of a rehearsal that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        for name, (shape, bits) in made:
            folder = Path(tempfile.mkdtemp(prefix="made-up-", dir=home))
            try:
                rehearsed.append(rehearse(name, shape, bits, folder, bar))
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


def rehearse(name: str, shape, bits: int, folder: Path, report) -> Rehearsed:
    """Make the model up in `folder`, load it with the settings of exact numerics, and time it."""
    from specdemo.engine.model import ModelSettings, PagedModel, Run
    from specdemo.engine.numerics import exact_candidates
    from specdemo.zoo.progress import Progress
    from specdemo.zoo.rehearsal import write_ir

    xml = write_ir(shape, bits, folder, report)
    report(Progress(f"Loading and timing {name}"))
    _forget_peak()
    before = perf_counter()
    model = PagedModel(xml, ModelSettings("CPU", exact_candidates(xml)[0]))
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, [1], 1)])
        load_seconds = perf_counter() - before
    with model.new_sequence() as sequence:
        before = perf_counter()
        model.forward([Run(sequence, [1] * PROMPT, 1)])
        prefill_seconds = perf_counter() - before
        times: dict[int, list[float]] = {count: [] for count in TOKENS}
        for _ in range(REPEATS):  # sizes interleaved, so that a slow spell touches all of them
            for count in TOKENS:
                before = perf_counter()
                model.forward([Run(sequence, [1] * count, count)])
                times[count].append(perf_counter() - before)
                sequence.truncate(PROMPT)
        memory = _memory()
    return Rehearsed(
        model=name,
        weights_bytes=xml.with_suffix(".bin").stat().st_size,
        anonymous_bytes=memory.get("RssAnon", 0),
        mapped_bytes=memory.get("RssFile", 0),
        peak_bytes=memory.get("VmHWM", 0),
        load_seconds=load_seconds,
        prefill_seconds=prefill_seconds,
        step_seconds=tuple(statistics.median(times[count]) for count in TOKENS),
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
        f"{pair} rehearsed on {machine}: made-up weights in the real shapes, f32 activations, batch 1, {PROMPT} tokens "
        "of context.",
        "",
        "| model | weights | memory of its own | mapped file | peak | load and first forward | prefill of 128 |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in rehearsed:
        sizes = (one.weights_bytes, one.anonymous_bytes, one.mapped_bytes, one.peak_bytes)
        cells = [one.model, *(f"{size / 1e9:.2f} GB" for size in sizes)]
        cells += [f"{one.load_seconds:.1f} s", f"{one.prefill_seconds:.2f} s"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"| milliseconds a forward of n tokens | {' | '.join(map(str, TOKENS))} |",
        "|---" * (len(TOKENS) + 1) + "|",
    ]
    for one in rehearsed:
        lines.append(f"| {one.model} | {' | '.join(f'{seconds * 1000:.1f}' for seconds in one.step_seconds)} |")
    lines += [
        "",
        "| acceptance rate | " + " | ".join(f"{one.acceptance_rate:.1f}" for one in outlook) + " |",
        "|---" * (len(outlook) + 1) + "|",
        "| best number of draft tokens | " + " | ".join(str(one.draft_tokens) for one in outlook) + " |",
        "| tokens per round | " + " | ".join(f"{one.tokens_per_round:.2f}" for one in outlook) + " |",
        "| speed-up over one token a forward | " + " | ".join(f"{one.speedup:.2f}" for one in outlook) + " |",
    ]
    return lines


def _forget_peak() -> None:
    """Let Linux count this process's peak of memory from now on."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _memory() -> dict[str, int]:
    """This process's memory as Linux counts it, bytes: RssAnon (its own), RssFile (mapped files), VmHWM (the peak)."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.startswith(("RssAnon", "RssFile", "VmHWM")))
    return {name.rstrip(":"): int(count) * 1024 for name, count, *_ in fields}
