"""How a session is asked: a question, and the events of its answer."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Waiting
from specdemo.pairs.choice import PairInfo
from specdemo.runs.settings import Settings
from specdemo.runs.trace import BaselineToken, Trace
from specdemo.text.tools import Tools

Event = Waiting | Round | BaselineToken | Trace


@dataclass(frozen=True, slots=True)
class Question:
    """An instruction to answer. `prompt` (token ids) replaces the instruction in its template; the
    instruction is then the trace's title. With `baseline` the instruction is decoded
    autoregressively too, and a short race is repeated until `verdict.enough` for `repeat` seconds
    (0: never). Unless `measured` is set, a race does not wait for missing measurements, which can
    take half a minute. Setting `stop` ends the answer within one round. `loading` tells whether
    models are being loaded. The answer may call `tools`, of which the prompt must tell. Rounds have
    `logprobs` with so many of the likeliest tokens, unless it is None. What the answer repeats of
    the text `prediction` is drafted from it."""

    instruction: str
    settings: Settings
    prompt: tuple[int, ...] | None = None
    baseline: bool = False
    measured: bool = True
    stop: threading.Event | None = None
    repeat: float = 0.0
    loading: Callable[[], bool] = lambda: False
    tools: Tools | None = None
    logprobs: int | None = None
    prediction: str = ""


class Answering(ABC):
    """Answers instructions with the pair `info`, many at a time (thread safe)."""

    info: PairInfo

    @abstractmethod
    def ask(self, question: Question) -> Generator[Event]:
        """Yields each Round as it is made, with `baseline` then the BaselineTokens, and last the
        Trace, with `repeat` again after each further race. A Waiting comes every second while the
        request waits, and every 0.2 s while models are compiled first. A run stopped during the
        answer has no baseline; in one stopped later `identical` is None. Raises BadInput for
        unusable input, before anything runs, and Busy when too many requests wait. Closing the
        iterator ends it.
        """

    def answer(self, instruction: str, settings: Settings, **options: Any) -> Generator[Event]:
        """`ask`, with the fields of Question as `options`."""
        return self.ask(Question(instruction, settings, **options))

    def race(self, instruction: str, settings: Settings, **options: Any) -> Generator[Event]:
        """`answer`, and then the baseline."""
        return self.ask(Question(instruction, settings, baseline=True, **options))
