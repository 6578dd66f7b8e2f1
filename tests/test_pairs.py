"""Which draft a pair has, and what tune stores; agreement; profiles of a machine."""

import json
import os
import platform
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import load_own
from tiny_models import ir_folder

from specdemo import cli
from specdemo.bench.prompts import BenchPrompt
from specdemo.commands import drafts as tuning
from specdemo.commands import shared
from specdemo.convert import model_files
from specdemo.convert.decoder import Shape
from specdemo.engine import cost_measurement
from specdemo.engine.backends import kernels, numerics
from specdemo.engine.engine import PairFiles
from specdemo.engine.profile import Invariance, ModelProfile, Profile
from specdemo.errors import BadInput, FetchError, RequestFailed
from specdemo.machine import disk, hardware, measured
from specdemo.machine.measured import DraftResult, TuningResult
from specdemo.pairs import hub, loading, registry, sources, storage
from specdemo.pairs.loading import chosen_draft, load_pair
from specdemo.pairs.registry import NO_DRAFT, ModelChoice, Pair, chosen_pair, find_pair
from specdemo.pairs.sources import Source
from specdemo.runs.answer_run import AnswerRun
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.server.page.model_menu import ModelMenu
from tools import agreement as tool
from tools.agreement import agreement
from tools.rehearse import write_made_up

CHOICE = ModelChoice("dolly-3b")
DOLLY = chosen_pair(CHOICE)
DRAFTS = [draft.name for draft in DOLLY.drafts]


@pytest.fixture
def here(monkeypatch) -> set[str]:
    """The names of the models that are on this disk."""
    names: set[str] = set()
    monkeypatch.setattr(sources, "here", lambda source: source.name in names)
    return names


@pytest.fixture
def tiny_pair(tiny, monkeypatch) -> Pair:
    """A pair called tiny, of folders, with two drafts: one like the target, and the target."""
    folders = [Source(str(path), path.name, 0) for path in (tiny.dolly, tiny.pythia)]
    pair = Pair("tiny", "Tiny", 0, folders[0], (folders[1], folders[0]))
    monkeypatch.setattr(registry, "PAIRS", (pair,))
    return pair


# Which draft.


@pytest.mark.parametrize(
    ("winner", "drafts_here", "change", "used"),
    [
        ("", (), {}, DRAFTS[0]),
        ("", DRAFTS[1:], {}, DRAFTS[1]),  # nothing is fetched beside a draft that is here
        (DRAFTS[1], DRAFTS[:2], {}, DRAFTS[1]),
        (DRAFTS[1], DRAFTS[:1], {}, DRAFTS[0]),  # the winner was deleted
        (DRAFTS[1], (), {}, DRAFTS[1]),
        (DRAFTS[1], DRAFTS[:2], {"device": "torch:cuda"}, DRAFTS[0]),  # raced on the processor
        (DRAFTS[1], DRAFTS[:2], {"draft_device": "torch:cuda"}, DRAFTS[0]),
        (NO_DRAFT, DRAFTS[:2], {}, ""),
        (NO_DRAFT, DRAFTS[:2], {"assistant_model": DRAFTS[2]}, DRAFTS[2]),
        (DRAFTS[1], DRAFTS[:2], {"assistant_model": NO_DRAFT}, ""),
    ],
)
def test_the_draft_is_what_is_named_here_or_fastest(here, winner, drafts_here, change, used):
    here |= set(drafts_here)
    if winner:
        speeds = {winner: 2, "x": 1}
        rows = [DraftResult(draft, speed, 1, 0.5, 0.2, 0) for draft, speed in speeds.items()]
        measured.write("tuned", {"pair": "dolly-3b"}, TuningResult("2026-01-01", tuple(rows)))
    pair = replace(DOLLY, choice=replace(CHOICE, **change))
    if name := change.get("assistant_model"):
        pair = DOLLY.with_draft(name)
    assert [draft.name for draft in chosen_draft(pair)] == ([used] if used else [])


def test_what_tune_found_is_kept_for_a_path_and_weight_format(tmp_path, monkeypatch):
    (tmp_path / "a" / "m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    names = "m", str(tmp_path / "a" / "m"), str(tmp_path / "m")
    (tmp_path / "m").mkdir()
    same, path, other = (chosen_pair(registry.choice_of(name)).subject for name in names)
    assert same == path != other
    assert same != (rounded := chosen_pair(registry.choice_of("m", "int4")).subject)
    rows = [DraftResult(NO_DRAFT, 1.0, 9.0, None, 0.1, 0.0, counted=6)]
    monkeypatch.setattr(tuning, "race_drafts", lambda *_: rows)
    assert cli.main(["tune", "m", "--weight-format", "int4"]) == 0
    assert measured.read("tuned", rounded, TuningResult).winner == NO_DRAFT


def test_a_text_names_a_pair_or_any_target_and_keeps_the_weight_format():
    assert registry.choice_of("dolly-3b", "int4") == replace(CHOICE, weight_format="int4")
    assert registry.choice_of("gpt2", "int4") == ModelChoice(model="gpt2", weight_format="int4")
    assert chosen_pair(registry.choice_of("gpt2")).target.repo == "gpt2"


def test_a_pairs_draft_is_one_of_its_own_or_any_other_model_or_none():
    assert DOLLY.with_draft(DRAFTS[1]).drafts == (DOLLY.drafts[1],)
    assert DOLLY.with_draft(NO_DRAFT).drafts == ()
    assert DOLLY.with_draft("EleutherAI/pythia-410m").draft.name == "EleutherAI/pythia-410m"
    assert chosen_pair(ModelChoice("embedded", assistant_model="a/b")).draft.name == "a/b"


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"pair": "embedded", "model": "a/b"}, "^pair embedded and model a/b name two targets"),
        ({"assistant_model": "pythia-70m"}, "^assistant_model needs model or pair beside it"),
        ({"pair": "dolly-9b"}, "^pair 'dolly-9b' is not a pair; choose one of embedded, "),
        ({"model": "/nowhere/at/all"}, "^model '/nowhere/at/all' is no folder or GGUF file here"),
        ({"model": "a/b/c"}, "^model "),
        ({"model": "here/none.gguf"}, "^model 'here/none.gguf' is no folder or GGUF file here"),
        ({"pair": "dolly-3b", "assistant_model": "x y"}, "^assistant_model 'x y' is no folder"),
    ],
)
def test_a_wrong_choice_names_its_fields(choice, words):
    with pytest.raises(BadInput, match=words):
        chosen_pair(ModelChoice(**choice))


def test_the_draft_that_a_server_was_started_with_is_kept_where_strangers_ask():
    first = ModelChoice("dolly-3b", assistant_model="pythia-160m")
    assert ModelMenu(first, shared=True).resolve(ModelChoice("dolly-3b")) == first


def test_tune_races_every_draft_and_none_and_keeps_the_fastest(tiny_pair, capsys, monkeypatch):
    monkeypatch.setattr(AnswerRun, "share", 1.0)
    assert cli.main(["tune", "tiny", "--limit", "1", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    raced = [draft.name for draft in tiny_pair.drafts]
    assert [row["draft"] for row in report["rows"]] == [*raced, NO_DRAFT]
    assert [row["draft_seconds"] > 0 for row in report["rows"]] == [True, True, False]
    best = max(report["rows"], key=lambda row: row["speedup"])["draft"]
    assert report["winner"] == best == (load_pair(tiny_pair).info.draft or NO_DRAFT)


def test_tune_keeps_nothing_where_other_programs_took_the_processor(tiny_pair, capsys, monkeypatch):
    monkeypatch.setattr(AnswerRun, "share", 0.5)
    monkeypatch.setattr(tuning, "TOKENS", 8)
    assert cli.main(["tune", "tiny", "--limit", "1"]) == 1
    out, err = capsys.readouterr()
    assert "Nothing is kept." in out and "tiny keeps the draft it had" in err
    assert measured.read("tuned", {"pair": "tiny"}, TuningResult) is None


def test_tune_checks_every_draft_before_it_loads_one_and_keeps_nothing_of_a_failure(
    tiny_pair, capsys, monkeypatch, tmp_path
):
    load = Mock(side_effect=RequestFailed("no models"))
    monkeypatch.setattr(shared, "load_pair", load)
    assert cli.main(["tune", "tiny", "--weight-format", "int4"]) == 2
    assert capsys.readouterr().err.startswith("specdemo: --weight-format int4: the files of tiny")
    assert cli.main(["tune", "tiny", "--assistant-model", "./nowhere"]) == 2
    assert "--assistant-model './nowhere' is no folder" in capsys.readouterr().err
    load.assert_not_called()
    empty = str(tmp_path)  # a draft of one's own is loaded first
    assert cli.main(["tune", "tiny", "--assistant-model", empty]) == 1
    load.assert_called_once_with(ModelChoice("tiny", assistant_model=empty))
    assert measured.read("tuned", {"pair": "tiny"}, TuningResult) is None


# Agreement.


def test_agreement_is_less_for_fewer_bits(tiny_llama_pair, tiny_home):
    rounded = ir_folder(tiny_home, "llama-target", "int4") / "openvino_model.xml"
    rounded = replace(tiny_llama_pair, target=rounded)
    prompts = [BenchPrompt(text, "x", text) for text in ("one two", "hello")]
    result = agreement(tiny_llama_pair, rounded, prompts, Settings(max_new_tokens=24))
    assert (result["prompts"], result["tokens"]) == (2, 48)
    assert 0.2 < result["agreement"] < 1 and result["identical"] < 2


def test_an_agreement_is_kept_and_pairs_shows_it(tiny_pair, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    options = ["--limit", "1", "--max-new-tokens", "8", "--json", "-"]
    assert cli.main(["--pair", "tiny", "--reference", "tiny", *options], tool.command) == 0
    assert json.loads(capsys.readouterr().out)["agreement"] == 1.0
    assert cli.main(["pairs"]) == 0
    assert "chooses as tiny on 100.0 %" in capsys.readouterr().out


# The embedded target as a draft.


def test_smollm2_needs_one_download_and_the_embedded_target_drafts(server, tmp_path, embedded_pair):
    """A Hub with a small model of the real vocabulary in place of SmolLM2-1.7B-Instruct."""
    folder, embedded_target = tmp_path / "made-up", embedded_pair.target.parent
    write_made_up(Shape(64, 1, 2, 49_152, 256, 2, 32), 8, folder)
    shutil.copy(embedded_target / "tokenizer.json", folder)
    (folder / "config.json").write_text('{"max_position_embeddings": 8192, "eos_token_id": 2}')
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "embedded").symlink_to(embedded_target.parent)
    server.add_folder("AIFunOver/SmolLM2-1.7B-Instruct-openvino-4bit", folder)
    pair = find_pair("smollm2-1.7b")
    assert not pair.is_here()
    loaded = load_pair(pair)
    assert pair.is_here() and loaded.draft.samefile(embedded_pair.target)
    assert (loaded.context_limit, loaded.stop_ids) == (8192, frozenset({2}))
    assert loaded.info.draft == "SmolLM2-135M-Instruct" and loaded.translation is None


# What goes with what.


def test_a_checkpoint_without_a_tokenizer_is_refused_before_it_is_converted(tiny_home, tmp_path):
    copied = shutil.copytree(tiny_home / "llama-draft", tmp_path / "own")
    (copied / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match=r"own has no tokenizer\.json"):
        load_own(copied)
    (copied / "tokenizer.model").write_bytes(b"pieces")
    with pytest.raises(BadInput, match=r"own has no tokenizer\.json; `AutoTokenizer"):
        load_own(copied)


def test_a_checkpoint_that_has_changed_is_converted_anew(tiny_home, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    own = shutil.copytree(tiny_home / "llama-draft", tmp_path / "own")
    first, again = load_own(own).target, load_own(own).target
    (own / "config.json").write_text((own / "config.json").read_text() + "\n")
    assert first == again != load_own(own).target


def test_a_loaded_pair_has_the_precision_and_the_thinking_that_were_chosen(tiny):
    loaded = load_own(tiny.dolly, tiny.pythia, kv_cache="f16", thinking=True)
    assert (loaded.kv_cache, loaded.template.thinking) == ("f16", True)
    assert loaded.tokenizer.context == loaded.context_limit


def test_a_draft_of_a_shorter_context_ends_drafting_and_not_the_answer(tiny_home, tmp_path):
    draft = shutil.copytree(ir_folder(tiny_home, "llama-draft", "int8"), tmp_path / "draft")
    shutil.copy(tiny_home / "llama-draft" / "tokenizer.json", draft)
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 24}))
    loaded = load_own(ir_folder(tiny_home, "llama-target", "int8"), draft)
    assert (loaded.context_limit, loaded.draft_context) == (2048, 24)
    settings = Settings(max_new_tokens=30, drafter="model", draft_tokens=4)
    with Session(loaded) as session:
        *_, trace = session.ask(Question("Hello", settings, measured=False, baseline=True))
    assert trace.identical and len(trace.token_ids) == 30
    text, drafted = trace.prompt_tokens, []
    for round_ in trace.rounds:
        drafted += range(text, text + len(round_.drafted))
        text += len(round_.tokens)
    assert max(drafted) == 24, "the last proposal follows the 24th token"


def test_a_draft_model_proposes_the_more_frequent_tokens_only(tiny, monkeypatch):
    monkeypatch.setattr(loading, "DRAFT_TOKENS", 1_600)
    loaded = load_own(tiny.dolly, tiny.pythia)
    frequent = set(loaded.tokenizer.frequent_ids(1_600))
    way = Settings(max_new_tokens=40, drafter="model", draft_tokens=4, ignore_eos=True)
    with Session(loaded) as session:
        for own in ({}, {"temperature": 1.0}, {"temperature": 1.0, "coupling": "maximal"}):
            asked = Question("Hello", replace(way, **own), measured=False, baseline=True)
            *_, trace = session.ask(asked)
            proposed = {token.id for round_ in trace.rounds for token in round_.drafted}
            assert proposed and proposed <= frequent
            assert trace.identical or own.get("coupling") == "maximal"


def test_a_draft_larger_than_its_target_is_named_once(tiny, caplog):
    def lines(*folders: Path) -> list[str]:
        caplog.clear()
        load_own(*folders)
        return caplog.messages

    assert lines(tiny.pythia, tiny.dolly) == lines(tiny.dolly) == []
    [line] = lines(tiny.dolly, tiny.pythia)  # its vocabulary is padded
    assert line.startswith("The draft model pythia-int8 has 7 MB of weights, its target dolly-int8")


# What is measured once is remembered.

MEASURED = Profile(
    {"exact": ModelProfile((("A", "1"),), Invariance(64, 0.0, 2), {1: 0.01}, "2026-01-01")},
    draft=ModelProfile(costs={1: 0.002}),
    acceptance={"lookup": [(1.0, 2.0)] * 9},
)
FILES = PairFiles(Path("target.xml"))
SUBJECT = measured.subject_of(FILES, None)


def test_a_profile_is_read_as_it_was_written_where_it_can_be_written():
    measured.write("profile", SUBJECT, MEASURED)
    assert measured.read("profile", SUBJECT, Profile) == MEASURED
    [file] = disk.measured_folder().iterdir()
    whole = file.read_text()
    changed = whole.replace("0.01", "1e-9"), whole.replace('"A"', '"KV_CACHE_PRECISION"')
    damaged = "", "[]", "null", "[" * 100_000, '{"about": {}, "profile": {"targets": 3}}'
    for broken in (*damaged, *changed):
        assert broken != whole
        file.write_text(broken)
        assert measured.read("profile", SUBJECT, Profile) is None and not list(measured.profiles())
    assert measured.forget() == 1 and list(file.parent.iterdir()) == []
    file.mkdir()
    with pytest.raises(FetchError, match=r"json cannot be deleted: \w"):
        measured.forget()
    file.rmdir()
    file.parent.rmdir()
    file.parent.write_text("a folder that cannot be written is no error")
    measured.write("profile", SUBJECT, MEASURED)
    assert measured.read("profile", SUBJECT, Profile) is None


def test_other_machines_threads_models_and_precisions_have_profiles_of_their_own(
    monkeypatch, tmp_path
):
    measured.write("profile", SUBJECT, MEASURED)
    others = {"kv_cache": "u8"}, {"device": "torch:cpu"}, {"draft_device": "torch:cpu"}
    others += {"draft": Path("draft.xml")}, {"head": Path("heads/head.xml")}
    subjects = [measured.subject_of(replace(FILES, **other), None) for other in others]
    monkeypatch.chdir(tmp_path)
    for file in (FILES.target, FILES.target.with_suffix(".bin")):  # another graph, other weights
        file.write_text("other")
        subjects.append(measured.subject_of(FILES, None))
    subjects.append(measured.subject_of(FILES, 99))
    for subject in subjects:
        assert measured.read("profile", subject, Profile) is None
        measured.write("profile", subject, MEASURED)
    with monkeypatch.context() as patch:
        patch.setattr(measured, "version", lambda package: "another")
        assert measured.read("profile", SUBJECT, Profile) is None
    monkeypatch.setattr(kernels, "instructions", lambda: "others")
    assert measured.read("profile", measured.subject_of(FILES, None), Profile) is None
    monkeypatch.setattr(hardware, "describe", lambda: "another")
    assert measured.read("profile", SUBJECT, Profile) is None


def test_a_second_start_measures_nothing_and_goes_on_as_the_first(tiny_llama_pair, monkeypatch):
    settings = Settings(max_new_tokens=30)
    monkeypatch.setattr(cost_measurement, "_preempted", lambda: 0)
    monkeypatch.setattr(cost_measurement, "MIN_SHARE", 0.0)  # other work does not disturb
    with Session(tiny_llama_pair) as session:
        *_, first = session.ask(Question("hello", settings, baseline=True))
        numerics_found = session.info.numerics_found
        acceptance = deepcopy(session.engine.profile.acceptance)

    def refuse(*_, **__):
        raise AssertionError("measured again")

    monkeypatch.setattr(numerics, "measure_invariance", refuse)
    monkeypatch.setattr(cost_measurement, "learn_costs", refuse)
    with Session(tiny_llama_pair) as session:
        assert acceptance and session.engine.profile.acceptance == acceptance
        *_, second = session.ask(Question("hello", settings, baseline=True))
        assert session.info.numerics_found == numerics_found
    assert second.token_ids == first.token_ids and second.identical


def test_compiled_code_is_kept_and_made_anew_if_damaged_or_anothers():
    made = []

    def code(*key: str) -> bytes:
        before = os.umask(0)  # others may write what is written
        try:
            return measured.kept_code(key, lambda: made.append(key) or repr(key).encode())
        finally:
            os.umask(before)

    assert code("text", "1.0") == code("text", "1.0") == b"('text', '1.0')" and len(made) == 1
    [file] = disk.measured_folder().iterdir()
    whole = file.read_bytes()
    for content in (b"", whole[:-1], whole[:-1] + b"?", whole + b"?"):
        file.write_bytes(content)
        assert code("text", "1.0") == b"('text', '1.0')" and file.read_bytes() == whole
    assert len(made) == 5
    file.chmod(0o666)
    code("text", "1.0")
    assert len(made) == 6 and not file.stat().st_mode & 0o022
    assert code("text", "1.1") == b"('text', '1.1')", "of another version of the compiler"
    assert code("text2", "1.0") == b"('text2', '1.0')"
    other = next(path for path in file.parent.iterdir() if path != file)
    file.write_bytes(other.read_bytes())
    assert code("text", "1.0") == b"('text', '1.0')", "another key's"
    assert measured.forget() == 3
    file.parent.rmdir()
    file.parent.write_text("a folder that cannot be written is no error")
    assert code("text", "1.0") == b"('text', '1.0')"


def test_kept_code_is_of_its_compiler_and_processor(monkeypatch):
    llvmlite = pytest.importorskip("llvmlite")
    monkeypatch.setattr(kernels, "keep_code", keep := Mock(side_effect=KeyError))
    for features in ({"avx2": True}, {"avx2": True, "fma": True}):
        monkeypatch.setattr(kernels, "_features", Mock(return_value=features))
        with pytest.raises(KeyError):
            kernels._compiled()
    first, second = (kept.args[0] for kept in keep.mock_calls)
    assert first != second and {llvmlite.__version__, platform.machine()} < {*first}


def test_the_machine_command_shows_what_was_measured_and_forgets_it(capsys):
    measured.write("profile", SUBJECT, MEASURED)

    def output(*options: str) -> str:
        assert cli.main(["machine", *options]) == 0
        return capsys.readouterr().out

    assert "forwards of 1 to 64 tokens" in (shown := output()) and "10.0" in shown
    assert json.loads(output("--json", "-"))[0]["profile"]["draft"]["costs"] == {"1": 0.002}
    assert "no forward was timed" not in shown
    costless = replace(MEASURED.targets["exact"], costs={})
    measured.write("profile", SUBJECT, replace(MEASURED, targets={"exact": costless}))
    assert "no forward was timed yet" in output()
    assert "files dropped: 1" in output("--forget")
    assert json.loads(output("--json", "-")) == []


def test_a_weight_format_is_of_all_models_of_a_pair_that_are_converted_here():
    own = chosen_pair(ModelChoice(model="a/b", assistant_model="c/d", weight_format="int4"))
    made = chosen_pair(ModelChoice("qwen2.5-coder", weight_format="int4"))
    for pair in (own, made):
        assert [source.export for source in (pair.target, *pair.drafts)] == ["int4", "int4"]
    assert made.title == "Qwen2.5-Coder 1.5B, int4" and made.subject["weight_format"] == "int4"
    usual = chosen_pair(ModelChoice("qwen2.5-coder"))
    assert usual == replace(find_pair("qwen2.5-coder"), choice=usual.choice)
    with pytest.raises(BadInput, match="weight_format int4: the files of dolly-3b are OpenVINO IR"):
        chosen_pair(ModelChoice("dolly-3b", weight_format="int4"))


def test_measurements_that_come_with_the_embedded_head_are_not_those_of_another_draft(
    embedded_pair, tiny
):
    own = load_pair(find_pair("embedded").with_draft(str(tiny.pythia)))
    assert embedded_pair.typical_profile and own.typical_profile is None


def test_a_loaded_pair_names_the_format_of_its_weights(embedded_pair):
    assert embedded_pair.info.target_weights == "int4"
    assert embedded_pair.info.draft_weights == "int8"


def test_the_format_of_a_model_is_that_of_most_weights_not_of_most_bytes(tmp_path):
    constant = '<data element_type="{}" shape="1" offset="0" size="{}"/>'
    sizes = {"u4": 60, "i8": 100, "f16": 90, "f32": 4}
    (tmp_path / model_files.MODEL).write_text("".join(map(constant.format, sizes, sizes.values())))
    assert model_files.weight_format(tmp_path) == "int4"


# Models on this disk.


@pytest.fixture
def stored(monkeypatch, tmp_path):
    """Two exports with equal weights, and a third one."""
    monkeypatch.setattr(disk, "cache_home", lambda: tmp_path)
    for name, weights in (("a-int8", b"1" * 1000), ("a-auto", b"1" * 1000), ("b", b"2" * 500)):
        (scratch := tmp_path / "exported" / "scratch-1" / "ir").mkdir(parents=True)
        (scratch / "openvino_model.bin").write_bytes(weights)
        hub.put(scratch, tmp_path / "exported" / name)
        os.rmdir(scratch.parent)
    return tmp_path / "exported"


def test_equal_weights_take_their_place_once_and_stay_when_one_of_them_goes(stored, capsys):
    same = [stored / name / "openvino_model.bin" for name in ("a-int8", "a-auto")]
    assert os.path.samefile(*same)
    assert 1500 < sum(model.bytes for model in storage.stored_models()) < 2500
    assert cli.main(["cache", "--remove", "exported/a-int8", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == {"exported/a-auto", "exported/b"}
    assert not same[0].exists() and hub.damaged(stored / "a-auto") == []


def test_a_damaged_file_is_not_shared(stored, tmp_path):
    (stored / "b" / "openvino_model.bin").write_bytes(b"3" * 500)
    (scratch := tmp_path / "exported" / "new").mkdir()
    (scratch / "openvino_model.bin").write_bytes(b"2" * 500)
    hub.put(scratch, stored / "c")
    assert hub.damaged(stored / "c") == []


def test_models_not_used_for_days_are_removed_and_one_that_is_loaded_counts_as_used(stored, capsys):
    for folder in stored.iterdir():
        os.utime(folder, (0, 0))
    storage.mark_used(stored / "b")
    assert cli.main(["cache", "--unused", "30"]) == 0
    assert [folder.name for folder in stored.iterdir() if folder.is_dir()] == ["b"]
    assert "less than a day" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["nothing", "exported", "exported/../exported/b", "/"])
def test_only_a_model_that_is_listed_can_be_removed(stored, capsys, name):
    assert cli.main(["cache", "--remove", "exported/b", "--remove", name]) == 2
    assert f"--remove {name}: there is no such model" in capsys.readouterr().err
    assert len(storage.stored_models()) == 3
