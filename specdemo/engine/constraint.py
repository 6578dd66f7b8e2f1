"""Restricts an answer to a formal language over token ids. It is part of the target distribution:
only allowed tokens keep their logits, in autoregressive decoding and in every verified row."""

import os
import sys
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from time import perf_counter
from typing import Protocol

import numpy as np

SLOW = 2e-4  # seconds of a mask from which on drafting computes it beside the engine's thread
Mask = np.ndarray | None  # allowed tokens, bool [vocabulary]; None: all, the answer has ended


class Constraint(Protocol):
    """A language, and the place in it after some tokens. Methods raise SpecdemoError."""

    def mask(self) -> Mask:
        """At least one token is allowed. The mask depends on the tokens only."""

    def advance(self, token: int) -> None:
        """Read an allowed token."""

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens."""


def wait(masks: Future[list[Mask]]) -> Generator[Future[list[Mask]], None, list[Mask]]:
    """The result of `masks`. Yields the Future if it is not done, so that other requests go on."""
    if not masks.done():
        yield masks
    return masks.result()


def forced(mask: np.ndarray) -> int | None:
    """The only token that the mask allows; None if it allows more."""
    token = int(mask.argmax())
    return None if mask[token + 1 :].any() else token


def yield_to_models() -> None:
    """Give this thread the lowest priority, where threads have one (Linux)."""
    if sys.platform == "linux":  # elsewhere the number may be that of another process
        with suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


_workers = ThreadPoolExecutor(4, "specdemo-masks", yield_to_models)


class AllowedTokens:
    """The masks of one request: after its answer so far, and after draft tokens that follow it."""

    def __init__(self, constraint: Constraint):
        self._constraint = constraint
        self._drafted: list[int] = []
        self._masks: list[Mask] = []
        self._pace = 0.0

    def masks(self, drafted: list[int]) -> list[Mask]:
        """The masks after the first 0, 1, ... and after all of the `drafted` tokens."""
        self._roll_back_to(drafted)
        for token in [*drafted[len(self._drafted) :], None]:
            if len(self._masks) == len(self._drafted):
                begun = perf_counter()
                self._masks.append(self._constraint.mask())
                self._pace += (perf_counter() - begun - self._pace) / 8
            if token is not None:
                self._advance(token)
        return list(self._masks)

    def begin(self, drafted: list[int]) -> Future[list[Mask]]:
        """`masks`, computed beside this thread. No other method may be called before its end."""
        return _workers.submit(self.masks, drafted)

    @property
    def slow(self) -> bool:
        """Whether the engine's thread should not wait for the next mask."""
        return self._pace > SLOW

    def commit(self, added: list[int]) -> None:
        """These tokens are part of the answer now."""
        self._roll_back_to(added)
        for token in added[len(self._drafted) :]:
            self._advance(token)
        self._drafted.clear()
        self._masks.clear()

    def _advance(self, token: int) -> None:
        self._constraint.advance(token)
        self._drafted.append(token)

    def _roll_back_to(self, drafted: list[int]) -> None:
        same = len(os.path.commonprefix([self._drafted, drafted]))
        self._constraint.rollback(len(self._drafted) - same)
        del self._drafted[same:], self._masks[same + 1 :]
