"""Prompt files are read strictly, and a limit is spread fairly."""

from __future__ import annotations

import json

import pytest

from specdemo.bench.prompts import BenchPrompt, read_prompts, spread
from specdemo.errors import BadInput


def line(**fields) -> str:
    return json.dumps({"id": 1, "task": "qa", "instruction": "Why?", **fields}, ensure_ascii=False)


def test_the_built_in_set_has_several_prompts_of_several_tasks():
    prompts = read_prompts()
    assert len({prompt.task for prompt in prompts}) >= 6 and len(prompts) >= 24


def test_ids_may_be_numbers_and_unknown_keys_and_blank_lines_do_not_matter(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = line(id=82, reference="x"), "", line(id="b", instruction="日本\u2028語")
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_prompts(path) == (
        BenchPrompt("82", "qa", "Why?"),
        BenchPrompt("b", "qa", "日本\u2028語"),
    )


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ("[1]", "it must be an object"),
        ('{"id": 1, "task": "qa"}', "instruction is missing"),
        (line(instruction=" "), "instruction is ' '"),
        (line(task=None), "task is None"),
        (line(id=True), "id is True"),
        (line(id="first"), "repeats the id 'first'"),
    ],
)
def test_a_bad_line_is_refused_by_number(tmp_path, bad, says):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{line(id='first')}\n{bad}")
    with pytest.raises(BadInput, match=f"line 2:? .*{says}"):
        read_prompts(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "holds no prompts"), (None, "cannot be read"), (b"\xff\xfe\x00", "cannot be read")],
)
def test_files_without_prompts_or_text_are_refused(tmp_path, content, says):
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(BadInput, match=f"--prompts .*file {says}"):
        read_prompts(tmp_path / "file")


def prompts_of(**counts: int) -> list[BenchPrompt]:
    return [
        BenchPrompt(f"{task}{i}", task, "?") for task, count in counts.items() for i in range(count)
    ]


@pytest.mark.parametrize(
    ("first", "limit", "taken"), [(40, 12, [4, 4, 4]), (2, 11, [2, 5, 4]), (1, 99, [1, 40, 40])]
)
def test_a_limit_takes_equally_many_of_each_task_as_far_as_it_has_them(first, limit, taken):
    chosen = spread(prompts_of(a=first, b=40, c=40), limit)
    assert [sum(p.task == task for p in chosen) for task in "abc"] == taken
    assert len(set(chosen)) == len(chosen)


def test_a_limit_spreads_over_a_tasks_whole_length_and_tasks_take_turns():
    assert [p.id for p in spread(prompts_of(a=40), 4)] == ["a0", "a10", "a20", "a30"]
    assert [p.task for p in spread(prompts_of(a=3, b=3), None)] == ["a", "b"] * 3
