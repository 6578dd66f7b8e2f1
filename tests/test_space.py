"""What a Space gets, and how it begins: the card, the lock, the upload, a pair that was preloaded,
and once the whole way in a browser."""

import itertools
import re
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import python
from hub_server import COMMIT, Hub, decoder_files, is_binary
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from toy_session import ToySession

from specdemo.convert import decoder, exporting
from specdemo.errors import FetchError, RequestFailed
from specdemo.machine import disk, hardware, terminal
from specdemo.machine.terminal import Meter, watched
from specdemo.pairs import embedded, hub, registry
from specdemo.pairs.registry import ModelChoice
from specdemo.runs import session
from specdemo.server.page.model_menu import AUTO, ModelMenu
from specdemo.server.page.service import Service

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import space_rehearsal as rehearsal  # noqa: E402

CARD = rehearsal.card_of((ROOT / "README.md").read_text(encoding="utf-8"))
DOLLY = registry.find_pair("dolly-3b-int4")


COLOURS = "red|yellow|green|blue|indigo|purple|pink|gray"
FIELDS = {  # docs/hub/spaces-config-reference, as of 2026: values of a field, or of its list
    "title": ".{1,60}",
    "emoji": r"[^\w\s]+",
    "colorFrom": COLOURS,
    "colorTo": COLOURS,
    "sdk": "gradio",
    "sdk_version": re.escape(version("gradio")),  # the one that is tested
    "python_version": r"3\.\d+(\.\d+)?",
    "app_file": r"[\w./-]+\.py",
    "pinned": "True|False",
    "license": "apache-2.0",
    "short_description": ".{1,60}",
    "suggested_hardware": "cpu-basic|cpu-upgrade",
    "startup_duration_timeout": r"\d+[mh]",
    "thumbnail": "https://.+",
    "models": r"[\w.-]+/[\w.-]+",
    "preload_from_hub": r"[\w.-]+/[\w.-]+( [\w./-]+(,[\w./-]+)*( [0-9a-f]{40})?)?",
    "tags": "[a-z0-9-]+",
}


def test_the_card_has_only_the_hubs_fields_with_the_hubs_values():
    for name, values in CARD.items():
        for value in values if isinstance(values, list) else [values]:
            assert re.fullmatch(FIELDS[name], str(value)), name
    assert {entry.split()[0] for entry in CARD["preload_from_hub"]} <= {*CARD["models"]}
    assert (ROOT / CARD["app_file"]).is_file()


def closure(wanted: list[str], locked: dict[str, str]) -> dict[str, list[Requirement]]:
    """All that `wanted` needs, with the requirements of each, by the metadata of the packages that
    are installed here in the locked version."""
    needed: dict[str, list[Requirement]] = {}
    queue, seen = [Requirement(line) for line in wanted], set()
    while queue:
        wish = queue.pop()
        name = canonicalize_name(wish.name)
        needed.setdefault(name, []).append(wish)
        for extra in {"", *wish.extras} - {extra for other, extra in seen if other == name}:
            seen.add((name, extra))
            with suppress(PackageNotFoundError):
                lines = requires(name) if version(name) == locked.get(name) else []
                for more in map(Requirement, lines or []):
                    if not more.marker or more.marker.evaluate({"extra": extra}):
                        queue.append(more)
    return needed


def test_the_lock_has_a_version_of_all_that_the_builder_installs_and_no_hash():
    lines = [line for line in rehearsal.LOCK.read_text().splitlines() if line[0] != "#"]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", line) for line in lines), "hashes stop pip"
    locked = dict(line.split("==") for line in lines)
    asked = re.findall(r"^[\w-]+\S*==\S+$", (ROOT / "requirements.txt").read_text(), re.M)
    needed = closure([*asked, *rehearsal.builder_adds(CARD)], locked)
    assert {"gradio", "mcp", "authlib", "spaces", "websockets"} <= set(needed) <= set(locked)
    for name, requirements in needed.items():
        assert all(wish.specifier.contains(locked[name]) for wish in requirements), name


def test_the_guide_and_the_workflow_upload_what_make_space_makes():
    upload = r"hf upload --repo-type space \S+ build/space \. --delete \"\*\""
    for path in (".github/workflows/space.yml", "docs/guide/deploy-a-space.md"):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(upload, text) and "make space" in text and "git push" not in text


# A pair that was preloaded


@pytest.fixture
def preloaded(server, monkeypatch, tmp_path):
    """Dolly's IR and pythia-70m's checkpoint in the cache of the image; nothing can be fetched."""
    checkpoint = decoder_files(**{"model.safetensors": b"weights"})
    checkpoint = {name: one for name, one in checkpoint.items() if "openvino" not in name}
    cache = tmp_path / "image" / "hub"
    for source, files in ((DOLLY.target, decoder_files()), (DOLLY.draft, checkpoint)):
        storage = cache / f"models--{source.repo.replace('/', '--')}"
        for name, content in files.items():
            path = storage / "snapshots" / COMMIT / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (storage / "refs").mkdir()
        (storage / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(hub, "PRELOADED", cache)
    monkeypatch.setattr(hardware, "memory_bytes", lambda: 16 * 2**30)
    monkeypatch.setattr(embedded, "fetch", lambda *_: pytest.fail("fetched the embedded pair"))
    server.stop()
    return cache


def test_a_preloaded_pair_answers_first_though_its_draft_must_still_be_converted(preloaded):
    assert str(preloaded) not in hub.constants.HF_HUB_CACHE
    menu = ModelMenu(ModelChoice(AUTO), shared=True)
    assert (menu.first.pair, menu.later) == ("dolly-3b-int4", None)
    next(preloaded.rglob("openvino_model.bin")).unlink()  # the preload was interrupted
    menu = ModelMenu(ModelChoice(AUTO), shared=True)
    assert (menu.first.pair, menu.later) == ("embedded", DOLLY)


HOMELESS = """
import os, pwd
def nobody(id): raise KeyError(id)
pwd.getpwuid = nobody
import specdemo
from specdemo.machine import disk
from specdemo.pairs import hub
print(disk.cache_home(), hub.constants.HF_HUB_CACHE)
"""


@pytest.mark.parametrize("named", ["HF_HOME", "SPECDEMO_HOME"])
def test_the_variable_that_is_set_is_named_where_a_folder_cannot_be_made(
    monkeypatch, tmp_path, named
):
    monkeypatch.delenv("SPECDEMO_HOME", raising=False)
    monkeypatch.setenv(named, str(tmp_path))
    (tmp_path / "specdemo").touch()
    (tmp_path / "pair").touch()
    scratch = disk.exclusive_scratch(disk.cache_home() / "pair")
    with pytest.raises(FetchError, match=f"set {named} to another folder"), scratch:
        pass
    with pytest.raises(FetchError, match=f"set {named} to a folder on a larger disk"):
        disk.require_space(tmp_path, 1 << 60, "A model")


@pytest.mark.slow
def test_a_user_without_a_home_has_the_folder_that_a_variable_names(monkeypatch, tmp_path):
    for name in ("HOME", "HF_HOME", "SPECDEMO_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert "FetchError: There is no home folder" in python("-c", HOMELESS).stderr
    own = {"SPECDEMO_HOME": "own"}
    unset = {"HF_HOME": ""}
    for named, folder in ((unset, "specdemo"), (own, "own"), (own | unset, "own")):
        variables = {name: str(tmp_path / part) for name, part in named.items()}
        home, hubs = python("-c", HOMELESS, **variables).stdout.split()
        assert Path(home) == tmp_path / folder and tmp_path in Path(hubs).parents


def test_openvinos_error_on_a_full_disk_becomes_a_sentence(monkeypatch, tiny_home, tmp_path):
    def write(*_):
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(decoder, "write", write)
    with pytest.raises(FetchError, match="IR of pythia could not be written .* free some disk"):
        exporting.export(tiny_home / "pythia", tmp_path / "out", "int8", name="pythia")


# While it loads


def test_a_server_that_is_stopped_while_it_loads_tells_those_who_wait():
    go = threading.Event()
    choice = ModelChoice("dolly-3b-int4")
    service = Service(choice, lambda pair, report: go.wait() and ToySession())
    seen = [service.states(choice, threading.Event()), service.status_lines()][::-1]
    assert [next(states) for states in seen]
    service.close()
    assert list(seen[0]) == ["Not available. The server was stopped."]
    with pytest.raises(RequestFailed, match="The server was stopped"):
        list(seen[1])
    go.set()


def test_work_that_is_watched_shows_how_far_it_is_until_it_ends():
    begun, go, reports = threading.Event(), threading.Event(), []

    def report(progress):
        reports.append(progress.done)
        if len(reports) > 2:
            begun.set()
            go.wait()
            reports.append("its end")

    with watched(Meter(report, "Compiling", 100), lambda: 250, every=0.01):
        begun.wait()
        threading.Timer(0.1, go.set).start()
    assert reports == [0, 100, 100, "its end"]


def test_while_models_are_compiled_no_time_left_is_promised(monkeypatch):
    """The memory that is taken grows late: 15 seconds before the end 95 were promised."""
    compiled, lines, numbers = threading.Event(), [], itertools.count(0, 10)

    def report(progress):
        lines.append(progress.line)
        if len(lines) > 1:
            compiled.set()

    monkeypatch.setattr(terminal, "monotonic", numbers.__next__)
    monkeypatch.setattr(session.hardware, "own_bytes", numbers.__next__)
    monkeypatch.setattr(session.pair_files, "weights_size", lambda _: 1000)
    monkeypatch.setattr(session, "Session", lambda *_: compiled.wait(30))
    session.compiled_session(Mock(), report)
    assert len(lines) > 1 and not any("left" in line or "/s" in line for line in lines)


# The whole way


@pytest.mark.slow
def test_a_space_is_uploaded_preloaded_and_answers_in_the_hubs_iframe(tiny_home, tmp_path):
    pytest.importorskip("playwright.sync_api")
    made = subprocess.run(["git", "-C", str(ROOT), "stash", "create"], capture_output=True)
    commit = made.stdout.decode().strip() or "HEAD"
    with Hub() as hub:
        space = rehearsal.Space(tmp_path / "space", hub)
        for name, folder in rehearsal.pair_folders(tiny_home).items():
            hub.add_folder(name, folder)
        space.upload(commit)
        binary = [name for name, content in hub.space.items() if is_binary(content)]
        assert len(binary) == len(hub.blobs) > 0
        assert "spaces==" in (space.app / "requirements.txt").read_text()
        space.preload()
        front = rehearsal.Front(space)
        data = {"HF_HOME": str(space.data / ".huggingface")}
        first = rehearsal.visit(space, front, **data)
        assert first["pair"] == "dolly-3b-int4" and first["identical"] is True
        assert first["downloaded"] == "nothing" and first["console errors"] == []
        assert first["other hosts"] == []
        [made] = space.data.glob(".huggingface/specdemo/exported/pythia-70m-*")
        space.sleep()
        assert not (space.home / ".cache" / "specdemo").exists()
