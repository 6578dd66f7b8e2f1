"""The one kind of failure the zoo reports: a sentence for the user, with the exit code it deserves."""

from __future__ import annotations


class ZooError(Exception):
    """Getting a model failed (network, disk, a bad file). `str(error)` is one clear sentence for the user."""

    exit_code = 1


class BadChoice(ZooError, ValueError):
    """The user asked for something that does not exist or cannot work; the sentence says what would be accepted."""

    exit_code = 2
