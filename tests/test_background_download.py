"""A Dolly pair that arrives while the embedded one answers: real fetches from a Hub on 127.0.0.1,
made-up sessions."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from helpers import page_server, until
from hub_server import BIN, Hub, Repository, decoder_files
from toy_session import ToySession

from specdemo.commands import page
from specdemo.errors import ModelError
from specdemo.machine import hardware
from specdemo.machine.terminal import Progress
from specdemo.pairs import embedded, registry
from specdemo.pairs.hub import Snapshot
from specdemo.pairs.registry import ModelChoice, PairInfo
from specdemo.runs.question import Question
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace
from specdemo.server.page import background_download, layout, web_app
from specdemo.server.page.background_download import BackgroundDownload
from specdemo.server.page.model_menu import AUTO, ModelMenu
from specdemo.server.page.service import Service

PAIR = registry.find_pair("dolly-3b-int4")
TARGET, DRAFTS = PAIR.target.repo, [draft.repo for draft in PAIR.drafts]
DRAFT = DRAFTS[0]


class Place:
    """A server's parts: the embedded pair is made up and answers, dolly-3b-int4 is on the Hub."""

    def __init__(self, hub: Hub, monkeypatch, shared: bool = False):
        self.hub = hub
        for repo in (TARGET, *DRAFTS):
            hub.repositories[repo] = Repository(decoder_files())
        monkeypatch.setattr(hardware, "memory_bytes", lambda: 16 * 2**30)
        monkeypatch.setattr("specdemo.pairs.loading.load_pair", self.load)
        monkeypatch.setattr("specdemo.engine.pair_files.weights_size", lambda model: 100)
        monkeypatch.setattr("specdemo.runs.session.Session", self.open)
        monkeypatch.setattr(embedded, "fetch", lambda report: [Snapshot(Path(), "")] * 2)
        self.opened: dict[str, ToySession] = {}
        self.refusal: Exception | None = None
        self.menu = ModelMenu(ModelChoice(AUTO), shared)
        self.service = Service(self.menu.first, self.menu.open_session, fetch=self.menu.fetch)
        self.service.load(self.menu.first)
        self.download = BackgroundDownload(self.service, self.menu)

    def load(self, pair, report) -> SimpleNamespace:
        choice = pair.choice
        info = PairInfo(choice.pair, choice.pair, choice.assistant_model or None)
        return SimpleNamespace(info=info, target=Path())

    def open(self, loaded: SimpleNamespace, **capacity) -> ToySession:
        if self.refusal:
            raise self.refusal
        session = self.opened[loaded.info.name] = ToySession(info=loaded.info)
        return session

    def ask(self, question: str = "one two", pair: str = AUTO) -> str:
        """The name of the pair that answers."""
        asked = self.menu.resolve(ModelChoice(pair))
        self.service.load(asked).result()
        with self.service.session(asked) as session:
            *_, trace = session.ask(Question(question, Settings()))
        assert isinstance(trace, Trace) and trace.text.strip() == question
        return trace.pair.name

    def asking(self, *question: str) -> tuple[threading.Thread, list[str]]:
        """A thread that asks, and where it puts the name of the pair that answers."""
        names: list[str] = []
        thread = threading.Thread(target=lambda: names.append(self.ask(*question)), daemon=True)
        thread.start()
        return thread, names

    def wait(self, kind: str) -> None:
        until(lambda: self.download.state == kind)

    def press(self, button: str, kind: str) -> None:
        self.download.press(button)
        self.wait(kind)

    def fetch(self) -> None:
        self.download.start()
        self.wait("ready")

    def weights(self) -> list[bytes]:
        """Those that are in the cache, which must be whole; part of the files may be missing."""
        from specdemo.pairs.hub import cached

        found = filter(None, map(cached, (TARGET, DRAFT)))
        return [(one.folder / BIN).read_bytes() for one in found]


@pytest.fixture
def place(server, monkeypatch) -> Place:
    return Place(server, monkeypatch)


def test_answers_that_run_finish_on_the_old_pair_which_is_closed_then(place):
    assert place.ask() == "embedded"
    old = place.opened["embedded"]
    old.pause()
    asking, answers = place.asking("a long one")
    until(lambda: old.activity.active)
    place.fetch()
    place.press("Use it now", "here")
    assert place.ask() == "dolly-3b-int4"
    assert not old.closed
    old.resume()
    asking.join()
    assert answers == ["embedded"]
    until(lambda: old.closed)


def test_a_pair_is_fetched_for_the_devices_that_will_run_it(place, monkeypatch):
    place.menu.first = replace(place.menu.first, draft_device="torch:cpu")
    monkeypatch.setattr(background_download, "fetch_pair", fetched := Mock())
    place.fetch()
    assert fetched.call_args.args[0].choice == place.menu.first


def test_pause_stops_the_transfer_and_resume_fetches_only_the_rest(place, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 20_000)
    place.hub.go_on.clear()
    place.download.start()
    until(lambda: (now := place.download.progress) and now.done > 50_000)
    place.press("Pause", "paused")
    place.hub.go_on.set()
    place.hub.finish_transfers()
    place.press("Pause", "paused")  # a click on what the button said before
    place.press("Resume", "ready")
    begun = next(one.start for one in place.hub.served if one.name == BIN)
    assert begun > 40_000
    assert place.weights() == [b"w" * 300_000] * 2


@pytest.mark.parametrize("room", [True, False])
def test_a_pair_of_the_list_is_fetched_while_the_old_one_answers(place, monkeypatch, room):
    monkeypatch.setattr(hardware, "available_bytes", lambda: 10**12 * room)
    assert place.ask() == "embedded"
    old, seen = place.opened["embedded"], []

    def opened(*arguments, **capacity):
        seen.append(old.closed)
        return place.open(*arguments, **capacity)

    monkeypatch.setattr("specdemo.runs.session.Session", opened)
    place.hub.go_on.clear()
    asking, answers = place.asking("one two", "dolly-3b-int4")
    until(lambda: place.hub.sending)
    assert place.ask() == "embedded" and seen == []
    place.hub.go_on.set()
    asking.join()
    assert answers == ["dolly-3b-int4"] and seen == [not room]
    until(lambda: old.closed)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [("no network", "broke off"), ("lost network", "broke off"), ("full disk", "is full")],
)
def test_what_fails_is_a_sentence_and_the_embedded_pair_goes_on(place, small_disk, trouble, said):
    place.hub.lost = trouble == "no network"
    small_disk(10 if trouble == "full disk" else 10**9)
    if trouble == "lost network":
        place.hub.go_on.clear()
    place.download.start()
    if trouble == "lost network":
        until(lambda: (now := place.download.progress) and now.done > 50_000)
        place.hub.lost = True
        place.hub.go_on.set()
    place.wait("failed")
    error = place.download.error
    assert said in error and "\n" not in error and "/tmp" not in error
    assert place.ask() == "embedded"
    place.hub.lost = False
    small_disk(10**9)
    place.press("Try again", "ready")
    assert place.weights() == [b"w" * 300_000] * 2


def test_a_pair_that_cannot_be_loaded_leaves_the_one_that_answers(place):
    assert place.ask() == "embedded"
    place.fetch()
    place.refusal = ModelError("/home/somebody/model.bin broke")
    place.press("Use it now", "failed")
    assert "could not be run" in place.download.line and "/home" not in place.download.line
    assert place.ask() == "embedded"
    place.refusal = None
    place.press("Try again", "ready")
    place.press("Use it now", "here")
    assert place.ask() == "dolly-3b-int4"


def test_a_shared_server_changes_by_itself_and_tries_again(server, monkeypatch, tmp_path):
    monkeypatch.setattr(background_download, "RETRY_SECONDS", 0.01)
    place = Place(server, monkeypatch, shared=True)
    server.lost = True
    place.download.start()
    place.wait("failed")
    server.lost = False
    place.wait("here")
    assert place.ask() == "dolly-3b-int4"


def test_where_the_first_pair_failed_questions_wait_for_the_one_that_arrives(server, monkeypatch):
    monkeypatch.setattr(embedded, "fetch", lambda report: pytest.fail("no network"))
    place = Place(server, monkeypatch, shared=True)
    monkeypatch.setattr(place.menu, "fetch", lambda pair, report: True)
    place.refusal = ModelError("broken")
    until(lambda: place.service.state.kind == "failed")
    place.refusal = None
    place.download.start()
    place.wait("here")
    assert place.menu.first.pair == "dolly-3b-int4" and place.ask() == "dolly-3b-int4"


@pytest.mark.parametrize("shared", [True, False])
def test_only_the_owner_of_a_server_has_a_button(server, monkeypatch, shared):
    place = Place(server, monkeypatch, shared)
    blocks = layout.build(place.service, place.menu, download=place.download)
    names = [one.fn.__name__ for one in blocks.fns.values() if one.fn]
    assert ("_press" in names) is not shared


def test_the_line_tells_bytes_rate_and_time_and_shows_no_markup(place):
    place.download.progress = Progress("Downloading <b>", 1_200_000_000, 3_400_000_000, 20_000_000)
    assert "&lt;b&gt;: 1,200 of 3,400 MB, 20.0 MB/s, 01:50 left<" in place.download.line


@pytest.mark.parametrize(
    ("gigabytes", "options"), [(16, ""), (16, "--no-fetch"), (16, "--pair embedded"), (4, "")]
)
def test_it_fetches_unless_told_not_to_or_nothing_fits(server, monkeypatch, gigabytes, options):
    fetched = (gigabytes, options) == (16, "")
    monkeypatch.setattr(hardware, "memory_bytes", lambda: gigabytes * 2**30)
    for place, name in ((Service, "load"), (page.Server, "run"), (web_app, "page_app")):
        monkeypatch.setattr(place, name, lambda *_: None)
    monkeypatch.setattr(Service, "answering", SimpleNamespace(kind="ready", session=None))
    page.page.main(["--port", "7871", *options.split()], standalone_mode=False)
    until(lambda: server.requests or not fetched)
    assert bool(server.requests) is fetched


# In a browser


def test_the_page_shows_a_pair_arrive_and_answer_and_does_not_jump(place, browser):
    playwright = pytest.importorskip("playwright.sync_api")
    place.hub.go_on.clear()
    place.download.start()
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(240_000)
    errors, tops = [], set()
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    with page_server(place.service, place.menu, place.download) as url:
        page.goto(url)
        page.wait_for_function("window.specdemo?.race?.run")
        thens = {"Pause": "Paused", "Resume": "is here", "Use it now": "answers from now on"}
        for button, then in thens.items():
            page.get_by_role("button", name=button, exact=True).click()
            playwright.expect(page.locator("#sd-arrival")).to_contain_text(then, timeout=60_000)
            place.hub.go_on.set()
            tops.add(round(page.locator("#sd-view").bounding_box()["y"]))
        page.get_by_role("button", name="Run", exact=True).click()
        page.wait_for_function("window.specdemo.race.trace?.pair.name === 'dolly-3b-int4'")
        playwright.expect(page.locator("#sd-models")).to_contain_text("Ready: dolly-3b-int4")
        page.close()
    assert len(tops) == 1, "the page jumped"
    assert errors == []
