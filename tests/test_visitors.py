"""Many visitors on one page: limits, stopping, failures in a sentence, monitoring, uploads,
and the endpoints under load. Toy models answer."""

import asyncio
import itertools
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import pytest
from helpers import page_application, page_server, race_trace, service_of, until
from test_page_parts import SAVED
from toy_session import ToySession, toy_clock

from specdemo.errors import BadInput, Busy, DamagedModel, FetchError, ModelError, RequestFailed
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.question import Question, trace_of
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Trace
from specdemo.server.host import Load
from specdemo.server.page import events, web_app
from specdemo.server.page.model_menu import ModelMenu
from specdemo.server.page.service import LIMITS, Service, Visitor, VisitorLimits, visitor_of
from specdemo.server.page.wording import error_sentence
from tools import load_test
from tools.load_test import ask, level

EMBEDDED = ModelChoice("embedded")


@pytest.fixture
def service(toy) -> Service:
    return service_of(toy)


def answer(service: Service, question: Question) -> None:
    with service.session(EMBEDDED) as session:
        list(session.ask(question))


def race(service: Service, question: str, **settings) -> Iterator[dict]:
    """The messages of a race, as they come from its thread."""
    values = {"question": question, "max_new_tokens": 30, "pair": "embedded", "drafter": "none"}
    values |= settings
    menu, messages = ModelMenu(EMBEDDED, shared=False), SimpleQueue()

    def run() -> None:
        for text in events.run(events.race, service, menu, values, Event()):
            messages.put(text)
        messages.put("null")

    Thread(target=run, daemon=True).start()
    yield from iter(lambda: json.loads(messages.get()), None)


def test_the_repeats_of_two_visitors_races_wait_for_each_other(monkeypatch):
    monkeypatch.setattr(events, "DRAWING_SECONDS", 0.0)
    lock, waits, raced = Lock(), Event(), []

    def acquire(timeout: float) -> bool:
        if not (got := lock.acquire(timeout=timeout)):
            waits.set()
        return got

    repeating = SimpleNamespace(acquire=acquire, release=lock.release)
    session = SimpleNamespace(repeating=repeating, occupied=False)

    def repeats(visitor: str) -> Iterator[Trace]:
        def races() -> Iterator[Trace]:
            for _ in range(2):
                raced.append(visitor)
                yield race_trace("a", "b")

        return events._repeats(session, Event(), races())

    first = repeats("first")
    next(first)
    second = Thread(target=list, args=[repeats("second")])
    second.start()
    waits.wait()
    assert raced == ["first"]
    list(first)
    second.join()
    assert raced == ["first", "first", "second", "second"]


# Limits


@pytest.fixture
def clock(monkeypatch):
    """The time that limits go by; `clock.now` sets it."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("specdemo.server.page.service.monotonic", lambda: clock.now)
    return clock


def limited(limits: VisitorLimits) -> Service:
    return Service(EMBEDDED, lambda pair, report: pytest.fail("it is not opened"), limits)


def ask_once(service: Service, *visitor: str) -> None:
    with service.request(Visitor(*visitor)):
        pass


def refused(service: Service) -> float:
    """The requests that its metrics count as refused."""
    [line] = re.findall('_total{.*"refused"} (.*)', asyncio.run(service.metrics()))
    return float(line)


def test_a_visitor_and_a_network_may_have_so_many_questions_at_once():
    service = limited(VisitorLimits(at_once=2, of_address=2))
    with service.request(Visitor("a", "192.0.2.7")), service.request(Visitor("a", "192.0.2.8")):
        with pytest.raises(Busy, match="2 questions from you are at work"):
            ask_once(service, "a")
        with service.request(Visitor("b", "192.0.2.7")), pytest.raises(Busy, match="your network"):
            ask_once(service, "c", "192.0.2.7")
    ask_once(service, "a")
    assert service.visitors == 0 and refused(service) == 2


def test_some_places_are_kept_for_networks_that_have_none():
    service, admitted = limited(VisitorLimits()), []
    asking = [f"192.0.2.{number % 3}" for number in range(66)]
    asking += [f"198.51.100.{number}" for number in range(17)]
    with ExitStack() as stack:
        for number, network in enumerate(asking):
            with suppress(Busy):
                stack.enter_context(service.request(Visitor(str(number), network)))
                admitted.append(number)
    assert admitted == [*range(48), *range(66, 82)] and service.visitors == 0
    assert refused(service) == len(asking) - len(admitted)


def test_a_visitor_may_ask_so_often_a_minute_and_a_network_under_whatever_names(clock):
    service = limited(VisitorLimits(per_minute=3, of_address_per_minute=5))
    for number in range(5):
        clock.now += 1
        ask_once(service, f"made up {number}", "192.0.2.7")
    with pytest.raises(Busy, match="5 questions from your network came.*56 seconds"):
        ask_once(service, "made up too", "192.0.2.7")
    for _ in range(3):
        clock.now += 1
        ask_once(service, "a")
    with pytest.raises(Busy, match="3 questions from you came within a minute.*58 seconds"):
        ask_once(service, "a")
    clock.now += 58
    ask_once(service, "a", "192.0.2.7")


def test_names_made_up_by_the_thousand_leave_no_memory_behind(clock):
    service = limited(LIMITS)
    for number in range(3000):
        clock.now += 1
        ask_once(service, f"made up {number}")
    assert len(service._started) < 1100 and not service._at_work


@pytest.mark.parametrize(
    ("session", "address", "visitor"),
    [
        ("s1", "127.0.0.1", Visitor("s1")),
        ("s1", "::ffff:127.0.0.1", Visitor("s1")),
        (None, "192.0.2.7", Visitor("network 192.0.2.7/32", "192.0.2.7/32")),
        ("s1", "::ffff:192.0.2.7", Visitor("s1", "192.0.2.7/32")),
        ("s1", "2001:db8:1:2:3:4:5:6", Visitor("s1", "2001:db8:1:2::/64")),
        ("s1", "fe80::1%eth0", Visitor("s1", "fe80::/64")),
    ],
)
def test_a_visitor_counts_by_network_and_on_this_machine_by_browser_only(session, address, visitor):
    client = SimpleNamespace(host=address)
    request = SimpleNamespace(session_hash=session, client=client, headers={})
    assert visitor_of(request, request.session_hash) == visitor


@pytest.mark.parametrize(
    ("question", "settings", "said"),
    [
        ("x" * 101, Settings(max_new_tokens=5), "101 characters; this server reads up to 100"),
        ("hi", Settings(max_new_tokens=51), "Maximum tokens is 51.*up to 50"),
        ("hi", Settings(5, numerics="fast"), "offers exact numerics only"),
    ],
)
def test_what_is_over_the_limits_is_refused_before_anything_runs(toy, question, settings, said):
    limits = VisitorLimits(prompt_characters=100, new_tokens=50, fast_numerics=False)
    with pytest.raises(BadInput, match=said):
        answer(service_of(toy, limits), Question(question, settings))
    assert toy.questions == [] and toy.forwards == 0


def test_an_answer_that_takes_too_long_is_ended_with_a_sentence(toy):
    service = service_of(toy, VisitorLimits(seconds=0))
    question = Question("word " * 400, Settings(max_new_tokens=2000, drafter="none"))
    toy.in_forward(50, lambda: question.stop.wait(10))  # or the answer may end before it is read
    with pytest.raises(RequestFailed, match="Stopped after 0 seconds"):
        answer(service, question)
    assert toy.activity.active == 0 and toy.forwards < 2000
    assert 'outcome="timeout"} 1.0' in asyncio.run(service.metrics())


def test_the_time_of_a_request_is_that_of_all_its_answers(toy, clock):
    with service_of(toy, VisitorLimits(seconds=600)).session(EMBEDDED) as session:
        list(session.ask(Question("first", Settings(5))))
        clock.now += 601
        with pytest.raises(RequestFailed, match="Stopped after 600 seconds"):
            list(session.ask(Question("a second one " * 20, Settings(500, drafter="none"))))


# What a visitor reads


@pytest.mark.parametrize(
    "error",
    [
        ModelError("The inference failed: /opt/models/secret.xml broke"),
        OSError(28, "No space left on device", "/home/user/report.json"),
        FetchError("The file /home/user/.cache/models/model.bin is damaged; fetch it again."),
        RuntimeError("Traceback (most recent call last): File '/srv/x.py'"),
    ],
)
def test_every_failure_is_one_sentence_without_paths_or_traces(error):
    sentence = error_sentence(error)
    leaks = "/home", "/opt", "/srv", "Traceback", ".py", "\n"
    assert 20 < len(sentence) < 200 and not any(leak in sentence for leak in leaks)


@pytest.mark.parametrize("trouble", ["gone", "damaged"])
def test_models_gone_or_damaged_are_a_sentence_and_are_loaded_again(toy, monkeypatch, trouble):
    damaged = Mock(side_effect=DamagedModel("openvino_model.bin in target changed."))
    monkeypatch.setattr(toy, "ask", damaged)
    gone = FileNotFoundError(2, "No such file", "/models/gone.xml")
    opened = gone if trouble == "gone" else toy
    service = Service(EMBEDDED, Mock(side_effect=[opened, ToySession()]))
    *_, last = race(service, "hello there")
    assert last["phase"] == "error" and "/models" not in last["note"]
    assert ("A file could not" if trouble == "gone" else "target changed.") in last["note"]
    until(lambda: service.state.kind == ("failed" if trouble == "gone" else "ready"))
    assert [*race(service, "hello there")][-1]["phase"] == "done"


def test_a_server_that_is_closed_loads_nothing_any_more(service, toy):
    service.close()
    assert toy.closed and asyncio.run(service.health())["status"] == "failed"
    with pytest.raises(RequestFailed, match="The server was stopped"):
        service.load(EMBEDDED)


def test_a_visitor_who_waits_reads_a_place_and_a_time():
    settings = Settings(drafter="none")
    with toy_clock(), ToySession(active=1, waiting=3) as session, ThreadPoolExecutor(3) as pool:
        session.target.forward_seconds = 0.25
        trace_of(session.ask(Question("0123456789", settings)))  # takes 11 forwards, 2.75 s
        session.pause()
        for number in range(3):
            pool.submit(trace_of, session.ask(Question(str(number), settings)))
        until(lambda: session.activity.waiting == 2)
        seen = race(service_of(session), "have patience please")
        waiting = next(one for one in seen if one["phase"] == "waiting")
        assert waiting["note"] == "In the queue, 2 requests ahead; about 8 s"
        with pytest.raises(Busy):  # a fourth would wait
            session.submit(Question("4", settings))
        session.resume()
        assert list(seen)[-1]["phase"] == "done"


def test_a_race_in_which_nothing_was_drafted_is_not_repeated(service, toy, monkeypatch):
    monkeypatch.setattr(events, "DRAWING_SECONDS", 0.0)
    for drafter in ("none", "model"):
        with closing(race(service, "again and again", drafter=drafter)) as messages:
            phases = {one["phase"] for one in messages}
        assert ("again" in phases) == (drafter == "model"), drafter
    monkeypatch.setattr(service, "state", Load(EMBEDDED))
    assert toy.questions[-1].loading(), "nor is any while models are loaded"


# Figures for monitors


def test_health_metrics_and_log_tell_what_was_asked_without_what_was_said(toy, service, caplog):
    with caplog.at_level("INFO", logger="specdemo.requests"):
        list(race(service, "my secret words are these"))
    logged = [one.getMessage() for one in caplog.records if one.name == "specdemo.requests"]
    assert len(logged) == 1 and "baseline stop prompt=26" in logged[0]
    list(race(service, " "))  # an empty prompt
    health, text = asyncio.run(service.health()), asyncio.run(service.metrics())
    assert health["status"] == "ready"
    assert health["cache_blocks"]["target"] == {"used": 7, "kept": 7, "limit": 42667}
    for line in (
        'specdemo_requests_total{kind="baseline",outcome="stop"} 1.0',
        'specdemo_requests_total{kind="answer",outcome="refused"} 1.0',
        'specdemo_cache_blocks_used{cache="target"} 7.0',
    ):
        assert line in text
    assert "secret" not in text + json.dumps(health) + "".join(logged)


# What the page changes of Gradio


def test_an_idle_page_looks_for_events_two_hundred_times_a_second_at_most(service, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        queue.stopped = True

    app, _ = page_application(service)
    queue = app.routes[-1].app.get_blocks()._queue
    monkeypatch.setattr("gradio.queueing.asyncio.sleep", sleep)
    asyncio.run(queue.start_processing())
    assert slept == [0.005]


def test_a_flood_of_browser_sessions_keeps_those_with_events(service):
    app, _ = page_application(service)
    queue = app.routes[-1].app.get_blocks()._queue
    messages = queue.pending_messages_per_session
    messages["running"] = object()
    queue.event_ids_to_events["event"] = type("Event", (), {"session_hash": "running"})
    for number in range(2 * web_app.MAX_SESSIONS):
        messages[str(number)] = object()
    assert len(messages) == web_app.MAX_SESSIONS
    assert "running" in messages and "0" not in messages


# Over HTTP


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The real page on a real port."""
    with toy_clock(), ToySession() as session:
        service = service_of(session, VisitorLimits(at_once=2, per_minute=10_000))
        with page_server(service) as url:
            yield url, session, service


def test_visitors_at_once_each_get_their_own_words_and_nobody_elses(served):
    url, _, _ = served

    def visit(number: int) -> tuple[str, str]:
        words = " ".join(f"visitor{number}word{at}" for at in range(12))
        [*_, last] = ask(client, url, words, 400)
        return words, last["text"].strip()

    with ThreadPoolExecutor(10) as pool, httpx.Client(timeout=60) as client:
        for words, got in pool.map(visit, range(20)):
            assert got == words


def test_one_browser_cannot_take_all_places_over_http(served):
    url, session, _ = served
    session.pause()
    values = ["word " * 20, 20, "auto", "auto", 0, 1, 0, 0, "exact"]
    body = {"data": values, "session_hash": "the-same-browser"}
    place = f"{url}/gradio_api/queue/data?session_hash=the-same-browser"
    with httpx.Client(timeout=30) as client:
        for _ in range(4):
            assert client.post(f"{url}/gradio_api/call/generate", json=body).status_code == 200
        with client.stream("GET", place) as stream:
            assert any("2 questions from you are at work" in line for line in stream.iter_lines())
    session.resume()
    until(lambda: session.activity.active == 0)


def test_a_call_of_generate_is_asked_as_its_arguments_say_and_counts_for_its_network(
    served, monkeypatch
):
    url, session, service = served
    monkeypatch.setattr(service, "request", asked := Mock(side_effect=service.request))
    settings = Settings(3, 2, "lookup", temperature=0.5, top_p=0.9, top_k=7, seed=5)
    names = "max_new_tokens", "draft_tokens", "drafter", "temperature", "top_p", "top_k", "seed"
    arguments = {name: getattr(settings, name) for name in names} | {"draft_tokens": "2"}
    call = f"{url}/gradio_api/call/v2/generate"
    sent = {"json": {"instruction": "Hi", **arguments}, "headers": {"X-Forwarded-For": "192.0.2.7"}}
    event = httpx.post(call, **sent).json()["event_id"]
    assert "event: complete" in httpx.get(f"{call}/{event}").text
    assert session.questions[-1].settings == settings
    assert asked.call_args.args[0].network == "192.0.2.7/32"


def streamed(url: str, path: str, tab: str, **values):
    """The messages of a run of the page's scripts; `values` are the inputs that differ."""
    values = {**ModelMenu(EMBEDDED, shared=True).defaults, "question": "one two three", **values}
    body = {"visitor": tab, "values": values}
    with httpx.stream("POST", f"{url}/{path}", json=body, timeout=60) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["x-accel-buffering"] == "no"
        for line in stream.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("again", [False, True])
def test_a_race_is_streamed_and_ended_by_its_tab_and_its_next_run_only(served, monkeypatch, again):
    url, session, service = served
    monkeypatch.setattr("specdemo.server.page.service.UPDATE_SECONDS", (0.0, 0.0))
    session.pause(3)
    options = {"question": "word " * 8, "max_new_tokens": 400, "drafter": "none"}
    seen, rounds = streamed(url, "race", "tab-1", **options), []

    def see(count: int) -> None:
        while len(rounds) < count:
            rounds.extend(next(seen).get("rounds", ()))

    assert next(seen)["phase"] == "loading"
    see(3)
    httpx.post(f"{url}/stop", json={"visitor": "tab-2"})
    session.step(3)
    see(6)
    following = streamed(url, "race", "tab-1") if again else iter(())
    if again:
        next(following)
    else:
        httpx.post(f"{url}/stop", json={"visitor": "tab-1"})
    session.resume()
    *_, last = seen
    assert not again or [*following][-1]["phase"] == "done"
    assert last["phase"] == "stopped" and len(last["trace"]["rounds"]) in (6, 7)
    assert session.activity.active == service.visitors == 0


def test_a_visitor_who_leaves_while_nothing_is_sent_frees_the_place(served, monkeypatch):
    """All is read, so the server hears only that the connection has ended."""
    url, session, service = served
    monkeypatch.setattr("specdemo.server.page.service.UPDATE_SECONDS", (60.0, 60.0))
    monkeypatch.setattr(web_app, "PING", 0.05)
    monkeypatch.setattr(events, "DRAWING_SECONDS", 600.0)  # no repeat begins
    with closing(streamed(url, "race", "tab-1")) as seen:
        until(lambda: next(seen)["phase"] == "again")
    until(session.questions[-1].stop.is_set)
    until(lambda: session.activity.active == service.visitors == 0)


def test_the_drafts_are_raced_in_turn_and_the_median_run_of_each_is_drawn(served, monkeypatch):
    monkeypatch.setattr(events, "DRAFTS_SECONDS", 60.0)
    asked = len(served[1].questions)
    seen = list(streamed(served[0], "drafts", "tab-1", draft_tokens=1))
    tried = [one.settings.drafter for one in served[1].questions[asked:]]
    assert tried[:8] == ["none", "lookup", "model", "auto", "auto", "model", "lookup", "none"]
    *_, done = seen
    curves = {curve["name"]: (curve["x"], curve["y"]) for curve in done["figure"]["data"]}
    # Of the draft model six rounds of two tokens and one of the last token.
    names = "autoregressive, no draft: 1.00x", "draft model: 1.69x, 100% accepted"
    assert [*curves][::2] == [*names] and len(curves) == 4
    assert all(len(x) == len(y) and y[-1] == 14 for x, y in curves.values())
    assert curves[names[0]][1] == list(range(1, 15)) and len(curves[names[1]][1]) == 8
    assert done["note"] == "Fastest: n-gram lookup, 1.86x. Medians of 5 races with each drafter."


@pytest.mark.slow
def test_a_benchmark_repeats_its_prompts_in_three_turns(served):
    settings = {"max_new_tokens": 20, "drafter": "model", "draft_tokens": 1}
    *_, last = streamed(served[0], "benchmark", "tab-1", **settings)
    assert last["phase"] == "done"
    assert last["sentence"].startswith("toy target, draft: toy draft, on ")
    # Nine rounds of two tokens, and one that drafts nothing; at first the draft model reads more.
    decision = last["report"]["decision"]
    assert decision["sentence"].startswith("Use drafts here (draft model, draft length 1): 1.74x")
    assert [row["users"] for row in decision["users"]][:2] == [1, 2]
    assert decision["headline"].startswith("Yes: 1.74x, ")
    rows = last["report"]["rows"]
    assert len(rows) == 10
    for row in rows[2:]:
        assert row["speedups"][1:] == pytest.approx([0.19 / 0.109] * 2)
    assert [row["paper"] for row in rows if "paper" in row] == [40, 100]
    worth, clock, dots = last["charts"]
    assert len(worth["data"][0]["z"][0]) == 11
    assert clock["data"][0]["y"][0] == "40 tokens<br>1.78x<br>(paper: 1.46)"
    assert [len(marks["x"]) for marks in dots["data"]] == [30, 2, 30]


@pytest.mark.parametrize("path", ["race", "drafts", "benchmark"])
def test_a_run_that_cannot_be_ends_with_one_sentence(served, path):
    *_, last = streamed(served[0], path, "tab-1", max_new_tokens=0)
    assert last["phase"] == "error" and "max_new_tokens is 0" in last["note"]
    *_, last = streamed(served[0], path, "tab-1", pair="dolly-3b")
    assert "This server is shared" in last["note"]


def test_a_run_that_is_refused_takes_no_thread(served, monkeypatch):
    url, _, service = served
    monkeypatch.setattr(web_app, "merged", lambda begins: pytest.fail("a thread is started"))
    visitor = Visitor("tab-1")
    with service.request(visitor), service.request(visitor):
        [only] = streamed(url, "race", "tab-1")
    assert only["phase"] == "error" and "2 questions from you are at work" in only["note"]


def test_opened_runs_count_against_the_limits_of_who_opens_them(served, monkeypatch):
    url, _, service = served
    monkeypatch.setattr(service, "limits", VisitorLimits())
    with httpx.Client(timeout=60) as client:

        def open_run(run: str, visitor: str) -> httpx.Response:
            return client.post(f"{url}/open", json={"run": run, "visitor": visitor})

        answers = [open_run(SAVED, "the-same-tab") for _ in range(31)]
        assert [answer.status_code for answer in answers] == [200] * 30 + [429]
        assert "30 questions from you came within a minute" in answers[-1].json()["note"]
        assert open_run(SAVED, "another-tab").json()["trace"]["repeats"]
        refused = open_run("{}", "a-third-tab")
        assert refused.json()["phase"] == "error" and "is missing" in refused.json()["note"]
        assert client.post(f"{url}/open", json={"run": SAVED}).status_code == 400


@pytest.mark.parametrize("kind", ["a tab", "a program"])
def test_a_lost_connection_frees_its_request(served, monkeypatch, kind):
    url, session, service = served
    monkeypatch.setattr(session.target, "fault", lambda batch: time.sleep(0.02))
    made, words = session.forwards, "".join(map(str, range(1000)))
    with httpx.Client() as client:
        if kind == "a tab":
            options = {"question": words, "max_new_tokens": 2000, "drafter": "none"}
            messages = streamed(url, "race", "tab-1", **options)
        else:
            messages = ask(client, url, words, 2000)
        with closing(messages) as events:
            until(lambda: next(events) and session.forwards > made)
    until(lambda: session.activity.active == service.visitors == 0)
    assert session.forwards - made < 2000


@pytest.mark.slow
def test_the_load_test_counts_what_its_visitors_get(served, monkeypatch):
    asked = []
    questions = iter(lambda: asked.append(1) or "one two three four five", None)
    lasts = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: until(lambda: len(asked) > 6))
    monkeypatch.setattr(load_test, "time", lasts)
    figures, errors = level(served[0], questions, 20, visitors=3, seconds=1.0)
    assert figures["visitors"] == 3 and errors == []
    assert figures["tokens_per_s"] > 40 and 0 < figures["ttft_p50_s"] <= figures["ttft_p95_s"]


def test_the_load_test_takes_a_model_of_ones_own(monkeypatch):
    started = Mock(side_effect=RequestFailed("no server"))
    monkeypatch.setattr(load_test, "started", started)
    with pytest.raises(RequestFailed, match="no server"):
        arguments = ["--pair", "me/big", "--assistant-model", "me/small"]
        load_test.load.main(arguments, standalone_mode=False)
    variables = started.call_args.kwargs
    models = [variables[f"SPECDEMO_{name}"] for name in ("PAIR", "MODEL", "ASSISTANT_MODEL")]
    assert models == ["", "me/big", "me/small"]


@pytest.mark.slow
def test_a_level_of_load_leaves_no_answer_to_the_next(served, monkeypatch):
    url, session, service = served
    monkeypatch.setattr(session.target, "fault", lambda batch: time.sleep(0.5))
    level(url, itertools.repeat("word " * 20), 20, visitors=3, seconds=1.2)
    assert session.activity.active == service.visitors == 0
