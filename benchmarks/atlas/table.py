"""Measured tables as CSV files: machine, date and command in comments at the top; a run continues its table."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, get_type_hints

from soft_vit.probe.cost import machine_description
from soft_vit.text_tables import csv_table
from soft_vit.weights.files import ensure_writable, write_atomically

# A row whose quartiles are farther apart than this part of its median is noted as unstable.
STEADY = 0.1
UNSTABLE = "unstable"


def steadiness(spread: Sequence[float]) -> str:
    """Return `UNSTABLE` or "" for median and quartiles."""
    median, lower, upper = spread
    return UNSTABLE if upper - lower > STEADY * median else ""


@dataclass(frozen=True)
class AttentionRow:
    """One attention layer at one number of tokens: medians and quartiles over rounds, and MB at the peak.

    ratio: the seconds divided by those of fused softmax attention in the same round. Figures that were not measured are
    None, and the note explains why.
    """

    kind: str
    cost: str
    mode: str
    head_dim: int
    tokens: int
    rounds: int
    seconds: float | None
    seconds_lower: float | None
    seconds_upper: float | None
    ratio: float | None
    ratio_lower: float | None
    ratio_upper: float | None
    megabytes: float | None
    note: str = ""


COLUMNS = [field.name for field in fields(AttentionRow)]


@dataclass(frozen=True)
class Table:
    """What was measured, where, when and by which command; the date is written as 2026-01-31."""

    machine: str
    date: str
    command: str
    rows: Sequence[AttentionRow]


HEAD = ("machine", "date", "command")
# Excel begins its files with a byte order mark.
ENCODING = "utf-8-sig"


def open_table(path: Path, device: str, command: str) -> Table:
    """Return the table in a file, with the command added, or an empty one. ValueError for one of another machine."""
    ensure_writable(path)
    table = Table(machine_description(device), date.today().isoformat(), command, ())
    if not path.exists():
        return table
    before = read_table(path)
    if before.machine != table.machine:
        raise ValueError(f"{path} must be of {table.machine}, got {before.machine}; give another --out.")
    commands = before.command.split(" && ")
    return before if command in commands else replace(before, command=" && ".join([*commands, command]))


def write_table(path: Path, table: Table) -> None:
    """Write comments, columns, and figures of four digits."""
    head = "".join(f"# {name}: {getattr(table, name)}\n" for name in HEAD)
    lines = [[getattr(row, name) for name in COLUMNS] for row in table.rows]
    lines = [[f"{x:.4g}" if isinstance(x, float) else x for x in line] for line in lines]
    write_atomically(path, (head + csv_table(COLUMNS, lines)).encode())


def read_table(path: Path) -> Table:
    """Read a table that `write_table` wrote. ValueError for another file."""
    lines = path.read_text(encoding=ENCODING).splitlines()
    head = dict(line[1:].strip().split(": ", 1) for line in lines if line.startswith("#"))
    columns, *body = list(csv.reader(line for line in lines if line and not line.startswith("#"))) or [[]]
    if columns != COLUMNS or head.keys() != {*HEAD}:
        raise ValueError(f"{path} must have {', '.join(HEAD)} after #, and the columns {','.join(COLUMNS)}.")
    types = get_type_hints(AttentionRow).values()
    rows = [AttentionRow(*(_value(*pair) for pair in zip(types, cells, strict=True))) for cells in body]
    return Table(**head, rows=rows)


def _value(hint: Any, cell: str) -> Any:
    """Return a cell by the type of its column."""
    if hint is str or not cell:
        return cell if hint is str else None
    return int(cell) if hint is int else float(cell)
