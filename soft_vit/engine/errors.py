"""Errors whose message is meant for the person at the command line."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["UserError", "as_user_error", "one_line", "plain_errors"]

# The path is missing, lies below a file, is a folder in the place of a file, or is not allowed.
_PATH_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
# The disk takes nothing, or the name is too long; Python has no classes of their own for these.
_PATH_NUMBERS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG}
_IN_WORKER = re.compile(r"Caught (\w+) in DataLoader worker process \d+\.\nOriginal Traceback")


class UserError(ValueError):
    """A mistake in what was asked for; its message is one sentence that the tools print without a traceback."""


@contextmanager
def as_user_error() -> Iterator[None]:
    """Turn a ValueError of a layer below, such as `soft_vit.data`, into a UserError with the same sentence."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def one_line(error: BaseException) -> str:
    """The first line of an error's message, without a full stop; of one in a process that loads data, its own."""
    # A KeyError puts its message into quotes; the first argument of others, such as an OSError's, may be a bare number.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    if worker := _IN_WORKER.match(text):
        text = re.findall(rf"^(?:\S+\.)?{worker[1]}(?:: (.*))?$", text, re.MULTILINE)[-1]
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def in_worker(error: BaseException) -> bool:
    """Whether torch's DataLoader hands over an error of a process of its own, with the traceback as the message."""
    return _IN_WORKER.match(str(error)) is not None


@contextmanager
def plain_errors() -> Iterator[None]:
    """End the process with exit code 1 and the sentence of a UserError or of an unusable path; let others through."""
    try:
        yield
    except (UserError, OSError) as error:
        if not isinstance(error, (UserError, *_PATH_ERRORS)) and error.errno not in _PATH_NUMBERS:
            raise
        raise SystemExit(f"error: {_sentence(error)}") from None


def _sentence(error: Exception) -> str:
    """The message of an error of this package, or one that names the path of an error of the operating system."""
    # A rename has two: what it replaces is the second.
    path = getattr(error, "filename2", None) or getattr(error, "filename", None)
    return str(error) if path is None else f"{path} cannot be used ({error.strerror}); give another path."
