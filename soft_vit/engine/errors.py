"""Errors whose message is written for the user of a command line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["UserError", "as_user_error", "one_line"]

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
