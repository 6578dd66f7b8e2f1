"""`specdemo audit`: measure that speculation loses nothing, for our pair and for a peer beside it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdemo.bench.audit import Audit, GreedyAudit, SamplingAudit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from specdemo.bench.command import add_prompt_arguments
    from specdemo.cli import add_decoding_arguments, add_pair_arguments, whole_number

    add_prompt_arguments(parser)
    parser.add_argument("--peers", choices=("openvino-genai",), help="put another engine through the same audit")
    parser.add_argument("--draws", type=whole_number(0), metavar="N", default=2000,
                        help="sampled continuations of each kind; 0 leaves sampling out (default 2000)")  # fmt: skip
    parser.add_argument("--sample-prompts", type=whole_number(1), metavar="N", default=4,
                        help="prompts that the draws are spread over (default 4)")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the audit as JSON ('-' for standard output)")
    add_pair_arguments(parser)
    add_decoding_arguments(parser)


def main(args: argparse.Namespace) -> int:
    from specdemo.bench.command import check_output, open_session
    from specdemo.bench.prompts import BUILT_IN, read_prompts, spread
    from specdemo.bench.screen import Screen
    from specdemo.cli import FAILURE, settings_from, write_json

    prompts = spread(read_prompts(args.prompts or BUILT_IN), args.limit)
    settings = settings_from(args)
    check_output(args.json, "--json")
    loaded, session = open_session(args)

    from specdemo.bench.audit import DRAFT_TOKENS, Audit, AuditPlan, audit, to_json

    screen = Screen(sys.stderr if args.json == "-" else sys.stdout)
    screen.line(f"{session.info.target}, drafting with {session.info.draft or 'prompt lookup'}; {len(prompts)} prompts")
    plan = AuditPlan(settings, args.draws, args.sample_prompts)
    models, peers, found = None, [], None
    try:
        if args.peers:
            from specdemo.bench.peers import GenaiModels, audited

            models = GenaiModels(loaded)
            properties = session.target_properties(settings.numerics)
            peers = audited(models, properties, settings.draft_tokens or DRAFT_TOKENS)
        for event in audit(session, prompts, plan, peers=peers):
            if isinstance(event, Audit):
                found = event
            else:
                screen.step(event)
    finally:
        if models is not None:
            models.__exit__(None, None, None)
        session.close()
    for line in lines(found):
        screen.line(line)
    if args.json:
        write_json(to_json(found), args.json)
    if not found.lossless:
        print("specdemo: the audit found that speculation changes the output of this pair", file=sys.stderr)
        return FAILURE
    return 0


def lines(audit: Audit) -> list[str]:
    """The audit as lines of text."""
    found = ["ours:"]
    found += _greedy(audit.greedy)
    for sampling in (audit.sampling, audit.sampling_maximal):
        found += _sampling(sampling)
    for name, peer in audit.peers.items():
        found += ["", f"{name}: {peer.note}".rstrip(": "), *_greedy(peer.greedy), *_sampling(peer.sampling)]
    return found


def _greedy(greedy: GreedyAudit | None) -> list[str]:
    if greedy is None:
        return []
    text = (
        f"  greedy: {greedy.identical} of {greedy.prompts} prompts identical to plain decoding ({greedy.tokens} tokens)"
    )
    if greedy.certified is not None:
        text += f", {greedy.certified} certified"
    from specdemo.bench.screen import printable

    where = [f"    {printable(d.id)} differs from token {d.position + 1} on" for d in greedy.differences[:10]]
    return [text, *where]


def _sampling(sampling: SamplingAudit | None) -> list[str]:
    if sampling is None:
        return []
    verdict = "within" if sampling.tv_distance <= sampling.tv_noise_floor else "ABOVE"
    text = [
        f"  sampling ({sampling.coupling} coupling): TV distance {sampling.tv_distance:.3f} from plain sampling, "
        f"{verdict} the noise floor {sampling.tv_noise_floor:.3f}; p-value {sampling.p_value:.4f}",
        f"    {sampling.draws} draws of {sampling.outcome_tokens} tokens over {sampling.prompts} prompts; "
        f"plain from plain {sampling.tv_plain:.3f}",
    ]
    if sampling.same_seed_identical is not None:
        text.append(
            f"    same seed: {sampling.same_seed_identical} of {sampling.same_seed_draws} answers equal to plain ones"
        )
    if sampling.failures:
        text.append(f"    {sampling.failures} draws failed and were repeated with another seed")
    return text
