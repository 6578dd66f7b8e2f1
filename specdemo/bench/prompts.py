"""Prompt files: JSONL with `id`, `task` and `instruction`, read strictly, and a fair choice of a
few of them. Does not render prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from specdemo.errors import BadInput
from specdemo.settings import sentence

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
"""A few prompts of each of eight tasks."""

WARM_UP = "Name three things that people take to the seaside."
"""Run before anything is timed; not part of any set."""

MAX_BYTES = 50_000_000


def _id(value: object) -> object:
    return str(value) if type(value) is int else value


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it must not be blank")
    return text


Text = Annotated[str, Strict(), AfterValidator(_not_blank)]


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One instruction of a set; `task` groups prompts in the report."""

    id: Annotated[Text, BeforeValidator(_id)]
    task: Text
    instruction: Text


_PROMPT = TypeAdapter(BenchPrompt)


def read_prompts(path: Path | str = BUILT_IN) -> tuple[BenchPrompt, ...]:
    """The prompts of a JSONL file, in file order; blank lines are skipped and other keys ignored.

    Raises BadInput, naming the line, for a file that cannot be read, a line that is not an object
    with `id` (text or a whole number), `task` and `instruction` (text that is not blank), an id
    that comes twice, and a file without prompts.
    """
    where = f"--prompts {path}"
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise BadInput(f"{where} is larger than {MAX_BYTES // 1_000_000} MB.")
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"{where} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is not UTF-8 text; give a JSONL file of prompts.") from error
    prompts: dict[str, BenchPrompt] = {}
    # Only newlines end a line: str.splitlines would also split at separators that JSON may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            prompt = _PROMPT.validate_json(line)
        except ValidationError as error:
            reason = sentence(error).replace("the request", "it")
            raise BadInput(f"{where} line {number}: {reason}") from None
        if prompt.id in prompts:
            raise BadInput(f"{where} line {number} has the id {prompt.id!r} a second time.")
        prompts[prompt.id] = prompt
    if not prompts:
        raise BadInput(f"{where} holds no prompts; a line has id, task and instruction.")
    return tuple(prompts.values())


def spread(prompts: Sequence[BenchPrompt], limit: int | None) -> tuple[BenchPrompt, ...]:
    """At most `limit` prompts, as evenly over the tasks as they allow, and evenly over each task's
    prompts. Tasks alternate in the result, so that a run which is stopped early is fair as well."""
    tasks: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    limit = len(prompts) if limit is None else min(limit, len(prompts))
    quota = dict.fromkeys(tasks, 0)
    while sum(quota.values()) < limit:
        for task, members in tasks.items():
            if sum(quota.values()) < limit and quota[task] < len(members):
                quota[task] += 1
    turns = []
    for task, members in tasks.items():
        chosen = [members[i * len(members) // quota[task]] for i in range(quota[task])]
        turns += enumerate(chosen)
    return tuple(prompt for _, prompt in sorted(turns, key=lambda turn: turn[0]))
