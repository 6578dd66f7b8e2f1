"""Training text from the target alone: instructions of the kinds people give, each answered by the target.

About half the questions are finished by the target itself from their first words (Magpie, arXiv 2406.08464). Two of
three answers are greedy, the rest sampled at temperature 0.7, so that the draft also learns what comes after a less
likely word.
"""

from __future__ import annotations

from pathlib import Path

from specdemo.training import corpus, prompts
from specdemo.training.corpus import Conversation
from specdemo.training.settings import Report, TrainProgress
from specdemo.training.target import Request, Target, Writer

TEMPERATURE = 0.7
OPENING_TEMPERATURE = 0.9
OPENING_TOKENS = 40
FIRST_PHASE = 0.3
"""Share of the text written before passages can be cut from it."""


def write_text(
    target: Target, writer: Writer, path: Path, *, tokens: int, limit: int, seed: int, report: Report
) -> None:
    """Write conversations to `path` until their answers hold `tokens` tokens.

    A file that is there already is continued: conversations come in groups whose content depends only on the seed, on
    their number and on the first phase's answers, so a run that was killed ends with the same text.
    """
    import time

    conversations = _whole_groups(path, writer.at_once)
    started, already = time.monotonic(), sum(len(c.answer) for c in conversations)
    written, passages = already, _passages(target, conversations, tokens)
    while written < tokens:
        first = len(conversations)
        texts = passages if written >= FIRST_PHASE * tokens else []
        group = _group(target, writer, range(first, first + writer.at_once), texts, limit, seed)
        corpus.write(path, group)
        conversations += group
        written = sum(len(c.answer) for c in conversations)
        if not texts:
            passages = _passages(target, conversations, tokens)
        rate = (written - already) / (time.monotonic() - started)
        report(
            TrainProgress(
                "Writing text", min(written, tokens), tokens, None, max(0, tokens - written) / max(rate, 1e-9)
            )
        )


def _whole_groups(path: Path, size: int) -> list[Conversation]:
    """What the file holds, cut back to whole groups, on disk too."""
    conversations = corpus.read(path)
    whole = conversations[: len(conversations) // size * size]
    if path.exists():
        path.unlink()
        corpus.write(path, whole)
    return whole


def _passages(target: Target, conversations: list[Conversation], tokens: int) -> list[str]:
    """The first phase's answers as text, those long enough to be about something."""
    chosen, written = [], 0
    for conversation in conversations:
        if written >= FIRST_PHASE * tokens:
            break
        written += len(conversation.answer)
        if len(conversation.answer) >= 40:
            chosen.append(target.tokenizer.decode(conversation.answer))
    return chosen


def _group(
    target: Target, writer: Writer, numbers: range, texts: list[str], limit: int, seed: int
) -> list[Conversation]:
    openings_work = _ends_user_turn(target)
    instructions = [prompts.instruction(seed, number, texts, openings=openings_work) for number in numbers]
    rendered: dict[int, tuple[int, ...]] = {}
    openings = []
    for number, instruction in zip(numbers, instructions, strict=True):
        if instruction.opening:
            begun = target.tokenizer.encode(target.template.before + instruction.text, bos=target.template.bos)
            openings.append((number, Request(tuple(begun), OPENING_TOKENS, OPENING_TEMPERATURE, seed + number)))
        else:
            rendered[number] = tuple(target.template.render(instruction.text, target.tokenizer))
    after = tuple(target.tokenizer.encode(target.template.after))
    if openings:
        endings = writer.write([request for _, request in openings])
        for (number, request), ending in zip(openings, endings, strict=True):
            question = ending[:-1] if ending and ending[-1] in target.stop_ids else ending
            rendered[number] = request.prompt + question + after
    requests = [
        Request(rendered[number], limit, TEMPERATURE if number % 3 == 0 else 0.0, seed + number) for number in numbers
    ]
    answers = writer.write(requests)
    return [
        Conversation(instruction.kind, request.temperature == 0, request.prompt, answer)
        for instruction, request, answer in zip(instructions, requests, answers, strict=True)
    ]


def _ends_user_turn(target: Target) -> bool:
    """Whether the model itself marks the end of a user turn, so that it can finish a question."""
    after = target.tokenizer.encode(target.template.after) if target.template.after else []
    return bool(after) and after[0] in target.stop_ids
