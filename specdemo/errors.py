"""The error classes of the whole project, each with its exit code and its HTTP status."""

from specdemo.engine.faults import BadInput as BadInput
from specdemo.engine.faults import Busy as Busy
from specdemo.engine.faults import CacheFull as CacheFull
from specdemo.engine.faults import ModelError as ModelError
from specdemo.engine.faults import RequestFailed as RequestFailed
from specdemo.engine.faults import SpecdemoError as SpecdemoError


class FetchError(SpecdemoError):
    """Getting a model ready failed: network, disk, a damaged file, a conversion."""

    http_status = 502


class DamagedModel(RequestFailed):
    """A model's file changed after it was made or fetched; its answers cannot be trusted."""


class MissingPackage(SpecdemoError):
    """An optional package is needed; the message says how to install it."""

    http_status = 501
