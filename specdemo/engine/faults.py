"""The errors. A message is one sentence for the person who caused the error or can fix it."""

import unicodedata


def printable(text: str, keep: str = "") -> str:
    """`text` with every control character escaped, except those in `keep`."""
    return "".join(
        char.encode("unicode_escape").decode()
        if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") and char not in keep
        else char
        for char in text
    )


class SpecdemoError(Exception):
    """Base of the project's errors, with the command line's exit code and the servers' status. A
    message may quote names and values of files from elsewhere: their line breaks and other control
    characters are escaped."""

    exit_code = 1
    http_status = 500

    def __str__(self) -> str:
        return printable(super().__str__())


class BadInput(SpecdemoError, ValueError):
    """An option, a file or a request that cannot be used; the message names it and says what would
    be accepted. OpenAI's clients read `param`, the request's field, and `code`, a short name."""

    exit_code = 2
    http_status = 400

    def __init__(self, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.param, self.code = param, code


class ModelError(SpecdemoError, RuntimeError):
    """A model cannot be loaded or run."""


class CacheFull(SpecdemoError, RuntimeError):
    """The KV cache has no free block left and may not grow."""

    http_status = 503


class Busy(SpecdemoError, RuntimeError):
    """Overloaded, not ready yet, or shutting down: the same request may succeed later."""

    http_status = 429


class RequestFailed(SpecdemoError, RuntimeError):
    """An accepted request that could not be finished."""


class Closed(RequestFailed):
    """The models have been closed; trying again does not help."""

    http_status = 503

    def __init__(self) -> None:
        super().__init__("The models have been closed; load them again to ask.")
