"""`specdemo train-draft`: options in, one line of progress, figures out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specdemo.training.settings import DEVICES, LABELS, TrainProgress, TrainSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from specdemo.cli import real_number, whole_number

    defaults = TrainSettings("", Path())
    parser.add_argument("--target", required=True, metavar="DIR_OR_REPO",
                        help="the model to draft for: a folder with a PyTorch checkpoint or a GGUF file, "
                        "a Hub repository, or embedded")  # fmt: skip
    parser.add_argument("--out", required=True, type=Path, metavar="DIR",
                        help="the folder to make; repeat the command to continue an interrupted run")  # fmt: skip
    parser.add_argument("--tokens", type=whole_number(1000), default=defaults.tokens, metavar="N",
                        help=f"answer tokens of text that the target writes (default {defaults.tokens})")  # fmt: skip
    parser.add_argument("--minutes", type=real_number(0, 100_000, open_below=True), default=None, metavar="M",
                        help="how long to train, beside the writing of text (default: by --passes)")  # fmt: skip
    parser.add_argument("--passes", type=real_number(0, 1000, open_below=True), default=defaults.passes, metavar="P",
                        help=f"how often the text is read (default {defaults.passes:g})")  # fmt: skip
    parser.add_argument("--device", choices=DEVICES, default=defaults.device, help="where to train (default auto)")
    parser.add_argument("--layers", type=whole_number(1), default=defaults.layers, metavar="N",
                        help=f"decoder layers of the draft (default {defaults.layers})")  # fmt: skip
    parser.add_argument("--labels", choices=LABELS, default=defaults.labels,
                        help="learn the text's tokens (hard) or the target's probabilities (soft); "
                        "auto: soft on a GPU, but for GGUF")  # fmt: skip
    parser.add_argument("--head-tokens", type=whole_number(1), default=defaults.head_tokens, metavar="N",
                        help=f"frequent tokens the draft chooses from (default {defaults.head_tokens})")  # fmt: skip
    parser.add_argument("--prompt-tokens", type=whole_number(1), default=None, metavar="N",
                        help="train with the last N tokens of a prompt only; 64 are enough for two layers "
                        "(default: all)")  # fmt: skip
    parser.add_argument("--text", type=Path, default=None, metavar="FILE",
                        help="conversations to learn from (JSONL) in place of writing some")  # fmt: skip
    parser.add_argument("--seed", type=whole_number(0, 2**31), default=0, metavar="S", help="default 0")


def main(args: argparse.Namespace) -> int:
    from specdemo.training.run import train_draft

    settings = TrainSettings(
        target=args.target,
        out=args.out,
        tokens=args.tokens,
        minutes=args.minutes,
        passes=args.passes,
        device=args.device,
        layers=args.layers,
        labels=args.labels,
        head_tokens=args.head_tokens,
        prompt_tokens=args.prompt_tokens,
        text=args.text,
        seed=args.seed,
    )
    line = _ProgressLine()
    try:
        result = train_draft(settings, line)
    finally:
        line.close()
    before, after = result.before, result.after
    print(
        f"{result.folder} holds the draft: agreement with the target on {after.tokens:,} held-back tokens "
        f"{after.agreement:.3f} (untrained {before.agreement:.3f}); its card is {result.folder / 'README.md'}"
    )
    return 0


class _ProgressLine:
    """Redraws one line on a terminal; elsewhere prints a line when the stage changes and every five percent."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last: tuple[str, int] | None = None

    def __call__(self, progress: TrainProgress) -> None:
        mark = (progress.stage, int(20 * progress.done / progress.total) if progress.total else 0)
        if self._live:
            changed = self._last is not None and self._last[0] != progress.stage
            print(("\n" if changed else "\r") + progress.line.ljust(78), end="", file=sys.stderr, flush=True)
        elif mark != self._last:
            print(progress.line, file=sys.stderr, flush=True)
        self._last = mark

    def close(self) -> None:
        if self._live and self._last:
            print(file=sys.stderr)
