"""The results of a command: a page in Markdown and rows for a CSV file, with command, date and machine."""

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from soft_vit.text_tables import csv_table
from soft_vit.weights.files import write_atomically


class Report(NamedTuple):
    """The figures of one command.

    case: description of what was measured. tables: in Markdown. rows: unrounded figures by column, for a CSV file.
    same: columns with one value for all rows, after date and machine; None leaves out all three.
    """

    title: str
    case: str
    tables: Sequence[str]
    rows: Sequence[Mapping[str, Any]] = ()
    same: Mapping[str, Any] | None = None

    def page(self, command: str, machine: str) -> str:
        """Return the page in Markdown."""
        head = f"# {self.title}\n\n`{command}`\n\n{date.today().isoformat()}; {machine}; {self.case}"
        return "\n\n".join([head, *self.tables]) + "\n"

    def write(self, out: Path, command: str, machine: str) -> None:
        """Write OUT.md, and OUT.csv if there are rows."""
        write_atomically(f"{out}.md", self.page(command, machine).encode())
        if self.rows:
            head = {} if self.same is None else {"date": date.today().isoformat(), "machine": machine, **self.same}
            table = csv_table([*head, *self.rows[0]], [[*head.values(), *row.values()] for row in self.rows])
            write_atomically(f"{out}.csv", table.encode())
