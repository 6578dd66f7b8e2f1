"""The page's endpoint for programs, /generate; `specdemo serve` is the server for programs."""

# No `from __future__ import annotations` here: Gradio reads the endpoint's types from annotations.
import threading
import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from specdemo.answering import Event
from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput
from specdemo.trace import Trace, judged, over
from specdemo.ui import MAX_EVENTS
from specdemo.ui.choice import Offer, settings_of
from specdemo.ui.service import Service, visitor_of
from specdemo.ui.wording import error_sentence


def add(service: Service, offer: Offer) -> None:
    """Adds the endpoint to the Blocks being built. It answers with the pair `offer.first`."""

    def generate(
        request: gr.Request,
        instruction: str,
        max_new_tokens: int = 100,
        draft_tokens: str = "auto",
        drafter: str = "auto",
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        numerics: str = "exact",
    ) -> dict:  # the type of each item that it yields: Gradio does not read Iterator
        """Answer an instruction with speculative decoding, streamed as it is generated.

        Each item holds the text that is new since the one before in "delta", and the figures so
        far: "tokens", "tokens_per_second" and "acceptance_rate". The last one has "done": true, the
        whole answer in "text" and why it ended in "finish_reason". The settings are those of
        `python -m specdemo run --help`.
        """
        given, stop, pair = locals(), threading.Event(), offer.first
        try:
            if not isinstance(instruction, str):
                raise BadInput(f"instruction is {instruction!r:.60}; it must be text.")
            list(service.states(pair, stop))
            with service.session(pair, visitor_of(request)) as session:
                events = session.answer(instruction, settings_of(given), stop=stop)
                yield from _pieces(events, service)
        except Exception as error:
            raise gr.Error(error_sentence(error), print_exception=False) from error
        finally:
            stop.set()

    gr.api(generate, api_name="generate", concurrency_limit=MAX_EVENTS)


def _pieces(events: Iterator[Event], service: Service) -> Iterator[dict[str, Any]]:
    rounds: list[Round] = []
    sent, sent_at = 0, 0.0
    for event in events:
        if isinstance(event, Waiting):
            continue
        ended = isinstance(event, Trace)
        if not ended:
            rounds.append(event)
            if time.monotonic() - sent_at < service.update_seconds:
                continue
        tokens = sum(len(round_.tokens) for round_ in rounds)
        accepted = sum(round_.accepted for round_ in rounds)
        examined = sum(len(judged(round_)) for round_ in rounds)
        spent = rounds[-1].shown_at - rounds[0].shown_at if rounds else 0.0
        yield {
            "delta": "".join(token.text for round_ in rounds[sent:] for token in round_.tokens),
            "tokens": tokens,
            "tokens_per_second": over(tokens - 1, spent) or 0.0,
            "acceptance_rate": over(accepted, examined),
            "done": ended,
            "text": event.text if ended else "",
            "finish_reason": event.finish_reason if ended else "",
        }
        sent, sent_at = len(rounds), time.monotonic()
