"""A session that is somewhere else: the face of `specdemo.session.Session` over the endpoints of `native`.

The page and the benchmark use it as they use a session of their own; nothing is decoded here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from specdemo.engine.scheduler import Load, Waiting
from specdemo.trace import (
    BaselineToken,
    PairInfo,
    Round,
    Settings,
    Trace,
    BadInput,
    from_json,
    to_json,
)
from specdemo.serving.web import KEY_VARIABLE
from specdemo.models.errors import BadChoice, ZooError

CONNECT, SILENCE = 10.0, 60.0
"""Seconds to wait for a connection, and for the next line: one comes four times a second, if only an empty one."""


class _NoMeter:
    available = False

    def joules(self) -> None:
        return None


if TYPE_CHECKING:
    from specdemo.session import CacheUse

_rounds = TypeAdapter(tuple[Round, ...])
_tokens = TypeAdapter(tuple[BaselineToken, ...])
_pair = TypeAdapter(PairInfo)
_waiting = TypeAdapter(Waiting)


class EngineError(ZooError):
    """The engine somewhere else cannot be reached, or failed; one sentence for the user."""


class NotReadyYet(EngineError):
    """The engine is there but has not loaded its model yet."""


class RequestError(EngineError, ValueError):
    """A request that the engine refused; its own sentence. Named as the session's, which the page knows by name."""


class RemoteSession:
    """Answers by asking a `specdemo serve` at `url`; `key` defaults to SPECDEMO_API_KEY. Thread safe.

    Raises EngineError when it cannot be reached, BadChoice for a URL that is none.
    """

    def __init__(self, url: str, key: str | None = None):
        self.url = engine_url(url)
        self._lock = threading.Lock()
        self._active = 0
        key = key or os.environ.get(KEY_VARIABLE, "").strip()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(SILENCE, connect=CONNECT, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, limits=limits)
        with self._reached():
            response = self._http.get("/specdemo/info")
        if response.status_code != 200:
            raise _error_of(response)
        try:
            data = response.json()
            self.info: PairInfo = _pair.validate_python(data["pair"])
            self.context_limit = int(data["context_limit"])
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise EngineError(f"What answers at {self.url} is not a specdemo engine; start one with "
                              "`python -m specdemo serve`.") from error  # fmt: skip

    def answer(
        self,
        instruction: str,
        settings: Settings,
        *,
        stop: threading.Event | None = None,
        certify: bool = True,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> Iterator[Round | Trace]:
        """As Session.answer. A run that is stopped ends with the trace of what had come until then."""
        body = json.dumps({"instruction": instruction, "settings": dataclasses.asdict(settings), "certify": certify})
        prompt_tokens = 0
        rounds: list[Round] = []
        with closing(self._lines("/specdemo/answer", body, stop, on_wait)) as lines:
            for line in lines:
                prompt_tokens = line.get("started", prompt_tokens)
                for one in _parsed(_rounds, line.get("rounds", [])):
                    rounds.append(one)
                    yield one
                if "trace" in line:
                    yield _trace(line["trace"])
                    return
        yield self._cut_off(instruction, settings, prompt_tokens, rounds)

    def baseline(
        self,
        trace: Trace,
        *,
        stop: threading.Event | None = None,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> Iterator[BaselineToken | Trace]:
        """As Session.baseline; a run that is stopped ends with the trace as it was given."""
        with closing(self._lines("/specdemo/baseline", to_json(trace), stop, on_wait)) as lines:
            for line in lines:
                yield from _parsed(_tokens, line.get("tokens", []))
                if "trace" in line:
                    yield _trace(line["trace"])
                    return
        yield trace

    @property
    def load(self) -> Load:
        """The requests of this session; what others ask of the engine is not known here."""
        return Load(self._active, 0, 0, 0, 0, 0, 0)

    def cache_blocks(self) -> dict[str, CacheUse]:
        """None: the caches are the engine's, and its own /metrics tells of them."""
        return {}

    def close(self) -> None:
        """Close the connections; the engine goes on for others."""
        self._http.close()

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def meter() -> _NoMeter:
        """In place of this machine's energy counters, which say nothing of the engine's."""
        return _NoMeter()

    def _lines(
        self, path: str, body: str, stop: threading.Event | None, on_wait: Callable[[Waiting], None] | None
    ) -> Iterator[dict[str, Any]]:
        """The JSON objects of a stream, until its end or until `stop` is set. Leaving it ends the work over there."""
        headers = {"Content-Type": "application/json"}
        asked = self._http.stream("POST", path, content=body.encode(), headers=headers)
        with self._counted(), self._reached(), asked as response:
            if response.status_code != 200:
                response.read()
                raise _error_of(response)
            for text in response.iter_lines():
                if stop is not None and stop.is_set():
                    return
                if not text:
                    continue
                line = json.loads(text)
                if "error" in line:
                    raise EngineError(str(line["error"].get("message")))
                if on_wait is not None and "waiting" in line:
                    on_wait(_parsed(_waiting, line["waiting"]))
                yield line
                if "trace" in line:
                    return
        raise EngineError(f"The engine at {self.url} ended its answer too early; ask again.")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._active += 1
        try:
            yield
        finally:
            with self._lock:
                self._active -= 1

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise EngineError(f"No engine answers at {self.url}; start one with `python -m specdemo serve`.") from error
        except httpx.TimeoutException as error:
            raise EngineError(f"The engine at {self.url} has not said anything for too long.") from error
        except httpx.HTTPError as error:
            raise EngineError(f"The connection to the engine at {self.url} broke off; ask again.") from error

    def _cut_off(self, instruction: str, settings: Settings, prompt_tokens: int, rounds: list[Round]) -> Trace:
        """What is known of a run that was stopped: the server's own figures of it never came."""
        return Trace(
            instruction=instruction,
            prompt_tokens=prompt_tokens,
            prompt_reused=0,
            pair=self.info,
            settings=settings,
            prefill_seconds=rounds[0].verify_seconds if rounds else 0.0,
            rounds=tuple(rounds),
            finish_reason="cancelled",
            cpu_seconds=0.0,
            outside_seconds=0.0,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def engine_url(text: str) -> str:
    """The URL without its last slash. Raises BadChoice for one that is not http(s)://HOST."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise BadChoice(f"--engine {text!r} is not the address of an engine; give http://HOST:PORT.")
    return text.rstrip("/")


def _error_of(response: httpx.Response) -> EngineError:
    """The exception of a response that is not 200."""
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"The engine at {response.url.host} answered {response.status_code} {response.reason_phrase}."
    return {400: RequestError, 503: NotReadyYet}.get(response.status_code, EngineError)(message)


def _parsed(adapter: TypeAdapter, data: Any) -> Any:
    try:
        return adapter.validate_python(data)
    except ValidationError as error:
        raise EngineError("The engine sent what this version does not understand.") from error


def _trace(data: dict[str, Any]) -> Trace:
    try:
        return from_json(json.dumps(data))
    except BadInput as error:
        raise EngineError(f"The engine sent a trace that is none: {error}") from error
