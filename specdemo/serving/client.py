"""A session on a server: the methods of `specdemo.session.Session` over the API of `serve`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import TypeAdapter

from specdemo.answering import Answering, Event, Question
from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Load
from specdemo.errors import BadInput, Busy, RequestFailed
from specdemo.serving.backend import EVENT_KINDS
from specdemo.serving.options import key_from_environment
from specdemo.trace import Baseline, BaselineToken, PairInfo, Trace, from_json

if TYPE_CHECKING:
    from specdemo.session import CacheUse

READERS = {name: TypeAdapter(kind) for name, kind in EVENT_KINDS.items()}


class RemoteSession(Answering):
    """Answers by asking the server at `url`, with the key SPECDEMO_API_KEY if set. Thread safe.
    Raises BadInput for an invalid URL, Busy while the server loads its model, RequestFailed if the
    server cannot be reached. Answers raise the same errors."""

    load = Load()  # always empty: the server's own /metrics has its load

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        key = key_from_environment()
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            # A line comes at least every 0.25 s.
            timeout=httpx.Timeout(60, connect=10, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=8),
            event_hooks={"response": [_require_ok]},
        )
        with self._reached():
            [model] = self._http.get("/v1/models").json()["data"]
            self.context_limit = int(model["context_length"])
            names = "pair", "id", "draft", "target_revision", "draft_revision", "numerics_found"
            self.info = PairInfo(*(model[name] for name in names))

    def cache_blocks(self) -> dict[str, CacheUse]:
        return {}

    def close(self) -> None:
        """Close the connections; the server goes on for others."""
        self._http.close()

    def ask(self, question: Question) -> Generator[Event]:
        wanted = {"baseline": question.baseline, "repeat": question.repeat}
        wanted |= {"rounds": True, "trace": True, **dataclasses.asdict(question.settings)}
        body = {"model": self.info.target, "stream": True, "speculative": wanted}
        if question.prompt is None:
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": question.instruction}]
        else:
            path, body["prompt"] = "/v1/completions", list(question.prompt)
        seen = []
        with self._reached(), self._http.stream("POST", path, json=body) as response:
            for line in response.iter_lines():
                if question.stop is not None and question.stop.is_set():
                    break
                event = _event(line)
                if isinstance(event, Trace):
                    yield dataclasses.replace(event, instruction=question.instruction)
                    return
                seen.append(event)
                if event is not None and not isinstance(event, int):
                    yield event
            else:
                message = f"The server at {self.url} ended its answer too early; ask again."
                raise RequestFailed(message)
        rounds = tuple(event for event in seen if isinstance(event, Round))
        shown = tuple(event for event in seen if isinstance(event, BaselineToken))
        prefill = rounds[0].verify_seconds if rounds else 0.0
        yield Trace(  # of a stopped run, without the figures that the server would send last
            instruction=question.instruction,
            prompt_tokens=next((event for event in seen if isinstance(event, int)), 0),
            prompt_reused=0,
            pair=self.info,
            settings=question.settings,
            prefill_seconds=prefill,
            rounds=rounds,
            finish_reason="stop" if shown else "cancelled",
            cpu_seconds=0.0,
            outside_seconds=0.0,
            baseline=Baseline(shown, prefill, 0.0) if shown else None,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Raises an error of the connection, or the answer of another server, as one sentence."""
        try:
            yield
        except BadInput:
            raise
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            message = f"{self.url!r} is not the address of a server; give http://HOST:PORT."
            raise BadInput(message, "engine") from error
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            raise RequestFailed(
                f"The server at {self.url} cannot be reached, or is none of this version "
                f"({type(error).__name__}); start one with `python -m specdemo serve`."
            ) from error


def _event(line: str) -> Any:
    """The event in the field `speculative` of a line's chunk, None if there is none. Raises
    RequestFailed for an error in the stream."""
    if not line.startswith("data: {"):
        return None
    chunk = json.loads(line.removeprefix("data: "))
    if "error" in chunk:
        raise RequestFailed(str(chunk["error"]["message"]))
    extension = chunk.get("speculative", {})
    if "trace" in extension:
        return from_json(json.dumps(extension["trace"]))
    for name in READERS.keys() & extension.keys():
        return READERS[name].validate_python(extension[name])
    return None


def _require_ok(response: httpx.Response) -> None:
    """Raises the server's own sentence for a status other than 200, as the matching exception."""
    status = response.status_code
    if status == 200:
        return
    response.read()
    error = response.json()["error"]
    if status == 400:
        raise BadInput(error["message"], error["param"], error["code"])
    raise (Busy if status in (429, 503) else RequestFailed)(error["message"])
