"""The properties that the audit tests: an answer with draft tokens is compared with the same
engine's autoregressive decoding."""

import itertools
import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from specdemo.audit.comparison import Cell, Plan, Subject
from specdemo.audit.draws import sampling, sampling_settings
from specdemo.audit.engines import NotOffered
from specdemo.errors import BadInput, RequestFailed

SHORT_QUESTIONS = (
    "What is the capital of France?",
    "What is 2 + 2?",
    "Name one colour.",
    "Is water wet? Answer yes or no.",
    "Say hello.",
    "What is the opposite of hot?",
    "Who wrote Hamlet?",
    "Name three animals.",
)
SHORT_ANSWER_TOKENS = 120  # enough for answers to SHORT_QUESTIONS to end

FIELDS: dict[str, Any] = {
    "colour": {"enum": ["red", "green", "blue"]},
    "count": {"type": "integer", "minimum": 0, "maximum": 99},
    "sure": {"type": "boolean"},
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": FIELDS, "required": list(FIELDS)}
SCHEMA |= {"additionalProperties": False}

MAX_CASES = 20  # of the properties other than greedy
BATCH = 8  # requests that are active at once
SEEDED_TOKENS = 24
CONTEXT_TOKENS = 24  # of the answer that fills the context


def greedy(subject: Subject, plan: Plan) -> Cell:
    return subject.compare(plan.greedy())


def seed(subject: Subject, plan: Plan) -> Cell:
    settings = replace(sampling_settings(plan.settings), max_new_tokens=SEEDED_TOKENS)
    prompts = enumerate(plan.prompts[:MAX_CASES], settings.seed)
    return subject.compare([((prompt,), replace(settings, seed=seed)) for seed, prompt in prompts])


def repeat(subject: Subject, plan: Plan) -> Cell:
    """The same call twice, greedy and sampled with a seed."""
    sampled = sampling_settings(plan.settings)
    cases = [
        (prompt, settings)
        for prompt, greedy in plan.greedy(BATCH)
        for settings in (greedy, sampled)
    ]
    answers = [(subject.answer(*case), subject.answer(*case)) for case in cases]
    return subject.judge(cases, answers, "not repeatable")


def batch(subject: Subject, plan: Plan) -> Cell:
    """Speculative answers alone, and among seven others."""
    cases = (plan.greedy(BATCH) * BATCH)[:BATCH]
    alone = [subject.answer(*case) for case in cases]
    answers = zip(alone, subject.engine.generate_many(cases, True), strict=True)
    return subject.judge(cases, answers, "depends on other requests", ("alone", "among others"))


def end(subject: Subject, plan: Plan) -> Cell:
    """Questions asked again, below their answers: drafts hold the end token and what follows it."""
    settings = replace(plan.settings, temperature=0.0, max_new_tokens=SHORT_ANSWER_TOKENS)
    cases = []
    for question in SHORT_QUESTIONS:
        tokens = subject.baseline((question,), settings)
        if len(tokens) < SHORT_ANSWER_TOKENS:
            cases.append(((question, subject.engine.text(tokens), question), settings))
    if not cases:
        raise NotOffered(f"None of the answers ended within {SHORT_ANSWER_TOKENS} tokens.")
    return subject.compare(cases)


def stop(subject: Subject, plan: Plan) -> Cell:
    """Stop strings from the middle of answers."""
    cases = []
    for conversation, settings in plan.greedy(MAX_CASES):
        text = subject.engine.text(subject.baseline(conversation, settings))
        middle = text[len(text) // 2 :][:6]
        if middle.strip() and "\ufffd" not in middle:
            cases.append((conversation, replace(settings, stop=(middle,))))
    if not cases:
        raise NotOffered("No answer has a text that can be a stop string.")
    return subject.compare(cases)


def schema(subject: Subject, plan: Plan) -> Cell:
    def fault(text: str) -> str:
        try:
            return "" if set(json.loads(text)) == set(FIELDS) else "other keys"
        except ValueError:
            return f"not JSON: {text[:80]!r}"

    cases = plan.greedy(MAX_CASES, json_schema=json.dumps(SCHEMA), max_new_tokens=64)
    return subject.compare(cases, fault)


def penalties(subject: Subject, plan: Plan) -> Cell:
    values = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
    return subject.compare(plan.greedy(MAX_CASES, **values))


def context(subject: Subject, plan: Plan) -> Cell:
    """A prompt and an answer that fill the context to its last token."""
    limit, count = subject.engine.context_limit, subject.engine.prompt_tokens
    if limit is None:
        raise NotOffered("The engine does not tell its longest context.")
    words = list(itertools.islice(itertools.cycle(" ".join(plan.prompts).split()), limit))
    lengths, room = range(len(words) + 1), limit - CONTEXT_TOKENS
    longer = bisect_right(lengths, room, lo=2, key=lambda n: count((" ".join(words[:n]),)))
    prompt = (" ".join(words[: longer - 1]),)
    settings = replace(plan.settings, temperature=0.0, max_new_tokens=limit - count(prompt))
    return subject.compare([(prompt, settings)])


class Property(NamedTuple):
    """`failure`: what it means for users that the `test` fails."""

    title: str
    failure: str
    test: Callable[[Subject, Plan], Cell]


PROPERTIES = {
    "greedy": Property("greedy identity", "Drafts change answers that are not sampled.", greedy),
    "seed": Property("same seed", "Drafts change the sampled answer of a seed.", seed),
    "repeat": Property("repeatability", "A reported error may not recur.", repeat),
    "batch": Property("batch invariance", "Other requests change an answer.", batch),
    "sampling": Property(
        "sampled distribution",
        "Sampled answers have other frequencies than the model's, or the request fails.",
        sampling,
    ),
    "end": Property("end tokens in drafts", "Answers run on after their end, or lose it.", end),
    "stop": Property("stop strings", "Stop strings cut too much or too little.", stop),
    "schema": Property("JSON schema", "Drafts break or change an answer in JSON.", schema),
    "penalties": Property("penalties", "Drafts change the effect of penalties.", penalties),
    "context": Property("longest context", "Drafts fail where the context is full.", context),
}
"""In the order of the report's columns."""


def cell_of(name: str, subject: Subject, plan: Plan) -> Cell:
    """The cell of the property `name`."""
    if name not in ("greedy", "repeat") and name not in subject.engine.offers:
        return Cell("not offered")
    try:
        return PROPERTIES[name].test(subject, plan)
    except (NotOffered, BadInput) as error:
        return Cell("not offered", note=str(error))
    except RequestFailed as error:
        return Cell("fail", 1, 1, str(error), {"prompt": (), "position": -1, "cause": "error"})
