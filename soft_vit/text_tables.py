"""Tables and errors as text: Markdown for people, CSV for programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
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


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by its columns."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message without its full stop; the name of its class without a message."""
    # str(KeyError) quotes the message; args[0] of others, such as OSError, may be a number.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def error_cell(error: BaseException) -> str:
    """What a table shows instead of figures: an error's class and the first line of its message."""
    return f"{type(error).__name__}: {one_line(error)}"
