"""The speed-up of a draft policy without a clock: recorded answers decoded over a cost table.

    python tools/replay.py record PROMPTS.jsonl RECORDING.json [--limit N]
    python tools/replay.py run RECORDING.json [--without model|ngrams|lookup ...]

`record` answers prompts with the embedded pair, greedily and at temperature 0.7, and notes what its
draft model says at every place. `run` decodes them with the project's own drafters and policy;
only the models are replaced, by what was recorded, and the clock by the cost tables below.
"""

import argparse
import json
import random

import numpy as np

from specdemo.bench.prompts import read_prompts, spread
from specdemo.engine import decode, drafters
from specdemo.engine.cache import BlockPool, Sequence
from specdemo.engine.model import Run
from specdemo.engine.ngrams import Lookup, Ngrams
from specdemo.engine.policy import Policy
from specdemo.engine.rounds import Round
from specdemo.engine.sampling import TOKEN, Distribution, Sampling, distribution, draw
from specdemo.models import embedded
from specdemo.models.load import load_pair
from specdemo.models.registry import find_pair
from specdemo.session import Session
from specdemo.settings import Settings

COSTS = {
    "Intel Xeon, AVX512-VNNI": (
        {1: 15.5, 2: 15.6, 3: 16.7, 4: 18.5, 6: 18.9, 8: 21.5, 12: 23.4, 16: 29.4},
        1.6,
    ),
    "AMD Zen 5, AVX512-VNNI": (
        {1: 7.6, 2: 8.4, 3: 8.5, 4: 8.8, 5: 9.0, 6: 9.3, 8: 11.1, 12: 13.7, 16: 17.0},
        0.9,
    ),
    "AMD EPYC, AVX2": (
        {1: 15, 2: 18, 3: 21, 4: 24, 5: 33, 6: 35, 8: 37, 12: 47, 16: 57},
        2.0,
    ),
}
"""Milliseconds of a forward of the embedded target model by its tokens, and of a draft step."""

READ_TOGETHER = 8
"""Tokens of a text that the draft model reads in the time of one step."""


class RecordedLogits:
    """Stands in for the target model's logits: its own choices, all of them clear."""

    rows = None

    def __init__(self, best: list[int]):
        self.best = best
        self.margin = [1e9] * len(best)

    def probability(self, at: int, column: int) -> float:
        return 0.5


class RecordedDraftModel(drafters.DraftModel):
    """Says what the draft model said after the same text, and something wrong after any other."""

    def __init__(self, record: dict, step: float, policy: Policy, sampling: Sampling, window: int):
        super().__init__(Sequence(BlockPool(0), 32), policy, sampling, None, window)
        self.text = [*record["prompt"], *record["answer"]]
        self.begin = len(record["prompt"])
        self.said = record["draft"]
        self.seconds_per_step = step
        self.seconds = 0.0

    def step(self, context, drafted):
        whole = [*context, *drafted]
        start = self._rewind(context, drafted)
        if len(context) - start > self.window:
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


def replay(
    records: list[dict], costs: tuple[dict, float], without: list[str], window: int
) -> float:
    """The speed-up over autoregressive decoding of these answers, in this order."""
    table, step = costs
    seconds = [0.0] + [min(table[s] for s in table if s >= n) / 1000 for n in range(1, 17)]
    shared = Policy()
    for size in table:
        shared.costs.saw_verify(size, seconds[size])
    shared.costs.saw_draft(step / 1000)
    ngrams = embedded.ngrams()
    spent = baseline = 0.0
    for record in records:
        policy = shared.for_request(None)
        sampling = Sampling(record["temperature"], seed=record["seed"])
        model = RecordedDraftModel(record, step / 1000, policy, sampling, window)
        guessers = [] if "lookup" in without else [Lookup()]
        guessers += [] if "ngrams" in without else [Ngrams(ngrams)]
        kept = None if "model" in without else model
        drafter = drafters.AdaptiveDrafter(guessers, policy, sampling, kept)
        spent += _decode(record, drafter, policy, seconds) + model.seconds
        baseline += (len(record["answer"]) - 1) * seconds[1]
    return baseline / spent


def _decode(record: dict, drafter, policy: Policy, seconds: list[float]) -> float:
    """Decode one record; gives the target model's seconds."""
    text = [*record["prompt"], *record["answer"]]
    target = Sequence(BlockPool(0), 32)
    target.tokens = list(record["prompt"])
    decoding = decode.decode(
        decode.Prompt(tuple(record["prompt"]), RecordedLogits([record["answer"][0]])),
        target=target,
        drafter=drafter,
        policy=policy,
        sampling=Sampling(),  # the recorded choices are the target model's, however they were made
        limits=decode.Limits(len(record["answer"]), len(text) + 1),
    )
    spent, reply = 0.0, None
    while True:
        try:
            event = decoding.send(reply)
        except StopIteration:
            return spent
        reply = None
        if not isinstance(event, Round):
            tokens = event.run.tokens
            target.tokens.extend(tokens)
            end = len(target.tokens)
            best = [*text[end - len(tokens) + 1 : end + 1], -1][: len(tokens)]
            spent += seconds[len(tokens)]
            reply = drafters.Reply(RecordedLogits(best), seconds[len(tokens)], len(tokens))


def record(prompts: str, limit: int) -> list[dict]:
    """Answers of the embedded pair, and what its draft model says along them."""
    loaded = load_pair(find_pair("embedded"))
    session = Session(loaded)
    draft = session._engine._draft
    found = []
    for temperature in (0.0, 0.7):
        for prompt in spread(read_prompts(prompts), limit):
            settings = Settings(temperature=temperature, seed=len(found))
            *_, trace = session.answer(prompt.instruction, settings)
            tokens = loaded.template.render(prompt.instruction, loaded.tokenizer)
            answer = list(trace.token_ids)
            begin = max(len(tokens) - loaded.draft_window, 0)
            with draft.new_sequence() as sequence:
                run = Run(sequence, [*tokens[begin:], *answer[:-1]], len(answer))
                logits = draft.forward([run])[0]
                sampling = Sampling(temperature, seed=settings.seed)
                said = [
                    _said(logits, at, draft.head_tokens, sampling, len(tokens) + at)
                    for at in range(len(answer))
                ]
            found.append(
                {
                    "task": prompt.task,
                    "temperature": temperature,
                    "seed": settings.seed,
                    "prompt": list(tokens),
                    "answer": answer,
                    "draft": said,
                }
            )
    session.close()
    return found


def _said(logits, at: int, head_tokens: np.ndarray, sampling: Sampling, position: int):
    if sampling.greedy:
        column = int(logits.best[at])
        return int(head_tokens[column]), logits.probability(at, column)
    source = distribution(logits.rows[at], sampling)
    source = Distribution(head_tokens[source.ids], source.probabilities)
    token = draw(source, sampling.seed, position, TOKEN)
    return token, source.probability(token)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("prompts")
    recording.add_argument("recording")
    recording.add_argument("--limit", type=int, default=60)
    running = commands.add_parser("run")
    running.add_argument("recording")
    running.add_argument("--without", nargs="*", default=[], choices=("model", "ngrams", "lookup"))
    args = parser.parse_args()
    if args.command == "record":
        with open(args.recording, "w", encoding="utf-8") as file:
            json.dump(record(args.prompts, args.limit), file)
        return
    with open(args.recording, encoding="utf-8") as file:
        records = json.load(file)
    random.Random(0).shuffle(records)
    for temperature in (0.0, 0.7):
        chosen = [one for one in records if one["temperature"] == temperature]
        for machine, costs in COSTS.items():
            speedup = replay(chosen, costs, args.without, window=64)
            print(f"temperature {temperature}, {machine}: {speedup:.2f}")


if __name__ == "__main__":
    main()
