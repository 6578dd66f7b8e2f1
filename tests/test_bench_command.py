"""bench and audit as commands: exit codes, what goes to standard output, and the files they write."""

from __future__ import annotations

import json

import pytest

from specdemo import cli
from specdemo.bench import audit as auditing
from specdemo.bench import command
from specdemo.bench.paper import PUBLISHED
from specdemo.bench.screen import Table, printable
from specdemo.engine import decode
from specdemo.session import Session


@pytest.fixture(autouse=True)
def loaded(tiny_llama_pair, monkeypatch):
    """Commands get the tiny pair, whatever their options name."""
    monkeypatch.setattr(command, "open_session", lambda args: (tiny_llama_pair, Session(tiny_llama_pair)))
    monkeypatch.setattr(auditing, "SAME_SEED_DRAWS", 2)


def test_bench_writes_json_to_standard_output_and_the_table_to_standard_error(capsys):
    assert cli.main(["bench", "--limit", "2", "--max-new-tokens", "8", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["summary"]["prompts"] == 2
    assert "speed-up" in err
    assert "identical: yes" in err


def test_bench_writes_json_and_page_beside_its_table(capsys, tmp_path):
    target = tmp_path / "b.json", tmp_path / "b.html"
    options = ["--limit", "1", "--max-new-tokens", "6", "--sweep-prompts", "0"]
    assert cli.main(["bench", *options, "--json", str(target[0]), "--html", str(target[1])]) == 0
    assert json.loads(target[0].read_text())["rows"][0]["tokens"] == 6
    assert target[1].read_text().startswith("<!DOCTYPE html>")
    assert "tokens/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--prompts", "nowhere.jsonl"], "--prompts nowhere.jsonl cannot be read"),
        (["--limit", "0"], "--limit"),
        (["--peers", "vllm"], "--peers"),
        (["--paper", "--limit", "3"], "--paper has a prompt of its own"),
        (["--html", "-"], "--html"),
        (["--repeats", "none"], "--repeats"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, monkeypatch, tmp_path, options, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "open_session", lambda args: pytest.fail("loaded a model before refusing"))
    try:
        code = cli.main(["bench", *options])
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    assert code == cli.BAD_INPUT
    assert says in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "open_session", lambda args: pytest.fail("loaded a model before refusing"))
    assert cli.main(["bench", "--json", str(tmp_path / "no" / "b.json")]) == cli.BAD_INPUT
    assert "there is no folder" in capsys.readouterr().err


def test_paper_prints_the_published_figures_beside_ours(capsys):
    assert cli.main(["bench", "--paper", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [row["new_tokens"] for row in rows] == [40, 100]
    assert [row["published"]["speculative_s"] for row in rows] == [p.speculative_s for p in PUBLISHED] == [13.61, 26.97]
    assert all(row["identical"] and row["autoregressive_s"] > 0 for row in rows)
    assert "19.87" in err
    assert "44.25" in err


def test_audit_passes_with_exit_code_0(capsys):
    options = ["--limit", "2", "--max-new-tokens", "12", "--draws", "60", "--draft-tokens", "3"]
    assert cli.main(["audit", *options, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["greedy"]["identical"] == data["greedy"]["prompts"] == 2
    assert data["sampling"]["p_value"] > 0.01
    assert data["sampling"]["draws"] == 60


def test_audit_of_a_pair_that_loses_something_ends_with_exit_code_1(capsys, monkeypatch):
    def broken(logits, draft, position, sampling, choices=(), verify=decode.verify):
        true = verify(logits, draft, position, sampling, choices)
        return decode.Verdict(true.accepted, (true.token + 1) % 256, true.probabilities, 0.5)

    monkeypatch.setattr(decode, "verify", broken)
    options = ["--limit", "1", "--max-new-tokens", "12", "--draws", "0", "--drafter", "model", "--draft-tokens", "3"]
    monkeypatch.setattr(auditing, "session_decoder", _plain_is_true(auditing.session_decoder, decode, broken))
    assert cli.main(["audit", *options]) == cli.FAILURE
    out, err = capsys.readouterr()
    assert "0 of 1 prompts identical" in out
    assert "changes the output" in err


def _plain_is_true(session_decoder, module, broken):
    """Plain decoding goes through the same rule; it gets the true one."""
    true = broken.__defaults__[-1]

    def wrapped(session, stop, *, drafter=None):
        inner = session_decoder(session, stop, drafter=drafter)

        def decode_(*asked):
            module.verify = true if drafter == "none" else broken
            return inner(*asked)

        return decode_

    return wrapped


def test_control_characters_of_a_prompt_file_do_not_reach_the_terminal():
    assert printable("a\x1b[31mb\n") == "a?[31mb?"
    assert "\x1b" not in Table(("prompt", 20), ("x", 3)).row("\x1b]0;title\x07", 1)
