"""Races a pair with each of its drafts and with n-grams only, and stores the results."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime

from specdemo.bench.prompts import read_prompts, spread
from specdemo.bench.report import BenchReport, bench
from specdemo.host import measured
from specdemo.host.measured import DraftResult, TuningResult
from specdemo.host.terminal import Progress
from specdemo.pairs.registry import NO_DRAFT, ModelChoice, chosen_pair
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings
from specdemo.runs.trace import over

TOKENS = 64  # of the longest answer


def tune(
    choice: ModelChoice,
    open_session: Callable[[ModelChoice], AbstractContextManager[Session]],
    *,
    drafts: Collection[str] = (),
    prompts: int,
) -> Iterator[str | TuningResult]:
    """Race built-in prompts with each draft of the pair that `choice` names, with each of `drafts`
    (as `ModelChoice.assistant_model`) and with n-grams only, all on the processor with default
    settings. Yields progress, and last the TuningResult, which is stored. Raises BadInput for an
    unknown pair or draft before the first race."""
    choice = ModelChoice(choice.pair, choice.model, weight_format=choice.weight_format)
    raced, settings = spread(read_prompts(), prompts), Settings(max_new_tokens=TOKENS)
    pair, results = chosen_pair(choice), []
    for draft in drafts:
        chosen_pair(replace(choice, assistant_model=draft))
    for draft in (*(draft.name for draft in pair.drafts), *drafts, NO_DRAFT):
        subject = f"{pair.title} with {named(draft)}"
        yield f"Loading {subject}"
        with open_session(replace(choice, assistant_model=draft)) as session:
            for event in bench(session, raced, settings, users=False):
                if isinstance(event, Progress):
                    yield f"{subject}: {event.text}"
            step = session.engine.draft_step
        assert isinstance(event, BenchReport)
        summary = event.summary
        results.append(
            DraftResult(
                draft=draft,
                speedup=summary.speedup or 0.0,
                tokens_per_second=summary.speculative_tokens_per_s or 0.0,
                acceptance_rate=summary.acceptance_rate,
                target_seconds=over(1.0, summary.autoregressive_tokens_per_s) or 0.0,
                draft_seconds=step,
                verdict=event.decision.verdict.sentence,
            )
        )
    tuned = TuningResult(datetime.now(UTC).date().isoformat(), tuple(results))
    measured.write("tuned", pair.subject, tuned)
    yield tuned


def named(draft: str) -> str:
    return "n-grams only" if draft == NO_DRAFT else draft
