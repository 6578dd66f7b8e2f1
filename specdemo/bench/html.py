"""A report as one self-contained page: tables and Plotly figures, plotly.js inside. Whatever comes from outside is
escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from html import escape

from plotly.io import to_html
from plotly.offline import get_plotlyjs

from specdemo.bench.figures import all_figures
from specdemo.bench.report import Report
from specdemo.bench.screen import number, percent, times, yes_no

# Nothing may be loaded from anywhere: the page shows the same in ten years, and without a network.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; max-width: 64rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: #444; font-weight: 600; }
.verdict { font-size: 1.3rem; } .small { color: #444; font-size: .9rem; overflow-wrap: anywhere; }
"""


def page(report: Report) -> str:
    """The whole page as text (about 5 MB, nearly all of it plotly.js)."""
    figures = "".join(
        to_html(figure, full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True})
        for figure in all_figures(report)
    )
    title = f"specdemo bench: {report.pair.target}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<h1>{escape(title)}</h1>
{_verdict(report)}
{_table(("", "plain", "speculative"), _comparison(report))}
<h2>Figures</h2>
{figures or "<p>Nothing was measured.</p>"}
{_peers(report)}
<h2>Prompts</h2>
{
        _table(
            (
                "prompt",
                "task",
                "tokens",
                "plain s",
                "speculative s",
                "speed-up",
                "predicted",
                "acceptance rate",
                "tokens per round",
                "identical",
                "near ties",
            ),
            _rows(report),
        )
    }
{_skipped(report)}
<h2>How this was measured</h2>
{_method(report)}
</body>
</html>
"""


def _verdict(report: Report) -> str:
    s, d = report.summary, report.details
    if s.speedup is None:
        return "<p class='verdict'>No prompt was finished.</p>"
    same = {True: "every answer identical to plain decoding", False: "<strong>not every answer identical</strong>",
            None: "answers not compared"}[s.identical]  # fmt: skip
    spread = f" Half of the prompts lie between {times(d.spread.low)} and {times(d.spread.high)}." if d.spread else ""
    stopped = " <strong>Stopped early:</strong> these are the prompts finished until then." if d.stopped else ""
    return (
        f"<p class='verdict'>{s.speedup:.2f} times the speed of plain decoding over {s.prompts} prompts, {same}.</p>"
        f"<p>Worst prompt {times(s.worst_prompt_speedup)}.{spread} Acceptance rate {percent(s.acceptance_rate)}, "
        f"{number(s.tokens_per_round)} tokens per round; predicted from these and the measured costs: "
        f"{times(d.predicted_speedup)}. Outside inference: {percent(s.outside_inference_fraction, 1)} of the time."
        f"{stopped}</p>"
    )


def _comparison(report: Report) -> list[tuple[str, ...]]:
    s, joules = report.summary, report.details.joules_per_token
    rows = [
        ("tokens per second of decoding", number(s.autoregressive_tokens_per_s, 1),
         number(s.speculative_tokens_per_s, 1)),
        ("processor seconds per token", number(s.cpu_seconds_per_token.autoregressive, 4),
         number(s.cpu_seconds_per_token.speculative, 4)),
    ]  # fmt: skip
    energy = "joules per token" if joules.speculative is not None else f"joules per token ({report.details.energy})"
    return [*rows, (energy, number(joules.autoregressive, 3), number(joules.speculative, 3))]


def _rows(report: Report) -> list[tuple[str, ...]]:
    return [
        (row.id, row.task, str(row.tokens), number(row.autoregressive_s, 3), number(row.speculative_s, 3),
         times(row.speedup), times(detail.predicted_speedup), percent(row.acceptance_rate),
         number(row.tokens_per_round), yes_no(row.identical), str(detail.near_ties))
        for row, detail in zip(report.rows, report.details.rows, strict=True)
    ]  # fmt: skip


def _peers(report: Report) -> str:
    if not report.peers:
        return ""
    rows = [
        (name, number(peer.tokens_per_s, 1), yes_no(peer.identical),
         ", ".join(f"{key}={value}" for key, value in peer.settings.items()))
        for name, peer in report.peers.items()
    ]  # fmt: skip
    return "<h2>Other engines</h2>" + _table(("peer", "tokens/s", "identical to ours", "settings"), rows)


def _skipped(report: Report) -> str:
    if not report.details.skipped:
        return ""
    entries = "".join(f"<li>{escape(s.id)}: {escape(s.reason)}</li>" for s in report.details.skipped)
    return f"<h2>Left out</h2><ul>{entries}</ul>"


def _method(report: Report) -> str:
    d, pair = report.details, report.pair
    settings = {key: "auto" if value is None else value for key, value in asdict(report.settings).items()}
    facts = (
        ("machine", report.machine),
        ("target model", f"{pair.target} {pair.target_revision}"),
        ("draft model", f"{pair.draft or 'none: prompt lookup'} {pair.draft_revision}"),
        ("numerics", pair.numerics_found),
        ("settings", ", ".join(f"{key} {value}" for key, value in settings.items())),
        ("versions", ", ".join(f"{key} {value}" for key, value in report.versions.items())),
        ("runs of each prompt", str(d.repeats)),
        ("measured", f"{d.created}, {d.seconds:.0f} s in all"),
    )
    lines = "".join(f"<br>{escape(key)}: {escape(value)}" for key, value in facts)
    return (
        "<p class='small'>Seconds are wall-clock seconds of decoding, from an answer's first token to its last, after "
        "the same prefill; plain decoding runs the target alone, one token a forward, its fastest way. Both run one "
        "after the other, prompt by prompt, in one process. The speed-up is total over total time for the same tokens."
        f"{lines}</p>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cells(tag: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"

    return (
        f"<table><thead>{cells('th', head)}</thead><tbody>{''.join(cells('td', row) for row in rows)}</tbody></table>"
    )
