"""The page in front of an engine that is somewhere else (`app.py --engine`): one pair, the engine's. Draws nothing."""

from __future__ import annotations

import sys
import time

from specdemo.serving.client import EngineError, NotReadyYet, RemoteSession
from specdemo.ui.choice import Offer, Offered
from specdemo.ui.controls import InputError, Models

PATIENCE = 900.0
"""Seconds to wait, at the start, for an engine that answers but is still loading its model."""


class RemoteOffer(Offer):
    """The one choice that there is: whatever the engine at `url` runs. Devices and the like are the engine's affair.

    Waits for an engine that is still loading. Raises EngineError when there is none, BadChoice for a URL that is none.
    """

    def __init__(self, url: str):
        self._url = url
        with _reached(url) as session:
            pair = session.info
        self._title = f"{pair.target} with {pair.draft or 'prompt lookup'}, at {url}"
        super().__init__(pair.name, allow_own_pair=False)

    def resolve(self, models: Models) -> Models:
        if models.pair != self.default:
            raise InputError(f"This page asks the engine at {self._url}, which has the pair {self.default} only.")
        return self.first()

    def pairs(self) -> list[Offered]:
        return [Offered(self.default, self._title)]

    def surveyed_pairs(self) -> list[Offered]:
        return self.pairs()

    def open_session(self, models: Models, report) -> RemoteSession:
        """For Service: the engine, whatever `models` are asked for."""
        report(f"Reaching the engine at {self._url}", None)
        return RemoteSession(self._url)


def _reached(url: str) -> RemoteSession:
    """A session of the engine at `url`, when it is ready."""
    since = time.monotonic()
    while True:
        try:
            return RemoteSession(url)
        except NotReadyYet as error:
            if time.monotonic() - since > PATIENCE:
                raise EngineError(f"The engine at {url} is still not ready after {PATIENCE:g} s.") from error
            print(f"The engine at {url}: {error}", file=sys.stderr, flush=True)
            time.sleep(3)
