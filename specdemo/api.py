"""The public face: `specdemo.load` gives a Pipeline, and a Pipeline gives Answers."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from typing import Any

from specdemo.engine.rounds import DraftToken, EmittedToken, Round
from specdemo.host.terminal import progress_bar
from specdemo.options import parse
from specdemo.pairs.choice import ModelChoice
from specdemo.pairs.loading import load_pair
from specdemo.pairs.registry import chosen_pair
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace, summarize

STYLES = {
    "accepted": "background: #00785a33",
    "forced": "background: #8a3fa033",
    "correction": "background: #b04a0033; text-decoration: wavy underline",
    "bonus": "background: #0069a833; text-decoration: double underline",
}
"""CSS of a token in a notebook, by kind; others have none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and how it was made. `str(answer)` is its text."""

    trace: Trace

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        return self.trace.text

    @property
    def tokens(self) -> list[DraftToken | EmittedToken]:
        """Each has `id`, `text` and `kind`: "accepted" for a draft token, "forced" if the schema
        allows no other; otherwise the target added it: the "first" one, a "correction", a "bonus",
        or a "plain" one where nothing was drafted."""
        return self.trace.tokens

    @property
    def finish_reason(self) -> str:
        """ "stop" (the model ended the answer), "length", "context" or "cancelled"."""
        return self.trace.finish_reason

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted draft tokens per draft token that the target judged; None without any."""
        return summarize(self.trace).acceptance_rate

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: without the first token, which comes from the prefill."""
        return summarize(self.trace).tokens_per_second

    def _repr_html_(self) -> str:
        """The answer in a notebook: tokens coloured by kind, and the figures."""
        tokens = "".join(
            f'<span style="{STYLES.get(one.kind, "")}" title="{one.kind}">{escape(one.text)}</span>'
            for one in self.tokens
        )
        rate = self.acceptance_rate
        accepted = "" if rate is None else f", {rate:.0%} of the draft tokens accepted"
        figures = f"{len(self.tokens)} tokens, {self.tokens_per_second:.1f} tokens/s{accepted}"
        return f'<div style="white-space: pre-wrap">{tokens}</div><small>{figures}</small>'


class Pipeline(AbstractContextManager[Any]):
    """A loaded pair (thread safe). `generate`, `stream` and `race` take a prompt, which is put into
    the model's chat template, or a list of token ids, which is used as it is.

    Their options are the fields of `settings.Settings`: `max_new_tokens` (default 100),
    `temperature` (0: greedy), `top_p`, `top_k`, `seed`, `draft_tokens` (adaptive), `drafter`
    ("auto", "model", "lookup" or "none"), `numerics` and `coupling`; and those of transformers:
    `num_assistant_tokens` is `draft_tokens`, `do_sample=False` is greedy, with `do_sample=True` the
    temperature is 1 unless given. `json_schema` makes the answer JSON: a JSON Schema as text or a
    dict, or a pydantic model. Raises BadInput for options and prompts that cannot be used."""

    def __init__(self, session: Session):
        self.session = session

    def generate(self, prompt: str | list[int], **options: Any) -> Answer:
        """The whole answer."""
        [*_, trace] = self._ask(prompt, options)
        return Answer(trace)

    def stream(self, prompt: str | list[int], **options: Any) -> Iterator[str]:
        """The answer's text in pieces, one a round. Closing the iterator ends the answer."""
        for event in self._ask(prompt, options):
            if isinstance(event, Round) and (piece := "".join(one.text for one in event.tokens)):
                yield piece

    def race(self, prompt: str | list[int], **options: Any) -> Trace:
        """Answers, then decodes autoregressively too. The trace has both, and `identical`;
        `trace.summarize` gives the speed-up. The first race waits until all is compiled."""
        [*_, trace] = self._ask(prompt, options, baseline=True)
        return trace

    def close(self) -> None:
        """End running answers and release the models."""
        self.session.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, prompt: str | list[int], options: dict[str, Any], **asked: Any) -> Iterator[Any]:
        if "num_assistant_tokens" in options:
            options["draft_tokens"] = options.pop("num_assistant_tokens")
        if (sampled := options.pop("do_sample", None)) is not None:
            options["temperature"] = options.get("temperature", 1.0) if sampled else 0.0
        if (schema := options.get("json_schema")) is not None:
            if hasattr(schema, "model_json_schema"):
                schema = schema.model_json_schema()
            options["json_schema"] = schema if isinstance(schema, str) else json.dumps(schema)
        return self.session.answer(
            prompt if isinstance(prompt, str) else tuple(prompt), parse(Settings, options), **asked
        )


def load(
    pair: str = "",
    *,
    model: str = "",
    assistant_model: str = "",
    device: str = "CPU",
    draft_device: str = "CPU",
    weight_format: str = "auto",
    kv_cache: str = "auto",
    threads: int | None = None,
) -> Pipeline:
    """Load a pair by name (`specdemo pairs` lists them), or any `model` with or without an
    `assistant_model`: a folder or a Hub repository each. Without any, the largest Dolly pair that
    is here and fits, else the embedded pair. Missing files are fetched, with a progress bar.

    The other options are those of `specdemo run`; `threads` bounds the processor threads of an
    inference. Raises BadInput for an unusable choice, FetchError, ModelError or MissingPackage.
    """
    given = {"pair": pair, "model": model, "assistant_model": assistant_model, "device": device}
    given |= {"draft_device": draft_device, "weight_format": weight_format, "kv_cache": kv_cache}
    choice = parse(ModelChoice, given)
    chosen = chosen_pair(choice)
    with progress_bar() as report:
        loaded = load_pair(chosen, choice=choice, progress=report)
    return Pipeline(Session(loaded, threads=threads))
