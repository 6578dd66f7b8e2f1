"""Prompt files are read strictly, and a limit is spread fairly."""

from __future__ import annotations

import json
import re

import pytest

from specdemo.bench.prompts import BUILT_IN, BenchPrompt, read_prompts, spread
from specdemo.errors import BadInput


def write(folder, *lines: str):
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def line(**fields) -> str:
    return json.dumps({"id": 1, "task": "qa", "instruction": "Why?", **fields}, ensure_ascii=False)


def test_the_built_in_set_is_readable_and_has_several_tasks():
    prompts = read_prompts()
    assert len({prompt.task for prompt in prompts}) >= 6
    assert len(prompts) >= 24
    assert BUILT_IN.is_file()


def test_ids_may_be_numbers_and_unknown_keys_and_blank_lines_do_not_matter(tmp_path):
    path = write(tmp_path, line(id=82, reference="x"), "", line(id="b", instruction="日本\u2028語"))
    assert read_prompts(path) == (
        BenchPrompt("82", "qa", "Why?"),
        BenchPrompt("b", "qa", "日本\u2028語"),
    )


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{", "it is '{'; Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ("[1]", "it must be an object"),
        ('{"id": 1, "task": "qa"}', "instruction is missing"),
        (line(instruction=" "), "instruction is ' '; it must not be blank"),
        (line(instruction=3), "instruction is 3"),
        (line(task=None), "task is None"),
        (line(id=True), "id is True"),
        (line(id=1.5), "id is 1.5"),
        (line(id=""), "id is ''; it must not be blank"),
    ],
)
def test_a_bad_line_is_refused_by_number(tmp_path, bad, says):
    path = write(tmp_path, line(id="first"), bad)
    with pytest.raises(BadInput, match=f"line 2: .*{re.escape(says)}"):
        read_prompts(path)


def test_an_id_that_comes_twice_is_refused(tmp_path):
    with pytest.raises(BadInput, match="line 2 has the id '1' a second time"):
        read_prompts(write(tmp_path, line(), line(id="1")))


def test_files_without_prompts_or_text_are_refused(tmp_path):
    with pytest.raises(BadInput, match="holds no prompts"):
        read_prompts(write(tmp_path, ""))
    with pytest.raises(BadInput, match="--prompts .*nowhere.* cannot be read"):
        read_prompts(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_prompts(tmp_path / "binary")


def prompts_of(**counts: int) -> list[BenchPrompt]:
    return [
        BenchPrompt(f"{task}{i}", task, "?") for task, count in counts.items() for i in range(count)
    ]


def test_a_limit_takes_equally_many_of_each_task():
    chosen = spread(prompts_of(a=40, b=40, c=40), 12)
    assert [sum(p.task == task for p in chosen) for task in "abc"] == [4, 4, 4]
    assert len(set(chosen)) == 12


def test_a_limit_that_a_small_task_cannot_fill_goes_to_the_others():
    chosen = spread(prompts_of(a=2, b=40, c=40), 11)
    assert [sum(p.task == task for p in chosen) for task in "abc"] == [2, 5, 4]


def test_a_limit_spreads_over_a_tasks_whole_length():
    assert [p.id for p in spread(prompts_of(a=40), 4)] == ["a0", "a10", "a20", "a30"]


def test_tasks_take_turns_so_that_a_stopped_run_is_fair():
    assert [p.task for p in spread(prompts_of(a=3, b=3), None)] == ["a", "b", "a", "b", "a", "b"]


def test_a_limit_beyond_the_set_takes_all_of_it():
    prompts = prompts_of(a=3, b=1)
    assert sorted(spread(prompts, 99), key=prompts.index) == prompts
