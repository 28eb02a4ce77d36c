"""Tables, errors and docstrings as text: Markdown for people, CSV for programs."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table without a final newline; each row has as many cells as the header."""
    head, *lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (header, *rows)]
    return "\n".join([head, "|---" * len(header) + "|", *lines])


def csv_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV; each row has as many cells as the header, and None is an empty cell."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([header, *rows])
    return stream.getvalue()


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message without its full stop; the name of its class without a message."""
    # str(KeyError) quotes the message; args[0] of others, such as OSError, may be a number.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def error_cell(error: BaseException) -> str:
    """What a table shows instead of figures: an error's class and the first line of its message."""
    return f"{type(error).__name__}: {one_line(error)}"


_ENTRY = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*): ", re.MULTILINE)
# Within a line, an entry follows a full stop.
_RUN_IN = re.compile(r"(?<=\.)\s+([a-z_]\w*(?:, [a-z_]\w*)*): ")


def docstring_markdown(docstring: str) -> str:
    """A docstring as Markdown: entries, `name: what it is` and deeper lines below, become lists; examples, code."""
    return "\n\n".join(map(_paragraph_markdown, docstring.split("\n\n")))


def _paragraph_markdown(text: str) -> str:
    if text.startswith(">>> "):
        return f"```pycon\n{text.rstrip()}\n```"
    listed = _ENTRY.sub(r"- `\1`: ", text) if _ENTRY.match(text) else text
    start, *entries = _RUN_IN.split(listed)
    found = [f"- `{name}`: {what}" for name, what in zip(entries[::2], entries[1::2], strict=True)]
    # A list needs an empty line above it.
    return "\n".join([start, *([""] if found and listed is text else []), *found])
