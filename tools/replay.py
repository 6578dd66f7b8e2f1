"""Computes speed-ups without a clock: decodes recorded answers again with a table of costs.

    python -m tools.replay --prompts PROMPTS --limit 60 --record FILE
    python -m tools.replay --replay FILE --costs xeon-vnni --without model

`record` answers prompts and stores the choices of target and draft at every position. `replay`
decodes the answers with the engine's drafters and policy. Records replace the models, and a cost
table replaces the clock. Choices outside the recorded answer are unknown and not needed.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar, cast

import click
import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from specdemo.bench.prompts import BenchPrompt, PromptOptions
from specdemo.cli import main
from specdemo.commands.shared import check_output, json_option, load_pair, options_of, write_report
from specdemo.engine import cache, decode
from specdemo.engine.cost_model import TYPICAL, CostModel
from specdemo.engine.drafts.draft_sources import DraftRequest, DraftSource, TokenDrafter
from specdemo.engine.drafts.drafter import AdaptiveDrafter
from specdemo.engine.drafts.lookup import LookupDrafter
from specdemo.engine.drafts.model_drafters import DEPTH, HeadDrafter, ModelDrafter
from specdemo.engine.forwards import Forward, Logits, Prompt, Reply, Run
from specdemo.engine.policy import Policy, shared_lengths
from specdemo.engine.request import Request, Target, prefilled
from specdemo.engine.rounds import Proposal, Round, Timing
from specdemo.engine.sampling import Sampling
from specdemo.errors import BadInput
from specdemo.options import CONFIG, SPLIT, option, wrong_parameter
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.question import Question, trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings

COST_TABLES = Path(__file__).with_name("cost_tables.json")

SAMPLED = 0.7
"""Temperature of the second half of a recording, unless the settings name one."""

CHUNK = 16
"""Tokens per forward of the target model while recording."""

GREEDY = Sampling()

WRONG: Choice = (-2, 0.3)
"""The choice outside the recorded answer; the token is never accepted."""

Kind = TypeVar("Kind")
Choice = tuple[int, float]  # a draft token and its probability
LeftOut = Literal["head", "model", "lookup"]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Milliseconds of forwards on one processor. `ms`: of the target model, by number of tokens.
    `draft_ms`: the same of the draft model; with `draft_step_ms` alone, that of one token and the
    typical rest. `head_step_ms`: of a step of a draft head. `attention_ms`: what 1,000 tokens of
    context add to each row; `ms` is without it."""

    processor: str
    threads: int
    model: str
    ms: Annotated[dict[int, float], Field(min_length=1)]
    draft_step_ms: float
    head_step_ms: float = 0.5
    attention_ms: float = 0.0
    draft_ms: dict[int, float] = field(default_factory=dict)
    note: str = ""

    def target_costs(self) -> CostModel:
        return _costs(self.ms, self.attention_ms)

    def draft_costs(self, head: bool) -> CostModel:
        step = self.head_step_ms if head else self.draft_step_ms
        typical = {size: step * ratio for size, ratio in TYPICAL.items()}
        return _costs((not head and self.draft_ms) or typical, 0.0)


def _costs(ms: dict[int, float], attention_ms: float) -> CostModel:
    costs = CostModel()
    seconds = {size: milliseconds / 1000 for size, milliseconds in ms.items()}
    costs.learn(seconds, attention_ms / 1e6)
    return costs


@dataclass(frozen=True, slots=True)
class Record:
    """One answer, in token ids. `draft`: by answer position, the draft model's token and its
    probability. `head`: by answer position, the chain of such pairs that a draft head proposes from
    there along the answer. Both are empty without such a draft."""

    id: str
    task: str
    temperature: float
    seed: int
    prompt: list[int]
    answer: list[int]
    draft: list[Choice]
    head: list[list[Choice]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Seconds of autoregressive and of speculative decoding, by the cost table, for `tokens`: all
    tokens but the first of each answer."""

    tokens: int = 0
    rounds: int = 0
    autoregressive_s: float = 0.0
    speculative_s: float = 0.0

    @property
    def speedup(self) -> float:
        return self.autoregressive_s / self.speculative_s if self.speculative_s else 1.0

    def __add__(self, other: Replayed) -> Replayed:
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return Replayed(*map(sum, pairs))


def cost_tables(wanted: str | None = None) -> dict[str, CostTable]:
    """The cost tables by name: all in COST_TABLES, only the one called `wanted`, or all in the JSON
    file `wanted`. Raises BadInput."""
    path = Path(wanted) if wanted and wanted.endswith(".json") else COST_TABLES
    tables = _read(path, TypeAdapter(dict[str, CostTable]), "--costs")
    if path == COST_TABLES and wanted:
        if wanted not in tables:
            raise BadInput(
                f"--costs {wanted} is no cost table; choose one of {', '.join(tables)}, or name a "
                "JSON file of such tables."
            )
        return {wanted: tables[wanted]}
    return tables


def read_records(path: Path | str) -> list[Record]:
    """Read the records that `write_records` wrote. Raises BadInput."""
    return _read(Path(path), TypeAdapter(list[Record]), "--replay")


def write_records(records: Iterable[Record], path: Path | str) -> None:
    """Write records as a JSON array, one record per line."""
    lines = ",\n".join(json.dumps(asdict(record), separators=(",", ":")) for record in records)
    Path(path).write_text(f"[{lines}]\n", encoding="utf-8")


def _read(path: Path, form: TypeAdapter[Kind], option: str) -> Kind:
    try:
        return form.validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{option} {path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise BadInput(f"{option} {path}: {wrong_parameter(error.errors())}") from None


# Recording


def record(
    session: Session, prompts: Sequence[BenchPrompt], settings: Settings
) -> Iterator[Record]:
    """Answer prompts greedily, then at the temperature of `settings` (SAMPLED if it is 0). Yields a
    record per answer with the draft's choices along it."""
    session.prepare(settings.numerics)
    for temperature in (0.0, settings.temperature or SAMPLED):
        for number, prompt in enumerate(prompts):
            own = replace(settings.later(number), temperature=temperature)
            question = Question(prompt.instruction, own)
            answer = trace_of(session.ask(question)).token_ids
            choices = session.submit(question, partial(_along, list(answer))).result()
            yield replace(choices, id=prompt.id, task=prompt.task)


def _along(
    answer: list[int],
    request: Request,
    timing: Timing,
    target: Target,
    sources: Iterable[DraftSource],
) -> Generator[Forward, Reply, Record]:
    """Runs the models along the prompt and `answer`; gives a record without id and task."""
    prompt, sequence = yield from prefilled(request, timing, target)
    states = list(prompt.logits.state) if prompt.logits.state is not None else []
    with sequence:
        for begin in range(0, len(answer) - 1, CHUNK):
            tokens = answer[begin : min(begin + CHUNK, len(answer) - 1)]
            run = Run(sequence, tokens, len(tokens), stepwise=True)
            reply = yield Forward("target", run)
            if (read := reply.logits.states(len(tokens))) is not None:
                states.extend(read)
    length = len(request.tokens) + len(answer)
    drafting = DraftRequest(request.tokens, length, request.sampling, Policy())
    chains: dict[str, list[list[Choice]]] = {"model": [], "head": []}
    for source in sources:
        drafter = source.open(drafting)
        if drafter.name in chains:
            chains[drafter.name] = yield from _chains(request.tokens, answer, drafter, states)
            drafter.close([*request.tokens, *answer])
    temperature, seed = request.sampling.temperature, request.sampling.seed
    choices = [choice for [choice] in chains["model"]]
    prompt_tokens = list(request.tokens)
    return Record("", "", temperature, seed, prompt_tokens, answer, choices, chains["head"])


def _chains(
    prompt: tuple[int, ...], answer: list[int], drafter: TokenDrafter, states: list[np.ndarray]
) -> Generator[Forward, Reply, list[list[Choice]]]:
    """The chains by answer position, of one token for a draft model. The first one of a draft
    head is empty: prefill gives the first token."""
    chains: list[list[Choice]] = []
    for begin in range(len(answer)):
        context = [*prompt, *answer[:begin]]
        chains.append([])
        if begin or not states:
            drafter.start(context, states[begin - 1][None] if states else None)
            last = begin + DEPTH if states else begin + 1
            for end in range(begin, min(last, len(answer))):
                proposal, _ = yield from drafter.step(context, answer[begin:end])
                chains[-1].append(_choice(proposal))
    return chains


def _choice(proposal: Proposal | None) -> Choice:
    return (proposal.token, proposal.probability or 0.0) if proposal else WRONG


# Replaying


def replay_all(
    records: Sequence[Record], tables: dict[str, CostTable], without: Sequence[str] = ()
) -> Iterator[dict[str, str | float]]:
    """Replay by temperature and cost table. Yields rows with speed-up and tokens per round in all,
    and speed-up by task. Prompts come in a fixed random order, so that tasks mix."""
    for temperature in sorted({record.temperature for record in records}):
        chosen = [record for record in records if record.temperature == temperature]
        Random(0).shuffle(chosen)
        for name, costs in tables.items():
            tasks = replay(chosen, costs, without=without)
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
    without: Sequence[str] = (),
    draft_tokens: int | None = None,
) -> dict[str, Replayed]:
    """The costs of these answers by task. They are decoded in this order, and each learns from
    those before it. `without` leaves these sources out. `draft_tokens` is the draft length, None
    to adapt."""
    shared = Policy(limit=max(costs.ms) - 1, costs=costs.target_costs())
    head = any(record.head for record in records) and "head" not in without
    drafting = costs.draft_costs(head)
    replayed: dict[str, Replayed] = defaultdict(Replayed)
    for record in records:
        policy = shared.for_request(draft_tokens)
        request = DraftRequest((), 0, GREEDY, policy)
        kinds: list[type[TokenDrafter]] = [] if "lookup" in without else [LookupDrafter]
        if head:
            kinds.append(HeadDrafter)
        elif record.draft and "model" not in without:
            kinds.append(ModelDrafter)
        runner = SimpleNamespace(costs=drafting, token_ids=None)
        drafters = [kind(DraftSource(kind, runner), request) for kind in kinds]
        clocks = {"target": costs.target_costs(), "draft": costs.draft_costs(head)}
        learnt = {"target": policy.costs, "draft": drafting}
        drafter = AdaptiveDrafter(drafters, policy)
        replayed[record.task] += _decode(record, drafter, policy, clocks, learnt)
    return dict(replayed)


def _seconds(clock: CostModel, costs: CostModel, tokens: int, attended: int) -> float:
    """Seconds of a forward on the machine that `clock` describes. `costs` learn from it."""
    seconds = clock.forward(tokens) + attended * clock.attention
    costs.record(tokens, seconds, attended)
    return seconds


def _decode(
    record: Record,
    drafter: AdaptiveDrafter,
    policy: Policy,
    clocks: dict[str, CostModel],
    learnt: dict[str, CostModel],
) -> Replayed:
    """Decode one answer again, on the machine that `clocks` describe and the cost models `learnt`
    learn. Gives its rounds and seconds, and those of autoregressive decoding."""
    length, text = len(record.prompt), [*record.prompt, *record.answer]
    target = cache.KVSequence(cache.BlockPool(0), 32)
    target.tokens = list(record.prompt)
    decoding = decode.decode(
        Prompt(tuple(record.prompt), recorded_logits(record.answer[:1])),
        target=target,
        drafter=drafter,
        policy=policy,
        sampling=GREEDY,  # a recorded choice counts as the model's, also if it was sampled
        limits=decode.Limits(len(record.answer), len(text) + 1),
    )
    rounds, spent, reply = 0, 0.0, None
    read: list[int] = []  # by the draft head in this round
    while True:
        try:
            event: Any = decoding.send(reply)
        except StopIteration:
            tokens = len(record.answer) - 1
            baseline = tokens * clocks["target"].forward(1, length + len(record.answer) // 2)
            return Replayed(tokens, rounds - 1, baseline, spent)  # the first round is the prefill
        reply = None
        if isinstance(event, Round):
            rounds += 1
            continue
        run, count = event.run, len(event.run.tokens)
        begin = target.length + 1  # position of the first draft token
        if event.chances:
            rows = policy.costs.forwards(context=begin)[1 : count + 1]
            [verified] = shared_lengths([event.chances], rows, event.spent)
            count = 1 + verified
        attended = count * begin if event.model == "target" else 0
        seconds = _seconds(clocks[event.model], learnt[event.model], count, attended)
        spent += seconds
        if event.model == "target":
            target.tokens.extend(run.tokens[:count])
            choices = text[begin : begin + count]
            logits = recorded_logits([*choices, *[-1] * (count - len(choices))])
            read = []
        else:
            if run.states is not None:  # a draft head's
                read.append(run.tokens[0])
                end, drafted = begin + len(read) - 1, read[1:]
                chain = record.head[begin - length]
                choice = chain[len(drafted)] if len(drafted) < len(chain) else WRONG
            else:
                run.sequence.tokens.extend(run.tokens)
                end = run.sequence.length
                drafted = run.sequence.tokens[end - max(end - begin, 0) :]
                choice = record.draft[end - length] if begin <= end < len(text) else WRONG
            token, probability = choice if drafted == text[begin:end] else WRONG
            logits = recorded_logits([token], probability)
        reply = Reply(logits, seconds)


def recorded_logits(tokens: list[int], chance: float = 0.5) -> Logits:
    return cast(Logits, _Recorded(tokens, chance))


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Replaces rows of logits: recorded choices, with infinite margins."""

    tokens: list[int]
    chance: float = 0.5

    def row(self, index: int) -> _Recorded:
        return _Recorded(self.tokens[index : index + 1], self.chance)

    def best(self) -> int:
        return self.tokens[0]

    def margin(self, best: int) -> float:
        return math.inf

    def probability(self, column: int) -> float:
        return self.chance

    def states(self, count: int) -> np.ndarray:
        return np.zeros((count, 0), np.float32)

    def last_state(self) -> None:
        return None


@checked(frozen=True, slots=True, config=CONFIG)
class ReplayOptions(PromptOptions):
    record: str | None = option(None, "record answers for --replay", metavar="FILE")
    replay: str | None = option(None, "decode these recorded answers again", metavar="FILE")
    costs: str | None = option(
        None, "of cost_tables.json or a file like it", metavar="NAME|FILE", unset="all"
    )
    without: Annotated[tuple[LeftOut, ...], SPLIT] | None = option(
        None, "leave sources of draft tokens out", metavar="NAME[,NAME]"
    )


@click.command()
@options_of(ReplayOptions, "options", variables=False)
@json_option
@options_of(ModelChoice, "choice")
@options_of(Settings, "settings")
def command(
    options: ReplayOptions, json_file: str | None, choice: ModelChoice, settings: Settings
) -> None:
    """Record answers, or decode recorded ones again over cost tables. Prints speed-ups."""
    check_output(options.record, "--record")
    costs = cost_tables(options.costs)
    records = read_records(options.replay) if options.replay else []
    loaded = load_pair(choice)
    if options.record:
        with Session(loaded) as session:
            write_records(list(record(session, options.read(), settings)), options.record)
    rows = list(replay_all(records, costs, options.without or ()))
    write_report({"speedups": rows}, json_file, {"Speed-up by cost table": rows} if rows else {})


if __name__ == "__main__":
    sys.exit(main(command=command, name="replay"))
