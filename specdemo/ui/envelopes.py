"""What the page's script is sent: small JSON envelopes that hold only what is new. No HTML is made
here or there: the script draws text with `textContent` only."""

from __future__ import annotations

import dataclasses
import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from specdemo.engine.rounds import Round
from specdemo.trace import BaselineToken, Trace, to_json
from specdemo.ui.wording import verdict

OVERLAP = 24
"""Rounds or baseline tokens sent again with the next envelope: a browser draws only the latest of
several updates that arrive within one frame, and what it skipped must not be lost."""


def new_run() -> str:
    return uuid.uuid4().hex[:16]


@dataclass
class Channel:
    """The sending end for one run. The size of an envelope does not grow with the answer."""

    run: str = field(default_factory=new_run)
    limit: int = 0
    question: str = ""
    rounds: list[Round] = field(default_factory=list)
    baseline: list[BaselineToken] = field(default_factory=list)
    _rounds_sent: int = 0
    _baseline_sent: int = 0

    def add(self, event: Round | BaselineToken) -> None:
        (self.rounds if isinstance(event, Round) else self.baseline).append(event)

    def envelope(self, phase: str, note: str = "", **extra: Any) -> str:
        """`phase` is "idle", "loading", "waiting", "speculative", "plain" (the baseline), "done",
        "stopped", "error" or "opened"; `note` is a sentence for the status line."""
        rounds_from = max(0, self._rounds_sent - OVERLAP)
        baseline_from = max(0, self._baseline_sent - OVERLAP)
        data = {
            "run": self.run,
            "phase": phase,
            "note": note,
            "limit": self.limit,
            "question": self.question,
            "rounds_from": rounds_from,
            "rounds": [dataclasses.asdict(one) for one in self.rounds[rounds_from:]],
            "plain_from": baseline_from,
            "plain": [dataclasses.asdict(one) for one in self.baseline[baseline_from:]],
            **extra,
        }
        self._rounds_sent, self._baseline_sent = len(self.rounds), len(self.baseline)
        return json.dumps(data, ensure_ascii=False, allow_nan=False)

    def finished(self, trace: Trace, phase: str, note: str = "", **extra: Any) -> str:
        """The last envelope of a run: the whole trace, once, and the verdict in words."""
        self.rounds, self.baseline = [], []
        whole = {"trace": json.loads(to_json(trace)), "verdict": dataclasses.asdict(verdict(trace))}
        return self.envelope(phase, note, **whole, **extra)


def error(message: str) -> str:
    """An envelope that shows one sentence and leaves the rest of the stage as it is."""
    return Channel().envelope("error", message)


def opened(trace: Trace, note: str, kept: str = "") -> str:
    """The envelope of a run that was measured before. `kept` is the id by which a link can show it
    again, "" where the server does not keep it."""
    channel = Channel(limit=trace.settings.max_new_tokens, question=trace.instruction)
    return channel.finished(trace, "opened", note, kept=kept)
