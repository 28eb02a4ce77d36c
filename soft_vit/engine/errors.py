"""Errors of other libraries in one line, to be quoted in a sentence of our own."""

__all__ = ["one_line"]


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message without its full stop; the name of its class without a message."""
    # A KeyError quotes its message; the first argument of others, such as OSError, may be a bare number.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
