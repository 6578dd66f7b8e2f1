"""A benchmark of a toy session: prompts, JSON, arithmetic, peers, the decision, the command."""

import contextlib
import dataclasses
import itertools
import json
from functools import partial
from math import isnan, log2
from types import SimpleNamespace
from unittest.mock import ANY, Mock

import httpx
import pytest
from helpers import fake_peer, race_trace
from toy_session import DRAFT_SECONDS, TARGET_SECONDS, ToySession, byte_pair, toy_clock

from specdemo import cli
from specdemo.audit import engines, genai_peer, llama_peer
from specdemo.audit.engines import NotOffered, peers_of
from specdemo.bench import charts, decision
from specdemo.bench import report as report_module
from specdemo.bench.charts import by_acceptance, page
from specdemo.bench.decision import WAYS, as_code
from specdemo.bench.prompts import BenchPrompt, read_prompts, spread
from specdemo.bench.report import BenchReport, RacedPrompt, bench, summary_of, tables, with_vote
from specdemo.commands import shared
from specdemo.convert.model_files import SOURCE
from specdemo.engine.pair_files import Checkpoint
from specdemo.errors import BadInput, MissingPackage, RequestFailed
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.answer_run import AnswerRun
from specdemo.runs.judge import PairedRuns, judge
from specdemo.runs.settings import Settings
from specdemo.runs.trace import Summary, as_json

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
PROMPTS = (
    BenchPrompt("one", "qa", "Why is the sky blue today and not green?"),
    BenchPrompt("two", HOSTILE, "Repeat: one two three one two three"),
    BenchPrompt(HOSTILE, "qa", f"{HOSTILE} and some more words"),
)
EMPTY = SimpleNamespace(id="empty", task="qa", instruction=" ")
SETTINGS = Settings(max_new_tokens=24)


peer_of = partial(fake_peer, byte_pair())


@pytest.fixture(scope="module", autouse=True)
def clock():
    with toy_clock():
        yield


def report_of(prompts=PROMPTS, settings=SETTINGS, differs_at=None, **more) -> BenchReport:
    with ToySession(right=(2, 3)) as session:
        session.target.differs_at = differs_at
        return bench(session, prompts, settings, **{"users": False, **more})


@pytest.fixture(scope="module")
def report(clock) -> BenchReport:
    return report_of(repeats=2, peers=[peer_of()])


def test_json_has_the_fields_of_the_contract_and_no_others_in_rows_and_summary(report):
    data = json.loads(as_json(report))
    fields = "machine versions pair settings rows summary decision peers details"
    row = "id task tokens autoregressive_s speculative_s speedup acceptance_rate tokens_per_round"
    summary = (
        "speedup speedup_by_task worst_prompt_speedup autoregressive_tokens_per_s "
        "speculative_tokens_per_s acceptance_rate tokens_per_round identical prompts "
        "outside_inference_fraction cpu_seconds_per_token joules_per_token"
    )
    assert sorted(data) == sorted(fields.split())
    assert data["settings"]["draft_tokens"] == "auto" and data["pair"]["target"] == "toy target"
    assert [row["id"] for row in data["rows"]] == [prompt.id for prompt in PROMPTS]
    assert list(data["rows"][0]) == [*row.split(), "identical", "counted"]
    assert list(data["summary"]) == summary.split()
    assert list(data["summary"]["cpu_seconds_per_token"]) == ["autoregressive", "speculative"]
    assert list(data["peers"]["fake/speculative"]) == ["tokens_per_s", "settings", "identical"]


def test_speedups_are_total_time_over_total_time():
    common = {"decoded": 1, "baseline_decoded": 1, "baseline_decode_seconds": 4.0}
    figures = [Summary(decode_seconds=seconds, **common) for seconds in (1.0, 3.0)]
    counts = {"prompt": PROMPTS[0], "identical": True, "pair": PairedRuns(1.0)}
    measured = [SimpleNamespace(figures=f, **counts) for f in figures]
    summary = summary_of(measured)
    assert summary["speedup"] == summary["speedup_by_task"]["qa"] == 2.0, "not the mean, 2.67"
    assert summary["worst_prompt_speedup"] == pytest.approx(4 / 3)


def test_a_prompt_that_cannot_be_used_is_skipped_and_one_that_differs_says_where():
    report = report_of([EMPTY, *PROMPTS], Settings(24, 15), differs_at=5)
    assert [row["id"] for row in report.rows] == [prompt.id for prompt in PROMPTS]
    assert report.rows[0]["identical"] is False
    assert "is empty" in report.details.skipped["empty"]
    difference = report.details.differences["one"]
    assert all(part in difference for part in ("token 6 is 's'", "'t'", "20 logits"))


def test_page_draws_the_numbers_of_the_report_and_escapes_labels():
    report = report_of(settings=Settings(24, 1, "model"), repeats=2, peers=[peer_of()])
    html = page(report)
    assert html.count('class="plotly-graph-div"') == 5 and "default-src 'none'" in html
    assert HOSTILE not in html
    by_rate, by_task, by_position, time_spent, by_peer = (c.data for c in charts.charts_of(report))
    assert len(by_rate[0].z[0]) == 11 and by_rate[0].z[0][0] < 0 < by_rate[0].z[0][10]
    total = report.details.total
    assert list(by_task[0].y) == [*report.summary["speedup_by_task"].values()]
    assert list(by_task[1].y) == [row["speedup"] for row in report.rows]
    assert by_task[0].x[1].startswith("&lt;/script&gt;&lt;script&gt;")
    assert list(by_position[0].y) == [total.accepted / total.examined]
    assert time_spent[1].y[0] == pytest.approx(1e3 * total.draft_seconds / total.decoded)
    assert by_peer[0].y[-1] == report.peers["fake/speculative"]["tokens_per_s"]


# Peers


def test_the_fastest_variant_of_a_peer_is_reported_and_compared_token_by_token():
    ids = tuple(byte_pair().tokenizer.encode(PROMPTS[0].instruction)[:24])
    fast = peer_of(variant="fast", tokens=ids, seconds=0.1)
    others = [peer_of(variant="slow"), peer_of("other", tokens=(*ids[:-1], 0))]
    peers = report_of(PROMPTS[:1], peers=[*others, fast]).peers
    assert peers["fake/speculative"]["settings"] == {"variant": "fast"}
    assert peers["fake/speculative"]["tokens_per_s"] == pytest.approx(23 / 0.1)
    assert peers["fake/speculative"]["identical"] is True
    assert peers["fake/other"]["identical"] is False


def test_the_summary_begins_with_our_baseline_relative_to_the_peers():
    llama = peer_of("autoregressive", name="llama-cpp", tokens=(1,) * 11)
    report = report_of(peers=[peer_of(), llama])
    first, *others = tables(report)["Summary"]
    assert first[""] == "autoregressive, relative to llama-cpp/autoregressive"
    assert first["is"] == pytest.approx(report.summary["autoregressive_tokens_per_s"] / 20)
    assert not any("relative" in row[""] for row in others)


def test_answers_of_peers_that_other_programs_starve_are_repeated_and_never_count(monkeypatch):
    shares = iter([1, 1, 0.5, 0.4, 0.9, *[0.5] * 6])  # 1 to warm up, 1, 3 and 6 tries at 4 answers
    answers = iter([0.1, 0.1, *[99] * 2, 0.1, *[99] * 6])

    def measured(work):
        [(ids, _)] = work()
        return [(ids, next(answers))], next(shares)

    monkeypatch.setattr(report_module, "measured_share", measured)
    prompts = [BenchPrompt(str(number), "qa", f"Question {number}") for number in range(4)]
    report = report_of(prompts, peers=[peer_of("autoregressive", tokens=(1,) * 11)])
    assert report.peers["fake/autoregressive"]["tokens_per_s"] == pytest.approx(10 / 0.1)
    why = "other programs take half of this machine"
    assert report.details.skipped == {"fake/autoregressive, speed of 2 of 4 answers": why}


@pytest.mark.parametrize("starved", ["ours", "theirs"])
def test_there_is_no_ratio_to_a_peer_if_no_answer_of_either_counts(monkeypatch, starved):
    if starved == "ours":
        monkeypatch.setattr(AnswerRun, "share", 0.5)
    else:
        monkeypatch.setattr(report_module, "measured_share", lambda work: (work(), 0.5))
    report = report_of(peers=[peer_of("autoregressive")])
    shown = tables(report)
    title = "Summary, though no prompt counts" if starved == "ours" else "Summary"
    assert not any("relative" in row[""] for row in shown[title])
    assert starved == "theirs" or "Users at once" not in shown
    assert (report.tokens_per_s["fake/autoregressive"] is None) == (starved == "theirs")


@pytest.mark.parametrize("failing", [0, 3])
def test_a_peer_that_fails_is_left_out_with_a_reason_and_the_bench_goes_on(failing):
    prompts = [BenchPrompt(str(number), "qa", f"Question {number}") for number in range(4)]
    name = prompts[failing].instruction
    fakes = [peer_of(fails=lambda text, settings: text == name), peer_of("good")]
    report = report_of(prompts, peers=fakes)
    assert len(report.rows) == 4 and list(report.peers) == ["fake/good"]
    assert "no reason" in report.details.skipped["fake/speculative (kind)"]


def test_a_peer_that_answers_too_long_or_at_a_second_try_only_is_measured_all_the_same():
    calls = itertools.count()
    peer = peer_of(tokens=(1,) * 200, fails=lambda *_: next(calls) == 0)
    report = report_of(peers=[peer])
    assert report.peers["fake/speculative"]["tokens_per_s"] == (SETTINGS.max_new_tokens - 1) / 0.5
    assert report.details.skipped == {
        "fake/speculative (kind), a call": "It was repeated: fake/speculative failed: no reason"
    }


def llama_server(request: httpx.Request) -> httpx.Response:
    """Completes a prompt with the sum of its ids and a constant."""
    body = json.loads(request.content)
    tokens = [sum(body["prompt"]), 8][: body["n_predict"]]
    top = [{"id": 1, "logprob": -0.5}, {"id": 2, "logprob": -len(body["prompt"])}]
    reply = {
        "tokens": tokens,
        "stop_type": "limit" if len(tokens) == body["n_predict"] else "eos",
        "timings": {"predicted_ms": 500, "draft_n": 4, "draft_n_accepted": 3},
        "completion_probabilities": [{"top_logprobs": top[: body.get("n_probs", 0)]}],
    }
    return httpx.Response(200, json=reply)


def test_llama_cpp_is_any_server_and_answers_to_the_stop_token_or_the_limit(
    tiny_llama_pair, tmp_path, monkeypatch
):
    begun = []

    @contextlib.contextmanager
    def started(*options, program):
        begun.append((program, options))
        yield SimpleNamespace(url="http://llama")

    asked = Mock(side_effect=llama_server)
    client = partial(httpx.Client, transport=httpx.MockTransport(asked))
    monkeypatch.setattr(llama_peer, "started", started)
    monkeypatch.setattr(llama_peer.httpx, "Client", client)
    models = {"target": tmp_path / "target.xml", "draft": tmp_path / "draft.xml"}
    pair = dataclasses.replace(tiny_llama_pair, **models, stop_ids=frozenset({9}))
    monkeypatch.setenv("LLAMA_SERVER", __file__)
    for target in (pair.target, Checkpoint(tmp_path)):
        with pytest.raises(BadInput, match="GGUF"):
            list(peers_of("llama-cpp", dataclasses.replace(pair, target=target), {}))
    (tmp_path / SOURCE).touch()
    ways = list(peers_of("llama-cpp", pair, {}))
    names = ["autoregressive", *["ngram-mod"] * 2, "ngram-simple", *["draft-simple"] * 2]
    assert [way.title for way in ways] == [f"llama-cpp/{name}" for name in names]
    prompt = pair.template.render("Hello", pair.tokenizer)
    last = ways[-1]
    settings = Settings(max_new_tokens=9, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1)
    assert last.answers([("Hello",)], settings) == [((sum(prompt), 8, 9), 0.5)]
    body = json.loads(asked.call_args.args[0].content)
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1}
    assert {name: body[name] for name in sampling} == sampling
    assert engines.sampling_options(settings, 0).items() >= sampling.items(), "of other peers"
    with pytest.raises(NotOffered, match="not asked with logit_bias"):
        last.answers([("Hello",)], Settings(logit_bias={1: -1}))
    assert last.answers([("Hello",)], Settings(max_new_tokens=1)) == [((sum(prompt),), 0.5)]
    [(program, options)] = begun
    draft = ("draft-simple", "-md", str(tmp_path / SOURCE), "--spec-draft-n-max")
    assert program == __file__ and options[-5:] == (*draft, "8")
    assert ways[-2].answers([("Hello",)], Settings(max_new_tokens=1))
    assert begun[-1][1][-5:] == (*draft, "3"), "a server for each length"
    assert last.self_drafted([(("Hello",), Settings(draft_tokens=4))] * 2) == (8, 6)
    assert begun[-1][1][-5:] == (*draft, "4")
    assert last.margins(("Hello",), (5,), (1, 2)) == (len(prompt) + 0.5,) * 2
    assert any(map(isnan, last.margins(("Hello",), (5,), (1, 3))))  # that of 3 is unknown
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "none"))
    with pytest.raises(MissingPackage, match="LLAMA_SERVER"):
        list(peers_of("llama-cpp", pair, {}))


def test_a_pipeline_without_room_is_left_out(tiny_llama_pair, monkeypatch):
    monkeypatch.setattr(genai_peer, "available_bytes", lambda: 10)
    first, *others = peers_of("openvino-genai", tiny_llama_pair, {"A": "b"})
    lengths = {(way.method, way.length) for way in others}
    assert lengths >= {("prompt-lookup", 3), ("prompt-lookup/default", 5), ("speculative", 2)}
    with pytest.raises(RequestFailed, match="openvino-genai/autoregressive failed: it needs"):
        first.answers([("hello",)], SETTINGS)


def test_an_engine_that_is_not_installed_is_named_with_its_extra(tiny_llama_pair, monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"pip install 'specdemo\[peers\]"):
        list(peers_of("openvino-genai", tiny_llama_pair, {}))


def test_openvino_genai_answers_on_the_same_ir(tiny_llama_pair):
    ways = peers_of("openvino-genai", tiny_llama_pair, {})
    lookup = next(way for way in ways if way.length)
    [(tokens, seconds)] = lookup.answers([("Name three colours.",)], Settings(max_new_tokens=8))
    lookup.close()
    assert lookup.method == "prompt-lookup" and 1 < len(tokens) <= 8 and seconds > 0


# Prompts


def line(**fields) -> str:
    return json.dumps({"id": 1, "task": "qa", "instruction": "Why?", **fields}, ensure_ascii=False)


def test_ids_may_be_numbers_and_unknown_keys_and_blank_lines_do_not_matter(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = line(id=82, reference="x"), "", line(id="b", instruction="日本\u2028語")
    path.write_text("\n".join(lines), encoding="utf-8")
    texts = {"82": "Why?", "b": "日本\u2028語"}
    assert read_prompts(path) == tuple(BenchPrompt(id, "qa", text) for id, text in texts.items())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no prompts"),
        (b"\xff\xfe\x00", "cannot be read: it is not UTF-8 text"),
        (b"\n" + b"[" * 100_000, "line 2: the prompt is .*; it is not JSON: "),
        (b'{"id": 1, "task": "qa"}', "line 1: instruction is missing"),
        (line(instruction=" ").encode(), "line 1: instruction is ' '; it must not be blank."),
        (f"{line(id='first')}\n{line(id='first')}".encode(), "line 2 repeats the id 'first'"),
    ],
)
def test_a_bad_file_of_prompts_is_refused_by_line(tmp_path, content, says):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BadInput, match=f"--prompts .*file {says}"):
        read_prompts(tmp_path / "file")


@pytest.mark.parametrize(
    ("first", "limit", "taken"), [(40, 12, [4, 4, 4]), (2, 11, [2, 5, 4]), (1, 99, [1, 40, 40])]
)
def test_a_limit_spreads_over_tasks_and_over_each_tasks_whole_length(first, limit, taken):
    prompts = [
        BenchPrompt(f"{task}{number}", task, "?")
        for task, count in {"a": first, "b": 40, "c": 40}.items()
        for number in range(count)
    ]
    chosen = spread(prompts, limit)
    assert [sum(prompt.task == task for prompt in chosen) for task in "abc"] == taken
    assert [prompt.task for prompt in chosen][:3] == ["a", "b", "c"], "tasks take turns"
    ids = [prompt.id for prompt in chosen if prompt.task == "c"]
    assert ids[:2] == ["c0", f"c{40 // taken[2]}"]


def test_the_map_has_a_colour_for_each_speed_up_and_names_the_measured_ones():
    speedups = [[[0.25, 1.0, 2.0, 3.0]], [[0.2, 0.5, 0.9, 1.0]]]
    rates, users = [0.0, 0.5, 0.58, 1.0], [1, 2]
    estimates = {"rates": rates, "users": users, "speedups": speedups, "acceptance_rate": 0.58}
    cells, circles = by_acceptance(estimates).data
    assert [list(row) for row in cells.z] == [[-2.0, 0.0, log2(3)], [log2(0.2), -1.0, 0.0]]
    assert cells.zmax == -cells.zmin == pytest.approx(log2(5))
    assert [list(row) for row in cells.text] == [["0.2", "", "3.0"], ["0.2", "", "1.0"]]
    assert list(circles.text) == ["2.0", "0.9"]


# The decision


def test_the_decision_is_told_with_its_settings_and_the_curve_of_users(monkeypatch):
    monkeypatch.setattr(decision, "USER_TOKENS", 8)
    monkeypatch.setattr(decision, "perf_counter", float)  # it is never late
    prompts = [BenchPrompt(str(n), f"task {n % 2}", f"Question {n}") for n in range(6)]
    fixed, choice = Settings(24, 1, "model"), ModelChoice("toy", kv_cache="f16")
    report = report_of(prompts, fixed, users=True, choice=choice)
    made = json.loads(as_json(report))["decision"]
    # Draft tokens are always right: two tokens for a forward of the target and one of the draft.
    assert made["use"] is True and made["verdict"]["result"] == "faster"
    for said in (
        "Use drafts here (draft model, draft length 1): 1.3",
        "(97 % confidence, 6 prompts), the worst 1.3",
        "faster on 2 of 2 tasks, answers identical.",
    ):
        assert said in made["sentence"]
    options = "--pair toy --kv-cache f16 --draft-tokens 1 --drafter model"
    assert made["command"] == f"specdemo run INSTRUCTION {options}"
    loaded, asked = "pair='toy', kv_cache='f16'", "prompt, draft_tokens=1, drafter='model'"
    assert made["python"] == f"specdemo.load({loaded}).generate({asked})"
    assert [row["users"] for row in made["users"]] == [1, 2, 4, 8] and made["pays_for"] >= 1
    for row in made["users"]:
        assert row["measurements"] == 6
        both = row["speculative_tokens_per_s"], row["autoregressive_tokens_per_s"]
        assert row["speedup"] == pytest.approx(both[0] / both[1])
    [curve, *_] = charts.charts_of(report)
    assert [len(line.y) for line in curve.data] == [4, 4] and made["sentence"] in page(report)
    worst, up_to = report.summary["worst_prompt_speedup"], f"up to {made['pays_for']} users"
    users = up_to if made["pays_for"] > 1 else "for one user"
    assert (
        made["headline"]
        == f"Yes: {report.summary['speedup']:.2f}x, {users}, no prompt below {worst:.2f}x"
    )
    estimates = made["estimates"]
    assert estimates["users"] == [row["users"] for row in made["users"] if row["speedup"]]
    at = estimates["rates"].index(estimates["acceptance_rate"])
    measured = [lengths[0][at] for lengths in estimates["speedups"]]
    several = [row["speedup"] for row in made["users"][1:]]
    assert measured == pytest.approx([report.summary["speedup"], *several])
    # Two tokens for a forward of the target and one of the draft; four for three of the draft.
    seconds = TARGET_SECONDS + DRAFT_SECONDS, TARGET_SECONDS + 3 * DRAFT_SECONDS
    for length, spent in zip((1, 3), seconds, strict=True):
        best = (length + 1) * TARGET_SECONDS / spent
        assert estimates["speedups"][0][length][-1] == pytest.approx(best, rel=0.02)
        assert estimates["speedups"][0][length][0] == pytest.approx(
            TARGET_SECONDS / spent, rel=0.02
        )


def decided(speedups=(1.4,) * 6, users=(), identical=True, why="", **settings):
    trace = dataclasses.replace(race_trace("One"), identical=identical, rounds=(), baseline=None)
    verdict = judge([PairedRuns(speedup, why) for speedup in speedups], "prompt")
    rows = [
        {"users": n, "speedup": known, "interval": (low, 2.0), "measurements": 3 + 3 * bool(known)}
        | {"autoregressive_tokens_per_s": 10.0}
        for n, low, known in users
    ]
    tasks = {"qa": speedups[0], "prose": speedups[-1]}
    summary = {"speedup_by_task": tasks, "worst_prompt_speedup": min(speedups), "speedup": 1.3}
    summary |= {"tokens_per_round": 1.5, "autoregressive_tokens_per_s": 10.0}
    asked = Settings(**settings)
    return decision.decide(verdict, [trace], summary, rows, ModelChoice("x"), asked)


@pytest.mark.parametrize(
    ("made", "use", "says", "pays_for"),
    [
        (decided(), True, "the worst 1.40x, faster on 2 of 2 tasks, answers identical. They", 1),
        (decided([0.8] * 6), False, "Do not use drafts here (nothing accepted, draft length a", 0),
        (decided([0.97, *[1.4] * 8]), True, "the worst 0.97x, faster on 1 of 2 tasks", 1),
        (decided([1.4] * 3), None, "Run 16 prompts to decide: `specdemo bench --limit 16`.", 0),
        (decided([0.9, 1.1] * 9), None, "1.30x in all, the median prompt 0.90x to 1.10x", 0),
        (decided([0.9, 1.1] * 9), None, "too small for this number of prompts.", 0),
        (decided(why="it rained"), None, "6 not counted: it rained. Run it again when other", 0),
        (decided(identical=False), False, "answers different in 1 of 1 races.", 0),
        (decided(identical=False, temperature=1.0, coupling="maximal"), True, "same distrib", 1),
        (
            decided(users=[(1, 1.4, 1.5), (2, 1.2, 1.3), (4, 0.9, 1.0), (8, 1.1, 1.2)]),
            True,
            "They pay for up to 2 users at once; with 4 it is 0.90x to 2.00x.",
            2,
        ),
        (
            decided(users=[(1, 1.4, 1.5), (2, 1.2, None), (4, 1.2, 1.3)]),
            True,
            "They pay for one user; 2 are unknown (3 of 6 measurements).",
            1,
        ),
        (decided(users=[(1, 1.4, 1.5)]), True, "They pay for one user; more were not measured.", 1),
    ],
)
def test_what_is_decided_follows_from_the_verdict_the_answers_and_the_users(
    made, use, says, pays_for
):
    assert made.use is use and says in made.sentence and made.pays_for == pays_for
    assert ("They pay" in made.sentence) == bool(use)
    assert ("--drafter none" in made.command) == (use is False)
    begin = {True: "Yes: 1.30x, ", False: "No, because ", None: "Undecided"}[use]
    assert made.headline.startswith(begin) and made.estimates is None


def test_the_command_of_a_decision_has_every_setting_that_changes_the_answers():
    changed = Settings(repetition_penalty=1.1, presence_penalty=0.5, json_schema="{}")
    for code in as_code(ModelChoice(), changed):
        words = code.replace("-", "_")
        assert all(name in words for name in ("repetition_p", "presence_p", "json_schema"))


def test_a_number_of_users_is_unknown_until_six_measurements_count():
    whys = ["", "", "", "busy", "", ""]
    measured = [PairedRuns(1 + n / 10, why, 10, 10 + n) for n, why in enumerate(whys)]
    row = decision.users_row(2, measured)
    assert row["speedup"] is None and row["measurements"] == 5
    row = decision.users_row(2, [*measured, PairedRuns(3.0, "", 10, 30)])
    assert row["speedup"] == 1.2 and row["speculative_tokens_per_s"] == 12


def test_a_short_answer_has_no_vote_but_counts(monkeypatch):
    lengths = iter([40, 40, 9, 40])
    items = [RacedPrompt(prompt, Settings()) for prompt in PROMPTS] + [
        RacedPrompt(PROMPTS[0], Settings())
    ]
    for item in items:
        trace = SimpleNamespace(token_ids=[0] * next(lengths), why="")
        item.traces.append(trace)
    monkeypatch.setattr(RacedPrompt, "figures", SimpleNamespace(speedup=1.2))
    assert with_vote(items) == [items[0], items[1], items[3]]


@pytest.mark.parametrize(("more", "counted"), [({}, [3, 0]), ({"seconds": 1e-9}, [0, 1])])
def test_a_starved_race_is_repeated_but_where_time_is_short(monkeypatch, more, counted):
    # The warm-up's two runs, then one that other programs starve.
    shares = iter([1.0, 1.0, 0.5, *[1.0] * 99])
    monkeypatch.setattr(AnswerRun, "share", property(lambda run: next(shares)))
    report = report_of(PROMPTS, **more)
    assert len(report.rows) == sum(counted)
    verdict = report.decision.verdict
    assert [verdict.races, verdict.uncounted] == counted and report.decision.use is None


def test_a_starved_prompt_is_in_no_figure_and_one_of_a_single_token_in_no_verdict(monkeypatch):
    shares = iter([1.0, 1.0, *[0.5] * 6, *[1.0] * 99])
    monkeypatch.setattr(AnswerRun, "share", property(lambda run: next(shares)))
    report = report_of(PROMPTS)
    [_, second, third], summary = report.rows, report.summary
    assert summary["worst_prompt_speedup"] == min(second["speedup"], third["speedup"])
    assert list(summary["speedup_by_task"]) == [PROMPTS[1].task, "qa"]
    assert summary["speedup_by_task"]["qa"] == third["speedup"] and summary["prompts"] == 3
    shares = iter([1.0, 1.0, *[0.5] * 12, *[1.0] * 99])
    [row, _] = report_of(PROMPTS, lengths=(3, 6)).lengths
    assert row["answers"] == 2 and row["tokens"] == 3
    single = report_of(PROMPTS, Settings(max_new_tokens=1), users=True).decision
    assert single.use is None and single.pays_for == 0 and not single.users


# Answer lengths


def test_several_lengths_give_rows_for_each_and_one_length_the_report_as_ever():
    fixed = {"settings": Settings(24, 1, "model")}
    single = report_of(**fixed, lengths=(24,))
    several = report_of(PROMPTS[:2], lengths=(3, 6, 3), repeats=2)
    assert "lengths" not in vars(single)
    assert single.rows == [pytest.approx(row) for row in report_of(**fixed).rows]
    rows = [(row["id"], row["max_new_tokens"], row["tokens"]) for row in several.rows]
    assert rows == [("one", 3, 3), ("one", 6, 6), ("two", 3, 3), ("two", 6, 6)]
    assert [row["max_new_tokens"] for row in several.lengths] == [3, 6]
    for number, length in enumerate(several.lengths):
        first, second = several.rows[number::2]
        baseline, ours = (first[f"{way}_s"] + second[f"{way}_s"] for way in WAYS)
        assert length["speculative_s"] == pytest.approx(ours / 2)
        assert length["speedup"] == pytest.approx(baseline / ours) and length["identical"]
    assert tables(several)["Answer lengths"][1]["answers"] == 2
    assert "Answer lengths" not in tables(single)


def test_the_bars_of_the_chart_are_those_of_the_report_beside_the_papers_ratios():
    report = report_of(PROMPTS[:1], lengths=(3, 6))
    drawn = charts.charts_of(report)[1].data
    ours = {way: [row[f"{way}_s"] for row in report.lengths] for way in charts.WAYS}
    assert {bars.name: list(bars.x) for bars in drawn} == ours
    assert [name.split("<br>")[0] for name in drawn[0].y] == ["3 tokens", "6 tokens"]
    [first, _] = charts.wall_clock([row | {"max_new_tokens": 40} for row in report.lengths]).data
    assert all(f"(paper: {19.87 / 13.61:.2f})" in name for name in first.y)
    assert page(report).count('class="plotly-graph-div"') == 5


# The command


@pytest.fixture
def no_models(monkeypatch):
    """bench and audit load a toy session, whatever their options name."""
    with ToySession(context_limit=400) as session:
        monkeypatch.setattr(shared, "load_pair", lambda choice: session.loaded)
        opened = contextlib.nullcontext(session)
        monkeypatch.setattr("specdemo.runs.session.Session", lambda loaded, threads=None: opened)
        yield


def test_bench_measures_each_length_and_writes_both_files(no_models, capsys, tmp_path, monkeypatch):
    html = tmp_path / "b.html"
    options = ["--limit", "1", "--max-new-tokens", "3,6", "--html", str(html), "--json", "-"]
    assert cli.main(["bench", *options]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert [row["tokens"] for row in report["rows"]] == [3, 6]
    assert [row["max_new_tokens"] for row in report["lengths"]] == [3, 6]
    assert report["decision"]["sentence"] in err and "specdemo run INSTRUCTION" in err
    assert "Answer lengths" in err and "speculative tokens per s" in err
    assert html.read_text().startswith("<!DOCTYPE html>")


def test_a_quick_benchmark_is_asked_for_what_its_options_say(no_models, monkeypatch):
    monkeypatch.setattr(engines, "peers_of", Mock(return_value=iter(["a way"])))
    monkeypatch.setattr(ToySession, "target_properties", properties := Mock())
    asked = Mock(side_effect=RequestFailed("enough"))
    monkeypatch.setattr(report_module, "bench", asked)
    options = ["--quick", "--repeats", "2", "--peers", "transformers", "--draft-tokens", "3"]
    options += ["--limit", "4", "--kv-cache", "f16", "--numerics", "fast"]
    assert cli.main(["bench", *options]) == 1
    properties.assert_called_once_with("fast")
    [_, prompts, settings], named = asked.call_args
    assert (prompts, settings) == (spread(read_prompts(), 4), Settings(48, 3, numerics="fast"))
    expected = {"lengths": (48,), "repeats": 2, "peers": ["a way"], "seconds": 100.0}
    assert named == expected | {"choice": ModelChoice(kv_cache="f16"), "report": ANY}


def test_a_benchmark_of_which_no_prompt_can_be_run_fails_and_says_why(no_models, capsys, tmp_path):
    (tmp_path / "long.jsonl").write_text(line(instruction="x" * 5000))
    assert cli.main(["bench", "--prompts", str(tmp_path / "long.jsonl")]) == 1
    out, err = capsys.readouterr()
    assert "prompt is too long" in out and "None of the prompts could be run" in err
