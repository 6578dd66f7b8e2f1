"""What the page's script is sent: small JSON envelopes that carry only what is new. No HTML is made here or there.

The script draws text with `textContent` only, so generated text cannot become markup whatever it holds.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from dataclasses import dataclass, field

from specdemo.trace import BaselineToken, Round, Trace, to_json
from specdemo.ui.verdict import verdict

OVERLAP = 24
"""Rounds or plain tokens sent again with the next envelope: a browser draws only the latest of several updates that
arrive within one frame, and what it skipped must not be lost."""

PHASES = ("idle", "loading", "waiting", "speculative", "plain", "done", "stopped", "error", "opened")


@dataclass
class Channel:
    """The sending end for one run. Envelopes are JSON; their size does not grow with the answer."""

    run: str
    limit: int
    question: str
    rounds: list[Round] = field(default_factory=list)
    plain: list[BaselineToken] = field(default_factory=list)
    _rounds_sent: int = 0
    _plain_sent: int = 0

    def envelope(self, phase: str, note: str = "", **extra) -> str:
        """`phase` is one of PHASES, `note` a sentence for the status line; extra fields go along as they are."""
        rounds_from = max(0, self._rounds_sent - OVERLAP)
        plain_from = max(0, self._plain_sent - OVERLAP)
        data = {
            "run": self.run, "phase": phase, "note": note, "limit": self.limit, "question": self.question,
            "rounds_from": rounds_from, "rounds": [dataclasses.asdict(r) for r in self.rounds[rounds_from:]],
            "plain_from": plain_from, "plain": [dataclasses.asdict(t) for t in self.plain[plain_from:]],
            **extra,
        }
        self._rounds_sent, self._plain_sent = len(self.rounds), len(self.plain)
        return json.dumps(data, ensure_ascii=False, allow_nan=False)

    def finished(self, trace: Trace, phase: str, note: str = "", **extra) -> str:
        """The last envelope of a run: the whole trace, once, and the verdict in words."""
        self._rounds_sent = self._plain_sent = 0
        self.rounds, self.plain = [], []
        return self.envelope(phase, note, **finished_fields(trace), **extra)


def finished_fields(trace: Trace) -> dict:
    """The fields that a finished (or opened) trace adds to an envelope."""
    return {"trace": json.loads(to_json(trace)), "verdict": dataclasses.asdict(verdict(trace))}


def error(run: str, message: str) -> str:
    """An envelope that shows one sentence and leaves the rest of the stage alone."""
    return Channel(run, 0, "").envelope("error", message)


def idle(note: str) -> str:
    """An envelope that says one sentence and shows nothing else."""
    return Channel("", 0, "").envelope("idle", note)


def opened(trace: Trace, note: str, kept: str = "") -> str:
    """The envelope of a run that was measured before: it is shown whole and can be replayed. `kept` is the id by which
    a link can show it again, "" where the server does not keep it."""
    channel = Channel(uuid.uuid4().hex[:16], trace.settings.max_new_tokens, trace.instruction)
    return channel.envelope("opened", note, kept=kept, **finished_fields(trace))


def run_of(envelope: str) -> str:
    """The id of the run that an envelope is about."""
    return json.loads(envelope)["run"]
