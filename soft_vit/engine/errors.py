"""Quote errors of other libraries in one line."""


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message without its full stop; the name of its class without a message."""
    # str(KeyError) quotes the message; args[0] of others, such as OSError, may be a number.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
