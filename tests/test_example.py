"""`examples/speculative.py` is the idea of the engine: same outcome, same distribution."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import toy
from test_engine_rule import LENGTH, Branching, target_distribution

from specdemo.engine import sampling
from specdemo.engine.decode import Limits
from specdemo.engine.policy import Policy
from specdemo.engine.sampling import Distribution, Sampling

FILE = Path(__file__).parents[1] / "examples" / "speculative.py"
WAYS = [(0.0, "shared"), (0.9, "shared"), (0.9, "maximal")]


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("example_speculative", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_needs_numpy_only_and_runs():
    text = FILE.read_text("utf-8")
    assert len(text.splitlines()) <= 80
    nodes = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Import)]
    assert [alias.name for node in nodes for alias in node.names] == ["numpy"]
    assert "ImportFrom" not in ast.dump(ast.parse(text))
    done = subprocess.run([sys.executable, FILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same as autoregressive decoding") == 2


@pytest.mark.parametrize(("temperature", "coupling"), WAYS)
def test_with_the_engines_noise_its_rounds_are_the_engines(
    example, monkeypatch, temperature, coupling
):
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
        policy = Policy(fixed=3)
        decoding = toy.decoding(
            target,
            (0,),
            Limits(30, 100),
            drafter=toy.drafter("model", policy, how),
            policy=policy,
            sampling=how,
        )
        rounds, _ = toy.drive(decoding, {"target": target, "draft": draft})
        options = {"temperature": temperature, "coupling": coupling}
        answer, forwards = example.decode(target, draft, [0], 30, draft_tokens=3, **options)
        assert (tuple(answer), forwards) == (toy.answer_ids(rounds), len(rounds))


@pytest.mark.parametrize("coupling", ["shared", "maximal"])
@pytest.mark.parametrize("draft_tokens", [0, 1, 2])
def test_its_answers_have_the_targets_distribution(example, monkeypatch, coupling, draft_tokens):
    rng = np.random.default_rng(1)
    target, draft = toy.random_table(rng), toy.random_table(rng)
    branching, how = Branching(), {"temperature": 0.9, "coupling": coupling}
    monkeypatch.setattr(example, "draw", lambda shares, *_: branching.decide(shares))
    monkeypatch.setattr(example, "accepts", lambda chance, _: branching.accepts(chance, 0, 0))

    def answered():
        answer, _ = example.decode(target, draft, [0], LENGTH, draft_tokens=draft_tokens, **how)
        return tuple(answer)

    output: Counter = Counter()
    for answer, weight in branching.executions(answered):
        output[answer] += weight
    expected = target_distribution(target, (0,), Sampling(0.9))
    assert output == pytest.approx(expected, abs=1e-6)  # the engine's logits are float32
