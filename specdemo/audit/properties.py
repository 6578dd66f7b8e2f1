"""The properties that the audit tests: an answer with draft tokens is compared with the same
engine's autoregressive decoding."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from specdemo.audit.comparison import Cell, Plan, Subject, compared
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
SCHEMA = {"type": "object", "properties": FIELDS, "required": list(FIELDS)}

MAX_CASES = 20  # of the properties other than greedy
BATCH = 8  # requests that are active at once
SEEDED_TOKENS = 24
CONTEXT_TOKENS = 24  # of the answer that fills the context


def greedy(subject: Subject, plan: Plan) -> Cell:
    return subject.compare(plan.greedy())


def seed(subject: Subject, plan: Plan) -> Cell:
    settings = replace(sampling_settings(plan.settings), max_new_tokens=SEEDED_TOKENS)
    return subject.compare(
        [
            ((prompt,), replace(settings, seed=settings.seed + number))
            for number, prompt in enumerate(plan.prompts[:MAX_CASES])
        ]
    )


def repeat(subject: Subject, plan: Plan) -> Cell:
    """The same call twice, greedy and sampled with a seed."""
    sampled = sampling_settings(plan.settings)
    cases = [
        (prompt, settings)
        for prompt, greedy in plan.greedy(BATCH)
        for settings in (greedy, sampled)
    ]
    differences = []
    for case in cases:
        first, second = (subject.answer(*case) for _ in range(2))
        if first != second:
            differences.append(subject.difference(case[0], first, second, cause="not repeatable"))
    return compared(len(cases), differences)


def batch(subject: Subject, plan: Plan) -> Cell:
    """Speculative answers alone, and among seven others."""
    cases = (plan.greedy(BATCH) * BATCH)[:BATCH]
    alone = [subject.answer(*case) for case in cases]
    together = subject.engine.generate_many(cases, True)
    names, cause = ("alone", "among others"), "depends on other requests"
    differences = [
        subject.difference(conversation, first, second, names, cause)
        for (conversation, _), first, second in zip(cases, alone, together, strict=True)
        if first != second
    ]
    return compared(len(cases), differences)


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

    required = json.dumps(SCHEMA | {"additionalProperties": False})
    return subject.compare(plan.greedy(MAX_CASES, json_schema=required, max_new_tokens=64), fault)


def penalties(subject: Subject, plan: Plan) -> Cell:
    values = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
    return subject.compare(plan.greedy(MAX_CASES, **values))


def context(subject: Subject, plan: Plan) -> Cell:
    """A prompt and an answer that fill the context to its last token."""
    limit, count = subject.engine.context_limit, subject.engine.prompt_tokens
    if limit is None:
        raise NotOffered("The engine does not tell its longest context.")
    words = list(itertools.islice(itertools.cycle(" ".join(plan.prompts).split()), limit))
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        fits = count((" ".join(words[:middle]),)) <= limit - CONTEXT_TOKENS
        low, high = (middle, high) if fits else (low, middle - 1)
    prompt = (" ".join(words[:low]),)
    settings = replace(plan.settings, temperature=0.0, max_new_tokens=limit - count(prompt))
    return subject.compare([(prompt, settings)])


@dataclass(frozen=True, slots=True)
class Property:
    """`failure`: what it means for users that the `test` fails."""

    title: str
    failure: str
    test: Callable[[Subject, Plan], Cell]


PROPERTIES = {
    "greedy": Property(
        "greedy identity",
        "Drafting changes answers even without sampling: users do not get the model that was "
        "tested.",
        greedy,
    ),
    "seed": Property("same seed", "A sampled answer cannot be reproduced without drafting.", seed),
    "repeat": Property(
        "repeatability",
        "The same request gives different answers: a reported error may not recur.",
        repeat,
    ),
    "batch": Property(
        "batch invariance", "An answer depends on the other requests of the moment.", batch
    ),
    "sampling": Property(
        "sampled distribution",
        "Sampled answers have other frequencies than the model's: some are missing, others too "
        "frequent, or the request fails.",
        sampling,
    ),
    "end": Property("end tokens in drafts", "Answers run on after their end, or lose it.", end),
    "stop": Property(
        "stop strings", "Text after a stop string gets through, or text before it is lost.", stop
    ),
    "schema": Property(
        "JSON schema", "An answer that has to be JSON is not, or is another one.", schema
    ),
    "penalties": Property(
        "penalties", "Penalties against repetition work otherwise with drafts.", penalties
    ),
    "context": Property(
        "longest context", "Answers differ or fail where the context is full.", context
    ),
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
