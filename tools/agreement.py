"""Measures how often a target model chooses the same tokens as a larger version of it.

python -m tools.agreement --pair dolly-3b-int4 --reference dolly-3b
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import eq

import click
import openvino as ov
from pydantic.dataclasses import dataclass

from specdemo.bench.prompts import BenchPrompt, PromptOptions
from specdemo.cli import main
from specdemo.commands.shared import json_option, load_pair, options_of, write_report
from specdemo.engine.backends import numerics
from specdemo.engine.backends.paged import open_model
from specdemo.engine.forwards import ModelSettings, Run
from specdemo.errors import BadInput
from specdemo.machine import measured
from specdemo.options import CONFIG, option
from specdemo.pairs.loading import LoadedPair, vocabulary_difference
from specdemo.pairs.registry import NO_DRAFT, ModelChoice
from specdemo.runs.question import Question, trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings


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
    with Session(reference) as session:
        answers = [
            trace_of(session.ask(Question(prompt.instruction, settings))).token_ids
            for prompt in prompts
        ]
    asked = [other.template.render(prompt.instruction, other.tokenizer) for prompt in prompts]
    tokens, agreed, identical = sum(map(len, answers)), 0, 0
    for chosen, answer in zip(choices(other, asked, answers), answers, strict=True):
        same = [*map(eq, chosen, answer)]
        agreed += sum(same)
        identical += all(same)
    figures = {"prompts": len(answers), "tokens": tokens, "agreed": agreed, "identical": identical}
    return figures | {"agreement": agreed / tokens}


def choices(
    loaded: LoadedPair, prompts: Iterable[Sequence[int]], answers: Iterable[Sequence[int]]
) -> Iterator[list[int]]:
    """The target's choice at each token of these answers to `prompts`, in exact numerics."""
    core = ov.Core()
    properties, *_ = numerics.candidates(loaded.target, "CPU", "auto", True, core)
    model = open_model(loaded.target, ModelSettings(properties=properties), core)
    for prompt, answer in zip(prompts, answers, strict=True):
        with model.new_sequence() as sequence:
            [logits] = model.forward([Run(sequence, [*prompt, *answer[:-1]], len(answer))])
            yield logits.rows.argmax(axis=1).tolist()


@dataclass(frozen=True, slots=True, config=CONFIG)
class AgreementOptions(PromptOptions):
    reference: str = option("", "the pair whose target answers", metavar="PAIR")


@click.command()
@options_of(AgreementOptions, "options", variables=False)
@json_option
@options_of(ModelChoice, "choice")
@options_of(Settings, "settings")
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
