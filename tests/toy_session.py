"""A real Session over toy models, which answer as a test prescribes: no model files, no OpenVINO
inference, the same tokens each time."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from unittest.mock import patch

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from toy import ToyModel

from specdemo.engine.cache import BlockPool
from specdemo.engine.forwards import ModelSettings, Run
from specdemo.engine.profile import Invariance, ModelProfile, Profile
from specdemo.pairs.loading import LoadedPair
from specdemo.pairs.registry import PairInfo
from specdemo.runs.question import Prompt, Question, SessionEvent
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.text.templates import Template
from specdemo.text.tokenizer import Tokenizer

INFO = PairInfo("toy", "toy target", "toy draft", "abc123")
TARGET_SECONDS, DRAFT_SECONDS = 0.01, 0.001
"""Of a forward of any size, in the cost models and on `toy_clock`."""

LOGIT = 20.0  # of the token that a toy model prefers; all others have 0
ANSWER, END = "<|answer|>", "<|end|>"
_COSTS = dict.fromkeys((1, 8, 16), TARGET_SECONDS)
_TARGET = ModelProfile((("TOY", "1"),), Invariance(16, 0.0, 1, True, True), _COSTS, "2026-01-01")
_DRAFT = ModelProfile(_TARGET.properties, costs=dict.fromkeys(_COSTS, DRAFT_SECONDS))
PROFILE = Profile({"exact": _TARGET}, _DRAFT)
_FILES = tempfile.TemporaryDirectory()
TARGET, DRAFT, TOKENIZER = (Path(_FILES.name, name) for name in ("target.xml", "draft.xml", "json"))
for _model in (TARGET, DRAFT):
    _model.with_suffix(".bin").touch()
_seconds = 0.0


class ScriptModel(ToyModel):
    """Prefers the token `following(tokens)`; with `right` (k, n) only in k of n places of a text.
    With `differs_at` it prefers another one at that position of an answer when a forward has no
    other token, as those of autoregressive decoding have not."""

    threads, block_bytes = 1, 1000

    def __init__(self, size: int, following: Callable, seconds: float, right: tuple[int, int]):
        super().__init__()
        self.vocabulary_size, self.following, self.right = size, following, right
        self.settings, self.forward_seconds = ModelSettings(), seconds
        self.differs_at: int | None = None
        self.costs.learn(PROFILE.targets["exact"].costs)

    def resize_cache(self, blocks: int) -> None:
        self.pool = BlockPool(min(blocks, 100_000))

    def forward(self, batch: list[Run]) -> list:
        global _seconds
        logits = super().forward(batch)
        _seconds += self.forward_seconds
        self.seconds += self.forward_seconds
        return logits

    def row(self, tokens: list[int]) -> np.ndarray:
        token, position = self.following(tokens)
        right, of = self.right
        other = len(tokens) % of >= right
        other |= position == self.differs_at and self.batches[-1] == [1]
        row = np.zeros(self.vocabulary_size, np.float32)
        row[token ^ 1 if other else token] = LOGIT
        return row


class ToySession(Session):
    """Answers over and over with a text, or once with what `answer` makes of the question (without
    it: the question). A token is a byte, unless a `loaded` pair has another tokenizer and template.
    The draft is `right` in (k, n) places, k of n. Records the `questions`; `target` and `draft` are
    its toy models, whose forwards wait for their `gate`."""

    def __init__(
        self,
        answer: str | Callable[[str], str] = str,
        *,
        loaded: LoadedPair | None = None,
        info: PairInfo = INFO,
        context_limit: int = 10_000,
        right: tuple[int, int] = (1, 1),
        **capacity: object,
    ):
        loaded = replace(
            loaded or byte_pair(),
            target=TARGET,
            draft=DRAFT,
            head=None,
            head_layers=(),
            info=info,
            context_limit=context_limit,
            typical_profile=PROFILE,
        )
        size, following = loaded.tokenizer.vocabulary_size, script(loaded, answer)
        self.target = ScriptModel(size, following, TARGET_SECONDS, (1, 1))
        self.draft = ScriptModel(size, following, DRAFT_SECONDS, right)
        self.questions: list[Question] = []
        self.closed = False
        models = {TARGET: self.target, DRAFT: self.draft}

        def open_model(source: Path, settings: ModelSettings, core: object) -> ScriptModel:
            models[source].settings = settings
            return models[source]

        with ExitStack() as patches:
            for module in ("engine", "backends.numerics"):
                patches.enter_context(patch(f"specdemo.engine.{module}.open_model", open_model))
            super().__init__(loaded, **{"background": False, **capacity})
        self.prepare()

    @property
    def forwards(self) -> int:
        return len(self.target.batches)

    def ask(self, question: Question) -> Generator[SessionEvent]:
        events = super().ask(question)
        self.questions.append(question)
        return events

    def answer(self, prompt: Prompt, settings: Settings, **fields: object) -> Iterator:
        return self.ask(Question(prompt, settings, **fields))

    def race(self, prompt: Prompt, settings: Settings, **fields: object) -> Iterator:
        return self.answer(prompt, settings, baseline=True, **fields)

    def close(self) -> None:
        self.resume()
        super().close()
        self.closed = True

    def in_forward(self, number: int, act: Callable[[], object]) -> None:
        """Calls `act` in the target's forward `number` from now (0: the next)."""
        numbers = count()
        self.target.fault = lambda batch: act() if next(numbers) == number else None

    def fail(self, error: BaseException, after: int = 1) -> None:
        """A request of the target's forward after `after` more fails with `error`."""
        numbers, failing = count(), []

        def fault(batch: list[Run]) -> None:
            if next(numbers) == after:
                failing.append(batch[0].sequence)
            if any(run.sequence in failing for run in batch):
                raise error

        self.target.fault = fault

    def pause(self, after: int = 0) -> None:
        """The target's forwards after `after` more wait until `step` or `resume`."""
        if after:
            self.in_forward(after - 1, self.target.gate.clear)
        else:
            self.target.gate.clear()

    def step(self, forwards: int) -> None:
        """So many forwards run, and the next one waits."""
        self.pause(forwards)
        self.target.gate.set()

    def resume(self) -> None:
        self.target.fault = None
        self.target.gate.set()


def script(loaded: LoadedPair, answer: str | Callable[[str], str]) -> Callable:
    """Gives the token that continues a text, and its position in the answer. An answer begins where
    the template ends a prompt. A text without that is continued with the answer to "unasked", of
    which it may hold the beginning."""
    tokenizer, endless = loaded.tokenizer, isinstance(answer, str)
    prompts = (loaded.template.render(text, tokenizer)[::-1] for text in "A1")
    mark = os.path.commonprefix(list(prompts))[::-1]
    end = min(loaded.stop_ids, default=0)

    @cache
    def answer_ids(prompt: tuple[int, ...]) -> list[int]:
        text = answer if endless else answer(tokenizer.decode(prompt))
        ids = tokenizer.encode(text, special=False)
        return ids if endless else [*ids, end]

    def following(tokens: list[int]) -> tuple[int, int]:
        backwards = tokens[::-1]
        position = -1
        while mark and mark[-1] in backwards[position + 1 :]:
            position = backwards.index(mark[-1], position + 1)
            if backwards[position : position + len(mark)] == mark[::-1]:
                ids = answer_ids(tuple(tokens[: len(tokens) - position - len(mark)]))
                return ids[position % len(ids)], position
        ids = answer_ids(tuple(tokenizer.encode("unasked")))
        shared = range(min(len(ids), len(tokens)), -1, -1)
        position = next(size for size in shared if tokens[len(tokens) - size :] == ids[:size])
        return ids[position % len(ids)], position

    return following


@contextmanager
def toy_clock() -> Iterator[None]:
    """The times of requests are those of their forwards, TARGET_SECONDS and DRAFT_SECONDS each."""
    with ExitStack() as patches:
        for module in ("request", "scheduler"):
            name = f"specdemo.engine.{module}.perf_counter"
            patches.enter_context(patch(name, lambda: _seconds))
        for module in ("engine.request", "machine.hardware"):
            patches.enter_context(patch(f"specdemo.{module}.waiting_times", lambda *_: Counter()))
        yield


@cache
def byte_pair() -> LoadedPair:
    """A pair whose tokens are bytes, and a token that ends a prompt and one that ends an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {character: id for id, character in enumerate(alphabet)}
    made = tokenizers.Tokenizer(models.BPE(ids, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([ANSWER, END])
    made.save(str(TOKENIZER))
    tokenizer = Tokenizer(TOKENIZER)
    jinja = "{% for message in messages %}{{ message.content }}{% endfor %}" + ANSWER
    return LoadedPair(
        target=TARGET,
        info=INFO,
        tokenizer=tokenizer,
        template=Template("toy", jinja),
        stop_ids=frozenset({tokenizer.token_id(END)}),
        context_limit=10_000,
    )
