"""The real huggingface_hub client against a Hub on 127.0.0.1: whole or not at all, resumed, failures a sentence."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, Repository

from specdemo.trace import from_json
from specdemo.models import catalogue, hub, machine, models
from specdemo.models.errors import BadChoice, ZooError
from specdemo.models.load import load_pair
from specdemo.models.pairs import Source, find_pair, own_pair

ROOT = Path(__file__).parent.parent
DOLLY, PYTHIA = "OpenVINO/dolly-v2-3b-int8-ov", "OpenVINO/pythia-1b-int4-ov"
REPO = "made-up/decoder"


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A Hub, and an environment (of this process and of `specdemo`) that knows no other and has an empty cache."""
    with Hub() as running:
        point_at(monkeypatch, running.url, tmp_path / "hf")
        monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "SPECDEMO_PAIR"):
            monkeypatch.delenv(name, raising=False)
        yield running


def point_at(monkeypatch, url: str, cache: Path) -> None:
    """huggingface_hub reads its environment when imported, so this process needs its constants set as well."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setenv("HF_HOME", str(cache))
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))


def specdemo(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "specdemo", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=180,
    )


def said_in_one_line(done: subprocess.CompletedProcess) -> str:
    """The last line on stderr, after checking that nothing looks like a stack trace."""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def decoder_files(weights: bytes = b"w" * 300_000) -> dict[str, bytes]:
    """Files that look like a decoder's IR to everything that does not compile it."""
    layers = "".join(
        f'<layer id="{i}" name="{name}" type="Parameter"/>' for i, name in enumerate(("input_ids", "beam_idx"))
    )
    constant = f'<layer id="9" name="w" type="Const"><data offset="0" size="{len(weights)}"/></layer>'
    return {
        "openvino_model.xml": f"<net><layers>{layers}{constant}</layers></net>".encode(),
        "openvino_model.bin": weights,
        "config.json": json.dumps({"max_position_embeddings": 64, "eos_token_id": 0}).encode(),
        "tokenizer.json": b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
        "README.md": b"not wanted",
        "pytorch_model.bin": b"not wanted either",
    }


def fetch(repo: str = REPO) -> models.Model:
    return models.prepare([Source(repo, repo, 0)])[0]


# The whole way.


def test_a_dolly_pair_downloads_answers_and_answers_again_without_the_hub(server, tiny):
    server.add_folder(DOLLY, tiny.dolly)
    server.add_folder(PYTHIA, tiny.pythia)
    options = ("Explain fission", "--pair", "dolly-3b", "--max-new-tokens", "30", "--draft-tokens", "3")
    first = specdemo("run", *options, "--drafter", "model", "--baseline", "--json", "-")
    assert first.returncode == 0, first.stderr
    trace = from_json(first.stdout)
    assert trace.identical is True
    assert (trace.pair.target_revision, trace.pair.draft_revision) == (COMMIT, COMMIT)
    assert sum(round_.accepted for round_ in trace.rounds) > 0
    assert max(trace.token_ids) < 50_280
    assert f"Downloading {DOLLY}" in first.stderr
    server.stop()

    again = specdemo("run", *options, "--drafter", "model", "--json", "-")
    assert again.returncode == 0, again.stderr
    assert from_json(again.stdout).token_ids == trace.token_ids
    assert "Downloading" not in again.stderr
    rows = {row["name"]: row["ready"] for row in json.loads(specdemo("pairs", "--json", "-").stdout)}
    assert rows["dolly-3b"] is True
    assert rows["dolly-7b"] is False


def test_the_dolly_prompt_and_stop_are_the_ones_it_was_trained_with(server, tiny):
    server.add_folder(DOLLY, tiny.dolly)
    server.add_folder(PYTHIA, tiny.pythia)
    loaded = load_pair(find_pair("dolly-3b"))
    ids = loaded.template.render("Say ### End please", loaded.tokenizer)
    assert ids[-1] == 50279
    assert [id for id in ids if id >= 50277] == [50278, 50279]
    assert 50277 in loaded.stop_ids
    assert loaded.context_limit == 2048
    text = "  two\n\n\tspaces    and café, 👩‍🚀"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(text, special=False)) == text
    stream = loaded.tokenizer.stream()
    assert stream.push(50277) == ""


def test_a_checkpoint_from_the_hub_is_exported_once_and_answers_identically_with_ir_drafting_for_it(
    server, tiny, tmp_path
):
    server.add_folder("made-up/big", tiny.gpt2_xl)
    server.add_folder("made-up/small", tiny.gpt2)
    options = ("Once upon a time", "--model", "made-up/big", "--assistant-model", "made-up/small")
    more = ("--max-new-tokens", "30", "--draft-tokens", "3", "--drafter", "model", "--baseline", "--json", "-")
    first = specdemo("run", *options, *more)
    assert first.returncode == 0, first.stderr
    trace = from_json(first.stdout)
    assert trace.identical is True
    assert trace.pair.target_revision == COMMIT
    assert "Exporting made-up/big" in first.stderr
    assert "Exporting made-up/small" not in first.stderr
    [exported] = (tmp_path / "home" / "exported").glob("made-up-big-*")
    assert (exported / "openvino_tokenizer.xml").is_file(), "other programs want it"
    server.stop()
    again = specdemo("run", *options, *more)
    assert again.returncode == 0, again.stderr
    assert "Exporting" not in again.stderr
    assert from_json(again.stdout).token_ids == trace.token_ids


def test_a_pair_is_not_used_while_half_of_it_cannot_be_had(server, monkeypatch):
    monkeypatch.setattr(machine, "memory_bytes", lambda: 32 * 2**30)
    server.repositories[DOLLY] = Repository(decoder_files())
    server.repositories[PYTHIA] = Repository(decoder_files())
    models.prepare([find_pair("dolly-3b").target])
    server.repositories[PYTHIA].error = (403, "GatedRepo")
    with pytest.raises(ZooError, match="pythia-1b-int4-ov is gated"):
        load_pair(find_pair("dolly-3b"))
    assert not catalogue.is_ready(find_pair("dolly-3b"))


def test_folders_of_ir_are_used_as_they_are(tiny):
    pair = own_pair(
        models.source_of(str(tiny.dolly), "--model", "int8"),
        models.source_of(str(tiny.pythia), "--assistant-model", "int8"),
    )
    loaded = load_pair(pair)
    assert loaded.target_xml == tiny.dolly / "openvino_model.xml"
    assert loaded.template.name == "dolly"  # by its vocabulary: it has no chat template
    assert loaded.stop_ids == frozenset({0, 50277})


# What is fetched, and when.


def test_only_the_files_that_are_needed_are_fetched(server):
    server.repositories[REPO] = Repository(decoder_files())
    folder = fetch().folder
    fetched = {path.name for path in folder.iterdir()}
    assert fetched == {"openvino_model.xml", "openvino_model.bin", "config.json", "tokenizer.json"}
    assert server.bytes_served("pytorch_model.bin") == 0


def test_the_resolved_commit_is_recorded(server):
    server.repositories[REPO] = Repository(decoder_files(), commit="f" * 40)
    assert fetch().revision == "f" * 40


def test_progress_is_in_bytes_and_reaches_the_end(server, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 200_000)
    server.repositories[REPO] = Repository(decoder_files(os.urandom(3_000_000)))
    server.behaviour.bytes_per_second = 3_000_000
    seen = []
    models.prepare([Source(REPO, REPO, 0)], seen.append)
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert len(set(done)) > 4
    assert seen[-1].done == seen[-1].total
    assert any(progress.seconds_left for progress in seen)


def test_a_download_killed_in_mid_file_fetches_only_the_rest(server, tmp_path):
    size, enough = 45_000_000, 12_000_000  # the client writes 10 MB at a time
    weights = os.urandom(size)
    server.repositories[DOLLY] = Repository(decoder_files(weights))
    server.repositories[PYTHIA] = Repository(decoder_files())
    server.behaviour.bytes_per_second = 20_000_000
    begun = subprocess.Popen([sys.executable, "-m", "specdemo", "fetch", "dolly-3b"], cwd=ROOT, stderr=subprocess.PIPE)
    parts = tmp_path / "hf" / "hub"
    deadline = time.monotonic() + 60
    while sum(path.stat().st_size for path in parts.rglob("*.part")) < enough and time.monotonic() < deadline:
        time.sleep(0.02)
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    kept = next(parts.rglob("*.part")).stat().st_size
    assert enough <= kept < size
    assert hub.cached(DOLLY, models.choose_files) is None, "half a pair was taken for a whole one"
    server.behaviour.bytes_per_second = 0
    time.sleep(0.5)
    server.served.clear()

    snapshot = fetch(DOLLY)

    served = [one for one in server.served if one.name == "openvino_model.bin"]
    assert [(one.start, one.sent) for one in served] == [(kept, size - kept)]
    assert (snapshot.folder / "openvino_model.bin").read_bytes() == weights
    assert not list(parts.rglob("*.part"))


def test_a_connection_cut_in_mid_file_is_resumed_in_the_same_run(server):
    weights = os.urandom(2_000_000)
    server.repositories[REPO] = Repository(decoder_files(weights))
    server.behaviour.cut_after["openvino_model.bin"] = 700_000
    assert (fetch().folder / "openvino_model.bin").read_bytes() == weights
    assert [one.start for one in server.served if one.name == "openvino_model.bin"][0] == 0
    assert server.bytes_served("openvino_model.bin") < 2_700_001


def test_what_another_program_put_into_the_hubs_cache_is_used(server, monkeypatch):
    import huggingface_hub

    server.repositories[REPO] = Repository(decoder_files())
    huggingface_hub.snapshot_download(REPO)
    server.stop()
    assert fetch().revision == COMMIT


def test_a_file_that_shrank_on_disk_is_fetched_anew(server):
    server.repositories[REPO] = Repository(decoder_files())
    weights = fetch().folder / "openvino_model.bin"
    weights.resolve().write_bytes(b"short")
    assert hub.cached(REPO, models.choose_files) is None
    assert (fetch().folder / "openvino_model.bin").stat().st_size == 300_000


def test_a_truncated_file_that_another_program_left_in_the_cache_is_not_used(server):
    import huggingface_hub

    server.repositories[REPO] = Repository(decoder_files())
    (Path(huggingface_hub.snapshot_download(REPO)) / "openvino_model.bin").resolve().write_bytes(b"short")
    assert (fetch().folder / "openvino_model.bin").stat().st_size == 300_000


def test_a_token_is_sent(server, monkeypatch):
    server.repositories[REPO] = Repository(decoder_files(), token="hf_secret")
    with pytest.raises(ZooError, match="gated"):
        fetch()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetch().revision == COMMIT


def test_a_proxy_is_gone_through(server):
    server.repositories[DOLLY] = Repository(decoder_files())
    server.repositories[PYTHIA] = Repository({}, error=(404, "RepoNotFound"))
    done = specdemo("fetch", "dolly-3b", HF_ENDPOINT="http://hub.invalid", HTTP_PROXY=server.url, NO_PROXY="")
    assert done.returncode == 2
    assert f"no model '{PYTHIA}' at http://hub.invalid" in said_in_one_line(done)
    assert any(DOLLY in one for one in server.requests)


# Each failure, in one sentence.


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        ((401, "RepoNotFound"), 2, ["no model", "HF_TOKEN"]),
        ((404, "RepoNotFound"), 2, ["no model", "spelling"]),
        ((401, "GatedRepo"), 1, ["gated", "HF_TOKEN"]),
        ((403, "GatedRepo"), 1, ["gated", "HF_TOKEN"]),
        ((403, ""), 1, ["refuses", "HF_TOKEN"]),
        ((404, "RevisionNotFound"), 2, ["revision", "commits/main"]),
        ((500, ""), 1, ["500", "later"]),
        ((429, ""), 1, ["patience"]),
    ],
)
def test_a_refusal_of_the_hub_is_one_sentence_with_what_to_do(server, error, code, words):
    server.repositories[REPO] = Repository(decoder_files(), error=error)
    with pytest.raises(ZooError) as failure:
        fetch()
    said = str(failure.value)
    assert failure.value.exit_code == code
    assert [word for word in [REPO, *words] if word not in said] == []
    assert "\n" not in said


def test_a_revision_that_is_gone_is_named(server):
    server.repositories[REPO] = Repository(decoder_files())
    with pytest.raises(BadChoice, match="no revision 'v9'"):
        fetch(f"{REPO}@v9")


def test_a_repository_can_be_asked_for_at_a_commit(server):
    server.repositories[REPO] = Repository(decoder_files())
    assert fetch(f"{REPO}@{COMMIT}").revision == COMMIT


def test_no_network_and_no_cache_is_one_sentence(server):
    server.stop()
    done = specdemo("fetch", "dolly-3b")
    assert done.returncode == 1
    assert "cannot be reached" in said_in_one_line(done)
    assert DOLLY in said_in_one_line(done)


def test_offline_mode_without_a_cache_is_one_sentence(server):
    done = specdemo("fetch", "dolly-3b", HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "HF_HUB_OFFLINE" in said_in_one_line(done)
    assert server.requests == []


def test_a_corrupted_file_is_thrown_away_and_fetched_anew(server):
    weights = os.urandom(400_000)
    server.repositories[REPO] = Repository(decoder_files(weights))
    server.behaviour.corrupt.add("openvino_model.bin")
    with pytest.raises(ZooError, match="damaged"):
        fetch()
    assert hub.cached(REPO, models.choose_files) is None
    server.behaviour.corrupt.clear()
    assert (fetch().folder / "openvino_model.bin").read_bytes() == weights


def test_a_corrupted_small_file_is_noticed_too(server):
    server.repositories[REPO] = Repository(decoder_files())
    server.behaviour.corrupt.add("config.json")
    with pytest.raises(ZooError, match=r"config\.json .*damaged"):
        fetch()


def test_a_truncated_file_is_never_used(server):
    server.repositories[REPO] = Repository(decoder_files())
    server.behaviour.truncated.add("openvino_model.bin")
    with pytest.raises(ZooError, match="damaged"):
        fetch()
    assert hub.cached(REPO, models.choose_files) is None


def test_a_disk_that_fills_up_half_way_keeps_what_came(server, monkeypatch):
    import huggingface_hub.file_download as file_download

    weights = os.urandom(400_000)
    server.repositories[REPO] = Repository(decoder_files(weights))
    real = file_download.http_get

    def fills_up(url, out, **options):
        if options["displayed_filename"] != "openvino_model.bin" or options["resume_size"]:
            return real(url, out, **options)
        out.write(weights[:150_000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_download, "http_get", fills_up)
    with pytest.raises(ZooError, match="disk is full"):
        fetch()
    server.served.clear()
    assert (fetch().folder / "openvino_model.bin").read_bytes() == weights
    assert server.bytes_served("openvino_model.bin") == 250_000


def test_too_little_disk_is_said_before_the_first_byte(server, monkeypatch):
    server.repositories[REPO] = Repository(decoder_files())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(ZooError, match="GB of disk"):
        fetch()
    assert server.served == []


def test_too_little_memory_is_said_before_the_first_byte(server, monkeypatch):
    server.repositories[REPO] = Repository(decoder_files())
    monkeypatch.setattr(machine, "memory_bytes", lambda: 1_000_100_000)
    with pytest.raises(ZooError, match="GB of memory"):
        fetch()
    assert server.served == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"openvino_model.xml": b"<net><layers/></net>"}, "not a text decoder"),
        ({"openvino_model.xml": b'<net><layer name="input_ids" type="Parameter"/></net>'}, "KV cache"),
        ({"openvino_model.xml": b"<net><lay"}, "does not parse"),
        ({"openvino_model.bin": b"too short"}, "truncated"),
    ],
)
def test_ir_that_is_no_whole_decoder_is_refused(server, change, words):
    server.repositories[REPO] = Repository(decoder_files() | change)
    with pytest.raises(ZooError, match=words):
        fetch()


@pytest.mark.parametrize("lacking", ["openvino_model.bin", "tokenizer.json", "config.json"])
def test_a_repository_without_a_needed_file_is_named(server, lacking):
    files = decoder_files()
    del files[lacking]
    server.repositories[REPO] = Repository(files)
    with pytest.raises(BadChoice, match=lacking.replace(".", r"\.")):
        fetch()


def test_a_repository_that_holds_no_model_is_named(server):
    server.repositories[REPO] = Repository({"README.md": b"hello"})
    with pytest.raises(BadChoice, match="neither OpenVINO IR"):
        fetch()


def test_a_draft_of_another_vocabulary_is_refused_with_the_first_difference(tiny, monkeypatch, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny.pythia, other)
    text = (other / "tokenizer.json").read_text(encoding="utf-8").replace('"Ġword40000"', '"Ġelsewhere"')
    (other / "tokenizer.json").write_text(text, encoding="utf-8")
    done = specdemo("run", "Hi", "--model", str(tiny.dolly), "--assistant-model", str(other))
    assert done.returncode == 2
    said = said_in_one_line(done)
    assert [word for word in ("token 40000", "word40000", "elsewhere") if word not in said] == []


@pytest.mark.parametrize("name", ["no such/folder", "/nowhere/at/all", "a/b/c", "x y"])
def test_a_model_that_is_neither_folder_nor_repository_is_bad_input(name):
    with pytest.raises(BadChoice, match="--model"):
        models.source_of(name, "--model", "int8")


def test_a_folder_without_a_model_is_bad_input(tmp_path):
    done = specdemo("run", "Hi", "--model", str(tmp_path))
    assert done.returncode == 2
    assert "neither OpenVINO IR" in said_in_one_line(done)


# Which pair is taken unasked.


def test_the_default_is_the_largest_dolly_pair_that_fits_where_the_hub_answers(server, monkeypatch):
    monkeypatch.setattr(machine, "memory_bytes", lambda: 16 * 2**30)
    assert catalogue.default_pair().pair.name == "dolly-3b"
    monkeypatch.setattr(machine, "memory_bytes", lambda: 32 * 2**30)
    assert catalogue.default_pair().pair.name == "dolly-12b"
    monkeypatch.setattr(machine, "memory_bytes", lambda: 4 * 2**30)
    assert catalogue.default_pair().pair.name == "embedded"


def test_a_smaller_pair_that_is_here_goes_before_a_larger_one_that_is_not(server, monkeypatch):
    monkeypatch.setattr(machine, "memory_bytes", lambda: 32 * 2**30)
    server.repositories[DOLLY] = server.repositories[PYTHIA] = Repository(decoder_files())
    models.prepare([find_pair("dolly-3b").target, find_pair("dolly-3b").draft])
    choice = catalogue.default_pair()
    assert choice.pair.name == "dolly-3b"
    assert "dolly-12b would fit too" in choice.why


def test_the_hub_is_not_asked_in_offline_mode_and_not_waited_for_long(server, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert not hub.answers()
    assert server.requests == []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def never():
        time.sleep(5)
        raise OSError("the test is over")

    monkeypatch.setattr("huggingface_hub.utils.get_session", never)
    started = time.monotonic()
    assert not hub.answers(timeout=0.2)
    assert time.monotonic() - started < 1


def test_the_default_is_the_embedded_pair_where_the_hub_does_not_answer(server, monkeypatch):
    monkeypatch.setattr(machine, "memory_bytes", lambda: 32 * 2**30)
    server.stop()
    choice = catalogue.default_pair()
    assert choice.pair.name == "embedded"
    assert "Hub cannot be reached" in choice.why
