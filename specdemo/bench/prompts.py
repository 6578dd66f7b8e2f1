"""Prompt files: JSONL with `id`, `task` and `instruction`, read strictly, and a fair choice of a few of them.

Does not render prompts: templates are the session's affair.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
"""A small set of our own, so that bench works on its own: a few prompts of each of eight tasks."""

WARM_UP = "Name three things that people take to the seaside."
"""Run before anything is timed; not part of any set."""

MAX_BYTES = 50_000_000


class PromptFileError(ValueError):
    """A prompt file that cannot be used; the message is one sentence that names the option, the file and the line."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One instruction of a set; `task` groups prompts in the report."""

    id: str
    task: str
    instruction: str


def read_prompts(path: Path | str = BUILT_IN, *, option: str = "--prompts") -> tuple[BenchPrompt, ...]:
    """The prompts of a JSONL file, in file order; blank lines are skipped and other keys ignored.

    Raises PromptFileError where the file cannot be read, a line is not an object with `id` (text or a whole number),
    `task` and `instruction` (text, not empty), an id comes twice, or there is no prompt at all.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PromptFileError(f"{option} {path} is larger than {MAX_BYTES // 1_000_000} MB; give a shorter file.")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PromptFileError(f"{option} {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{option} {path} is not UTF-8 text; give a JSONL file of prompts.") from error
    prompts: list[BenchPrompt] = []
    first_line: dict[str, int] = {}
    # Only newlines end a line: str.splitlines would also split at separators that JSON texts may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        prompt = _parse(line, f"{option} {path} line {number}")
        if prompt.id in first_line:
            raise PromptFileError(
                f"{option} {path} line {number} has the id {prompt.id!r} of line {first_line[prompt.id]}; "
                "every prompt needs its own."
            )
        first_line[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise PromptFileError(f"{option} {path} holds no prompts; give at least one line with id, task, instruction.")
    return tuple(prompts)


def _parse(line: str, where: str) -> BenchPrompt:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptFileError(f"{where} is not JSON; give one object with id, task and instruction a line.") from error
    if not isinstance(data, dict):
        raise PromptFileError(f"{where} is not an object; give one with id, task and instruction.")
    identity = data.get("id")
    if isinstance(identity, bool) or not isinstance(identity, int | str) or identity == "":
        raise PromptFileError(f"{where} needs an id that is text or a whole number.")
    for key in ("task", "instruction"):
        value = data.get(key)
        if not isinstance(value, str) or not value.strip():
            raise PromptFileError(f"{where} needs {_article(key)} that is text and not empty.")
    return BenchPrompt(str(identity), data["task"], data["instruction"])


def _article(key: str) -> str:
    return f"an {key}" if key[0] in "aeiou" else f"a {key}"


def spread(prompts: Sequence[BenchPrompt], limit: int | None) -> tuple[BenchPrompt, ...]:
    """At most `limit` prompts, as evenly over the tasks as they allow, and evenly over each task's prompts.

    Tasks take turns in the result (also without a limit), so that a run which is stopped early is fair as well.
    """
    tasks: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    limit = len(prompts) if limit is None else min(limit, len(prompts))
    quota = dict.fromkeys(tasks, 0)
    while sum(quota.values()) < limit:
        for task, members in tasks.items():
            if sum(quota.values()) < limit and quota[task] < len(members):
                quota[task] += 1
    chosen = [[members[i * len(members) // quota[task]] for i in range(quota[task])] for task, members in tasks.items()]
    turns = max(map(len, chosen), default=0)
    return tuple(members[turn] for turn in range(turns) for members in chosen if turn < len(members))
