"""Errors whose message is meant for the person at the command line."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["UserError", "plain_errors"]


class UserError(ValueError):
    """A mistake in what was asked for; its message is one sentence that the tools print without a traceback."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """End the process with exit code 1 and the sentence of a UserError or of a missing file; let others through."""
    try:
        yield
    except (UserError, FileNotFoundError) as error:
        raise SystemExit(f"error: {error}") from None
