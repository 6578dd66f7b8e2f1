"""The command line: exit codes, one-sentence errors, and what `run` prints and writes."""

import errno
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import count
from unittest.mock import Mock, patch

import click
import pytest
from click.shell_completion import BashComplete
from conftest import ROOT, python, specdemo
from helpers import race_trace
from rich.console import Console

from specdemo import cli
from specdemo.cli import program
from specdemo.commands import run, shared
from specdemo.commands.run import PREPARING, after_preparation, figures_of, show
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput, SpecdemoError
from specdemo.machine import hardware, terminal
from specdemo.machine.terminal import Progress
from specdemo.pairs import registry
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.saved_run import from_json


def test_help_imports_nothing_that_takes_long():
    code = "import sys; from specdemo import cli; cli.main(['--help']); print(*sys.modules)"
    done = python("-c", code)
    assert "Answer an instruction" in done.stdout
    assert {"numpy", "openvino", "pydantic", "torch"} & set(done.stdout.split()) == set()


def test_a_command_imports_no_library_of_models_before_it_has_checked_its_input():
    done = python("-c", "import sys, specdemo.commands.run; print(*sys.modules)")
    assert {"openvino", "gguf", "torch", "gradio"} & set(done.stdout.split()) == set()


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(capsys, command):
    assert cli.main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: specdemo {command} " in out
    assert cli.COMMANDS[command][1] in out or command == "page"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["command", "--help"]),
        (["nonsense"], ["nonsense", "--help"]),
        (["run"], ["INSTRUCTION"]),
        (["run", " \n"], ["instruction", "empty"]),
        (["run", "Hi", "--max-new-tokens", "0"], ["--max-new-tokens", "'0'", "equal to 1"]),
        (["run", "Hi", "--draft-tokens", "some"], ["--draft-tokens", "'some'", "auto"]),
        (["run", "Hi", "--temperature", "nan"], ["--temperature", "'nan'"]),
        (["run", "Hi", "--pair", "embedded"], ["SPECDEMO_TOP_P", "'lots'"]),
        (["run", "Hi", "--drafter", "oracle"], ["--drafter", "oracle", "lookup"]),
        (["run", "Hi", "--pair", "unheard-of"], ["--pair", "'unheard-of'", "embedded"]),
        (["run", "Hi", "--device", "ABACUS"], ["--device", "'ABACUS'", "CPU"]),
        (["run", "Hi", "--assistant-model", "x"], ["--assistant-model", "--model"]),
        (["run", "Hi", "--json", "/no/such/folder/trace.json"], ["--json", "No such file"]),
        (["run", "Hi", "--speed", "9"], ["--speed", "run --help"]),
        (["train-draft", "--out", "x"], ["Missing", "--target"]),
        (["bench", "--prompts", "nowhere.jsonl"], ["--prompts nowhere.jsonl cannot be read"]),
        (["bench", "--peers", "vllm"], ["--peers"]),
        (["bench", "--max-new-tokens", "40,0"], ["--max-new-tokens is '0'; it must be"]),
        (["bench", "--html", "/no/such/folder/b.html"], ["--html"]),
        (["bench", "--html", "-"], ["--html is '-'; it must be a file."]),
        (["audit", "--top-k", "50"], ["--top-k is 50"]),
        (["audit", "--peers", "vllm"], ["--peers"]),
        (["audit", "--server-baseline", "http://localhost:8001"], ["need --server"]),
        (["audit", "--server", "http://a", "--peers", "transformers"], ["leave out --peers"]),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, monkeypatch, arguments, words):
    """A benchmark or an audit loads nothing before it."""
    monkeypatch.setattr(shared, "load_pair", lambda choice: pytest.fail("loaded a model"))
    if "TOP_P" in words[0]:
        monkeypatch.setenv(words[0], "lots")
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert [word for word in words if word not in err] == []


def test_a_failure_is_one_sentence_and_an_interrupt_one_word(capsys, monkeypatch):
    for error, code, message in (
        (ValueError("\x1b[2J"), 1, r"specdemo: unexpected ValueError: \\x1b\[2J.* shows where"),
        (KeyboardInterrupt, 130, "specdemo: interrupted"),
    ):
        monkeypatch.setattr(hardware, "memory_bytes", Mock(side_effect=error))
        assert cli.main(["pairs"]) == code
        assert re.match(message, capsys.readouterr().err.strip())
    monkeypatch.setenv("SPECDEMO_DEBUG", "1")
    monkeypatch.setattr(hardware, "memory_bytes", Mock(side_effect=ValueError))
    with pytest.raises(ValueError):
        cli.main(["pairs"])


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "specdemo", "pairs", "--json", str(tmp_path / "pairs.json")]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
    assert json.loads((tmp_path / "pairs.json").read_text())


@pytest.fixture
def loaded(toy, monkeypatch):
    """`run` answers with the toys, whatever its options name."""
    monkeypatch.setattr(run, "load_pair", lambda choice: toy.loaded)
    monkeypatch.setattr("specdemo.runs.session.compiled_session", lambda *_, **options: toy)


def test_run_prints_the_answer_and_its_figures_and_writes_a_trace(loaded, capsys, tmp_path):
    file = tmp_path / "trace.json"
    options = ["--drafter", "model", "--draft-tokens", "3", "--baseline", "--json", str(file)]
    assert cli.main(["run", "one\x1b two", *options]) == 0
    out, err = capsys.readouterr()
    assert out == "one\\x1b two\n\nautoregressive decoding:\none\\x1b two\n", "no colours in a pipe"
    trace = from_json(file.read_text())
    assert (trace.instruction, trace.settings.draft_tokens) == ("one\x1b two", 3)
    assert trace.identical and trace.text == "one\x1b two"
    lines = err.splitlines()
    assert lines.pop(0) == "toy target, draft by toy draft"
    assert any(line.startswith("The same race again: at least 6 decide") for line in lines)
    assert [line for line in lines if line and "again" not in line] == [
        "9 tokens in 3 rounds after a prompt of 9 (ended by: stop)",
        "time to first token 0.010 s, then 307.7 tokens/s",
        f"numerics {trace.pair.numerics_found}",
        "acceptance rate 100%, 4.00 tokens per round; drafting 0.01 s, verifying 0.02 s",
        "autoregressive decoding: 100.0 tokens/s",
        "3.08x: 3.08 to 3.08 over 24 races (98 % confidence).",
        "the two answers are identical, token for token",
    ]


def test_an_error_that_quotes_a_file_from_elsewhere_is_one_line_without_escape_sequences():
    error = BadInput("broken.gguf has \x1b[2J\r\nOK\u2028 \x9b\u202e, which \u65e5\u672c has not.")
    assert str(error) == r"broken.gguf has \x1b[2J\r\nOK\u2028 \x9b\u202e, which 日本 has not."


def test_run_reads_standard_input_and_prints_the_answer_alone(loaded, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one two")))
    assert cli.main(["run", "-", "--quiet"]) == 0
    assert capsys.readouterr() == ("one two\n", "")


def test_invalid_bytes_of_an_instruction_are_replaced_and_it_must_fit(tiny, tmp_path, capsys):
    file = tmp_path / "trace.json"
    options = ["--model", str(tiny.dolly), "--max-new-tokens", "3", "--json", str(file)]
    done = specdemo("run", os.fsdecode(b"caf\xe9?"), *options, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    instruction = from_json(file.read_text(encoding="utf-8")).instruction
    assert instruction == "caf\N{REPLACEMENT CHARACTER}?"
    assert cli.main(["run", "word " * 3000, *options]) == 2
    assert "2048" in capsys.readouterr().err


def test_a_place_for_output_is_checked_without_a_trace(tmp_path):
    (tmp_path / "old.json").write_text("old")
    for name in ("old.json", "new.json"):
        assert shared.check_output(str(tmp_path / name), "--json")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
    with pytest.raises(BadInput, match="--html .* cannot be written"):
        shared.check_output(str(tmp_path), "--html")


def test_a_report_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    report, link = tmp_path / "report.json", tmp_path / "link.json"
    report.touch(0o600)
    link.symlink_to(report)
    for text in ("old", "new"):
        shared.write_file(text, str(link))
        assert report.read_text("utf-8") == f"{text}\n"
    assert report.stat().st_mode & 0o777 == 0o600
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_bytes", Mock(side_effect=full))
        with pytest.raises(SpecdemoError, match="link.json cannot be written: No space left"):
            shared.write_file("newer", str(link))
    assert report.read_text("utf-8") == "new\n" and link.is_symlink()
    # The folder is another user's, or the file is mounted.
    with patch.object(shared, "replacing", side_effect=OSError(errno.EBUSY, "busy")):
        shared.write_file("newest", str(link))
    assert report.read_text("utf-8") == "newest\n"
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "link.json"}


@pytest.mark.slow
def test_a_closed_standard_input_has_no_question():
    command = [sys.executable, "-m", "specdemo", "run", "-"]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], cwd=ROOT, stderr=-1)
    assert done.returncode == 2 and b"The instruction is empty" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_end_no_command_and_reach_no_file(tmp_path, closed):
    command = [sys.executable, "-m", "specdemo", "pairs", "--json", str(tmp_path / "pairs.json")]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], cwd=ROOT)
    assert done.returncode == 0
    assert json.loads((tmp_path / "pairs.json").read_text())


@click.command()
@shared.answer_options
def parsed(threads, json_file, choice, settings):
    return choice, settings


def test_variables_stand_for_options_and_options_go_before_them(monkeypatch):
    for name, value in (("MODEL", "a"), ("ASSISTANT_MODEL", "b"), ("NUMERICS", "fast")):
        monkeypatch.setenv(f"SPECDEMO_{name}", value)
    monkeypatch.setenv("SPECDEMO_TOP_K", "")  # as if it were not set
    for options, expected in (
        (["--assistant-model", "c"], (ModelChoice(model="a", assistant_model="c"), "fast")),
        (["--pair", "dolly-7b", "--numerics", "exact"], (ModelChoice(pair="dolly-7b"), "exact")),
    ):
        choice, settings = parsed.main(options, standalone_mode=False)
        assert (choice, settings.numerics, settings.top_k) == (*expected, 0)


def test_a_json_schema_is_read_from_a_file(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text('{"type": "object"}')
    _, settings = parsed.main(["--json-schema", str(file)], standalone_mode=False)
    assert settings.json_schema == '{"type": "object"}'
    file.write_text("")
    _, settings = parsed.main(["--json-schema", str(file)], standalone_mode=False)
    assert settings.json_schema, "an empty file asks for JSON, and is refused as no schema"
    file.write_bytes(b"\xff\xfe")
    for path in (file, tmp_path / "none.json"):
        with pytest.raises(BadInput, match=f"--json-schema {re.escape(str(path))} cannot be read"):
            parsed.main(["--json-schema", str(path)], standalone_mode=False)


def test_a_pair_that_was_not_asked_for_is_named_on_stderr(capsys, monkeypatch):
    default = registry.EMBEDDED, "embedded: it fits."
    monkeypatch.setattr(registry, "default_pair", lambda: default)
    assert shared.chosen_pair(ModelChoice()) == registry.EMBEDDED
    assert capsys.readouterr().err == "pair embedded: it fits.\n"


OPTIONS = """
    --baseline --quiet --json --help --threads --pair --model --assistant-model --weight-format
    --thinking --device
    --draft-device --kv-cache --max-new-tokens --draft-tokens --drafter --temperature --top-p
    --top-k --seed --coupling --numerics --json-schema --min-p --presence-penalty
    --frequency-penalty --repetition-penalty --logit-bias --ignore-eos --stop
"""


def test_the_options_are_the_fields_of_settings_and_models(capsys):
    """Names that scripts use; a field that is renamed must not rename its option."""
    assert cli.main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    assert set(re.findall(r"^  (?:-h, )?(--[\w-]+)", out, re.MULTILINE)) == set(OPTIONS.split())
    assert "SPECDEMO_DRAFT_TOKENS" in out
    for option in ("--top-k N", "--temperature X", "--drafter auto|model", "--draft-device NAME"):
        assert f"  {option}" in out
    titles = re.findall(r"^(\w+):$", out, re.MULTILINE)
    assert titles == ["Options", "Models", "Answers"]
    models = out[out.index("Models:") : out.index("Answers:")]
    assert "--kv-cache" in models and "--threads" not in models + out[out.index("Answers:") :]


@pytest.mark.parametrize(("columns", "most"), [("", 120), ("150", 150)])
def test_a_table_in_a_pipe_has_the_width_that_is_asked_for(monkeypatch, columns, most):
    monkeypatch.setenv("COLUMNS", columns)
    if not columns:
        monkeypatch.delenv("COLUMNS")
    out = io.StringIO()
    terminal.show([{"one": "word " * 99, "other": "word " * 99}], out)
    assert max(map(len, out.getvalue().splitlines())) == most


def test_the_list_of_pairs_breaks_no_name_and_no_size_at_120_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(
        registry.Pair, "read_expected_speed", lambda _: "13 to 22 tokens/s expected"
    )
    assert cli.main(["pairs"]) == 0
    out = capsys.readouterr().out
    for pair in registry.PAIRS:
        sizes = map(terminal.size, (pair.download_bytes, pair.memory_bytes))
        assert all(
            text in out for text in (pair.name, pair.draft.name if pair.draft else "", *sizes)
        )


@pytest.mark.parametrize(
    ("words", "completed"), [("specdemo r", "run"), ("specdemo run --thr", "--threads")]
)
def test_a_shell_completes_commands_and_options(capsys, monkeypatch, words, completed):
    monkeypatch.setenv("_SPECDEMO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().out == f"plain,{completed}\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_progress_is_a_line_a_step_and_every_few_seconds(capsys, monkeypatch):
    clock = count(0.0, 0.5)
    monkeypatch.setattr(terminal, "monotonic", lambda: next(clock))
    with terminal.progress_bar() as bar:
        for megabytes in range(24):
            bar(Progress("Compiling X", megabytes * 1_000_000, 24_000_000))
        bar(Progress("Converting X"))
    assert capsys.readouterr().err.splitlines() == [
        "Compiling X",
        "Compiling X: 10 of 24 MB (5 s)",
        "Compiling X: 20 of 24 MB (10 s)",
        "Converting X",
    ]


def test_run_tells_what_it_prepares_before_the_first_token(capsys):
    trace = race_trace("one ", "two ")
    rounds = [*trace.rounds]
    assert list(after_preparation(iter([Waiting(0, None)] * 3 + rounds))) == rounds
    assert capsys.readouterr().err == f"{PREPARING}\n"


@pytest.mark.parametrize(
    ("stream", "differs", "shown", "words"),
    [
        (
            Terminal(),
            True,
            "\x1b[7;33ma \x1b[0m\x1b[32mb\\u202e \x1b[0m",
            "differ: token 3 is .* 0.25 ",
        ),
        (io.StringIO(), False, "a b\\u202e c\\x1b d \n\nautoregressive decoding:", "identical"),
    ],
)
def test_an_answer_is_shown_in_colours_without_control_characters_and_compared(
    monkeypatch, stream, differs, shown, words
):
    monkeypatch.setenv("TERM", "xterm")
    trace = race_trace("a ", "b\u202e ", "c\x1b ", "d ")
    if differs:
        tokens = list(trace.baseline.tokens)
        tokens[2] = replace(tokens[2], id=98)
        baseline = replace(trace.baseline, tokens=tuple(tokens))
        trace = replace(trace, baseline=baseline, identical=False)
    events = [*trace.rounds, *trace.baseline.tokens, trace]
    assert show(iter(events), Console(file=stream, soft_wrap=True)) == trace
    assert stream.getvalue().startswith(shown)
    assert re.search(words, figures_of(trace)[-1])


def test_control_characters_of_a_prompt_file_do_not_reach_the_terminal(capsys):
    terminal.show([{"id": "\x1b[31m[red]\x1b]0;title\x07"}], sys.stdout)
    out = capsys.readouterr().out
    assert "\x1b" not in out and "[red]" in out


@pytest.mark.parametrize(
    ("words", "begun", "proposed"),
    [
        (["run", "--pair"], "dolly-3b", {"dolly-3b", "dolly-3b-int4"}),
        (["fetch"], "emb", {"embedded"}),
        (["tune"], "gpt2", {"gpt2-xl"}),
        (["run", "--drafter"], "", {"auto", "model", "lookup", "none"}),
        (["run", "--draft-tokens"], "", {"auto"}),
        (["export", "x", "y", "--weight-format"], "int", {"int8", "int4"}),
    ],
)
def test_a_shell_completes_pairs_and_choices(words, begun, proposed):
    complete = BashComplete(program, {}, "specdemo", "_SPECDEMO_COMPLETE")
    assert {item.value for item in complete.get_completions(words, begun)} == proposed


@pytest.mark.parametrize(
    "words", [["run", "--json"], ["run", "--model"], ["bench", "--html"], ["export"]]
)
def test_a_shell_completes_files(words):
    complete = BashComplete(program, {}, "specdemo", "_SPECDEMO_COMPLETE")
    assert {item.type for item in complete.get_completions(words, "a")} == {"file"}
