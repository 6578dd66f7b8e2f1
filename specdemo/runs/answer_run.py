"""The run that answers a question: the one place where tokens become text."""

from collections import deque
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal

from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Handle, Waiting
from specdemo.machine.hardware import EnergyMeter, share_left
from specdemo.runs.question import Question
from specdemo.text.tokenizer import StopStrings, TextStream, Tokenizer
from specdemo.text.tools import CallReader, FunctionCall


class AnswerRun:
    """A submitted request. The following are known after its `events`."""

    def __init__(
        self, question: Question, prompt: tuple[int, ...], handle: Handle, tokenizer: Tokenizer
    ):
        self.handle = handle
        self.rounds: list[Round] = []  # up to a stop string
        self.joules: float | None = None  # of the machine's processors during decoding, if known
        self._tokenizer = tokenizer
        self._tools = question.tools
        spelled = question.tools.markers(tokenizer) if question.tools else {}
        before = prompt if question.continues else ()
        self._stream = TextStream(tokenizer, before=before, spelled=spelled)
        self._stops = StopStrings(question.settings.stop)
        self._loading = question.loading
        self.compiling = question.loading()  # whether models were loaded or compiled meanwhile

    def events(self) -> Generator[Waiting | Round]:
        """Yields the events as they come. Raises the request's error."""
        meter = None
        # Rounds after a stop string are not wanted, so it is looked for in each round at once.
        with closing(self.handle.events(at_once=self._stops.wanted)) as events:
            try:
                for event in events:
                    if isinstance(event, Round):
                        meter = meter or EnergyMeter()  # after the prefill, the first round
                        event = self._with_texts(event)
                        self.rounds.append(event)
                    yield event
                    if self._stops.ended:
                        return
                self._end_text()
            finally:
                self.joules = meter.joules if meter else None
                self.compiling = self.compiling or self.handle.compiling or self._loading()

    def result(self) -> Any:
        """What the request's work returned, after all its events."""
        deque(self.events(), maxlen=0)
        return self.handle.result

    def _with_texts(self, round_: Round) -> Round:
        """The round with texts, and without the tokens after a stop string. Rejected tokens are
        decoded by themselves."""
        for unused in (*round_.drafted[round_.accepted :], *round_.candidates):
            unused.text = self._tokenizer.decode([unused.id])
        for index, token in enumerate(round_.tokens):
            token.text = self._stream.push(token.id)
            round_.text += self._stops.push(token.text)
            if self._stops.ended and index < round_.accepted:
                drafted, logprobs = round_.drafted[: index + 1], round_.logprobs[: index + 1]
                return replace(round_, drafted=drafted, emitted=None, logprobs=logprobs)
        return round_

    def _end_text(self) -> None:
        """Add to the last round the text that later tokens could have changed."""
        if self.rounds:
            last, rest = self.rounds[-1], self._stream.rest()
            last.tokens[-1].text += rest
            last.text += self._stops.push(rest) + self._stops.rest()

    @property
    def finish_reason(self) -> Literal["stop", "length", "context", "cancelled"]:
        if self._stops.ended:
            return "stop"
        reason: Literal["stop", "length", "context"] = self.handle.result
        return "cancelled" if self.handle.stopped else reason

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """Calls of tools, with ids of nine characters, as templates of Mistral want them."""
        text = "".join(round_.text for round_ in self.rounds)
        _, calls = CallReader(self._tools).read(text, last=True)
        return tuple(call._replace(id=f"call{number:05}") for number, call in enumerate(calls))

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for round_ in self.rounds for token in round_.tokens)

    @property
    def share(self) -> float:
        """As `share_left`, of its decoding."""
        timing = self.handle.timing
        return share_left(timing.cpu, timing.waited, timing.decoding)

    @property
    def outside_seconds(self) -> float:
        """Seconds of decoding outside inference."""
        decoding = self.rounds[-1].shown_at - self.rounds[0].shown_at if self.rounds else 0.0
        return max(decoding - self.handle.timing.inference, 0.0)
