"""How every session is asked: a pair here (`session`), one on a server (`serving.client`), or one
that a test makes up."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdemo.engine.rounds import Round
from specdemo.settings import Settings
from specdemo.trace import BaselineToken, Trace

if TYPE_CHECKING:  # the page imports this, and OpenVINO takes a second
    from specdemo.engine.scheduler import Waiting

OnWait = Callable[["Waiting"], None]


@dataclass(frozen=True, slots=True)
class Question:
    """What to answer. `prompt` are token ids to answer in place of the instruction in its template;
    the trace then has the instruction as its title only. With `certify` a greedy answer is checked
    by one parallel pass over it (`engine.decode.certify`). With `baseline` the prompt is then
    decoded autoregressively too. Setting `stop` ends it within one round. While it waits for its
    turn, `on_wait` is told its place about once a second."""

    instruction: str
    settings: Settings
    prompt: tuple[int, ...] | None = None
    certify: bool = False
    baseline: bool = False
    stop: threading.Event | None = None
    on_wait: OnWait | None = None


class Answering(AbstractContextManager):
    """Answers instructions, many at a time (thread safe)."""

    @abstractmethod
    def ask(self, question: Question) -> Iterator[Round | BaselineToken | Trace]:
        """Answer; yields each Round as it is made, and last the finished Trace.

        With `baseline` the baseline's tokens come between: both are timed on a quiet machine, so
        this waits until everything is compiled. Stopped during the answer the trace has no
        baseline, stopped after it `identical` is None. Raises BadInput, before anything runs, for
        what cannot be used, and Busy when too many are waiting. Closing the iterator ends it.
        """

    def answer(
        self, instruction: str, settings: Settings, **options: Any
    ) -> Iterator[Round | BaselineToken | Trace]:
        """`ask`, with the fields of Question as `options`."""
        return self.ask(Question(instruction, settings, **options))

    def race(
        self, instruction: str, settings: Settings, **options: Any
    ) -> Iterator[Round | BaselineToken | Trace]:
        """`answer`, and then the baseline."""
        return self.answer(instruction, settings, baseline=True, **options)

    @abstractmethod
    def close(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.close()
