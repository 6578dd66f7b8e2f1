"""How every session is asked: a pair here (`session`), one on a server (`serving.client`), or one
that a test makes up."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from specdemo.engine.handle import Waiting
from specdemo.engine.rounds import Round
from specdemo.settings import Settings
from specdemo.trace import BaselineToken, Trace

OnWait = Callable[[Waiting], None]


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of `answer`; of `race` with `baseline`."""

    instruction: str
    settings: Settings
    prompt: tuple[int, ...] | None = None
    certify: bool = False
    baseline: bool = False
    stop: threading.Event | None = None
    on_wait: OnWait | None = None


class Answering(AbstractContextManager):
    """Answers instructions, many at a time (thread safe)."""

    def answer(
        self,
        instruction: str,
        settings: Settings,
        *,
        prompt: tuple[int, ...] | None = None,
        certify: bool = False,
        stop: threading.Event | None = None,
        on_wait: OnWait | None = None,
    ) -> Iterator[Round | Trace]:
        """Answer an instruction; yields each Round as it is made, and last the finished Trace.

        `prompt` are token ids to answer in place of the instruction in its template: a
        conversation, say. The trace then has the instruction as its title only. With `certify` a
        greedy answer is checked by one parallel pass over it (`engine.decode.certify`), which takes
        about as long as prefilling it. While the request waits for its turn, `on_wait` is told its
        place about once a second. Raises BadInput, before anything runs, for an instruction or a
        setting that cannot be used, and Busy when too many are waiting. Setting `stop` ends it
        within one round; closing the iterator too, and sets `stop`.
        """
        return self.ask(Question(instruction, settings, prompt, certify, False, stop, on_wait))

    def race(
        self,
        instruction: str,
        settings: Settings,
        *,
        stop: threading.Event | None = None,
        on_wait: OnWait | None = None,
    ) -> Iterator[Round | BaselineToken | Trace]:
        """Answer, then decode the same prompt autoregressively; yields the rounds of the first, the
        tokens of the second, and last the Trace with `baseline` and `identical` set. Waits until
        everything is compiled, for both are timed on a quiet machine. Otherwise as `answer`.

        Stopped during the answer, the trace has no baseline; stopped after it, `identical` is None.
        """
        return self.ask(Question(instruction, settings, None, False, True, stop, on_wait))

    @abstractmethod
    def ask(self, question: Question) -> Iterator[Round | BaselineToken | Trace]:
        """As `answer`, or as `race` for a question with `baseline`."""

    @abstractmethod
    def close(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.close()
