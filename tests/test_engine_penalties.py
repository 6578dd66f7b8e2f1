"""Requests with every option and every source of draft tokens, with tiny models."""

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from helpers import next_token
from test_engine_drafters import folders, translated_pair  # noqa: F401
from test_engine_heads import eagle_pair, head_pair, reference_pair  # noqa: F401

from specdemo.engine.acceptance import Adjustment, adjustment
from specdemo.engine.request import prompt_logprobs
from specdemo.engine.sampling import Sampling
from specdemo.errors import BadInput
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings

pytestmark = pytest.mark.slow


def test_penalties_are_those_of_transformers_and_of_openais_formula():
    import torch
    from transformers import RepetitionPenaltyLogitsProcessor

    rng = np.random.default_rng(0)
    row = (rng.normal(size=50) * 4).astype(np.float32)
    prompt, answer = [3, 4, 4, 9], [4, 7, 7, 20]
    sampling = Sampling(repetition_penalty=1.3)
    processor = RepetitionPenaltyLogitsProcessor(1.3)
    wanted = processor(torch.tensor([[*prompt, *answer]]), torch.tensor(row[None]).clone())
    found = Adjustment(sampling, prompt)(row, [*prompt, *answer[:2]], answer[2:])
    assert found == pytest.approx(wanted.numpy()[0], rel=1e-6)
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((7, 2.0),))
    counts = np.bincount(answer, minlength=50)
    wanted = row - 0.25 * counts - 0.5 * (counts > 0) + 2.0 * (np.arange(50) == 7)
    found = Adjustment(sampling, prompt)(row, [*prompt, *answer[:2]], answer[2:])
    assert found == pytest.approx(wanted, rel=1e-6)


def test_the_columns_of_a_trimmed_head_get_the_penalties_of_their_tokens():
    sampling = Sampling(repetition_penalty=2.0, frequency_penalty=1.0, logit_bias=((8, 5.0),))
    adjust, row = Adjustment(sampling, [1, 2]), np.ones(10, np.float32)
    whole = adjust(row, [1, 2, 8], [2])
    head_tokens = np.array([8, 0, 2])
    columns = np.full(9, -1)
    columns[head_tokens] = np.arange(3)
    assert adjust(row[:3], [1, 2, 8], [2], columns).tolist() == whole[head_tokens].tolist()
    assert adjust(row[:3], [1, 2, 8], [2]).tolist() == whole[:3].tolist()
    assert row.tolist() == [1.0] * 10, "the logits themselves stay"


def test_settings_that_change_nothing_have_no_adjustment():
    assert adjustment(Sampling(1.0, 0.5, 5, min_p=0.1), [1, 2]) is None


def asked(rng: random.Random) -> Settings:
    """Settings with some of everything that changes the distribution."""

    def maybe(*values):
        return rng.choice([None, *values])

    values = {
        "max_new_tokens": rng.randint(1, 30),
        "temperature": rng.choice([0.0, 0.7, 1.5]),
        "seed": rng.randrange(2**40),
        "drafter": rng.choice(["auto", "model", "lookup"]),
        "draft_tokens": rng.choice([None, 2, 5]),
        "presence_penalty": maybe(-2.0, 0.4, 2.0),
        "frequency_penalty": maybe(-1.0, 0.3, 2.0),
        "repetition_penalty": maybe(0.5, 1.1, 2.0),
        "logit_bias": maybe(tuple((rng.randrange(256), rng.uniform(-9, 9)) for _ in range(9))),
        "min_p": maybe(0.05, 0.5),
        "top_p": maybe(0.8),
        "ignore_eos": rng.random() < 0.5,
    }
    return Settings(**{name: value for name, value in values.items() if value is not None})


PAIRS = {
    "model": "tiny_llama_pair",
    "head": "head_pair",
    "eagle3": "eagle_pair",
    "translated": "translated_pair",
}


def answer(session: Session, text: str, settings: Settings):
    *_, trace = session.ask(Question(text, settings))
    return trace


@pytest.mark.parametrize("source", PAIRS)
def test_answers_at_once_are_those_of_autoregressive_decoding_alone(request, source):
    pair = request.getfixturevalue(PAIRS[source])
    pair = dataclasses.replace(pair, stop_ids=frozenset({65, 66}))
    rng, accepted, sources = random.Random(0), 0, set()
    texts = [f"Count from {number} to {rng.randrange(100)}. " for number in range(30)]
    texts = [text * rng.choice([1, 1, 2, 7]) for text in texts]
    ways = [asked(rng) for _ in texts]
    for number in range(3, 30, 4) if source != "translated" else ():
        ways[number] = dataclasses.replace(ways[number], coupling="maximal")
    with Session(pair, background=False) as session, ThreadPoolExecutor(4) as pool:
        session.prepare()
        baselines = [
            answer(session, text, dataclasses.replace(way, drafter="none"))
            for text, way in zip(texts, ways, strict=True)
        ]
        traces = list(pool.map(partial(answer, session), texts, ways))
        uses = session.engine.cache_blocks()
    for way, trace, expected in zip(ways, traces, baselines, strict=True):
        accepted += sum(round_.accepted for round_ in trace.rounds)
        sources |= {token.source for round_ in trace.rounds for token in round_.drafted}
        if way.coupling == "shared" or not way.temperature:
            assert trace.token_ids == expected.token_ids, way
            assert trace.finish_reason == expected.finish_reason
    assert any(trace.shared_with for trace in traces)
    assert accepted > 5, "of draft lengths that are set; automatic ones depend on costs"
    assert ("model" if source == "translated" else source) in sources
    assert all(use.used == use.kept for use in uses.values()), "nothing leaks"


def test_an_answer_goes_on_after_a_stop_token_if_it_is_told_to(tiny_llama_pair):
    with Session(tiny_llama_pair, background=False) as session:
        *_, whole = session.ask(Question("One two", Settings(max_new_tokens=12)))
    stops = frozenset({whole.token_ids[5]})
    with Session(dataclasses.replace(tiny_llama_pair, stop_ids=stops)) as session:
        stopped = answer(session, "One two", Settings(max_new_tokens=12))
        ignoring = answer(session, "One two", Settings(max_new_tokens=12, ignore_eos=True))
    assert (stopped.finish_reason, ignoring.finish_reason) == ("stop", "length")
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert ignoring.token_ids == whole.token_ids


def test_a_bias_to_a_token_that_the_model_lacks_is_refused(session):
    with pytest.raises(BadInput, match="logit_bias names token 256; .* below 256"):
        session.ask(Question("One", Settings(logit_bias=((256, 1.0),))))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_log_probabilities_are_the_models_own_with_any_drafter(session, temperature):
    settings = Settings(max_new_tokens=12, temperature=temperature, presence_penalty=2.0)
    found = []
    for drafter in ("none", "model"):
        question = Question("One two", dataclasses.replace(settings, drafter=drafter), logprobs=5)
        *_, trace = session.ask(question)
        found.append([one for round_ in trace.rounds for one in round_.logprobs])
        assert len(found[-1]) == len(trace.tokens)
    # Without VNNI the logits of one-token forwards differ in their last bits.
    for one, other in zip(*found, strict=True):
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert one.token == pytest.approx(other.token, abs=1e-4)
    raw = Settings(temperature=1.0)
    for at, logprobs in enumerate(found[0]):
        before = trace.token_ids[:at]
        chances = np.log(next_token(session, "One two", raw, before).probabilities)
        order = np.argsort(-chances, kind="stable")[:5]
        assert [token for token, _ in logprobs.top] == order.tolist()
        assert [value for _, value in logprobs.top] == pytest.approx(chances[order], abs=1e-4)
        assert logprobs.token == pytest.approx(chances[trace.token_ids[at]], abs=1e-4)


def test_a_prompts_log_probabilities_are_those_of_its_tokens_as_an_answer(session):
    prompt = tuple(range(30, 130))
    scores = session.submit(Question(prompt, Settings()), prompt_logprobs, logprobs=2).result()
    assert len(scores) == len(prompt) - 1
    raw = Settings(temperature=1.0)
    for at in (1, 2, 63, 64, 65, 99):
        chances = next_token(session, prompt[:at], raw)
        logprob = np.log(chances.probability(prompt[at]))
        assert scores[at - 1].token == pytest.approx(logprob, abs=1e-4)
        assert scores[at - 1].top[0][0] == chances.ids[chances.probabilities.argmax()]


def test_what_an_answer_repeats_of_a_prediction_is_drafted_from_it(session):
    letters = session.loaded.tokenizer.encode("abcdefghijklmnopqrstuvwxyz")
    bias = tuple((token, 50.0) for token in letters)
    sampled = {"temperature": 1.0, "logit_bias": bias}
    settings = Settings(max_new_tokens=40, drafter="lookup", draft_tokens=4, **sampled)
    *_, plain = session.ask(Question("One two", settings))
    predicted = session.loaded.tokenizer.encode(plain.text[:30])
    *_, trace = session.ask(Question("One two", settings, prediction=tuple(predicted)))
    assert trace.token_ids == plain.token_ids
    drafted = [one for round_ in trace.rounds for one in round_.drafted if one.accepted]
    assert sum(one.source == "prediction" for one in drafted) > 15
    assert len(trace.rounds) < len(plain.rounds)
