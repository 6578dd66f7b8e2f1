"""`train-draft --only ngrams`: an n-gram table of a target's own text. Needs no torch."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tqdm import tqdm

from specdemo.errors import BadInput
from specdemo.models import machine, ngrams
from specdemo.models.load import load_pair
from specdemo.models.registry import NO_DRAFT, PAIRS, own_pair
from specdemo.models.sources import source_of
from specdemo.session import Session
from specdemo.settings import ModelChoice, Settings
from specdemo.training import prompts
from specdemo.training.corpus import Conversation
from specdemo.training.export import count_ngrams
from specdemo.training.generate import TEMPERATURE

if TYPE_CHECKING:
    from specdemo.training.command import TrainSettings

TOGETHER = 8
"""Answers that are written at once: they share forwards."""


def count(settings: TrainSettings) -> int:
    """Let the target answer made-up instructions for `settings.minutes`, or until there are
    `settings.tokens`, and count what follows what. The table goes to `settings.out` and where every
    session with this target finds it. Gives the tokens counted; raises what `load_pair` raises."""
    own = [pair for pair in PAIRS if pair.name == settings.target]
    if own and own[0].embedded:
        raise BadInput("--target embedded: that pair has an n-gram table of its own.")
    if own:
        pair = own[0].with_draft(NO_DRAFT, "--target")
    else:
        pair = own_pair(source_of(settings.target, "--target", "int8"), None)
    settings.out.mkdir(parents=True, exist_ok=True)
    loaded = load_pair(pair, choice=ModelChoice(draft=NO_DRAFT))
    until = time.monotonic() + 60 * (settings.minutes or float("inf"))
    written: list[Conversation] = []
    with (
        Session(loaded, active=TOGETHER) as session,
        tqdm(total=settings.tokens, desc="Writing text", unit=" tokens") as bar,
        ThreadPoolExecutor(TOGETHER) as pool,
    ):

        def write(first: int) -> None:
            number = first
            while bar.n < settings.tokens and time.monotonic() < until:
                asked = prompts.instruction(settings.seed, number, (), openings=False)
                temperature = TEMPERATURE if number % 3 == 0 else 0.0
                how = Settings(settings.answer_tokens, temperature=temperature, seed=number)
                *_, trace = session.answer(asked.text, how)
                written.append(Conversation(asked.kind, not temperature, (), trace.token_ids))
                bar.update(len(trace.token_ids))
                number += TOGETHER

        list(pool.map(write, range(TOGETHER)))
    if not written:
        raise BadInput(f"--minutes {settings.minutes:g} is too little time for an answer.")
    content = count_ngrams(written, loaded.tokenizer.vocabulary_size).content()
    (settings.out / "ngrams.npz").write_bytes(content)
    made = ngrams.made_path(loaded.info.target, loaded.info.target_revision)
    machine.replace_file(made, content)
    return sum(len(one.answer) for one in written)
