"""Answers of several lengths beside those of the paper (arXiv 2311.04951)."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdemo.bench.prompts import BenchPrompt
from specdemo.runs.trace import Summary, combined, over

PAPER = {40: (19.87, 13.61), 100: (44.25, 26.97)}
"""Seconds by new tokens, (autoregressive, speculative): dolly-v2-12b with the draft dolly-v2-3b,
K = 5, on its authors' machine. Ratios compare with those of other machines, seconds do not."""

PAPER_PROMPT = BenchPrompt("fission", "paper", "Explain the difference between fission and fusion")


def by_length(
    rows: Sequence[Mapping[str, Any]], figures: Sequence[Summary]
) -> list[dict[str, Any]]:
    """For each `max_new_tokens` of a report's rows: mean seconds of decoding, ratio of totals."""
    found = []
    for limit in dict.fromkeys(row["max_new_tokens"] for row in rows):
        places = [at for at, row in enumerate(rows) if row["max_new_tokens"] == limit]
        total = combined([figures[at] for at in places])
        found.append(
            {
                "max_new_tokens": limit,
                "answers": len(places),
                "tokens": sum(rows[at]["tokens"] for at in places) / len(places),
                "autoregressive_s": over(total.baseline_decode_seconds, len(places)),
                "speculative_s": total.decode_seconds / len(places),
                "speedup": total.speedup,
                "identical": all(rows[at]["identical"] for at in places),
            }
        )
    return found
