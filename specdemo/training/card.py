"""The card that goes with a draft: how it was made and what it reached, for people (README.md) and programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specdemo.training.settings import TrainResult, TrainSettings


def write_card(
    folder: Path, target: str, settings: TrainSettings, result: TrainResult, labels: str, scale: float
) -> None:
    """Write card.json and README.md into `folder`."""
    recipe = {
        name: value for name, value in asdict(settings).items() if name not in ("target", "out", "text", "device")
    }
    facts: dict[str, Any] = {
        "target": target,
        "recipe": recipe | {"labels": labels, "start_norm": scale},
        "text": "written by the target" if settings.text is None else settings.text.name,
        "steps": result.steps,
        "tokens_trained": result.tokens,
        "seconds": round(result.seconds),
        "before": asdict(result.before),
        "after": asdict(result.after),
    }
    (folder / "card.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_markdown(facts), encoding="utf-8")


def _markdown(facts: dict[str, Any]) -> str:
    before, after, recipe = facts["before"], facts["after"], facts["recipe"]
    positions = ", ".join(f"{share:.2f}" for share in after["by_position"])
    kinds = "".join(
        f"| {kind} | {before['by_kind'].get(kind, 0):.3f} | {share:.3f} |\n"
        for kind, share in after["by_kind"].items()
    )
    rounds = ", ".join(f"{tokens:.2f} drafting {k}" for k, tokens in after["tokens_per_round"].items())
    sampled = (
        ""
        if after["tv_acceptance"] is None
        else f"Acceptance under sampling (1 - TV): {after['tv_acceptance']:.3f}.\n"
    )
    return (
        f"# A draft for {facts['target']}\n\n"
        f"{recipe['layers']} decoder layers of the target, retrained on {facts['text']}; embedding and head are the "
        f"target's.\n"
        f"Seed {recipe['seed']}, {recipe['labels']} labels, {facts['steps']:,} steps over "
        f"{facts['tokens_trained']:,} tokens "
        f"(padding included), {facts['seconds'] / 60:.0f} minutes.\n\n"
        f"Agreement on {after['tokens']:,} held-back greedy answer tokens: {before['agreement']:.3f} before "
        f"training, "
        f"**{after['agreement']:.3f}** after.\n{sampled}"
        f"By position in a round: {positions}. Tokens per round: {rounds}.\n\n"
        f"| kind of instruction | before | after |\n|---|---|---|\n{kinds}\n"
        "All settings are in card.json.\n"
    )
