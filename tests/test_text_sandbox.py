"""Chat templates run in a process of its own: what they take is bounded, what they see is given."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest.mock import Mock

import psutil
import pytest
from helpers import until

from specdemo.errors import BadInput, RequestFailed
from specdemo.machine import threads
from specdemo.machine.threads import PASSED_OVER, ShortestFirst
from specdemo.text import sandbox
from specdemo.text.sandbox import TemplateProcess

TOO_MUCH = [
    "{% set n = namespace(a=[1]) %}" + "{% set n.a = [n.a, n.a] %}" * 26 + "{{ n.a }}",
    "{{ 'a'.encode() * 20000 * 20000 * 20 }}",
    "{{ ([[1] * 10000] * 400) | sum(start=[]) }}",
    "{{ ('a' * 20000) | replace('a', '😀' * 20000) }}",
    "{% for a in range(10**5) %}{% for b in range(10**5) %}{% endfor %}{% endfor %}",
    "{% set s = 'a' * 20000 %}{% for a in range(99999) %}{{ s }}{% endfor %}",
    "{% set b %}{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endset %}",
    "{% set n = namespace(s='ab') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set x = 'a' * 10**6 %}" + "{{ x }}" * 99,  # within the memory, but not of this size
    "{{ 'a' * 10**11 }}",
    "{{ 'a'.ljust(99999999999) }}",
    "{{ '{:99999999999}'.format(1) }}",
    "{{ '%99999999999d' % 1 }}",
    "{{ messages | tojson(indent=10**10) }}",
    "{{ ('a' * 10**5) | wordwrap(1) | wordwrap(1) | urlize }}",
    "{{ strftime_now('%Y' * 10**7) }}",
    "{{ 2 ** (10**9) }}",
    "{{ raise_exception('a' * 10**10) }}",
]
REFUSED = {
    "{% for a in range(10**12) %}{% endfor %}": "Range too big",
    "{% for a in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}": "recursion",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "recursion",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "recursion",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "unsafe",
    "{{ messages.append(1) }}": "unsafe",
    "{{ raise_exception('no system text') }}": "no system text",
    "{% if %}": "Expected an expression",
    "{{ cycler.__init__.__globals__.os.system('true') }}": "unsafe|undefined",
}


@pytest.fixture(scope="module")
def process():
    shared = TemplateProcess()
    yield shared
    shared._end()


@pytest.mark.slow
@pytest.mark.parametrize("template", TOO_MUCH)
def test_a_template_that_takes_too_much_is_one_sentence_and_costs_nothing_later(process, template):
    used, memory = children_seconds(), psutil.Process().memory_info().rss
    assert process.render("{{ 1 }}", {}) == "1"
    with pytest.raises(BadInput, match="refuses this conversation: it takes too much") as caught:
        process.render(template, {"messages": [{"role": "user", "content": "Hi"}]})
    assert caught.value.param == "messages"
    assert children_seconds() - used < 1.5
    assert psutil.Process().memory_info().rss - memory < 20e6
    assert process.render("{{ 2 }}", {}) == "2"


def test_the_shortest_request_is_rendered_first(process):
    order, sizes = [], (300_000, 500_000, 10, 20_000)

    def render(size: int) -> None:
        order.append(int(process.render("{{ text | length }}", {"text": "x" * size})))

    with ThreadPoolExecutor(4) as pool, process._turns.turn(0):
        pool.map(render, sizes)
        until(lambda: len(process._turns.waiting) == 4)
    assert order == sorted(sizes)


def test_a_long_request_is_passed_over_by_a_few_short_ones_only():
    turns, order = ShortestFirst(), []

    def work(size: int) -> None:
        with turns.turn(size):
            order.append(size)

    with ThreadPoolExecutor(12) as pool, turns.turn(0):
        pool.map(work, [1000, *range(1, 11)])
        until(lambda: len(turns.waiting) == 11)
    assert order.index(1000) == PASSED_OVER


def test_a_turn_is_followed_by_its_rest_whatever_comes_of_it(monkeypatch):
    turns, waits = ShortestFirst(rest=10.0), []
    monkeypatch.setattr(threads, "perf_counter", lambda: 2.0 + sum(waits))
    monkeypatch.setattr(turns._changed, "wait", waits.append)
    with suppress(ValueError), turns.turn(9):
        monkeypatch.setattr(threads, "perf_counter", lambda: 3.0 + sum(waits))
        raise ValueError
    assert waits == [], "the request that had the turn does not wait"
    with turns.turn(1):
        assert waits == [10.0]


def children_seconds() -> float:
    """Processor seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(("template", "words"), REFUSED.items())
def test_what_jinja_refuses_is_one_sentence_and_keeps_the_process(process, template, words):
    process.render("", {})
    before = process._process.pid
    with pytest.raises(BadInput, match=f"refuses this conversation: .*({words})"):
        process.render(template, {"messages": []})
    assert process.render("", {}) == "" and process._process.pid == before


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% generation %}{% set a = 1 %}a{% endgeneration %}{{ a }}", "a"),
        ("{%- for a in range(9) %}{% if a == 2 %}{% break %}{% endif %}{{ a }}{% endfor %}", "01"),
        ("{{ {'b': '<é>', 'a': 1} | tojson(sort_keys=true) }}", '{"a": 1, "b": "<é>"}'),
        ("{{ ['é'] | tojson(ensure_ascii=true, indent=1) }}", '[\n "\\u00e9"\n]'),
        ("{{ {'a': 1} | tojson(separators=(',', ':')) }}", '{"a":1}'),
        ("{{ ['é'] | tojson(true, 1) }}", '[\n "\\u00e9"\n]'),
        ("{{ strftime_now('%%') }}{{ text }}", "%\ud800😀\n"),
    ],
)
def test_templates_have_what_transformers_gives_them(process, template, text):
    assert process.render(template, {"text": "\ud800😀\n"}) == text


def test_the_process_inherits_no_variables_and_no_signals(process, monkeypatch):
    monkeypatch.setenv("SPECDEMO_API_KEY", "secret")
    process._end()
    process.render("", {})
    child = psutil.Process(process._process.pid)
    assert set(child.environ()) <= {*sandbox.KEPT_VARIABLES, "LC_CTYPE"}
    assert os.getpgid(child.pid) != os.getpgid(0)
    child.send_signal(signal.SIGTERM)  # a service manager signals all processes of a server
    assert process.render("{{ 1 }}", {}) == "1" and process._process.pid == child.pid


def test_a_process_that_is_killed_or_interrupted_leaves_no_answer_to_the_next(process, monkeypatch):
    assert process.render("{{ a }}", {"a": 1}) == "1"
    process._process.kill()
    process._process.wait()
    assert process.render("{{ a }}", {"a": 2}) == "2"
    with monkeypatch.context() as patch:
        patch.setattr("specdemo.text.sandbox._read", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            process.render("{{ 1 }}", {})
    assert process.render("{{ 2 }}", {}) == "2"


def test_threads_and_forks_get_their_own_answers():
    def rendered(number: int) -> bool:
        if number % 16 == 0:
            with pytest.raises(BadInput, match="too much"):
                sandbox.render("{{ 'a' * 10**11 }}", {})
        return sandbox.render("{{ a }}", {"a": number}) == str(number)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(rendered, range(32)))
    with multiprocessing.get_context("fork").Pool(2) as forks:
        requests = [("{{ a }}", {"a": number}) for number in range(9)]
        assert forks.starmap(sandbox.render, requests) == [str(number) for number in range(9)]
    assert rendered(1)


@pytest.mark.slow
def test_the_process_ends_with_its_parent():
    code = (
        "import os; from specdemo.text.sandbox import TemplateProcess\n"
        "made = TemplateProcess(); made.render('', {}); print(made._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    until(lambda: not psutil.pid_exists(int(done.stdout)))


def test_a_process_that_cannot_start_is_one_sentence(process, monkeypatch):
    process._end()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(RequestFailed, match="renders chat templates cannot be started: .*nowhere"):
        process.render("", {})
