"""Recordings of answers, and decoding them again over cost tables."""

from __future__ import annotations

import json

import pytest

from specdemo import cli
from specdemo.errors import BadInput
from tools import replay as tool
from tools.replay import (
    CostTable,
    Record,
    cost_tables,
    read_records,
    replay,
    write_records,
)

LOOP = [5, 6, 7, 8] * 12


def costs(step=0.2, **changes):
    return CostTable("a processor", 2, "a model", {1: 10.0, 8: 12.0}, step, **changes)


def recorded(answer, draft=(), **fields):
    fields = {"id": "1", "task": "a", "temperature": 0.0, "seed": 0, "prompt": [1, 2], **fields}
    return Record(**fields, answer=list(answer), draft=list(draft))


def replayed(records, table, without=()):
    return replay(records, table, without=without)["a"]


def test_an_answer_that_repeats_itself_is_decoded_in_fewer_rounds():
    steady, changing = (
        replayed([recorded(LOOP)], costs(change_ms=change)) for change in (0.0, 3.0)
    )
    assert steady.tokens == len(LOOP) - 1
    assert steady.rounds < steady.tokens / 3
    assert steady.autoregressive_s == pytest.approx(steady.tokens * 0.010)
    assert 2 < steady.speedup < 8
    assert changing.autoregressive_s == steady.autoregressive_s
    assert changing.speculative_s > steady.speculative_s


def test_without_a_source_every_token_takes_a_step():
    alone = replayed([recorded(LOOP)], costs(), without=("lookup",))
    assert alone.rounds == alone.tokens and alone.speedup == pytest.approx(1)


@pytest.mark.parametrize("kind", ["model", "head"])
def test_a_recorded_draft_is_asked_where_it_pays(kind):
    answer = list(range(100, 160))  # nothing repeats
    chosen = [(token, 0.9) for token in answer]
    draft = (
        {"draft": chosen} if kind == "model" else {"head": [chosen[n : n + 5] for n in range(60)]}
    )
    records = [recorded(answer, **draft)] * 3
    cheap, dear = (replayed(records, costs(step, head_step_ms=step)) for step in (0.2, 40.0))
    assert cheap.speedup > 2 and 0.8 < dear.speedup <= 1
    assert replayed(records, costs(), without=(kind,)).speedup == pytest.approx(1)


def test_records_are_read_as_they_were_written(tmp_path):
    records = [recorded(LOOP, [(1, 0.5)] * len(LOOP)), recorded([3], temperature=0.7)]
    write_records(records, tmp_path / "records.json")
    assert read_records(tmp_path / "records.json") == records


def test_the_projects_cost_tables_are_chosen_by_name_or_file(tmp_path):
    everything = cost_tables()
    assert {1, 2, 8} <= everything["xeon-vnni"].ms.keys()
    assert list(cost_tables("epyc-avx2")) == ["epyc-avx2"]
    table = {"processor": "x", "threads": 4, "model": "y", "ms": {"1": 3}, "draft_step_ms": 1}
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"mine": table}))
    assert cost_tables(str(path))["mine"].ms == {1: 3.0}


@pytest.mark.parametrize("text", ["[]", '{"a": {"ms": {}}}', "no"])
def test_what_is_no_cost_table_is_refused_by_name(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="--costs .*bad.json"):
        cost_tables(str(path))


def test_answers_are_recorded_and_replayed_without_the_models(
    capsys, monkeypatch, tmp_path, tiny_llama_pair
):
    monkeypatch.setattr(tool, "load_pair", lambda choice: tiny_llama_pair)
    recording = str(tmp_path / "recording.json")
    options = ["--limit", "1", "--max-new-tokens", "12", "--record", recording]
    assert cli.main(options, tool.command) == 0
    greedy, sampled = read_records(recording)
    assert (greedy.temperature, sampled.temperature) == (0.0, 0.7)
    for answer in (greedy, sampled):
        assert len(answer.answer) == len(answer.draft) == 12 and not answer.head
    capsys.readouterr()
    options = ["--replay", recording, "--costs", "zen5-vnni", "--json", "-"]
    assert cli.main(options, tool.command) == 0
    rows = json.loads(capsys.readouterr().out)["speedups"]
    assert [row["temperature"] for row in rows] == [0.0, 0.7]
    assert all(row["costs"] == "zen5-vnni" and row["speedup"] > 0.5 for row in rows)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--replay none.json cannot be read"),
        (["--costs", "z80"], "z80 is no cost table; choose one of xeon-vnni"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, monkeypatch, tmp_path, options, says):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--replay", "none.json", *options], tool.command) == 2
    assert says in capsys.readouterr().err
