"""bench and audit as commands: exit codes, what goes to standard output, the files they write."""

from __future__ import annotations

import json
import sys

import pytest
from test_bench_audit import accept_everything

from specdemo import cli
from specdemo.bench import audit as audits
from specdemo.bench import command, tables
from specdemo.bench.paper import PUBLISHED
from specdemo.engine import decode


@pytest.fixture(autouse=True)
def loaded(tiny_llama_pair, monkeypatch):
    """Commands get the tiny pair, whatever their options name."""
    monkeypatch.setattr(command, "load_pair", lambda choice: tiny_llama_pair)
    monkeypatch.setattr(audits, "SAME_SEED_ANSWERS", 2)


def test_bench_writes_json_to_standard_output_and_tables_to_standard_error(capsys):
    assert cli.main(["bench", "--limit", "2", "--max-new-tokens", "8", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["summary"]["prompts"] == 2
    assert "speed-up" in err and "identical: yes" in err


def test_bench_writes_json_and_page_beside_its_tables(capsys, tmp_path):
    json_file, html_file = tmp_path / "b.json", tmp_path / "b.html"
    options = ["--limit", "1", "--max-new-tokens", "6", "--sweep-prompts", "0"]
    files = ["--json", str(json_file), "--html", str(html_file)]
    assert cli.main(["bench", *options, *files]) == 0
    assert json.loads(json_file.read_text())["rows"][0]["tokens"] == 6
    assert html_file.read_text().startswith("<!DOCTYPE html>")
    assert "tokens per second" in capsys.readouterr().out


def test_a_benchmark_of_which_no_prompt_can_be_run_fails(capsys, tmp_path):
    prompts = tmp_path / "long.jsonl"
    prompts.write_text(json.dumps({"id": 1, "task": "qa", "instruction": "x" * 5000}))
    assert cli.main(["bench", "--prompts", str(prompts)]) == cli.FAILURE
    assert "None of the prompts could be run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["bench", "--prompts", "nowhere.jsonl"], "--prompts nowhere.jsonl cannot be read"),
        (["bench", "--limit", "0"], "--limit"),
        (["bench", "--peers", "vllm"], "--peers"),
        (["bench", "--paper", "--limit", "3"], "--paper has a prompt of its own"),
        (["bench", "--html", "-"], "--html"),
        (["bench", "--repeats", "none"], "--repeats"),
        (["bench", "--top-p", "2"], "--top-p"),
        (["bench", "--json", "no/b.json"], "--json no/b.json cannot be written"),
        (["audit", "--top-k", "50"], "--top-k is 50"),
        (["audit", "--draws", "-1"], "--draws"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2_before_anything_is_loaded(
    capsys, monkeypatch, tmp_path, options, says
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "load_pair", lambda choice: pytest.fail("loaded a model"))
    assert cli.main(options) == cli.BAD_INPUT
    out, err = capsys.readouterr()
    assert says in err
    assert out == "" and err.count("\n") == 1


def test_paper_prints_the_published_figures_beside_ours(capsys):
    assert cli.main(["bench", "--paper", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [row["new_tokens"] for row in rows] == [40, 100]
    published = [row["published"]["speculative_s"] for row in rows]
    assert published == [p.speculative_s for p in PUBLISHED] == [13.61, 26.97]
    assert all(row["autoregressive_s"] > 0 for row in rows)
    assert "19.9" in err and "44.2" in err


AUDIT = ["audit", "--limit", "2", "--max-new-tokens", "12", "--drafter", "model"]


def test_audit_passes_with_exit_code_0(capsys):
    assert cli.main([*AUDIT, "--draws", "60", "--draft-tokens", "3", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["greedy"]["identical"] == data["greedy"]["prompts"] == 2
    assert data["sampling"]["draws"] == 60
    assert len(data["sampling_cells"]) == 4


def test_audit_of_a_pair_that_loses_something_ends_with_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(decode, "verify", accept_everything)
    assert cli.main([*AUDIT, "--draws", "0", "--draft-tokens", "3"]) == cli.FAILURE
    out, err = capsys.readouterr()
    assert "0 of 2 answers identical" in out
    assert "autoregressive '" in out
    assert "changes the output" in err


def test_control_characters_of_a_prompt_file_do_not_reach_the_terminal(capsys):
    assert tables.printable("a\x1b[31mb\n") == "a?[31mb?"
    tables.say("\x1b]0;title\x07", sys.stdout)
    tables.show("title", [{"id": "\x1b[31m[red]"}], sys.stdout)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[red]" in out


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (True, "yes"), (False, "no"), (0.02361, "0.0236"), (1234.5, "1234"), (7, "7")],
)
def test_values_are_shown_with_three_significant_digits(value, shown):
    assert tables.text(value) == shown
