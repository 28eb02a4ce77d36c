"""Tables as text: Markdown for people, CSV for programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

__all__ = ["csv_table", "error_cell", "markdown_table", "rows_as_csv"]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows of as many cells as the header has, as a Markdown table without a newline at its end."""
    head, *lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (header, *rows)]
    return "\n".join([head, "|---" * len(header) + "|", *lines])


def csv_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows of as many cells as the header has, as CSV; None is an empty cell."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([header, *rows])
    return stream.getvalue()


def rows_as_csv(rows: Sequence[Any], **same: Any) -> str:
    """Dataclasses of one kind as CSV, after columns that are the same in each row, such as the machine; "" for none."""
    if not rows:
        return ""
    return csv_table([*same, *asdict(rows[0])], ([*same.values(), *asdict(row).values()] for row in rows))


def error_cell(error: BaseException) -> str:
    """What a table shows in the place of figures: the kind of an error and the first line of its message."""
    reason = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {reason}"
