"""Measures how often a target model chooses the same tokens as a larger version of it.

python -m tools.agreement --pair dolly-3b-int4 --reference dolly-3b
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from dataclasses import replace

import click
from pydantic.dataclasses import dataclass

from specdemo.bench.prompts import BenchPrompt, PromptOptions
from specdemo.cli import main
from specdemo.commands.shared import answer_options, load_pair, options_of, write_report
from specdemo.engine.messages import Forward, Reply, Run
from specdemo.engine.request import Request, Target
from specdemo.errors import BadInput
from specdemo.host import measured
from specdemo.options import CONFIG, option
from specdemo.pairs.loading import LoadedPair, vocabulary_difference
from specdemo.pairs.registry import NO_DRAFT, ModelChoice
from specdemo.runs.question import trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings

TOGETHER = 16  # tokens per forward


class Choices(Request):
    """Asks the target model for its greedy choice at every place of `answer`."""

    def work(self, target: Target, draft: object = None) -> Generator[Forward, Reply, list[int]]:
        prompt, sequence = yield from self._prompt(target)
        chosen = [int(prompt.logits.rows[0].argmax())]
        read = self.answer[:-1]
        with sequence:
            for begin in range(0, len(read), TOGETHER):
                tokens = read[begin : begin + TOGETHER]
                reply = yield Forward("target", Run(sequence, tokens, len(tokens), stepwise=True))
                chosen += reply.logits.rows[: len(tokens)].argmax(axis=1).tolist()
        return chosen


def agreement(
    reference: LoadedPair, other: LoadedPair, prompts: Sequence[BenchPrompt], settings: Settings
) -> dict[str, float]:
    """Let `reference` answer greedily, then ask `other` for its choice at each answer token. Only
    one of them is in memory at a time. Gives counts of `prompts`, `tokens`, `agreed` tokens and
    `identical` answers, and `agreement`, the share of agreed tokens.

    Raises BadInput if a token id means different strings in both.
    """
    if why := vocabulary_difference(reference.tokenizer, other.tokenizer):
        names = f"{reference.info.target} and {other.info.target}"
        raise BadInput(f"{names} cannot be compared, their vocabularies differ: {why}.")
    settings = replace(settings, temperature=0.0, drafter="auto")
    answers = []
    with Session(reference) as session:
        for prompt in prompts:
            answers.append(trace_of(session.answer(prompt.instruction, settings)).token_ids)
    tokens, agreed, identical = sum(map(len, answers)), 0, 0
    with Session(other) as session:
        for prompt, answer in zip(prompts, answers, strict=True):
            chosen = session.result_of(Choices, prompt.instruction, settings, answer)
            same = [choice == token for choice, token in zip(chosen, answer, strict=True)]
            agreed += sum(same)
            identical += all(same)
    figures = {"prompts": len(answers), "tokens": tokens, "agreed": agreed, "identical": identical}
    return figures | {"agreement": agreed / tokens}


@dataclass(frozen=True, slots=True, config=CONFIG)
class AgreementOptions(PromptOptions):
    reference: str = option("", "the pair whose target answers", metavar="PAIR")


@click.command()
@options_of(AgreementOptions, "options", variables=False)
@answer_options
def command(
    options: AgreementOptions, json_file: str | None, choice: ModelChoice, settings: Settings
) -> None:
    """Count the tokens that two target models choose alike. Loads no draft, because a draft changes
    no answer. `specdemo pairs` and the page show the share."""
    prompts = options.read()
    loaded = load_pair(replace(choice, assistant_model=NO_DRAFT if choice.pair else ""))
    compared = load_pair(ModelChoice(options.reference, assistant_model=NO_DRAFT))
    counts = agreement(compared, loaded, prompts, settings)
    pair, reference = loaded.info.name, compared.info.name
    measured.write("agreement", {"pair": pair}, (reference, counts["agreement"]))
    figures = {"pair": pair, "reference": reference, **counts}
    write_report(figures, json_file, {"Tokens that both would choose": [figures]})


if __name__ == "__main__":
    sys.exit(main(command=command, name="agreement"))
