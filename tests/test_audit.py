"""The audit tells a lossless engine from a broken one, and its statistics are right."""

import contextlib
import dataclasses
import io
import itertools
import json
import math
import random
import re
from collections import Counter
from functools import partial
from itertools import count
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from helpers import fake_peer, served

from specdemo import cli
from specdemo.audit import chi_square, properties, server_engine
from specdemo.audit.auditor import SIGNIFICANCE, AuditReport, AuditRow, audit, page, verdicts
from specdemo.audit.engines import AuditedEngine, NotOffered, imported, reason
from specdemo.audit.engines import audited as audited_peers
from specdemo.audit.properties import PROPERTIES, Cell, Plan, Subject, cell_of
from specdemo.bench.prompts import read_prompts
from specdemo.commands import audit as audit_command
from specdemo.commands import shared
from specdemo.commands.audit import AuditOptions
from specdemo.engine import acceptance, decode
from specdemo.engine.forwards import Logits
from specdemo.engine.rounds import Draft
from specdemo.errors import BadInput, RequestFailed
from specdemo.machine.terminal import show
from specdemo.options import parse
from specdemo.runs.settings import Settings

PROMPTS = [prompt.instruction for prompt in read_prompts()]
PLAN = Plan(PROMPTS[:9], Settings(max_new_tokens=12), 600, tuple(PROPERTIES))
SMALL = dataclasses.replace(PLAN, prompts=PLAN.prompts[:2], draws=60)
EVERY = frozenset(PROPERTIES) - {"greedy", "repeat"}
SHARES = (0.4, 0.3, 0.2, 0.1)


# Statistics


def test_p_values_of_right_draws_are_uniform_and_their_distance_is_the_noise_floor():
    rng = np.random.default_rng(0)
    exact = {(token,): share for token, share in enumerate(rng.dirichlet(np.ones(16)).tolist())}

    def drawn() -> Counter:
        counts = rng.multinomial(2000, [*exact.values()]).tolist()
        return Counter(dict(zip(exact, counts, strict=True)))

    for test in (
        lambda: chi_square.chi_square([drawn()], exact),
        lambda: chi_square.chi_square([drawn(), drawn()], {}),
    ):
        values, distances, floors = np.array([test() for _ in range(300)]).T
        assert 0.42 < values.mean() < 0.58 and (values < 0.1).mean() == pytest.approx(0.1, abs=0.05)
        assert distances.mean() == pytest.approx(floors.mean(), rel=0.05)
        assert floors.mean() < 0.05
    assert chi_square.chi_square([Counter({(0,): 99, (77,): 1})], {(0,): 0.99, (1,): 0.01})[0] == 0


@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"),
    [(3.841, 1, 0.05), (5.991, 2, 0.05), (24.996, 15, 0.05), (37.697, 15, 0.001), (0, 3, 1)],
)
def test_the_tail_of_chi_square_is_that_of_the_tables(statistic, freedom, tail):
    assert chi_square.chi_square_tail(statistic, freedom) == pytest.approx(tail, rel=1e-3)


@pytest.mark.parametrize(
    ("expected", "groups"),
    [([0.04, 2.0, 4.0, 994.0], [0, 3]), ([2.0, 4.0, 4.5], [0]), ([3.0], [0])],
)
def test_rare_outcomes_are_merged_until_enough_draws_of_them_are_expected(expected, groups):
    assert chi_square.group_begins(np.array(expected)) == groups


def report_of(*p_values: float) -> AuditReport:
    cells = [Cell("pass", draws=100, p_value=value, p_values={"": value}) for value in p_values]
    return AuditReport(rows=[AuditRow("specdemo", "", "", {}, {"sampling": c}) for c in cells])


def test_holms_correction_rejects_in_steps_and_judges_anew_when_rows_are_added():
    def results(report: AuditReport):
        report.judge()
        return [row.cells["sampling"].result for row in report.rows]

    bound = SIGNIFICANCE / 3
    assert results(report_of(0.5, bound * 0.9, 0.006)) == ["pass", "fail", "pass"]
    assert results(report_of(0.5, bound * 0.9, 0.0049)) == ["pass", "fail", "fail"]
    assert results(report_of(0.5, bound * 1.1, 0.0049)) == ["pass"] * 3
    report = report_of(0.009)
    assert results(report) == ["fail"]
    report.rows += report_of(0.5).rows
    assert results(report) == ["pass", "pass"]


# Engines


class ToyEngine(AuditedEngine):
    """Answers that depend on prompt, settings and seed, a token at a time; end token 9. `spoil`
    changes the speculative ones."""

    name, offers, context_limit, parallel = "toy", EVERY, 200, 4

    def __init__(self, method="right", spoil=lambda tokens, settings: tokens):
        self.method, self.spoil = method, spoil

    def generate(self, conversation, settings, speculative):
        tokens = []
        while len(tokens) < settings.max_new_tokens and not self.ended(tokens, settings):
            tokens.append(self.next_token(conversation, settings, tokens))
        return self.spoil(tokens, settings) if speculative else tokens

    def next_token(self, conversation, settings, tokens):
        key = (conversation[0], len(tokens), settings.frequency_penalty)
        if settings.temperature:
            return random.Random(str((*key, settings.seed))).choices(range(4), SHARES)[0]
        if settings.json_schema:
            text = '{"colour":"red","count":1,"sure":true}'
            return text[len(tokens)] if len(tokens) < len(text) else 9
        ends = len(tokens) > 8 and not settings.ignore_eos
        return 9 if ends else random.Random(str(key)).randrange(8)

    def ended(self, tokens, settings):
        return 9 in tokens[-1:] or any(stop in self.text(tokens) for stop in settings.stop)

    def text(self, tokens):
        return "".join(str(token) for token in tokens if token != 9)

    def self_drafted(self, cases):
        return 10 * len(cases), 10 * len(cases) - (3 if self.method == "rejects" else 0)

    def prompt_tokens(self, conversation):
        return sum(len(text.split()) for text in conversation) + 3


def accept_first(tokens, settings):
    """As a rule that takes drafts without a test when it samples."""
    return [tokens[0], tokens[0], *tokens[2:]] if settings.temperature else tokens


def run_on(tokens, settings):
    """Loses the end token of a draft, takes text after a stop string, and forgets penalties."""
    long = settings.stop or settings.frequency_penalty or tokens[-1] == 9
    return [*tokens, 3] if long and not settings.json_schema else tokens


def fail(tokens, settings):
    if settings.json_schema:
        raise NotOffered("toy has no schemas.")
    if settings.seed % 7 == 6:
        raise RequestFailed("toy failed: content_length.")
    return tokens


class BatchVariant(ToyEngine):
    def generate_many(self, cases, speculative):
        first, *others = super().generate_many(cases, speculative)
        return [first if cases[0][1].temperature else (*first[:-2], 7, 7), *others]


class Rounding(ToyEngine):
    def margins(self, conversation, tokens, pair):
        return (0.02, -0.01) if len(conversation[0]) % 2 else (3.0, 2.5)


def audited(engine: AuditedEngine, plan: Plan = PLAN) -> AuditReport:
    report = AuditReport(settings=plan.settings)
    list(audit([engine], plan, report, "pair"))
    return report


def result_of(name: str, engine: AuditedEngine, plan: Plan = PLAN) -> Cell:
    return cell_of(name, Subject(engine), plan)


@pytest.mark.parametrize(
    ("engine", "wrong"),
    [
        (ToyEngine("right"), set()),
        (ToyEngine("accepts drafts", accept_first), {"seed", "sampling"}),
        (BatchVariant("depends on others"), {"batch"}),
        (ToyEngine("rejects"), {"self"}),
        (ToyEngine("runs on", run_on), {"end", "stop", "penalties", "greedy", "context"}),
        (ToyEngine("fails", fail), {"sampling", "seed"}),
    ],
    ids=lambda value: getattr(value, "method", ""),
)
def test_exactly_the_broken_properties_of_an_engine_fail(engine, wrong):
    [row] = audited(engine).rows
    assert set(row.cells) == set(PROPERTIES)
    assert set(row.failures) == wrong
    for failing in row.failures.values():
        assert failing.counterexample or failing.p_value < SIGNIFICANCE


def test_a_property_that_an_engine_does_not_offer_is_no_failure():
    engine = ToyEngine()
    engine.offers = frozenset({"sampling"})
    [row] = audited(engine, SMALL).rows
    results = {name: cell.result for name, cell in row.cells.items()}
    assert results["batch"] == results["schema"] == results["context"] == "not offered"
    assert {results[name] for name in ("greedy", "repeat", "sampling")} == {"pass"}
    assert result_of("schema", ToyEngine("fails", fail)).result == "not offered"
    engine = ToyEngine()
    failing = Settings(seed=6)
    engine.generate = lambda *case: fail((), failing) if not case[2] else [len(case[0])]
    cell = result_of("sampling", engine)
    assert (cell.result, cell.note[:15]) == ("not offered", "Without drafts:")


def test_a_rounding_is_told_from_a_wrong_rule_and_the_smallest_counterexample_is_named():
    rounding = Rounding("rounds", lambda tokens, _: [*tokens[:3], "x", *tokens[4:]])
    result = result_of("greedy", rounding)
    assert result.failures == len(PLAN.prompts)
    assert "rounding" in result.note and "wrong rule" in result.note
    example = result.counterexample
    assert example["position"] == 3 and example["autoregressive"] != example["speculative"]
    assert len(example["prompt"][0]) == min(map(len, PLAN.prompts))
    rounding.margins = lambda *_: (math.inf, 3.0)  # of a server that forbids a token
    result = result_of("greedy", rounding)
    assert result.note == "9 of 9: no margins" and result.counterexample["margins"] is None


def test_the_share_that_the_target_rejects_of_its_own_draft_is_named_once_for_all_methods():
    subject = Subject(ToyEngine("rejects"))
    cell = cell_of("self", subject, PLAN)
    assert (cell.cases, cell.failures) == (90, 3) and "3 of 90 draft tokens rejected" in cell.note
    again = cell_of("self", Subject(ToyEngine("another"), subject.baselines), PLAN)
    assert again == cell, "the same target"
    row = AuditRow("toy", "rejects", "pair", {}, {"self": cell})
    [shown], _ = audit_command._tables(AuditReport(rows=[row])).values()
    assert shown == {"": "own draft", "rejects": "fail, 3.3% rejected"}


@pytest.mark.parametrize(
    ("settings", "spoil", "cause"),
    [
        ({"max_new_tokens": 5}, lambda tokens, _: [*tokens, 1, 2], "too many tokens"),
        ({"stop": ("3", "4", "5", "6", "7")}, run_on, "runs on after a stop string"),
    ],
)
def test_an_answer_that_runs_on_is_told_from_another_answer(settings, spoil, cause):
    case = (PROMPTS[0],), dataclasses.replace(PLAN.settings, **settings)
    assert Subject(ToyEngine("runs on", spoil)).compare([case]).note == f"1 of 1: {cause}"


def test_an_engine_that_gives_two_answers_is_not_repeatable():
    calls = itertools.count()
    result = result_of("repeat", ToyEngine("unstable", lambda tokens, _: [next(calls), *tokens]))
    assert result.counterexample["cause"] == "not repeatable"


class Recording(ToyEngine):
    def __init__(self):
        super().__init__()
        self.requests, self.batches = [], []

    def generate(self, conversation, settings, speculative):
        self.requests.append((conversation, settings, speculative))
        return super().generate(conversation, settings, speculative)

    def generate_many(self, cases, speculative):
        self.batches.append(len(cases))
        return super().generate_many(cases, speculative)


def test_the_context_is_filled_to_its_last_token():
    engine = Recording()
    assert result_of("context", engine).result == "pass"
    asked = ((prompt, settings.max_new_tokens) for prompt, settings, _ in engine.requests)
    lengths = [engine.prompt_tokens(prompt) + limit for prompt, limit in asked]
    assert lengths == [200, 200]
    engine.context_limit = 2
    assert result_of("context", engine).result == "pass", "the toy does not mind"


def test_draws_have_seeds_of_their_own_half_of_them_among_others():
    settings = dataclasses.replace(PLAN.settings, seed=2**63 - 1)  # the largest
    plan = dataclasses.replace(PLAN, settings=settings)
    assert result_of("seed", ToyEngine(), plan).result == "pass"
    engine = Recording()
    result = result_of("sampling", engine, plan)
    assert result.draws == 600 and result.tv_noise_floor < 0.1
    seeds = Counter((settings.seed, way) for _, settings, way in engine.requests)
    assert seeds.most_common(2)[1][1] == 1, "only the first call is made twice"
    assert sum(engine.batches) == 4 + 300 + 300


def test_an_engine_has_a_row_for_each_pair_and_a_verdict_of_all_its_tests():
    report = audited(ToyEngine(), SMALL)
    list(audit([ToyEngine()], SMALL, report, "another pair"))
    assert [row.pair for row in report.rows] == ["pair", "another pair"]
    assert verdicts(report.rows) == ["toy is lossless: none of 22 tests failed."]
    report.rows += audited(ToyEngine("accepts drafts", accept_first), SMALL).rows
    [verdict] = verdicts(report.rows)
    assert re.fullmatch(r"toy failed [1-9] of 33 tests\.", verdict)


def test_the_terminal_has_a_table_for_each_engine_with_whole_words_at_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    report, cells = AuditReport(), {name: Cell("pass") for name in PROPERTIES}
    ways = ("toy", "draft head"), ("toy", "n-gram lookup"), ("other", "draft model")
    report.rows = [AuditRow(*way, "pair", {}, cells) for way in ways]
    tables = audit_command._tables(report)
    assert list(tables) == ["toy, pair", "other, pair"]
    show(tables["toy, pair"], out := io.StringIO())
    words = [line.split() for line in out.getvalue().splitlines()]
    assert ["draft", "head", "n-gram", "lookup"] in words
    assert ["sampled", "distribution", "pass", "pass"] in words


def test_a_verdict_says_why_an_engine_was_not_tested():
    engine = ToyEngine()
    engine.generate = Mock(side_effect=BadInput("top_q is 3; there is no such option."))
    report = audited(engine, SMALL)
    expected = "toy was not tested: top_q is 3; there is no such option."
    assert verdicts(report.rows) == [expected]


def test_the_page_says_who_is_lossless_and_escapes_what_engines_say():
    report = audited(ToyEngine("accepts drafts", accept_first))
    report.rows += audited(ToyEngine(), SMALL).rows
    report.rows[0].engine = "openvino-genai"
    example = {"prompt": ["<script>alert(1)</script>"], "position": 2, "cause": "wrong rule"}
    example |= {"autoregressive": "<b>", "speculative": None, "margins": (3.0, 2.5)}
    cells = report.rows[0].cells
    cells["seed"] = dataclasses.replace(cells["seed"], counterexample=example)
    html = page(report)
    assert "<script>alert" not in html and "&lt;script&gt;" in html and "default-src 'none'" in html
    assert "from the model's own frequencies" in html
    assert "✓ toy:</strong>\nlossless in all 11 tests" in html
    assert "openvino.genai/issues/4190" in html and "has ended" in html


# Peers


def test_a_peer_is_compared_with_its_own_autoregressive_decoding_and_may_fail(
    tiny_llama_pair, monkeypatch
):
    methods = {"autoregressive": {}, "same": {}, "other": {"tokens": (1, 5, 3)}}
    methods |= {"shorter": {"tokens": (1, 2)}, "failing": {"fails": lambda *_: True}}
    methods |= {"autoregressive/default": {"tokens": (4,)}, "same/default": {}}
    peers = [fake_peer(tiny_llama_pair, method, length=5, **how) for method, how in methods.items()]
    monkeypatch.setattr(audit_command, "peers_of", lambda *_: peers)
    settings = Settings(drafter="lookup", draft_tokens=3, numerics="fast")
    how = AuditOptions(peers=("transformers",)), settings
    _, *engines = audit_command._engines(session := Mock(), *how, {})
    session.target_properties.assert_called_once_with("fast")
    assert [engine.method for engine in engines] == [*list(methods)[1:5], "same/default"]
    assert {engine.facts["variant"] for engine in engines} == {"K=3"}
    cells = [result_of("greedy", engine) for engine in engines]
    assert [cell.result for cell in cells] == ["pass", *["fail"] * 4]
    assert [cell.counterexample["position"] for cell in cells[1:3]] == [1, 2]
    assert "no reason" in cells[3].note
    assert result_of("batch", engines[0]).result == "pass"
    assert result_of("sampling", engines[0]).result == "not offered"


def test_a_call_of_a_peer_that_fails_once_is_repeated_and_said(tiny_llama_pair):
    calls = itertools.count()
    once = fake_peer(tiny_llama_pair, "same", fails=lambda *_: next(calls) == 0)
    [engine] = audited_peers([fake_peer(tiny_llama_pair, "autoregressive"), once], 3)
    cell = result_of("greedy", engine)
    assert cell.result == "pass"
    assert cell.note == "1 failed and succeeded when repeated: fake/same failed: no reason"
    assert not result_of("greedy", engine).note, "said where it happened"


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("Exception from src/a.cpp:1:\nCheck 'x' failed at src/b.cpp:2:\nNo room.\n\n", "No room."),
        ("isin() received an invalid argument, expected one of:\n * (Tensor a)\n", "isin() rec"),
        ("Check 'x > 1' failed at src/b.cpp:2:\n", "Check 'x > 1' failed"),
        ("", "ValueError()"),
    ],
)
def test_of_a_message_of_many_lines_the_one_that_says_why_is_shown(message, line):
    assert reason(ValueError(*filter(None, [message]))).startswith(line)


def test_an_engine_of_a_users_own_is_imported_by_name():
    assert imported("test_audit:BatchVariant") is BatchVariant
    with pytest.raises(
        BadInput, match="peers is 'llama'; it must be openvino-genai, .* MODULE:CLASS"
    ):
        parse(AuditOptions, {"peers": "llama"})
    with pytest.raises(BadInput, match="server is 'localhost:8000'; it must be a URL, such as"):
        parse(AuditOptions, {"server": "localhost:8000"})
    options = AuditOptions(peers=("test_audit:Missing",))
    engines = audit_command._engines(Mock(), options, Settings(), {})
    with pytest.raises(BadInput, match="--peers test_audit:Missing cannot be imported"):
        next(engines)  # before ours, which takes many minutes


# Servers


def lent(session, **settings):
    """A session that several servers use and none closes; `settings` change those of a request."""

    def ask(question):
        chosen = dataclasses.replace(question.settings, **settings)
        return session.ask(dataclasses.replace(question, settings=chosen))

    return Mock(ask=ask, info=session.info, context_limit=session.context_limit)


def test_our_server_passes_beside_an_undrafted_one(session, tiny_llama_pair, tmp_path, monkeypatch):
    monkeypatch.setattr(properties, "MAX_CASES", 2)
    tested = {"greedy", "seed", "repeat", "batch", "sampling", "penalties"}
    json_file, html_file = tmp_path / "a.json", tmp_path / "a.html"
    files = ["--json", str(json_file), "--html", str(html_file), "--only", ",".join(tested)]
    limits = ["--limit", "2", "--max-new-tokens", "8", "--draws", "60", "--seed", "1"]
    with (
        served(lent(session), tiny_llama_pair, max_new_tokens=64) as speculative,
        served(lent(session, drafter="none"), tiny_llama_pair, max_new_tokens=64) as baseline,
    ):
        urls = ["--server", speculative.url, "--server-baseline", f"{baseline.url}/v1/"]
        assert cli.main(["audit", *urls, "--server-seed", *limits, *files]) == 0
    [row] = json.loads(json_file.read_text())["rows"]
    results = {name: cell["result"] for name, cell in row["cells"].items()}
    assert results == dict.fromkeys(tested, "pass")
    assert "lossless in all 6 tests" in html_file.read_text()


def lying(request: httpx.Request) -> httpx.Response:
    """Honest below /honest; elsewhere its third token is another one. Refuses schemas. Below /down
    a proxy answers that has no server behind it, below /other one that has no model."""
    if request.url.path.startswith("/down"):
        return httpx.Response(502, text="no model yet")
    if request.url.path.startswith("/other"):
        return httpx.Response(200, json={"data": []})
    if request.method == "GET":
        return httpx.Response(200, json={"data": [{"id": "m"}]})
    body = json.loads(request.content)
    if "response_format" in body:
        return httpx.Response(400, json={"error": "no schemas here"})
    tokens = ["a", "b", "c", "d"][: body["max_tokens"]]
    if not request.url.path.startswith("/honest") and len(tokens) > 2:
        tokens[2] = "x"
    tops = [{"token": t, "logprob": p} for t, p in (("c", -0.1), ("x", -4.1))]
    content = [{"token": token, "logprob": -0.1, "top_logprobs": tops} for token in tokens]
    choice = {"message": {"content": "".join(tokens)}, "logprobs": {"content": content}}
    return httpx.Response(200, json={"choices": [choice]})


def test_a_lying_server_fails_with_its_margins_and_the_command_says_so(capsys, monkeypatch):
    client = partial(httpx.Client, transport=httpx.MockTransport(lying))
    monkeypatch.setattr(server_engine.httpx, "Client", client)
    url = "http://server"
    both = ["--server", url, "--server-baseline", f"{url}/honest"]
    options = ["--limit", "2", "--draws", "20", "--max-new-tokens", "4", "--json", "-"]
    assert cli.main(["audit", *both, *options]) == 1
    with pytest.raises(NotOffered, match="--server-baseline"):
        server_engine.ServerEngine(url, None).generate(("Hello",), PLAN.settings, False)
    with pytest.raises(RequestFailed, match="server/down/v1/models failed: 502 no model yet"):
        server_engine.ServerEngine(url, f"{url}/down")
    with pytest.raises(RequestFailed, match="http://server/other/v1/models names no model"):
        server_engine.ServerEngine(f"{url}/other", None)
    out, err = capsys.readouterr()
    [row] = json.loads(out)["rows"]
    example = row["cells"]["greedy"]["counterexample"]
    assert (example["position"], example["autoregressive"], example["speculative"]) == (2, "c", "x")
    assert example["margins"] == pytest.approx([4.0, 4.0]) and example["cause"] == "wrong rule"
    assert row["cells"]["schema"]["result"] == "not offered"
    assert "changes the output" in err and "wrong rule" in err


def test_a_server_is_asked_for_all_that_the_settings_name():
    given = {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
    given |= {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 5}
    given |= {"ignore_eos": True, "stop": ("x",)}
    body = server_engine._body(("Hi",), Settings(9, **given, logit_bias={3: -1}))
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    assert body == given | asked | {"logit_bias": {3: -1}}
    usual = server_engine._body(("Hi",), Settings(top_k=7, min_p=0.1))
    assert [*usual] == ["messages", "max_tokens", "temperature", "seed"], "others may be refused"


def test_a_server_that_ends_is_no_failure_of_its_decoding(capsys, monkeypatch, tmp_path):
    asked = count()

    def dying(request: httpx.Request) -> httpx.Response:
        if next(asked) > 12:
            raise httpx.ConnectError("refused")
        return lying(request)

    client = partial(httpx.Client, transport=httpx.MockTransport(dying))
    monkeypatch.setattr(server_engine.httpx, "Client", client)
    report = tmp_path / "report.json"
    server = ["--server", "http://server/honest", "--server-baseline", "http://server/honest"]
    options = ["--limit", "2", "--draws", "20", "--max-new-tokens", "4", "--json", str(report)]
    assert cli.main(["audit", *server, *options]) == 1
    err = capsys.readouterr().err
    assert "failed: refused); start it and the audit again." in err
    asked = count(-10_000)
    assert cli.main(["audit", *server, *options]) == 0
    assert "\nserver is lossless: none of " in capsys.readouterr().out
    [row] = json.loads(report.read_text())["rows"]
    assert {cell["result"] for cell in row["cells"].values()} == {"pass", "not offered"}


def test_a_limit_above_the_set_asks_its_prompts_in_other_manners():
    cases = AuditOptions(limit=200).cases()
    assert len(set(cases)) == len(cases) == 200
    assert len(AuditOptions().cases()) == len(read_prompts())


# The command


def audit_quickly(session, monkeypatch) -> None:
    """Audits have this session for their pair, few cases, and short answers to questions that no
    answer of a tiny model ends."""
    monkeypatch.setattr(shared, "load_pair", lambda choice: session.loaded)
    opened = contextlib.nullcontext(session)
    monkeypatch.setattr("specdemo.runs.session.Session", lambda loaded, threads=None: opened)
    monkeypatch.setattr(properties, "MAX_CASES", 2)
    monkeypatch.setattr(properties, "SHORT_ANSWER_TOKENS", 12)


@pytest.fixture
def small_model(session, monkeypatch):
    audit_quickly(session, monkeypatch)


AUDIT = ["audit", "--limit", "3", "--draft-tokens", "3", "--draws", "60", "--json", "-"]
AUDIT += ["--max-new-tokens", "24", "--temperature", "1", "--drafter", "model"]


def test_an_audit_passes_the_true_rule_and_has_the_contracts_fields(small_model, capsys):
    assert cli.main(AUDIT) == 0
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


def accept_everything(rows, draft, sampling, verify=acceptance.verify):
    last = len(draft.tokens)
    context = [*rows.context, *draft.tokens]
    whole = acceptance.TargetRows(Logits(*(part[last:] for part in rows.logits[:2])), context)
    true = verify(whole, Draft(), sampling)
    return dataclasses.replace(true, accepted=last, probabilities=(1.0,) * last)


@pytest.mark.parametrize(
    ("module", "rule", "wrong", "failing"),
    [
        (decode, "verify", accept_everything, {"greedy", "seed", "sampling"}),
        (acceptance, "residual", lambda p, q: p, {"sampling"}),
    ],
)
def test_a_wrong_rule_is_caught(small_model, capsys, monkeypatch, module, rule, wrong, failing):
    monkeypatch.setattr(module, rule, wrong)
    assert cli.main([*AUDIT, "--only", "greedy,seed,sampling"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    [row] = report["rows"]
    assert {name for name, cell in row["cells"].items() if cell["result"] == "fail"} == failing
    assert (report["greedy"]["identical"] < 3) == ("greedy" in failing)
    assert row["cells"]["sampling"]["p_values"]["maximal"] < 1e-4
    assert report["sampling"]["tv_distance"] > 2 * report["sampling"]["tv_noise_floor"]
    assert "changes the output" in err and "sampled distribution" in err
