"""The error classes of the whole project, each with its exit code and its HTTP status."""

from specdemo.engine.errors import BadInput as BadInput
from specdemo.engine.errors import Busy as Busy
from specdemo.engine.errors import CacheFull as CacheFull
from specdemo.engine.errors import ModelError as ModelError
from specdemo.engine.errors import RequestFailed as RequestFailed
from specdemo.engine.errors import SpecdemoError as SpecdemoError


class FetchError(SpecdemoError):
    """Getting a model ready failed: network, disk, a damaged file, a conversion."""

    http_status = 502


class DamagedModel(RequestFailed):
    """A model's file changed after it was made or fetched; its answers cannot be trusted."""


class MissingPackage(SpecdemoError):
    """An optional package is needed; the message says how to install it."""

    http_status = 501
