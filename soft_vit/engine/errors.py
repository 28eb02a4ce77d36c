"""Errors whose message is meant for the person at the command line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["UserError", "as_user_error", "one_line"]

_IN_WORKER = re.compile(r"Caught (\w+) in DataLoader worker process \d+\.\nOriginal Traceback")


class UserError(ValueError):
    """A mistake in what was asked for; its message is one sentence, printed without a traceback."""


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
