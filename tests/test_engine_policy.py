"""How many tokens are drafted: it must pay where it can, and never lose. Whole answers are made-up
recordings, which `tools.replay` decodes again over tables of costs."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specdemo import cli
from specdemo.engine.policy import Acceptance, CostModel, Policy, shared_lengths
from tools import replay as tool
from tools.replay import (
    CostTable,
    Record,
    Replayed,
    cost_tables,
    read_records,
    replay,
    write_records,
)

# Milliseconds. Flat to four tokens, then a jump.
STEPPED = {1: 1.0, 2: 1.05, 3: 1.1, 4: 1.15, 5: 1.5, 8: 1.8, 16: 2.4}
LINEAR = {size: 1 + 4 * (size - 1) / 15 for size in range(1, 17)}
LOOP = [5, 6, 7, 8] * 12


def table(ms=STEPPED, step=0.2, **changes) -> CostTable:
    return CostTable("a processor", 2, "a model", dict(ms), step, **changes)


def recorded(answer, draft=(), **fields) -> Record:
    fields = {"id": "1", "task": "a", "temperature": 0.0, "seed": 0, "prompt": [1, 2], **fields}
    return Record(**fields, answer=list(answer), draft=list(draft))


def guesses(acceptance: float, *, informative=False, tokens=600, seed=0) -> Record:
    """An answer without repetitions, and a draft that is right with this chance. Its confidence is
    higher where it is right, or means nothing."""
    rng = np.random.default_rng(seed)
    right = rng.random(tokens) < acceptance
    sure, unsure = rng.uniform(0.5, 1, tokens), rng.uniform(0.2, 0.9, tokens)
    beliefs = np.where(right & informative, sure, unsure)
    answer = range(100, 100 + tokens)
    choices = zip(answer, right, beliefs.tolist(), strict=True)
    return recorded(answer, [(token if good else -2, chance) for token, good, chance in choices])


def replayed(records: Record | list[Record], costs: CostTable, **options) -> Replayed:
    return replay(records if isinstance(records, list) else [records], costs, **options)["a"]


def relative_time(record: Record, costs: CostTable, length: int | None = None) -> float:
    """Seconds relative to autoregressive decoding."""
    return 1 / replayed(record, costs, draft_tokens=length).speedup


each_verify = pytest.mark.parametrize("ms", [STEPPED, LINEAR], ids=["stepped", "linear"])


@each_verify
@pytest.mark.parametrize("informative", [True, False])
@pytest.mark.parametrize("step", [0.05, 0.3, 1.0])
def test_a_useless_draft_costs_at_most_three_percent(ms, informative, step):
    assert relative_time(guesses(0.0, informative=informative), table(ms, step)) < 1.03


@each_verify
@pytest.mark.parametrize("step", [0.05, 0.4])
@pytest.mark.parametrize(
    ("acceptance", "lengths"),
    [(0.2, (1, 2)), (0.5, (1, 2, 3)), (0.8, (1, 2, 3)), (0.95, (3, 5, 12))],  # others are slower
)
def test_adapting_is_about_as_good_as_the_best_fixed_length(ms, step, acceptance, lengths):
    record, costs = guesses(acceptance), table(ms, step)
    best = min(1.0, *(relative_time(record, costs, length) for length in lengths))
    assert relative_time(record, costs) < best * 1.05 + 0.01


def test_a_draft_that_knows_when_it_is_right_beats_every_fixed_length():
    record, costs = guesses(0.6, informative=True), table(LINEAR, 0.1)
    best = min(relative_time(record, costs, length) for length in range(1, 9))
    assert relative_time(record, costs) < best * 1.01


def test_a_draft_model_that_turns_good_is_noticed():
    record = guesses(0.9, tokens=2900)
    bad = [(-2, chance) for _, chance in record.draft[:300]]
    found = replayed(replace(record, draft=[*bad, *record.draft[300:]]), table(step=0.02))
    assert found.tokens > 2.5 * found.rounds


def test_an_answer_that_repeats_itself_is_decoded_in_fewer_rounds():
    found = replayed(recorded(LOOP), table())
    assert found.tokens == len(LOOP) - 1 > 3 * found.rounds
    assert found.autoregressive_s == pytest.approx(found.tokens * 0.001)
    assert 2 < found.speedup < 8


def test_without_a_source_every_token_takes_a_step():
    alone = replayed(recorded(LOOP), table(), without=("lookup",))
    assert alone.rounds == alone.tokens and alone.speedup == pytest.approx(1)


@pytest.mark.parametrize("kind", ["model", "head"])
def test_a_recorded_draft_is_asked_where_it_pays(kind):
    answer = list(range(100, 160))  # nothing repeats
    chosen = [(token, 0.9) for token in answer]
    draft = {"draft": chosen}
    if kind == "head":
        draft = {"head": [chosen[begin : begin + 5] for begin in range(len(answer))]}
    records = [recorded(answer, **draft)] * 3
    cheap, dear = (replayed(records, table(step=ms, head_step_ms=ms)) for ms in (0.02, 4.0))
    assert cheap.speedup > 2 and 0.8 < dear.speedup <= 1
    assert replayed(records, table(), without=(kind,)).speedup == pytest.approx(1)


def known_costs(figures=STEPPED, attention=0.0) -> CostModel:
    costs = CostModel()
    costs.learn(figures, attention)
    return costs


def test_what_lies_between_measured_sizes_is_in_proportion():
    costs = known_costs({1: 1.0, 2: 1.1, 4: 1.5, 8: 1.9})
    assert [costs.forward(size) for size in (1, 3, 6)] == pytest.approx([1.0, 1.3, 1.7])
    assert known_costs({1: 1.0}).forward(9) == 1.0


@pytest.mark.parametrize("sizes", [(1, 16), (1, 6, 12), (1, 3, 6, 12, 16), range(1, 17)])
def test_more_rows_than_were_measured_cost_more_whichever_sizes_were_measured(sizes):
    costs = known_costs({size: 2.0 + 0.1 * size for size in sizes})
    assert costs.forward(20) == pytest.approx(4.0)
    assert 9 * costs.forwards(9)[2] == pytest.approx(costs.forward(18)) == pytest.approx(3.8)


def test_a_slower_machine_is_seen_at_every_size_from_the_one_that_is_used():
    costs = known_costs()
    for _ in range(100):
        costs.record(2, 3 * STEPPED[2])
    assert costs.forward(8) == pytest.approx(3 * STEPPED[8], rel=0.2)


def test_a_cost_that_a_faster_forward_disproves_is_not_kept():
    """22.8 ms were measured beside other work, 0.35 ms are true."""
    costs = CostModel()
    costs.learn({1: 0.0228}, lasting=True)
    costs.record(1, 0.00035)
    assert costs.forward(1) == pytest.approx(0.00035)
    assert not costs.lasting[0], "the next start measures again"
    costs.record(1, 0.0228)
    assert costs.forward(1) < 0.0005, "other work makes single forwards longer"


@pytest.mark.parametrize(
    "disturbed", [lambda rng: rng.choice((1, 2.5)), lambda rng: rng.paretovariate(3)]
)
def test_costs_keep_their_scale_through_hours_on_a_busy_machine(disturbed):
    """Also of sizes that do not occur; and a size that was measured wrong is corrected."""
    costs, rng = known_costs(STEPPED | {3: 1.3 * STEPPED[3]}), random.Random(0)
    costs.lasting = STEPPED, 0.0
    for _ in range(20_000):
        size = rng.choice((1, 1, 2, 3, 8))
        costs.record(size, STEPPED[size] * disturbed(rng))
    for size in (1, 2, 3, 8):
        ratio = costs.forward(size) / costs.forward(16)
        assert ratio == pytest.approx(STEPPED[size] / STEPPED[16], rel=0.25)
    assert costs.lasting[0], "quiet moments between others disprove nothing"


def test_each_row_costs_more_the_longer_its_context():
    costs = known_costs({1: 1.0, 4: 1.3, 16: 4.0}, attention=0.001)
    for _ in range(100):  # what the context explains says nothing about the machine's speed
        costs.record(4, 3.3, attended=4 * 500)
    assert costs.forwards(context=500)[4] == pytest.approx(3.3)
    assert costs.forwards()[4] == pytest.approx(1.3)
    plans = [Policy(costs=costs).plan(context) for context in (0, 2000)]
    [short], [long] = (shared_lengths([[0.6] * 4], plan.rows[1:]) for plan in plans)
    assert short > long and plans[1].pace == pytest.approx(1.0 + 2.0)


SAWTOOTH = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 3.0, 8: 4.0, 16: 8.0}


@pytest.mark.parametrize(
    ("figures", "chances", "length"),
    [
        ({n: 1.1 * n for n in range(1, 17)}, [1.0] * 15, 0),  # not even a sure token would pay
        (SAWTOOTH, [0.9] * 15, 3),
        (SAWTOOTH, [0.9, 0.01, 0.9], 1),
        (SAWTOOTH, [0.05], 0),
    ],
)
def test_a_draft_is_as_long_as_maximises_tokens_a_second(figures, chances, length):
    rows = Policy(costs=known_costs(figures)).plan().rows
    assert shared_lengths([chances], rows[1:]) == [length]


def test_in_a_shared_forward_where_every_row_costs_only_good_guesses_are_drafted():
    policy = Policy(costs=known_costs({1: 1.0, 2: 1.05, 4: 1.2, 8: 2.4, 10: 2.9, 16: 4.6}))
    alone = shared_lengths([[0.4] * 3], policy.plan().rows[1:])
    assert alone != [0], "alone, four rows cost little more than one"
    policy.answering |= set(range(8))
    plan = policy.plan()
    assert plan.pace == pytest.approx(2.4 / 8) and plan.gain(0, 1.0, 0.4, 0.0) == 0
    assert plan.gain(0, 1.0, 0.98, 0.0) > 0


PASSES = [1.0 + (rows - 1) // 8 for rows in range(5, 30)]
"""Seconds of forwards of five requests, eight rows a pass, with 0, 1, ... draft tokens."""


@pytest.mark.parametrize(
    ("chances", "lengths"),
    [
        ([[0.2], [0.3, 0.9], [0.1], [0.1], [0.1]], [1, 2, 0, 0, 0]),  # the rows left in a pass
        ([[0.9] * 4] * 5, [1, 1, 1, 0, 0]),  # a second pass would bring less than the first
        ([[], [], [0.5, 1.0], [], []], [0, 0, 2, 0, 0]),
        ([[0.99] * 5, [], [], [], []], [3, 0, 0, 0, 0]),
        ([[], [], [], [], []], [0, 0, 0, 0, 0]),
    ],
)
def test_requests_get_the_rows_that_bring_all_of_them_the_most_tokens_a_second(chances, lengths):
    seconds = PASSES[: sum(map(len, chances)) + 1]
    assert shared_lengths(chances, seconds) == lengths


def test_drafts_that_lose_are_left_for_longer_and_longer_and_asked_again():
    """Rounds cost what was not expected, here a third more than their tokens are worth."""
    policy = Policy(costs=known_costs())
    paused = []
    for _ in range(400):
        paused.append(policy.paused(asks=True))
        spent, drafting = (1.0, 0.0) if paused[-1] else (2.0, 0.1)
        policy.record_round(spent, 1 if paused[-1] else 1.5, drafting=drafting)
        assert not policy.paused(asks=False), "n-gram lookup has lost nothing"
    tries = [index for index in range(1, 400) if paused[index - 1] and not paused[index]]
    lengths = np.diff([paused.index(True), *tries])
    assert len(tries) == 2 and lengths[0] + 64 < lengths[1] and sum(paused) > 350
    policy.answering |= {1, 2}
    assert not policy.paused(asks=True), "for so many requests nothing is known"


def test_drafts_that_bring_what_was_expected_are_never_left():
    policy = Policy(costs=known_costs())
    for number in range(400):
        policy.record_round(1.2, 3 if number % 2 else 1, drafting=0.1)
        assert not policy.paused(asks=True)


def test_drafts_that_pay_are_not_left_for_rounds_that_other_programs_slow():
    policy = Policy(costs=known_costs())
    for number in range(400):
        policy.record_round(12.0 if number % 20 < 2 else 1.2, 2, drafting=0.1)
        assert not policy.paused(asks=True)


@pytest.mark.parametrize(("own", "left"), [(0.1, False), (0.3, True)])
def test_drafts_that_cost_four_requests_more_of_their_own_time_than_they_save_are_left(own, left):
    """Each saves half a forward of all: what requests do by themselves, they do in turn."""
    policy = Policy(costs=known_costs())
    policy.answering |= {1, 2, 3, 4}
    plain = policy.costs.forward(4)
    policy.record_round(plain, 1, own=0.1 * plain)
    for _ in range(100):
        policy.record_round(plain, 1.5, drafting=0.0, own=own * plain)
    assert policy.paused(asks=False) == left


def test_drafts_that_are_sought_and_not_found_are_left_by_many_requests_sooner():
    rounds = []
    for requests in (2, 8):
        policy = Policy(costs=known_costs(), answering=set(range(requests)))
        plain = policy.costs.forward(requests)
        policy.record_round(plain, 1, own=0.01 * plain)
        shared = 0
        while not policy.paused(asks=False):
            shared += 1
            for _ in range(requests):
                policy.record_round(plain, 1, drafting=0.0, own=0.02 * plain)
        rounds.append(shared)
    assert rounds == [301, 11]


def test_a_source_that_is_not_asked_seems_less_and_less_certain():
    policy = Policy()
    rate = policy.accepted("model").total
    for _ in range(100):
        rate.record(0.2)
    share, before = rate.value, rate.upper_bound
    for _ in range(5000):
        policy.record_round(0.1, 1)
    assert rate.value == pytest.approx(share)
    assert before < 0.3 < 0.4 < rate.upper_bound


def test_acceptance_rates_are_learnt_by_confidence():
    rates = Acceptance()
    for number in range(200):
        rates.record(0.95, number % 2 == 0)
        rates.record(0.15, False)
    assert rates(0.95) == pytest.approx(0.5, abs=0.1)
    assert rates(0.15) < 0.05
    for _ in range(9):
        rates.record(math.nan, False)
    assert rates(math.nan) == rates(0.0) < 0.02, "no number counts as no confidence"
    assert Acceptance([(9.4, 2.0)])(0.0) == 1, "a stored rate is at most 1"


def test_a_fair_chunk_takes_no_longer_than_one_without_context():
    """A row costs 0.25 s more than none, and 0.001 s for each token of its context."""
    costs = known_costs({1: 1.0, 8: 2.0, 16: 4.0}, attention=0.001)
    chunks = {context: costs.fair_chunk(21, context) for context in (0, 250, 750, 10_000)}
    assert chunks == {0: 21, 250: 10, 750: 5, 10_000: 2}
    assert CostModel().fair_chunk(21, 8000) == 21, "attention is not measured yet"


# Recordings and cost tables


def test_records_are_read_as_they_were_written(tmp_path):
    records = [recorded(LOOP, [(1, 0.5)] * len(LOOP)), recorded([3], temperature=0.7)]
    write_records(records, tmp_path / "records.json")
    assert read_records(tmp_path / "records.json") == records


def test_the_projects_cost_tables_are_chosen_by_name_or_file(tmp_path):
    assert {1, 2, 8} <= cost_tables()["xeon-vnni"].ms.keys()
    assert list(cost_tables("epyc-avx2")) == ["epyc-avx2"]
    mine = {"processor": "x", "threads": 4, "model": "y", "ms": {"1": 3}, "draft_step_ms": 1}
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"mine": mine}))
    assert cost_tables(str(path))["mine"].ms == {1: 3.0}


def test_recorded_answers_replay_without_models(capsys, monkeypatch, tmp_path, tiny_llama_pair):
    monkeypatch.setattr(tool, "load_pair", lambda choice: tiny_llama_pair)
    recording = str(tmp_path / "recording.json")
    options = ["--limit", "1", "--max-new-tokens", "12", "--record", recording]
    assert cli.main(options, tool.command) == 0
    greedy, sampled = read_records(recording)
    assert (greedy.temperature, sampled.temperature) == (0.0, 0.7)
    for answer in (greedy, sampled):
        assert len(answer.answer) == len(answer.draft) == 12 and not answer.head
    capsys.readouterr()
    options = ["--replay", recording, "--costs", "zen5-vnni", "--json", "-"]
    assert cli.main(options, tool.command) == 0
    rows = json.loads(capsys.readouterr().out)["speedups"]
    assert [row["temperature"] for row in rows] == [0.0, 0.7]
    assert all(row["costs"] == "zen5-vnni" and row["speedup"] > 0.5 for row in rows)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--replay none.json cannot be read"),
        (["--costs", "z80"], "z80 is no cost table; choose one of xeon-vnni"),
        *((["--costs", name], f"--costs {name}") for name in ("list.json", "ms.json", "no.json")),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, monkeypatch, tmp_path, options, says):
    monkeypatch.chdir(tmp_path)
    for name, text in {"list": "[]", "ms": '{"a": {"ms": {}}}', "no": "no"}.items():
        Path(f"{name}.json").write_text(text)
    assert cli.main(["--replay", "none.json", *options], tool.command) == 2
    assert says in capsys.readouterr().err
