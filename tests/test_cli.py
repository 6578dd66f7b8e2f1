"""The command line: exit codes, one-sentence errors, and traces that hold what the terminal said."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdemo import cli
from specdemo.commands.run import Screen, printable
from specdemo.trace import from_json

ROOT = Path(__file__).parent.parent
QUESTION = "Explain the difference between fission and fusion"


def specdemo(*arguments: str, timeout: float = 180, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "specdemo", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def refused(capsys, *arguments: str) -> str:
    """The one line on stderr of a command that exits with 2."""
    with pytest.raises(SystemExit) as leaving:
        sys.exit(cli.main(arguments))
    assert leaving.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    return said.err


def test_help_is_there_at_once():
    started = time.monotonic()
    done = specdemo("--help")
    assert done.returncode == 0
    assert time.monotonic() - started < 1.5
    assert "run" in done.stdout


@pytest.mark.parametrize("command", ["pairs", "fetch", "run", "export"])
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as leaving:
        cli.main([command, "--help"])
    assert leaving.value.code == 0
    assert "usage: specdemo " + command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND"]),
        (["nonsense"], ["nonsense", "run"]),
        (["run"], ["INSTRUCTION"]),
        (["run", ""], ["instruction", "empty"]),
        (["run", " \n"], ["instruction", "empty"]),
        (["run", "Hi", "--max-new-tokens", "0"], ["--max-new-tokens", "'0'", "1 or more"]),
        (["run", "Hi", "--max-new-tokens", "many"], ["--max-new-tokens", "'many'"]),
        (["run", "Hi", "--draft-tokens", "-1"], ["--draft-tokens", "'-1'", "auto"]),
        (["run", "Hi", "--draft-tokens", "some"], ["--draft-tokens", "'some'", "auto"]),
        (["run", "Hi", "--temperature", "nan"], ["--temperature", "'nan'"]),
        (["run", "Hi", "--temperature", "-0.1"], ["--temperature", "from 0"]),
        (["run", "Hi", "--top-p", "0"], ["--top-p", "above 0 to 1"]),
        (["run", "Hi", "--top-k", "-2"], ["--top-k", "0 or more"]),
        (["run", "Hi", "--drafter", "oracle"], ["--drafter", "oracle", "lookup"]),
        (["run", "Hi", "--numerics", "quick"], ["--numerics", "exact"]),
        (["run", "Hi", "--pair", "unheard-of"], ["--pair", "'unheard-of'", "embedded"]),
        (["run", "Hi", "--device", "ABACUS"], ["--device", "'ABACUS'", "CPU", "AUTO"]),
        (["run", "Hi", "--assistant-model", "x"], ["--assistant-model", "--model"]),
        (["fetch", "unheard-of"], ["PAIR", "'unheard-of'", "embedded"]),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, arguments, words):
    said = refused(capsys, *arguments)
    assert [word for word in words if word not in said] == []


def test_a_bad_environment_variable_is_named(capsys, monkeypatch):
    monkeypatch.setenv("SPECDEMO_MAX_NEW_TOKENS", "lots")
    assert "SPECDEMO_MAX_NEW_TOKENS" in refused(capsys, "run", "Hi", "--pair", "embedded")


def test_an_unexpected_failure_is_one_sentence_without_a_stack_trace(capsys, monkeypatch):
    monkeypatch.setattr("specdemo.commands.pairs.main", lambda args: 1 // 0)
    assert cli.main(["pairs"]) == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "Traceback" not in said


def test_pairs_lists_the_embedded_pair_with_what_it_needs(embedded_pair):
    done = specdemo("pairs", "--json", "-")
    assert done.returncode == 0
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    row = rows["embedded"]
    assert (row["target"], row["ready"], row["fits"]) == ("SmolLM2-135M-Instruct", True, True)
    assert row["download_bytes"] == 92_871_040
    assert row["memory_bytes"] > 0
    assert "embedded" in specdemo("pairs").stdout


def test_fetching_a_ready_pair_says_so(embedded_pair):
    done = specdemo("fetch", "embedded")
    assert (done.returncode, done.stderr) == (0, "")
    assert "embedded is ready" in done.stdout


def test_run_prints_the_answer_and_writes_a_trace_whose_tokens_equal_the_baselines(embedded_pair, tmp_path):
    file = tmp_path / "trace.json"
    done = specdemo("run", QUESTION, *("--pair", "embedded", "--max-new-tokens", "100", "--draft-tokens", "3"),
                    *("--baseline", "--json", str(file)))  # fmt: skip
    assert done.returncode == 0, done.stderr
    trace = from_json(file.read_text())
    assert trace.instruction == QUESTION
    assert trace.settings.draft_tokens == 3
    assert trace.identical is True
    assert trace.token_ids == tuple(token.id for token in trace.baseline.tokens)
    assert len(trace.token_ids) <= 100
    assert trace.text == embedded_pair.tokenizer.decode(trace.token_ids)
    assert trace.text in done.stdout
    assert "identical" in done.stdout
    assert trace.pair.numerics_found in done.stdout
    assert "\x1b" not in done.stdout, "not a terminal"


def test_an_instruction_longer_than_the_context_is_one_sentence(tiny):
    done = specdemo("run", "word " * 3000, "--model", str(tiny.dolly))
    assert done.returncode == 2
    assert "2048" in done.stderr.replace(",", "")
    assert "Traceback" not in done.stderr


def test_a_trace_that_cannot_be_written_is_refused_before_anything_is_loaded(capsys, tmp_path):
    said = refused(capsys, "run", "Hi", "--pair", "embedded", "--json", str(tmp_path / "no" / "such" / "folder.json"))
    assert "--json" in said and "there is no folder" in said


def test_variables_stand_for_options_and_options_go_before_them(tiny, monkeypatch):
    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny.dolly))
    monkeypatch.setenv("SPECDEMO_ASSISTANT_MODEL", str(tiny.pythia))
    monkeypatch.setenv("SPECDEMO_NUMERICS", "fast")
    monkeypatch.setenv("SPECDEMO_KV_CACHE", "f16")
    monkeypatch.setenv("SPECDEMO_DRAFT_TOKENS", "2")
    done = specdemo("run", "Hi", "--numerics", "exact", "--max-new-tokens", "3", "--json", "-")
    assert done.returncode == 0, done.stderr
    trace = from_json(done.stdout)
    assert (trace.pair.target, trace.pair.draft) == (tiny.dolly.name, tiny.pythia.name)
    assert (trace.settings.numerics, trace.settings.draft_tokens) == ("exact", 2)
    assert "KV_CACHE_PRECISION=f16" in trace.pair.numerics_found
    args = cli._parse(["run", "Hi", "--pair", "dolly-7b"])
    assert cli.pair_from(args).name == "dolly-7b"


def test_the_help_lists_every_variable_that_the_program_reads(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    read = set(re.findall(r"SPECDEMO_\w+", capsys.readouterr().out))
    for source in [ROOT / "app.py", *(ROOT / "specdemo").rglob("*.py")]:
        read |= set(re.findall(r"""environ[^\n]*["'](SPECDEMO_\w+)["']""", source.read_text(encoding="utf-8")))
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = set(re.findall(r"SPECDEMO_\w+", capsys.readouterr().out))
    assert read - listed == set()
    assert len(read) > 15


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_and_signs_unless_no_color_is_set(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = Terminal()
    Screen(coloured).text("word", "correction")
    assert coloured.getvalue() == "\x1b[31;4mword\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    Screen(plain).text("word", "correction")
    assert plain.getvalue() == "word"


def test_generated_control_characters_do_not_reach_the_terminal():
    assert printable("a\x1b[2Jb\x07\u202ec\n\td") == "a\\x1b[2Jb\\x07\\u202ec\n\td"
