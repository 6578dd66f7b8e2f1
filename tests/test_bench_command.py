"""bench and audit as commands: exit codes, what goes to standard output, the files they write."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest

from specdemo import cli
from specdemo.audit import properties
from specdemo.bench import decision
from specdemo.commands import audit, bench
from specdemo.engine import acceptance, decode
from specdemo.engine.messages import Draft
from specdemo.runs.session import Session


@pytest.fixture(scope="module")
def short_session(tiny_llama_pair):
    with Session(dataclasses.replace(tiny_llama_pair, context_limit=400)) as opened:
        yield opened


@pytest.fixture(autouse=True)
def loaded(short_session, monkeypatch):
    """Commands get the same session of the tiny pair, whatever their options name."""
    for module in (bench, audit):
        monkeypatch.setattr(module, "load_pair", lambda choice: short_session.loaded)
    opened = contextlib.nullcontext(short_session)
    monkeypatch.setattr("specdemo.runs.session.Session", lambda loaded, threads=None: opened)
    monkeypatch.setattr(properties, "MAX_CASES", 2)


def test_bench_measures_every_length_and_writes_a_page_beside_its_json(
    capsys, tmp_path, monkeypatch
):
    page = tmp_path / "b.html"
    monkeypatch.setattr(decision, "TURNS", 1)
    options = ["--limit", "1", "--max-new-tokens", "3,6", "--html", str(page), "--json", "-"]
    assert cli.main(["bench", *options]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert [row["tokens"] for row in report["rows"]] == [3, 6]
    assert [row["max_new_tokens"] for row in report["lengths"]] == [3, 6]
    assert report["decision"]["sentence"] in err and "specdemo run INSTRUCTION" in err
    assert "Answer lengths" in err and "speculative tokens per s" in err
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_benchmark_of_which_no_prompt_can_be_run_fails_and_says_why(capsys, tmp_path):
    prompts = tmp_path / "long.jsonl"
    prompts.write_text(json.dumps({"id": 1, "task": "qa", "instruction": "x" * 5000}))
    assert cli.main(["bench", "--prompts", str(prompts)]) == 1
    out, err = capsys.readouterr()
    assert "shorten it" in out and "None of the prompts could be run" in err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["bench", "--prompts", "nowhere.jsonl"], "--prompts nowhere.jsonl cannot be read"),
        (["bench", "--peers", "vllm"], "--peers"),
        (["bench", "--max-new-tokens", "40,0"], "--max-new-tokens is '0'; it must be"),
        (["bench", "--html", "/no/such/folder/b.html"], "--html"),
        (["audit", "--top-k", "50"], "--top-k is 50"),
        (["audit", "--peers", "vllm"], "--peers"),
        (["audit", "--resume"], "--resume needs --json"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2_before_anything_is_loaded(
    capsys, monkeypatch, tmp_path, options, says
):
    monkeypatch.chdir(tmp_path)
    for module in (bench, audit):
        monkeypatch.setattr(module, "load_pair", lambda choice: pytest.fail("loaded a model"))
    assert cli.main(options) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert out == "" and err.count("\n") == 1


AUDIT = ["audit", "--limit", "3", "--draft-tokens", "3", "--json", "-"]
AUDIT += ["--max-new-tokens", "24", "--temperature", "1", "--drafter", "model"]


def test_an_audit_passes_the_true_rule_and_has_the_contracts_fields(capsys, tmp_path):
    assert cli.main([*AUDIT, "--draws", "60"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["greedy"] == {"prompts": 3, "identical": 3}
    assert {"draws", "tv_distance", "tv_noise_floor", "p_value"} <= report["sampling"].keys()
    [row] = report["rows"]
    assert row["method"] == "draft model" and row["facts"]["numerics"]
    results = {name: cell["result"] for name, cell in row["cells"].items()}
    unable = {results.pop(name) for name in ("end", "schema", "stop")}
    assert unable <= {"pass", "not offered"}, "the model has no end token and little text"
    assert set(results.values()) == {"pass"}
    values = row["cells"]["sampling"]["p_values"]
    assert values.keys() == {"shared", "maximal"} and report["sampling_cells"] == 2
    assert report["sampling"]["p_value"] == min(values.values())


def accept_everything(rows, draft, sampling, max_margin=0.0, verify=acceptance.verify):
    last = len(draft.tokens)
    context = [*rows.context, *draft.tokens]
    whole = acceptance.TargetRows(rows.logits.part(last, last + 1), context)
    true = verify(whole, Draft(), sampling)
    return dataclasses.replace(true, accepted=last, probabilities=(1.0,) * last)


@pytest.mark.parametrize(
    ("module", "rule", "wrong", "failing"),
    [
        (decode, "verify", accept_everything, {"greedy", "seed", "sampling"}),
        (acceptance, "residual", lambda p, q: p, {"sampling"}),
    ],
)
def test_an_audit_catches_a_wrong_rule(capsys, monkeypatch, module, rule, wrong, failing):
    monkeypatch.setattr(module, rule, wrong)
    assert cli.main([*AUDIT, "--draws", "150", "--only", "greedy,seed,sampling"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    [row] = report["rows"]
    assert {name for name, cell in row["cells"].items() if cell["result"] == "fail"} == failing
    assert (report["greedy"]["identical"] < 3) == ("greedy" in failing)
    assert row["cells"]["sampling"]["p_values"]["maximal"] < 1e-4
    assert report["sampling"]["tv_distance"] > 2 * report["sampling"]["tv_noise_floor"]
    assert "changes the output" in err and "sampled distribution" in err
