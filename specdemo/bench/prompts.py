"""Prompt files: JSONL with `id`, `task` and `instruction`; an even selection of prompts."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from specdemo.errors import BadInput
from specdemo.options import CONFIG, SPLIT, Whole, file_text, option, wrong_parameter

BUILT_IN = Path(__file__).with_name("prompts.jsonl")  # a few prompts of each of eight tasks
WARM_UP = "Name three things that people take to the seaside."  # before anything is timed
Text = Annotated[str, Field(pattern=r"\S", coerce_numbers_to_str=True)]
PeerName = Literal["openvino-genai", "llama-cpp", "transformers", "optimum-intel"]


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One instruction of a set; `task` groups prompts in the report."""

    id: Text
    task: Text
    instruction: Text


def read_prompts(path: Path | str = BUILT_IN) -> tuple[BenchPrompt, ...]:
    """The prompts of a JSONL file; blank lines are skipped and other keys ignored. Raises BadInput,
    which names the line, for an invalid prompt or a repeated id."""
    # Only newlines end a line: str.splitlines would split at separators that JSON may hold.
    lines = file_text(path, "--prompts").split("\n")
    adapter = TypeAdapter(BenchPrompt)
    prompts: dict[str, BenchPrompt] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"--prompts {path} line {number}"
        try:
            prompt = adapter.validate_json(line)
        except ValidationError as error:
            reason = wrong_parameter(error.errors(), whole="the prompt")
            raise BadInput(f"{place}: {reason}") from None
        if prompt.id in prompts:
            raise BadInput(f"{place} repeats the id {prompt.id!r}.")
        prompts[prompt.id] = prompt
    if not prompts:
        raise BadInput(f"--prompts {path} holds no prompts; a line has id, task and instruction.")
    return tuple(prompts.values())


@dataclass(frozen=True, slots=True, config=CONFIG)
class PromptOptions:
    """The prompts that a command runs, the peers that it compares with, and its report's page."""

    prompts: str | None = option(
        None, "JSONL with id, task and instruction", metavar="FILE", unset="a small set of its own"
    )
    limit: Annotated[Whole, Field(ge=1)] | None = option(
        None, "run only N prompts, spread evenly over the tasks"
    )
    peers: Annotated[tuple[PeerName, ...], SPLIT] | None = option(
        None,
        "also run openvino-genai, llama-cpp, transformers or optimum-intel",
        metavar="NAME[,NAME]",
    )
    html: str | None = option(None, "write the report as one self-contained page", metavar="FILE")

    def read(self) -> tuple[BenchPrompt, ...]:
        """The requested prompts. Raises BadInput."""
        return spread(read_prompts(self.prompts or BUILT_IN), self.limit)


def spread(prompts: Sequence[BenchPrompt], limit: int | None) -> tuple[BenchPrompt, ...]:
    """At most `limit` prompts, spread evenly over the tasks and over each task's prompts. The tasks
    alternate, so that a run that is stopped early is balanced, too."""
    tasks: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    # `limit` keeps the first turn of every task, then the second, and so on.
    turns = [(turn, task) for task in tasks for turn in range(len(tasks[task]))]
    turns = sorted(turns, key=lambda place: place[0])[:limit]
    quota = Counter(task for _, task in turns)
    return tuple(tasks[task][turn * len(tasks[task]) // quota[task]] for turn, task in turns)
