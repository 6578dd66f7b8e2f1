"""Many visitors on one page: limits, stopping, failures in a sentence, figures for monitors, and no text that crosses."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdemo.engine.scheduler import Load, Waiting
from specdemo.engine.graph import ModelError
from specdemo.engine.model import CacheFull
from specdemo.trace import (
    Baseline,
    BaselineToken,
    DraftToken,
    EmittedToken,
    PairInfo,
    Round,
    Settings,
    Trace,
    BadInput,
    from_json,
    to_json,
)
from specdemo.loadtest import Crowd, Level, Rest, SoakReport, ask, levels_up_to, soak
from specdemo.session import CacheUse, RequestError
from specdemo.ui import handlers
from specdemo.ui.controls import Models
from specdemo.ui.service import PairGone, Service, sentence
from specdemo.ui.visitors import ANYBODY, Limits, Refused, Turns, Visitor, Visitors, Watched, visitor_of
from specdemo.models.errors import ZooError

EMBEDDED = Models("embedded", "CPU", "CPU")


class EchoSession:
    """Answers with the words of the question, a token each, and raises what it is told to."""

    def __init__(self, pace: float = 0.0, exclusive: bool = False):
        self.info = PairInfo("echo", "echo target", None)
        self.context_limit = 1000
        self.pace = pace
        self.exclusive = exclusive
        self.fails: BaseException | None = None
        self.active = 0
        self.closed = False
        self.load = Load(0, 0, 0, 0, 0, 0, 0)

    def cache_blocks(self):
        return {"target": CacheUse(3, 3, 10)}

    def close(self) -> None:
        self.closed = True

    def answer(self, instruction, settings, *, stop=None, certify=True, on_wait=None):
        if "too much" in instruction:
            raise RequestError("The instruction asks too much.")
        return self._answer(instruction, settings, stop, on_wait)

    def _answer(self, instruction, settings, stop, on_wait):
        self.active += 1
        try:
            if on_wait is not None and "patience" in instruction:
                on_wait(Waiting(3, 7.2))
                time.sleep(1.2)
            rounds = []
            for at, word in enumerate(instruction.split()[: settings.max_new_tokens]):
                if stop.wait(self.pace):
                    break
                if self.fails is not None and at == 1:
                    raise self.fails
                drafted = (DraftToken(2, 0.5, 0.5, False),) if at else ()
                rounds.append(Round(drafted, EmittedToken(at, "plain", 0.5, word + " "), 0.0, 0.01, 0.01 * at))
                yield rounds[-1]
            reason = "cancelled" if stop.is_set() else "length"
            yield Trace(instruction, 5, 0, self.info, settings, 0.01, tuple(rounds), reason, 0.1, 0.0)
        finally:
            self.active -= 1

    def baseline(self, trace, *, stop=None, on_wait=None):
        tokens = tuple(BaselineToken(r.emitted.id, r.shown_at, r.emitted.text) for r in trace.rounds)
        yield from tokens
        yield dataclasses.replace(trace, baseline=Baseline(tokens, 0.01, 0.1), identical=True)


def service_with(session: EchoSession) -> Service:
    service = Service(EMBEDDED, lambda pair, report: session)
    service.start()
    assert [state.kind for state in service.states(EMBEDDED)][-1] == "ready"
    return service


def race(service: Service, question: str, visitor: str = "v", runs: handlers.Runs | None = None) -> list[dict]:
    names = handlers.controls.NAMES
    given = dict(zip(names, [""] * len(names), strict=True))
    given |= {"question": question, "pair": EMBEDDED, "max_new_tokens": 30, "draft_tokens": "auto", "drafter": "auto"}
    given |= {"temperature": 0, "top_p": 1, "top_k": 0, "seed": 0, "numerics": "exact", "coupling": "shared"}
    return [
        json.loads(one.envelope)
        for one in handlers.run(service, runs or handlers.Runs(), visitor, tuple(given.values()))
    ]


# Limits


@pytest.fixture
def clock():
    class Clock:
        now = 1000.0

        def __call__(self):
            return self.now

    return Clock()


def test_a_visitor_may_have_so_many_questions_at_once_and_others_are_not_counted():
    gate = Visitors(Limits(at_once=2))
    with gate.request(Visitor("a")), gate.request(Visitor("a")):
        with pytest.raises(Refused, match="2 questions at work already"), gate.request(Visitor("a")):
            pass
        with gate.request(Visitor("b")):
            assert gate.inside == 3
    with gate.request(Visitor("a")):
        pass
    assert gate.inside == 0


def test_a_visitor_may_ask_so_often_a_minute_by_a_clock_that_never_jumps(clock, monkeypatch):
    gate = Visitors(Limits(per_minute=3), clock=clock)
    for _ in range(3):
        with gate.request(Visitor("a")):
            pass
    monkeypatch.setattr(time, "time", lambda: 0.0)  # somebody sets the wall clock back
    with pytest.raises(Refused, match="3 questions within a minute.*60 seconds"), gate.request(Visitor("a")):
        pass
    clock.now += 61
    with gate.request(Visitor("a")):
        pass


def test_one_network_address_and_everybody_together_have_their_limits_too():
    gate = Visitors(Limits(of_address=2, in_all=3))
    with ExitStack() as inside:
        for name in "ab":
            inside.enter_context(gate.request(Visitor(name, "192.0.2.7")))
        with pytest.raises(Refused, match="from your network"), gate.request(Visitor("c", "192.0.2.7")):
            pass
        inside.enter_context(gate.request(ANYBODY))
        with pytest.raises(Refused, match="3 questions are at work or waiting"), gate.request(Visitor("d")):
            pass
    assert gate.inside == 0 and not gate._addresses


def test_names_made_up_by_the_thousand_leave_no_memory_behind(clock):
    gate = Visitors(clock=clock)
    for number in range(3000):
        clock.now += 1
        with gate.request(Visitor(f"made up {number}")):
            pass
    assert len(gate._begun) < 1100 and not gate._inside


def test_visitors_on_this_machine_are_told_apart_by_their_browser_only():
    assert visitor_of("s1", "127.0.0.1") == Visitor("s1", "")
    assert visitor_of("s1", "::1").address == "" and visitor_of("s1", "testclient").address == ""
    assert visitor_of(None, "192.0.2.7") == Visitor("address 192.0.2.7", "192.0.2.7")


@pytest.mark.parametrize(
    ("question", "wanted", "said"),
    [("x" * 101, 5, "101 characters; this server reads up to 100"), ("hi", 51, "Maximum tokens is 51.*up to 50")],
)
def test_long_questions_and_long_answers_are_refused_before_anything_runs(question, wanted, said):
    session = EchoSession()
    watched = Watched(session, Visitors(Limits(prompt_characters=100, new_tokens=50)))
    with pytest.raises(Refused, match=said):
        watched.answer(question, Settings(max_new_tokens=wanted))
    assert session.active == 0


def test_an_answer_that_takes_too_long_is_ended_with_a_sentence():
    session = EchoSession(pace=0.05)
    gate = Visitors(Limits(seconds=0.3))
    with pytest.raises(Refused, match="Stopped after 0.3 seconds"):
        list(Watched(session, gate).answer("word " * 1000, Settings(max_new_tokens=1000)))
    assert session.active == 0
    assert b'outcome="timeout"} 1.0' in gate.metrics.text()


def test_comparisons_take_turns_where_the_server_is_exclusive():
    turns, stop = Turns(), threading.Event()
    assert list(turns.wait("a", stop)) == []
    places = turns.wait("b", stop, every=0.01)
    assert next(places) == 1
    assert next(turns.wait("c", stop, every=0.01)) == 2
    turns.leave("a")
    assert list(places) == []
    stop.set()
    assert list(turns.wait("d", stop)) == []
    for name in "bcd":
        turns.leave(name)
    assert not turns._line


# What a visitor reads


@pytest.mark.parametrize(
    "error",
    [
        ModelError("The inference failed: /opt/models/secret.xml broke"),
        CacheFull("The KV cache is full: 9 blocks wanted"),
        OSError(28, "No space left on device", "/home/user/report.json"),
        MemoryError(),
        PairGone("embedded"),
        ZooError("The file /home/user/.cache/models/model.bin is damaged; fetch it again."),
        RuntimeError("Traceback (most recent call last): File '/srv/x.py'"),
        KeyError("/etc/passwd"),
    ],
)
def test_every_failure_is_one_sentence_without_paths_or_traces(error):
    told = sentence(error)
    assert 20 < len(told) < 200
    assert not any(leak in told for leak in ("/home", "/opt", "/srv", "/etc", "Traceback", ".py", "\n"))


def test_a_web_address_in_a_sentence_stays_whole():
    assert "https://huggingface.co/a/b" in sentence(ZooError("Nothing at https://huggingface.co/a/b answers."))


@pytest.mark.parametrize("error", [ModelError("x"), OSError(28, "No space left on device"), MemoryError(), KeyError(3)])
def test_a_question_that_fails_is_told_in_a_sentence_and_the_next_one_is_answered(error):
    session = EchoSession()
    service = service_with(session)
    session.fails = error
    assert race(service, "one two three")[-1]["phase"] == "error"
    session.fails = None
    assert race(service, "one two three")[-1]["phase"] == "done"
    assert service.users == session.active == service.visitors.inside == 0


def test_models_that_cannot_be_opened_any_more_are_a_sentence_and_are_tried_again():
    opened = []

    def opener(pair, report):
        opened.append(pair)
        if len(opened) == 1:
            raise FileNotFoundError(2, "No such file", "/models/gone.xml")
        return EchoSession()

    service = Service(EMBEDDED, opener)
    last = race(service, "hello there")[-1]
    assert last["phase"] == "error" and "/models" not in json.dumps(last)
    assert service.health()["status"] == "failed"
    assert race(service, "hello there")[-1]["phase"] == "done"


def test_who_waits_reads_a_place_and_a_time():
    notes = [
        one["note"] for one in race(service_with(EchoSession()), "have patience please") if one["phase"] == "waiting"
    ]
    assert notes == ["In the queue, 2 questions ahead; about 7 s"]


def test_on_an_exclusive_server_a_whole_comparison_waits_for_the_one_before_it():
    session = EchoSession(pace=0.05, exclusive=True)
    service = service_with(session)
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda name: race(service, "word " * 12, name), "ab"))
    assert [one[-1]["phase"] for one in told] == ["done", "done"]
    notes = [one["note"] for run in told for one in run if one["phase"] == "waiting"]
    assert notes[0] == "1 question ahead; comparisons run one at a time here"
    assert not service.visitors.turns._line


def test_leaving_the_page_stops_its_run_within_a_round():
    session = EchoSession(pace=0.02)
    service, runs = service_with(session), handlers.Runs()
    done: list[list[dict]] = []
    thread = threading.Thread(target=lambda: done.append(race(service, "word " * 30, "tab", runs)))
    thread.start()
    until = time.monotonic() + 5
    while not session.active and time.monotonic() < until:
        time.sleep(0.005)
    runs.leave("tab")
    thread.join(2)
    assert not thread.is_alive() and done[0][-1]["phase"] == "stopped"
    assert session.active == service.users == service.visitors.inside == 0


# Figures


def test_health_and_metrics_tell_what_was_asked_without_what_was_said():
    session = EchoSession()
    service = service_with(session)
    race(service, "my secret words are these")
    with pytest.raises(RequestError), service.session(EMBEDDED) as opened:
        opened.answer("too much", Settings())
    told, text = service.health(), service.visitors.metrics.text().decode()
    assert told["status"] == "ready" and told["cache_blocks"]["target"] == {"used": 3, "kept": 3, "limit": 10}
    assert 'specdemo_requests_total{kind="answer",outcome="length"} 1.0' in text
    assert 'specdemo_requests_total{kind="baseline",outcome="length"} 1.0' in text
    assert 'specdemo_requests_total{kind="answer",outcome="refused"} 1.0' in text
    assert 'specdemo_tokens_total{kind="answer"} 5.0' in text and "specdemo_draft_tokens_total 4.0" in text
    assert 'specdemo_cache_blocks_used{cache="target"} 3.0' in text
    assert "secret" not in text + json.dumps(told)


def test_a_line_is_logged_for_each_request_and_holds_no_text(caplog):
    with caplog.at_level("INFO", logger="specdemo.requests"):
        race(service_with(EchoSession()), "my secret words")
    lines = [record.getMessage() for record in caplog.records if record.name == "specdemo.requests"]
    assert len(lines) == 2 and "answer length prompt=5 tokens=3" in lines[0]
    assert not any("secret" in line for line in lines)


# Uploaded traces


def sample() -> dict:
    session = EchoSession()
    *_, trace = session.answer("one two three", Settings(), stop=threading.Event())
    *_, trace = session.baseline(trace)
    return json.loads(to_json(dataclasses.replace(trace, shared_with=3)))


SAMPLE = json.dumps(sample())

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def parses_or_says(text: str | bytes) -> Trace | None:
    try:
        trace = from_json(text)
    except BadInput as error:
        assert 10 < len(str(error)) < 300 and "\n" not in str(error)
        return None
    assert from_json(to_json(trace)) == trace
    return trace


@settings(max_examples=800, deadline=None)
@given(st.data())
def test_a_trace_with_anything_changed_is_read_or_refused_in_a_sentence(data):
    trace = json.loads(SAMPLE)
    for _ in range(data.draw(st.integers(1, 3))):
        node = trace
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans()):
                node = node[key]
                continue
            if isinstance(node, dict) and data.draw(st.integers(0, 3)) == 0:
                del node[key]
            else:
                node[key] = data.draw(JSON)
            break
    parses_or_says(json.dumps(trace))


@settings(max_examples=1500, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200) | JSON.map(json.dumps))
def test_anything_at_all_is_refused_in_a_sentence(upload):
    try:
        parses_or_says(upload)
    except UnicodeDecodeError:
        pytest.fail("bytes that are no text must be a BadInput")


def test_a_trace_from_before_machines_were_shared_still_loads():
    old = sample()
    del old["shared_with"], old["baseline"]["shared_with"]
    trace = parses_or_says(json.dumps(old))
    assert trace.shared_with == trace.baseline.shared_with == 0


@pytest.mark.parametrize("bomb", ["[" * 100_000, '{"a":' * 50_000, "[" * 100_000 + "]" * 100_000, '{"schema": 1e999}'])
def test_a_nested_bomb_is_refused_quickly(bomb):
    begun = time.monotonic()
    assert parses_or_says(bomb) is None
    assert time.monotonic() - begun < 2


# Over HTTP


@pytest.fixture(scope="module")
def served():
    """The real page on a real port, answered by an echo."""
    from specdemo.ui import choice, page, watch

    session = EchoSession(pace=0.002)
    service = Service(EMBEDDED, lambda pair, report: session, Limits(at_once=2, per_minute=10_000))
    built = page.build(service, choice.Offer("embedded", False), 30)
    app, url, _ = built.blocks.queue(max_size=128).launch(
        server_name="127.0.0.1",
        server_port=None,
        quiet=True,
        prevent_thread_lock=True,
        show_error=False,
        **built.launch,
    )
    watch.mount(app, service)
    service.start()
    list(service.states(EMBEDDED))
    yield url.rstrip("/"), session, service
    built.blocks.close()


def test_visitors_at_once_each_get_their_own_words_and_nobody_elses(served):
    url, _, _ = served

    def visit(number: int) -> tuple[str, str]:
        words = " ".join(f"visitor{number}word{at}" for at in range(12))
        with httpx.Client(timeout=30) as client:
            return words, ask(client, url, words, 20, threading.Event()).text.strip()

    with ThreadPoolExecutor(10) as pool:
        for words, got in pool.map(visit, range(20)):
            assert got == words


def test_one_browser_cannot_take_all_places_over_http(served):
    url, session, _ = served
    session.pace = 0.05

    body = {"data": ["word " * 20, 20, "auto", "auto", 0, 1, 0, 0, "exact"], "session_hash": "the same browser"}
    said = ""
    try:
        with httpx.Client(timeout=10) as client:
            for _ in range(4):
                assert client.post(f"{url}/gradio_api/call/generate", json=body).status_code == 200
            until = time.monotonic() + 10
            with client.stream("GET", f"{url}/gradio_api/queue/data?session_hash=the same browser") as stream:
                for line in stream.iter_lines():
                    said += line
                    if "You have" in said or time.monotonic() > until:
                        break
    finally:
        session.pace = 0.002
    assert "You have 2 questions at work already" in said


def test_a_lost_connection_frees_the_request(served):
    url, session, service = served
    with httpx.Client(timeout=30) as client:
        session.pace = 0.05
        asked = ask(client, url, "word " * 200, 200, threading.Event(), leave_after=2)
        session.pace = 0.002
    assert asked.left
    until = time.monotonic() + 5
    while (session.active or service.visitors.inside) and time.monotonic() < until:
        time.sleep(0.02)
    assert session.active == service.visitors.inside == 0


VALUES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES | st.lists(VALUES, max_size=2), max_size=10), st.sampled_from(["generate", "compare"]))
def test_whatever_is_sent_to_the_endpoints_is_answered_in_a_sentence_and_leaves_nothing(served, values, endpoint):
    url, session, service = served
    with httpx.Client(timeout=10) as client:
        body = json.dumps({"data": values})  # NaN included: a client may send anything
        reply = client.post(
            f"{url}/gradio_api/call/{endpoint}", content=body, headers={"Content-Type": "application/json"}
        )
        said = reply.text
        if reply.status_code == 200:
            said = client.get(f"{url}/gradio_api/call/{endpoint}/{reply.json()['event_id']}").text
            assert "event: complete" in said or "event: error" in said
    assert "Traceback" not in said and "/work" not in said and "site-packages" not in said
    assert httpx.get(f"{url}/health").json()["status"] == "ready"


def test_after_all_that_nothing_is_left(served):
    url, session, service = served
    until = time.monotonic() + 5
    while service.visitors.inside and time.monotonic() < until:
        time.sleep(0.02)
    assert session.active == service.users == service.visitors.inside == 0
    assert httpx.get(f"{url}/metrics").headers["content-type"].startswith("text/plain")


def test_a_short_soak_joins_stops_leaves_and_finds_nothing_left_behind(served, monkeypatch):
    monkeypatch.setattr("specdemo.loadtest.AT_REST_AFTER", 0.3)
    report = soak(served[0], os.getpid(), ["one two three " * 20], visitors=5, minutes=0.05, max_new_tokens=40)
    assert report.requests > 5 and report.finished and report.left and not report.errors, report
    assert (report.after.active, report.after.queue, report.after.blocks_held) == (0, 0, 0)
    assert report.memory and report.after.rss_bytes > 0


@pytest.mark.parametrize("left", [{"active": 1}, {"blocks_held": 1}, {"threads": 20}, {"rss_bytes": 3 * 10**9}])
def test_a_soak_that_leaves_something_behind_is_not_clean(left):
    before = Rest(0, 0, 0, 10, 10**9)
    report = SoakReport(60, 9, 5, 4, 0, before, before, ())
    assert report.clean
    assert not dataclasses.replace(report, after=dataclasses.replace(before, **left)).clean
    assert not dataclasses.replace(report, errors=1).clean


def test_the_load_test_counts_what_its_visitors_get(served):
    url, _, _ = served
    crowd = Crowd(url, ["one two three four five", "six seven eight nine ten eleven"], 20)
    assert crowd.compare(2) == (2, 2)
    level, errors = crowd.level(3, 1.0)
    assert isinstance(level, Level) and level.visitors == 3 and errors == []
    assert level.tokens_per_s > 5 and 0 < level.ttft_p50_s <= level.ttft_p95_s
    assert levels_up_to(8) == [1, 4, 8] and levels_up_to(12) == [1, 4, 8, 12]
