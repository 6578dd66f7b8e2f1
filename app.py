"""Builds the page and serves it. On a Hugging Face Space it just runs; locally it listens on 127.0.0.1."""

from __future__ import annotations

import argparse
import os
import sys


def main(arguments: list[str] | None = None) -> int:
    """Serve the page until interrupted. Returns the exit code: 2 for bad input, 1 for a failure."""
    on_space = "SPACE_ID" in os.environ
    parser = argparse.ArgumentParser(description="Serve the speculative decoding demo.")
    parser.add_argument("--share", action="store_true", default=os.environ.get("SPECDEMO_SHARE") == "1",
                        help="also print a public link through Gradio's tunnel (SPECDEMO_SHARE=1)")
    parser.add_argument("--host", default=os.environ.get("SPECDEMO_HOST", "0.0.0.0" if on_space else "127.0.0.1"),
                        help="address to listen on (SPECDEMO_HOST; default: 127.0.0.1, on a Space 0.0.0.0)")
    parser.add_argument("--port", default=os.environ.get("SPECDEMO_PORT", "7860"),
                        help="port to listen on (SPECDEMO_PORT; default: 7860, or the next free one)")
    parser.add_argument("--pair", default=os.environ.get("SPECDEMO_PAIR") or None,
                        help="pair of models to start with (SPECDEMO_PAIR; see `python -m specdemo pairs`; default: the "
                             "largest Dolly pair that fits if the Hub answers, else embedded)")
    parser.add_argument("--engine", metavar="URL", default=os.environ.get("SPECDEMO_ENGINE") or None,
                        help="let a `specdemo serve` at http://HOST:PORT answer, in place of models here "
                             "(SPECDEMO_ENGINE; see docs/serving.md)")
    parser.add_argument("--device", default=os.environ.get("SPECDEMO_DEVICE") or "CPU",
                        help="OpenVINO device of the target to start with (SPECDEMO_DEVICE; default: CPU)")
    parser.add_argument("--draft-device", default=os.environ.get("SPECDEMO_DRAFT_DEVICE") or "CPU",
                        help="OpenVINO device of the draft to start with (SPECDEMO_DRAFT_DEVICE; default: CPU)")
    parser.add_argument("--kv-cache", default=os.environ.get("SPECDEMO_KV_CACHE") or "auto",
                        help="precision of the KV cache to start with: auto, f32, f16, bf16 or u8 "
                             "(SPECDEMO_KV_CACHE; default: auto)")
    parser.add_argument("--allow-own-pair", action=argparse.BooleanOptionalAction, default=None,
                        help="let visitors name folders and repositories of their own (default: only where the page is "
                             "for this machine alone)")
    parser.add_argument("--visitors", default=os.environ.get("SPECDEMO_VISITORS", "16"),
                        help="questions that share the models at once; more wait (SPECDEMO_VISITORS; default: 16)")
    parser.add_argument("--cache-mb", default=os.environ.get("SPECDEMO_CACHE_MB", "1024"),
                        help="megabytes of KV cache, taken at the start and never exceeded; one full context at least "
                             "(SPECDEMO_CACHE_MB; default: 1024)")
    parser.add_argument("--exclusive", action="store_true", default=os.environ.get("SPECDEMO_EXCLUSIVE") == "1",
                        help="run comparisons one at a time, so that no figure is of a shared machine "
                             "(SPECDEMO_EXCLUSIVE=1)")
    parser.add_argument("--max-new-tokens", default=os.environ.get("SPECDEMO_MAX_NEW_TOKENS", "100"),
                        help="where the page's setting of that name starts (SPECDEMO_MAX_NEW_TOKENS)")
    options = parser.parse_args(arguments)

    from specdemo.ui import serve

    try:
        return serve.main(options)
    except serve.BadOption as error:
        print(f"app.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
