"""Errors whose message is written for the user of a command line."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["UserError", "as_user_error", "one_line", "plain_errors"]

# The path is missing, lies below a file, is a folder instead of a file, or is not permitted.
_PATH_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
# The disk is full or read-only, or the name is too long; Python has no own classes for these.
_PATH_NUMBERS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG}
_IN_WORKER = re.compile(r"Caught (\w+) in DataLoader worker process \d+\.\nOriginal Traceback")


class UserError(ValueError):
    """A mistake of the user; the tools print its message, one sentence, without a traceback."""


@contextmanager
def as_user_error() -> Iterator[None]:
    """Turn a ValueError of a lower layer, such as `soft_vit.data`, into a UserError with the same message."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def one_line(error: BaseException) -> str:
    """The first line of an error's message without its full stop; for an error in a data worker, the original one."""
    # A KeyError quotes its message; the first argument of others, such as OSError, may be a bare number.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    if worker := _IN_WORKER.match(text):
        text = re.findall(rf"^(?:\S+\.)?{worker[1]}(?:: (.*))?$", text, re.MULTILINE)[-1]
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def in_worker(error: BaseException) -> bool:
    """Whether an error comes from a worker of a DataLoader, which puts the traceback into the message."""
    return _IN_WORKER.match(str(error)) is not None


@contextmanager
def plain_errors() -> Iterator[None]:
    """End the process with exit code 1 and one sentence for a UserError or an unusable path; let other errors pass."""
    try:
        yield
    except (UserError, OSError) as error:
        if not isinstance(error, (UserError, *_PATH_ERRORS)) and error.errno not in _PATH_NUMBERS:
            raise
        raise SystemExit(f"error: {_sentence(error)}") from None


def _sentence(error: Exception) -> str:
    """The error's message; for an error of the operating system, a sentence that names the path."""
    # A rename has two paths; the second is the one to write to.
    path = getattr(error, "filename2", None) or getattr(error, "filename", None)
    return str(error) if path is None else f"{path} cannot be used ({error.strerror}); give another path."
