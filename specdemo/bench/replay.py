"""The speed-up of drafting without a clock: recorded answers decoded again over a table of costs.

`record` answers prompts and notes what target and draft model say at every place. `replay` decodes
the answers with the drafters and the policy of the engine; only the models are replaced, by what
was recorded, and the clock by a cost table. Off the recorded answer nothing is known, nor needed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from specdemo.bench.prompts import BenchPrompt
from specdemo.engine import cache, decode, drafters
from specdemo.engine.handle import Sharing
from specdemo.engine.instance import Logits
from specdemo.engine.model import Run
from specdemo.engine.ngrams import Ngrams, NgramTable
from specdemo.engine.open import Model
from specdemo.engine.policy import Policy
from specdemo.engine.request import Request, Target
from specdemo.engine.rounds import Round
from specdemo.engine.sampling import TOKEN, Distribution, Sampling, distribution, draw
from specdemo.errors import BadInput
from specdemo.models.load import LoadedPair
from specdemo.session import Session
from specdemo.settings import Settings, sentence

COST_TABLES = Path(__file__).with_name("cost_tables.json")

SAMPLED = 0.7
"""Temperature of the second half of a recording, unless the settings name one."""

LIKELIEST = 8
"""Tokens of each row of the target's logits that a recording keeps."""

CHUNK = 16
"""Tokens that the target model reads at once while it is recorded."""

READ_TOGETHER = 8
"""Tokens of a text that the draft model reads in the time of one step."""

SOURCES = ("model", "ngrams", "table")


@dataclass(frozen=True, slots=True)
class CostTable:
    """What forwards take on one processor: `ms`, milliseconds of the target model's by its number
    of tokens, each size an instance of its own, and of a draft step."""

    processor: str
    threads: int
    model: str
    ms: Annotated[dict[int, float], Field(min_length=1)]
    draft_step_ms: float

    def seconds(self) -> list[float]:
        """Of forwards of 0, 1, ... tokens up to the largest, each padded to the cheapest size that
        holds it."""
        sizes = range(1, max(self.ms) + 1)
        return [0.0, *(min(self.ms[at] for at in self.ms if at >= n) / 1000 for n in sizes)]


@dataclass(frozen=True, slots=True)
class Record:
    """One answer, token ids; by answer position the draft model's token and its probability, and
    the target's likeliest tokens with theirs at temperature 1. What a model without recording says
    is empty."""

    id: str
    task: str
    temperature: float
    seed: int
    prompt: list[int]
    answer: list[int]
    draft: list[tuple[int, float]]
    likely: list[tuple[list[int], list[float]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Seconds of the `tokens` after each answer's first, by the cost table: of autoregressive and
    of speculative decoding."""

    tokens: int = 0
    rounds: int = 0
    autoregressive_s: float = 0.0
    speculative_s: float = 0.0

    @property
    def speedup(self) -> float:
        return self.autoregressive_s / self.speculative_s if self.speculative_s else 1.0

    def __add__(self, other: Replayed) -> Replayed:
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return Replayed(*(one + two for one, two in pairs))


def cost_tables(wanted: str | None = None) -> dict[str, CostTable]:
    """The cost tables by name: all of the project's, the one called `wanted`, or those of the file
    `wanted`. Raises BadInput."""
    path = Path(wanted) if wanted and wanted.endswith(".json") else COST_TABLES
    tables = _read(path, dict[str, CostTable], "--costs")
    if path == COST_TABLES and wanted:
        if wanted not in tables:
            raise BadInput(
                f"--costs {wanted} is no cost table; choose one of {', '.join(tables)}, or name a "
                "JSON file of such tables."
            )
        return {wanted: tables[wanted]}
    return tables


def read_records(path: Path | str) -> list[Record]:
    """What `record` wrote. Raises BadInput."""
    return _read(Path(path), list[Record], "--replay")


def write_records(records: Iterable[Record], path: Path | str) -> None:
    """Write records as JSON, one a line."""
    lines = ",\n".join(json.dumps(asdict(one), separators=(",", ":")) for one in records)
    Path(path).write_text(f"[{lines}]\n", encoding="utf-8")


def _read(path: Path, kind: type, option: str):
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{option} {path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise BadInput(f"{option} {path}: {sentence(error)}") from None


# Recording


def record(
    session: Session, prompts: Sequence[BenchPrompt], settings: Settings
) -> Iterator[Record]:
    """Answer prompts greedily, then at the temperature of `settings` (SAMPLED if it has none), and
    note what the models say along the answers."""
    session.prepare(settings.numerics)
    for temperature in (0.0, settings.temperature or SAMPLED):
        for at, prompt in enumerate(prompts):
            own = replace(settings, temperature=temperature, seed=settings.seed + at)
            *_, trace = session.answer(prompt.instruction, own)
            said = session.result_of(_Along, prompt.instruction, own, trace.token_ids)
            yield replace(said, id=prompt.id, task=prompt.task)


class _Along(Request):
    """Asks both models for what they say along the prompt and `answer`."""

    def work(
        self, target: Target, sharing: Sharing, draft_model: Model | None = None
    ) -> Generator[drafters.Forward, drafters.Reply, Record]:
        known = yield from self._prompt(target.prefixes)
        answer, length = self.answer, len(self.tokens)
        likely, draft = [_likeliest(known.prompt.logits, 0)], []
        try:
            with target.model.fork(known.target, length) as sequence:
                for begin in range(0, len(answer) - 1, CHUNK):
                    tokens = answer[begin : min(begin + CHUNK, len(answer) - 1)]
                    run = Run(sequence, tokens, len(tokens), stepwise=True)
                    reply = yield drafters.Forward("target", run)
                    likely += [_likeliest(reply.logits, at) for at in range(len(tokens))]
            if draft_model is not None:
                text = [*self.tokens[-(self.window or length) :], *answer[:-1]]
                with draft_model.new_sequence() as sequence:
                    reply = yield drafters.Forward("draft", Run(sequence, text, len(answer)))
                    draft = [
                        _said(reply.logits, at, draft_model.head_tokens, self.sampling, length + at)
                        for at in range(len(answer))
                    ]
        finally:
            target.prefixes.unpin(known)
        temperature, seed = self.sampling.temperature, self.sampling.seed
        return Record("", "", temperature, seed, list(self.tokens), answer, draft, likely)


def _likeliest(logits: Logits, at: int) -> tuple[list[int], list[float]]:
    row = logits.rows[at]
    ids = np.argpartition(row, -LIKELIEST)[-LIKELIEST:]
    ids = ids[np.argsort(-row[ids], kind="stable")].tolist()
    return ids, [round(logits.probability(at, token), 6) for token in ids]


def _said(
    logits: Logits, at: int, head_tokens: np.ndarray | None, sampling: Sampling, position: int
) -> tuple[int, float]:
    ids = np.arange(logits.rows.shape[1]) if head_tokens is None else head_tokens
    if sampling.greedy:
        column = int(logits.best[at])
        return int(ids[column]), logits.probability(at, column)
    source = distribution(logits.rows[at], sampling)
    source = Distribution(ids[source.ids], source.probabilities)
    token = draw(source, sampling.seed, position, TOKEN)
    return token, source.probability(token)


# Replaying


def replay_all(
    records: Sequence[Record],
    tables: dict[str, CostTable],
    loaded: LoadedPair,
    without: Sequence[str] = (),
) -> Iterator[dict[str, str | float]]:
    """Replay by temperature and cost table: rows of speed-ups and tokens per round, in all and by
    task. Prompts come in a fixed random order, so that tasks mix."""
    for temperature in sorted({one.temperature for one in records}):
        chosen = [one for one in records if one.temperature == temperature]
        Random(0).shuffle(chosen)
        for name, costs in tables.items():
            tasks = replay(
                chosen, costs, table=loaded.ngrams, window=loaded.draft_window, without=without
            )
            total = sum(tasks.values(), Replayed())
            yield {
                "costs": name,
                "temperature": temperature,
                "speedup": total.speedup,
                "tokens_per_round": total.tokens / max(total.rounds, 1),
                **{task: tasks[task].speedup for task in sorted(tasks)},
            }


def replay(
    records: Sequence[Record],
    costs: CostTable,
    *,
    table: NgramTable | None,
    window: int | None,
    without: Sequence[str] = (),
) -> dict[str, Replayed]:
    """By task, what these answers take, decoded one after another in this order: each learns from
    those before it. `table` and `window` are the pair's; `without` leaves out some of SOURCES."""
    seconds, step = costs.seconds(), costs.draft_step_ms / 1000
    shared = Policy(limit=len(seconds) - 2)
    for size in costs.ms:
        shared.costs.saw_verify(size, seconds[size])
    shared.costs.saw_draft(step)
    found: dict[str, Replayed] = defaultdict(Replayed)
    for one in records:
        policy, sampling = shared.for_request(None), Sampling(one.temperature, seed=one.seed)
        ngrams = None if "ngrams" in without else Ngrams(None if "table" in without else table)
        model = _RecordedDraftModel(one, step, policy, sampling, window)
        kept = model if one.draft and "model" not in without else None
        drafter = drafters.AdaptiveDrafter(ngrams, policy, sampling, kept)
        rounds, spent = _decode(one, drafter, policy, seconds)
        tokens = len(one.answer) - 1
        found[one.task] += Replayed(tokens, rounds, tokens * seconds[1], spent + model.seconds)
    return dict(found)


def _decode(
    one: Record, drafter: drafters.Drafter, policy: Policy, seconds: list[float]
) -> tuple[int, float]:
    """Decode one answer again; gives its rounds and the target model's seconds."""
    text = [*one.prompt, *one.answer]
    target = cache.Sequence(cache.BlockPool(0), 32)
    target.tokens = list(one.prompt)
    decoding = decode.decode(
        decode.Prompt(tuple(one.prompt), _RecordedLogits(one, 0, 1)),
        target=target,
        drafter=drafter,
        policy=policy,
        sampling=Sampling(),  # the recorded choices are the target model's, however they were made
        limits=decode.Limits(len(one.answer), len(text) + 1),
    )
    rounds, spent, reply = 0, 0.0, None
    while True:
        try:
            event = decoding.send(reply)
        except StopIteration:
            return rounds - 1, spent  # the first token is the prompt's
        reply = None
        if isinstance(event, Round):
            rounds += 1
            continue
        count = len(event.run.tokens)
        target.tokens.extend(event.run.tokens)
        spent += seconds[count]
        at = len(target.tokens) - count + 1 - len(one.prompt)
        logits = _RecordedLogits(one, at, count)
        reply = drafters.Reply(logits, seconds[count], count)


class _RecordedLogits:
    """Stands in for rows of the target model's logits, from answer position `at` on: its recorded
    choices, all of them clear."""

    def __init__(self, one: Record, at: int, rows: int):
        self.best = [*one.answer[at : at + rows], *[-1] * rows][:rows]
        self.margin = [1e9] * rows

    def probability(self, at: int, column: int) -> float:
        return 0.5


class _RecordedDraftModel(drafters.DraftModel):
    """Says what the draft model said after the same text, and something wrong after any other."""

    def __init__(self, one: Record, step: float, policy, sampling, window: int | None):
        pool = cache.BlockPool(0)
        super().__init__(cache.Sequence(pool, 32), policy, sampling, None, window)
        self.text = [*one.prompt, *one.answer]
        self.begin = len(one.prompt)
        self.said = one.draft
        self.seconds_per_step = step
        self.seconds = 0.0

    def step(self, context, drafted):
        whole = [*context, *drafted]
        start = self._rewind(context, drafted)
        if self.window is not None and len(context) - start > self.window:
            self.sequence.truncate(0)
            start = self._skipped = len(context) - self.window
        self.sequence.tokens.extend(whole[start:])
        unread = len(whole) - start
        seconds = self.seconds_per_step
        if unread > drafters.FEW:
            seconds *= 1 + unread / READ_TOGETHER
            self.policy.costs.saw_reading(unread, seconds)
        else:
            self.policy.costs.saw_draft(seconds)
        self.seconds += seconds
        same = whole == self.text[: len(whole)] and len(whole) < len(self.text)
        token, probability = self.said[len(whole) - self.begin] if same else (-2, 0.3)
        return self._proposal(token, probability), seconds
        yield
