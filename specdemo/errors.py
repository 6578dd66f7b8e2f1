"""The kinds of error of the whole project, each with its exit code and its HTTP status."""

from specdemo.engine.errors import (
    BadInput,
    Busy,
    CacheFull,
    ModelError,
    NoPagedAttention,
    RequestFailed,
    SpecdemoError,
)

__all__ = [
    "BadInput",
    "Busy",
    "CacheFull",
    "DamagedModel",
    "FetchError",
    "MissingPackage",
    "ModelError",
    "NoPagedAttention",
    "RequestFailed",
    "SpecdemoError",
]


class FetchError(SpecdemoError):
    """Getting a model ready failed: network, disk, a damaged file, a conversion."""

    http_status = 502


class DamagedModel(RequestFailed):
    """A model's file is not what was made or fetched; what it answers cannot be trusted."""


class MissingPackage(SpecdemoError):
    """An optional package is needed; the message says how to install it."""

    http_status = 501
