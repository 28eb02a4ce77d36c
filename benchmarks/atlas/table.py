"""Measured tables as CSV files: machine, date and command in comments on top; a run continues in the table it finds."""

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_type_hints

from benchmarks.timer import Spread, machine_description
from soft_vit.text_tables import csv_table
from soft_vit.weights.files import ensure_writable, write_atomically

MODES = ("inference", "training")
# A row whose quartiles are farther apart than this part of its median is noted as unstable.
STEADY = 0.1
UNSTABLE = "unstable"


def steadiness(spread: Sequence[float | None] | None, slack: float = 0.0) -> str:
    """Return `UNSTABLE` or "" for median and quartiles; slack: a part of the median that they may be farther apart."""
    if spread is None or None in spread:
        return ""
    median, lower, upper = spread
    return UNSTABLE if upper - lower > (STEADY + slack) * median else ""


@dataclass(frozen=True)
class Row:
    """One attention layer at one number of tokens: medians and quartiles over rounds, and MB at the peak.

    ratio: the seconds divided by those of fused softmax attention in the same round. Figures that were not measured are
    None, and the note explains why.
    """

    CASE: ClassVar = ("kind", "mode", "head_dim", "tokens")
    SPREADS: ClassVar = (("seconds", "seconds_lower", "seconds_upper"), ("ratio", "ratio_lower", "ratio_upper"))

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


@dataclass(frozen=True)
class InferRow:
    """One model at one size of images, in the columns of timm's benchmark results, then form, quartiles and a note.

    Step times are milliseconds, parameters, multiply-adds and activations millions, billions and millions.
    """

    CASE: ClassVar = ("model", "infer_img_size", "form", "infer_batch_size")
    SPREADS: ClassVar = (("infer_samples_per_sec", "lower", "upper"),)

    model: str
    infer_img_size: str
    infer_samples_per_sec: float | None
    infer_step_time: float | None
    infer_batch_size: int
    param_count: float | None
    infer_gmacs: float | None
    infer_macts: float | None
    form: str
    lower: float | None
    upper: float | None
    note: str = ""


@dataclass(frozen=True)
class TrainRow:
    """One model in training, as `InferRow`; a step is forward, cross-entropy and backward."""

    CASE: ClassVar = ("model", "train_img_size", "form", "train_batch_size")
    SPREADS: ClassVar = (("train_samples_per_sec", "lower", "upper"),)

    model: str
    train_samples_per_sec: float | None
    train_step_time: float | None
    train_batch_size: int
    train_img_size: str
    param_count: float | None
    form: str
    lower: float | None
    upper: float | None
    note: str = ""


RowT = TypeVar("RowT", Row, InferRow, TrainRow)


def case_of(row: Row | InferRow | TrainRow) -> tuple[str | int, ...]:
    """Return what a row measured."""
    return tuple(getattr(row, name) for name in row.CASE)


def spreads_of(row: Row | InferRow | TrainRow) -> list[Spread]:
    """Return median and quartiles of each figure."""
    return [Spread(*(getattr(row, name) for name in names)) for names in row.SPREADS]


@dataclass(frozen=True)
class Table(Generic[RowT]):
    """What was measured, where, when and by which command; the date is written as 2026-01-31."""

    machine: str
    date: str
    command: str
    rows: Sequence[RowT]

    def as_csv(self) -> str:
        """Return comments, columns, and figures of four digits."""
        head = "".join(f"# {name}: {getattr(self, name)}\n" for name in HEAD)
        lines = [[f"{x:.4g}" if isinstance(x, float) else x for x in asdict(row).values()] for row in self.rows]
        return head + csv_table([field.name for field in fields(self.rows[0])], lines)


HEAD = ("machine", "date", "command")
# Excel begins its files with a byte order mark.
ENCODING = "utf-8-sig"


def open_table(path: Path, row_type: type[RowT], device: str, command: str) -> Table[RowT]:
    """Return the table in a file, with the command added, or an empty one. ValueError for one of another machine."""
    ensure_writable(path)
    table = Table(machine_description(device), date.today().isoformat(), command, ())
    if not path.exists():
        return table
    before = read_table(path, row_type)
    if before.machine != table.machine:
        raise ValueError(f"{path} must be of {table.machine}, got {before.machine}; give another --out.")
    commands = before.command.split(" && ")
    return before if command in commands else replace(before, command=" && ".join([*commands, command]))


def save_table(path: Path, table: Table[RowT], rows: Sequence[RowT]) -> Table[RowT]:
    """Return the table with these rows, written to its file."""
    table = replace(table, rows=tuple(rows))
    if rows:
        write_atomically(path, table.as_csv().encode())
    return table


def read_table(path: Path, row_type: type[RowT]) -> Table[RowT]:
    """Read a table that `Table.as_csv` wrote; ValueError for the first mistake in another file."""
    head, rows, mistakes = parse(path.read_text(encoding=ENCODING), row_type)
    if mistakes:
        raise ValueError(f"{path}: {mistakes[0]}")
    return Table(head["machine"], head["date"], head["command"], rows)


def parse(text: str, row_type: type[RowT]) -> tuple[dict[str, str], list[RowT], list[str]]:
    """Return the head, the rows that can be read, and a sentence for each mistake."""
    lines = text.splitlines()
    comments = [line[1:].strip().partition(": ") for line in lines if line.startswith("#")]
    head = {name: value.strip() for name, _, value in comments}
    mistakes = [f"The head must have a line '# {name}: ...'." for name in HEAD if not head.get(name)]
    if head.get("date") and not _is_date(head["date"]):
        mistakes.append(f"The date must be such as 2026-01-31, got {head['date']}.")
    columns = [field.name for field in fields(row_type)]
    try:
        found, *body = list(csv.reader(line for line in lines if line and not line.startswith("#"))) or [[]]
    except csv.Error as error:
        return head, [], [*mistakes, f"The rows must be CSV ({error})."]
    if found != columns:
        return head, [], [*mistakes, f"The columns must be {','.join(columns)}, got {','.join(found)}."]
    if not body:
        mistakes.append("There must be at least one row.")
    rows, hints = [], get_type_hints(row_type)
    for number, cells in enumerate(body, 1):
        try:
            rows.append(_row(row_type, columns, cells, hints))
        except ValueError as error:
            mistakes.append(f"Row {number}: {error}.")
    return head, rows, mistakes


def _row(row_type: type[RowT], columns: Sequence[str], cells: Sequence[str], hints: dict[str, Any]) -> RowT:
    if len(cells) != len(columns):
        raise ValueError(f"there must be {len(columns)} cells, got {len(cells)}")
    row = row_type(**{name: _value(name, cell, hints[name]) for name, cell in zip(columns, cells, strict=True)})
    if None in asdict(row).values() and not row.note:
        raise ValueError("the note must explain the missing figures")
    for median, lower, upper in spreads_of(row):
        known = [x for x in (lower, median, upper) if x is not None]
        if known != sorted(known):
            raise ValueError(f"the median must be between its quartiles, got {median} for {lower} to {upper}")
    return row


def _value(name: str, cell: str, hint: Any) -> Any:
    """Return a cell by the type of its column. ValueError where it does not fit."""
    if hint is str:
        return cell
    if not cell and type(None) in get_args(hint):
        return None
    value = (int if hint is int else float)(cell)
    # A kind that was skipped has 0 rounds, and some layers 0 MB or 0 products.
    may_be_zero = name in ("rounds", "megabytes", "infer_gmacs")
    if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        raise ValueError(f"{name} must be a positive number, got {cell}")
    return value


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
