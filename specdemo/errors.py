"""The error classes of the whole project, each with its exit code and its HTTP status."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specdemo.engine.faults import BadInput as BadInput
from specdemo.engine.faults import Busy as Busy
from specdemo.engine.faults import CacheFull as CacheFull
from specdemo.engine.faults import Closed as Closed
from specdemo.engine.faults import ModelError as ModelError
from specdemo.engine.faults import RequestFailed as RequestFailed
from specdemo.engine.faults import SpecdemoError as SpecdemoError


class InvalidOption(BadInput):
    """A field of options cannot be used. `sentence` is a format with a {} for the name of each of
    `params`, and with the other `values`."""

    def __init__(self, sentence: str, *params: str, **values: object):
        super().__init__(sentence.format(*params, **values), params[0])
        self.sentence, self.params, self.values = sentence, params, values


@contextmanager
def naming(name: Callable[[str], str]) -> Iterator[None]:
    """Errors in the block name a field as its user does: --draft-tokens for draft_tokens."""
    try:
        yield
    except InvalidOption as error:
        names = map(name, error.params)
        raise BadInput(error.sentence.format(*names, **error.values), error.param) from None


class FetchError(SpecdemoError):
    """Getting a model ready failed: network, disk, a damaged file, a conversion."""

    http_status = 502


class DamagedModel(RequestFailed):
    """A model's file changed after it was made or fetched; its answers cannot be trusted."""


class MissingPackage(SpecdemoError):
    """An optional package is needed; the message says how to install it."""

    http_status = 501


def install(extra: str) -> str:
    """The command that installs one of this package's extras, beside a wheel or in a clone."""
    return f"`pip install 'specdemo[{extra}]'`"


TORCH_FIRST = (
    "on Linux without a GPU first `pip install --index-url https://download.pytorch.org/whl/cpu "
    "torch`, which saves 4 GB"
)
