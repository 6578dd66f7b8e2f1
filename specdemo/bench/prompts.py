"""Prompt files: JSONL with `id`, `task` and `instruction`, read strictly, and a fair choice of a
few of them. Does not render prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from specdemo.errors import BadInput
from specdemo.settings import CONFIG, listed, option, sentence, whole

BUILT_IN = Path(__file__).with_name("prompts.jsonl")  # a few prompts of each of eight tasks

WARM_UP = "Name three things that people take to the seaside."
"""Run before anything is timed; not part of any set."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it must not be blank")
    return text


Text = Annotated[str, Strict(), AfterValidator(_not_blank)]
Id = Annotated[Text, BeforeValidator(lambda id: str(id) if type(id) is int else id)]


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One instruction of a set; `task` groups prompts in the report."""

    id: Id
    task: Text
    instruction: Text


def read_prompts(path: Path | str = BUILT_IN) -> tuple[BenchPrompt, ...]:
    """The prompts of a JSONL file, in file order; blank lines are skipped and other keys ignored.
    `id` is text or a whole number, `task` and `instruction` are text that is not blank.

    Raises BadInput, naming the line, for anything else and for an id that comes twice.
    """
    where = f"--prompts {path}"
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"{where} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is not UTF-8 text; give a JSONL file of prompts.") from error
    adapter = TypeAdapter(BenchPrompt)
    prompts: dict[str, BenchPrompt] = {}
    # Only newlines end a line: str.splitlines would also split at separators that JSON may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            prompt = adapter.validate_json(line)
        except ValidationError as error:
            reason = sentence(error).replace("the request", "it")
            raise BadInput(f"{where} line {number}: {reason}") from None
        if prompt.id in prompts:
            raise BadInput(f"{where} line {number} has the id {prompt.id!r} a second time.")
        prompts[prompt.id] = prompt
    if not prompts:
        raise BadInput(f"{where} holds no prompts; a line has id, task and instruction.")
    return tuple(prompts.values())


@dataclass(frozen=True, slots=True, config=CONFIG)
class PromptOptions:
    """What the commands run, and what they compare with."""

    prompts: str | None = option(
        None, "JSONL with id, task and instruction", metavar="FILE", unset="a small set of its own"
    )
    limit: whole(1) | None = option(None, "run only N prompts, spread evenly over the tasks")
    peers: listed("openvino-genai", "llama-cpp", "transformers") | None = option(
        None,
        "also run other engines on the same files: openvino-genai and llama-cpp, or on torch "
        "devices transformers",
        metavar="NAME[,NAME]",
    )

    def read(self) -> tuple[BenchPrompt, ...]:
        """The prompts that are asked for. Raises BadInput."""
        return spread(read_prompts(self.prompts or BUILT_IN), self.limit)


def spread(prompts: Sequence[BenchPrompt], limit: int | None) -> tuple[BenchPrompt, ...]:
    """At most `limit` prompts, as evenly over the tasks as they allow, and evenly over each task's
    prompts. Tasks alternate in the result, so that a run which is stopped early is fair as well."""
    tasks: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    # A limit takes the first turn of every task, then the second, and so on.
    turns = sorted(
        ((turn, task) for task in tasks for turn in range(len(tasks[task]))),
        key=lambda place: place[0],
    )[:limit]
    quota = Counter(task for _, task in turns)
    return tuple(tasks[task][turn * len(tasks[task]) // quota[task]] for turn, task in turns)
