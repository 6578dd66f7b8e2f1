"""The accept/reject rule, exactly: on toy vocabularies every execution is enumerated, with its
probability. `examples/speculative.py`, the idea of the engine, gives the engine's answers."""

import ast
import importlib
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.engine import acceptance, decode, sampling
from specdemo.engine.drafts import model_drafters
from specdemo.engine.forwards import Run
from specdemo.engine.policy import Policy
from specdemo.engine.sampling import Distribution, Sampling, distribution

LENGTH = 3
PROMPT = (0,)


class Branching:
    """Replays a decoding once for every outcome of its random decisions, with its probability."""

    def __init__(self):
        self.script: list[int] = []

    def executions(self, run):
        """Yields (result, probability) of `run()` for every path through its decisions."""
        self.script = []
        while True:
            self.made: list[tuple[int, int]] = []
            self.weight = 1.0
            result = run()
            yield result, self.weight
            while self.made and self.made[-1][0] == self.made[-1][1] - 1:
                self.made.pop()
            if not self.made:
                return
            self.script = [choice for choice, _ in self.made]
            self.script[-1] += 1

    def decide(self, probabilities) -> int:
        at = len(self.made)
        choice = self.script[at] if at < len(self.script) else 0
        self.made.append((choice, len(probabilities)))
        self.weight *= probabilities[choice]
        return choice

    def draw(self, source: Distribution, seed, position, stream=0) -> int:
        return int(source.ids[self.decide(source.probabilities)])

    def choose(self, logits, sampling, position, known, ids=None):
        return self.draw(distribution(logits, sampling), sampling.seed, position)

    def accepts(self, chance, seed, position) -> bool:
        return self.decide([chance, 1 - chance]) == 0


def target_distribution(table, prompt, sampling, language=None) -> dict[tuple[int, ...], float]:
    """The probability of every answer of LENGTH tokens under the target alone."""
    found = {}
    for answer in itertools.product(range(len(table)), repeat=LENGTH):
        weight, last = 1.0, prompt[-1]
        for at, token in enumerate(answer):
            row = toy.adjusted(table[last], sampling, prompt, answer[:at], language)
            weight *= distribution(row, sampling).probability(token)
            if not weight:
                break
            last = token
        found[answer] = weight
    return found


SOURCES = ["model", "recurrent", "head", "eagle3", "lookup", "prediction", "translated", "script"]


def opened(name: str, model: toy.ToyModel, sampling: Sampling, length: int | None):
    """A drafter of this source alone; "script" has no probabilities. Without a `length`, costs and
    confidence decide how much of a draft is verified."""
    if name == "script":
        return toy.ScriptDrafter(length or 3, lambda context, at: (context[-1] + at) % 3)
    policy = Policy(fixed=length, limit=3)
    policy.costs.learn({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3})
    return toy.drafter(name, policy, sampling, PROMPT, (1, 2, 0, 1), model)


def enumerate_output(
    target,
    draft,
    sampling,
    name,
    monkeypatch,
    language=None,
    length: int | None = 2,
    result: Callable = toy.answer_ids,
) -> Counter:
    """The probability of each `result` of an answer's rounds."""
    branching = Branching()
    monkeypatch.setattr(acceptance, "draw", branching.draw)
    monkeypatch.setattr(acceptance, "choose", branching.choose)
    monkeypatch.setattr(acceptance, "accepts", branching.accepts)
    monkeypatch.setattr(model_drafters, "draw", branching.draw)
    monkeypatch.setattr(model_drafters, "choose", branching.choose)

    def once():
        kinds = {"head": toy.ToyHead, "eagle3": toy.ToyHead, "recurrent": toy.RecurrentToyModel}
        model = kinds.get(name, toy.ToyModel)(draft)
        model.costs.learn({1: 0.02})
        verifier = toy.RecurrentToyModel(target) if name == "recurrent" else toy.ToyModel(target)
        prompted = verifier.new_sequence()
        verifier.forward([Run(prompted, PROMPT, 1)])
        decoding = toy.decoding(
            target,
            PROMPT,
            decode.Limits(LENGTH, 100),
            target=prompted,
            drafter=opened(name, model, sampling, length),
            policy=Policy(fixed=length),
            sampling=sampling,
            language=language and toy.Language(language.seed),
        )
        rounds, _ = toy.drive(decoding, {"target": verifier, "draft": model})
        return result(rounds)

    output = Counter()
    for answer, weight in branching.executions(once):
        output[answer] += weight
    return output


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_p=st.sampled_from([0.6, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 2]),
    coupling=st.sampled_from(["maximal", "shared"]),
    min_p=st.sampled_from([0.0, 0.0, 0.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.8]),
    logit_bias=st.sampled_from([(), (), ((1, 1.5), (9, 3.0)), ((0, -100.0),)]),
)


languages = st.none() | st.builds(toy.Language, st.integers(0, 10**6))


@pytest.mark.parametrize("length", [1, 2, 3, None])
@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), samplings, languages)
def test_every_source_and_language_gives_the_targets_output(name, length, seed, sampling, language):
    rng = np.random.default_rng(seed)
    target, draft = toy.random_table(rng), toy.random_table(rng)
    with pytest.MonkeyPatch.context() as patch:
        output = enumerate_output(target, draft, sampling, name, patch, language, length)
    for answer, weight in target_distribution(target, PROMPT, sampling, language).items():
        assert output[answer] == pytest.approx(weight, abs=1e-9)


def test_maximal_coupling_accepts_one_minus_the_total_variation(monkeypatch):
    def second(rounds):
        return rounds[0].emitted.id, rounds[1].accepted

    rng = np.random.default_rng(3)
    tables = target, draft = toy.random_table(rng), toy.random_table(rng)
    sampling = Sampling(temperature=1.0, coupling="maximal")
    known = target, draft, sampling, "model", monkeypatch
    output = enumerate_output(*known, length=1, result=second)
    for first in range(len(target)):
        q, p = (distribution(table[first], sampling) for table in tables)
        tokens = range(len(draft))
        overlap = sum(min(p.probability(token), q.probability(token)) for token in tokens)
        assert output[first, 1] / (output[first, 0] + output[first, 1]) == pytest.approx(overlap)


# The example


FILE = Path(__file__).parents[1] / "examples" / "speculative.py"


def test_the_example_is_short_needs_numpy_only_and_runs():
    text = FILE.read_text("utf-8")
    assert len(text.splitlines()) <= 80
    nodes = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Import)]
    assert [alias.name for node in nodes for alias in node.names] == ["numpy"]
    assert "ImportFrom" not in ast.dump(ast.parse(text))
    done = subprocess.run([sys.executable, FILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same as autoregressive decoding") == 2


@pytest.mark.parametrize(
    ("temperature", "coupling"), [(0.0, "shared"), (0.9, "shared"), (0.9, "maximal")]
)
def test_with_its_noise_the_examples_rounds_are_the_engines(monkeypatch, temperature, coupling):
    monkeypatch.syspath_prepend(FILE.parent)
    example = importlib.import_module("speculative")
    rng = np.random.default_rng(3)
    for seed in range(20):
        how = Sampling(temperature, seed=seed, coupling=coupling)

        def draw(probabilities, position, stream=sampling.TOKEN, seed=seed):
            ids = np.flatnonzero(probabilities)
            return sampling.draw(Distribution(ids, probabilities[ids]), seed, position, stream)

        def accepts(chance, position, seed=seed):
            return sampling.Noise(seed, position, sampling.ACCEPT).uniform() < chance

        monkeypatch.setattr(example, "draw", draw)
        monkeypatch.setattr(example, "accepts", accepts)
        target = toy.random_table(rng, 12)
        draft = target + toy.random_table(rng, 12, 0.7)
        length = seed % 4
        policy = Policy(fixed=length)
        decoding = toy.decoding(
            target,
            (0,),
            decode.Limits(30, 100),
            drafter=toy.drafter("model" if length else "none", policy, how),
            policy=policy,
            sampling=how,
        )
        rounds, _ = toy.drive(decoding, {"target": target, "draft": draft})
        options = {"temperature": temperature, "coupling": coupling, "draft_tokens": length}
        answer, forwards = example.decode(target, draft, [0], 30, **options)
        assert (tuple(answer), forwards) == (toy.answer_ids(rounds), len(rounds))
