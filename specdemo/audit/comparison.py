"""Compares an engine's answers with and without drafts."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specdemo.audit.engines import AuditedEngine, Case, Conversation, NotOffered, Tokens
from specdemo.errors import RequestFailed
from specdemo.runs.settings import Settings

WAYS = ("autoregressive", "speculative")
ROUNDING = 0.1  # logits: smaller margins can change sign by the order of a sum


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, fixed before the run. `draws`: at most so many draws of a cell; 0 leaves
    sampling out. `only` names the properties to test."""

    prompts: Sequence[str]
    settings: Settings
    draws: int
    only: Sequence[str]

    def greedy(self, limit: int | None = None, **changes: Any) -> list[Case]:
        """The first `limit` prompts with greedy settings and these `changes`."""
        settings = replace(self.settings, temperature=0.0, **changes)
        return [((prompt,), settings) for prompt in self.prompts[:limit]]


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one property. `counterexample` is the shortest. Of the sampled part: `p_values`
    by coupling, the smallest as `p_value`, and the number of `draws` per coupling."""

    result: Literal["pass", "fail", "not offered"]
    cases: int = 0
    failures: int = 0
    note: str = ""
    counterexample: dict[str, Any] | None = None
    p_value: float | None = None
    p_values: dict[str, float] | None = None
    draws: int | None = None
    tv_distance: float | None = None
    tv_noise_floor: float | None = None


def compared(cases: int, differences: Sequence[dict[str, Any]]) -> Cell:
    """The cell of so many cases, of which those with `differences` failed."""
    if not differences:
        return Cell("pass", cases)
    shortest = min(differences, key=lambda case: (case["position"], sum(map(len, case["prompt"]))))
    causes = Counter(case["cause"] for case in differences)
    note = "; ".join(f"{count} of {cases}: {cause}" for cause, count in causes.most_common())
    return Cell("fail", cases, len(differences), note, shortest)


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine under test. Its methods share their `baselines`, answers of autoregressive
    decoding."""

    engine: AuditedEngine
    baselines: dict[Any, Any] = field(default_factory=dict)

    def baseline(self, conversation: Conversation, settings: Settings) -> Tokens:
        """Raises NotOffered where autoregressive decoding fails: then drafts are not the reason."""
        case = conversation, settings
        if case not in self.baselines:
            try:
                self.baselines[case] = (*self.engine.generate(*case, False),)
            except RequestFailed as error:
                raise NotOffered(f"Without drafts: {error}") from error
        tokens: Tokens = self.baselines[case]
        return tokens

    def answer(self, conversation: Conversation, settings: Settings) -> Tokens:
        return (*self.engine.generate(conversation, settings, True),)

    def compare(self, cases: Sequence[Case], fault: Callable[[str], str] | None = None) -> Cell:
        """Speculative against autoregressive answers. `fault` says what is wrong with a text."""
        differences = []
        for case in cases:
            expected = self.baseline(*case)
            failed = {"prompt": case[0], "position": -1}
            try:
                answer = self.answer(*case)
            except RequestFailed as error:
                differences.append(failed | {"cause": str(error)})
                continue
            if answer != expected:
                differences.append(self.difference(case[0], expected, answer))
            elif fault and (cause := fault(self.engine.text(answer))):
                differences.append(failed | {"position": len(answer), "cause": cause})
        return compared(len(cases), differences)

    def judge(
        self,
        cases: Sequence[Case],
        answers: Iterable[tuple[Tokens, Tokens]],
        cause: str,
        names: tuple[str, str] = WAYS,
    ) -> Cell:
        """The cell of two answers to each of the cases, which differ for this `cause`."""
        differences = [
            self.difference(case[0], first, second, names) | {"cause": cause}
            for case, (first, second) in zip(cases, answers, strict=True)
            if first != second
        ]
        return compared(len(cases), differences)

    def difference(
        self,
        conversation: Conversation,
        first: Tokens,
        second: Tokens,
        names: tuple[str, str] = WAYS,
    ) -> dict[str, Any]:
        """The first difference of two answers, by these names, with both logit margins if the
        engine tells them."""
        pairs = itertools.zip_longest(first, second)
        position, pair = next((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1])
        margins = None
        if None in pair:
            cause = "one answer ends before the other"
        elif (margins := self.engine.margins(conversation, first[:position], pair)) is None:
            cause = "no margins"
        elif margins[0] * margins[1] <= 0 or min(map(abs, margins)) < ROUNDING:
            cause = "rounding"
        else:
            cause = "wrong rule"
        texts = [
            None if token is None else self.engine.text([token]) or f"token {token}"
            for token in pair
        ]
        difference = {"prompt": conversation, "position": position, "margins": margins}
        return difference | {"cause": cause} | dict(zip(names, texts, strict=True))
