"""Measured tables as CSV files: machine, date and command in comments on top, and a checker of such files."""

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from soft_vit.text_tables import csv_table

MODES = ("inference", "training")
# A row whose quartiles lie farther apart than this part of its median is noted as unstable.
STEADY = 0.1
UNSTABLE = "unstable"

NAME = r"(atlas|models_infer|models_train)-fp32-pt\d+-(cpu|gpu)-[a-z0-9_]+\.csv"
EXAMPLE = "atlas-fp32-pt2110-cpu-ryzen_9950x.csv"


def steadiness(lower: float | None, median: float | None, upper: float | None, slack: float = 0.0) -> str:
    """`UNSTABLE` or "", by the quartiles; slack: a part of the median that they may lie farther apart."""
    if lower is None or median is None or upper is None:
        return ""
    return UNSTABLE if upper - lower > (STEADY + slack) * median else ""


@dataclass(frozen=True)
class Row:
    """One attention layer at one number of tokens: medians and quartiles over rounds, and MB at the peak.

    ratio: the seconds divided by those of fused softmax attention in the same round. Figures that were not measured are
    None, and the note says why.
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


@dataclass(frozen=True)
class InferRow:
    """One model at one size of images, in the columns of timm's benchmark results, then form, quartiles and a note.

    Step times are milliseconds, parameters, multiply-adds and activations millions, billions and millions.
    """

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


ROWS: dict[str, Any] = {"atlas": Row, "models_infer": InferRow, "models_train": TrainRow}
"""What the rows of a file hold, by the beginning of its name."""

RowT = TypeVar("RowT", Row, InferRow, TrainRow)


@dataclass(frozen=True)
class Table(Generic[RowT]):
    """What was measured, where, when and by which command; the date is written as 2026-01-31."""

    machine: str
    date: str
    command: str
    rows: Sequence[RowT]

    def as_csv(self) -> str:
        """Comments, columns, and figures of four digits."""
        head = "".join(f"# {name}: {getattr(self, name)}\n" for name in HEAD)
        lines = (asdict(row).values() for row in self.rows)
        return head + csv_table(
            [field.name for field in fields(self.rows[0])],
            [[f"{value:.4g}" if isinstance(value, float) else value for value in line] for line in lines],
        )


HEAD = ("machine", "date", "command")
# Excel begins its files with a byte order mark.
ENCODING = "utf-8-sig"


def read_table(path: Path, row_type: type[RowT]) -> Table[RowT]:
    """A table that `Table.as_csv` wrote; ValueError for the first mistake in another file."""
    head, rows, mistakes = _parse(path.read_text(encoding=ENCODING), row_type)
    if mistakes:
        raise ValueError(f"{path}: {mistakes[0]}")
    return Table(head["machine"], head["date"], head["command"], rows)


def mistakes_in(path: Path, known: Sequence[str]) -> list[str]:
    """What has to be mended in a file before it is submitted, a sentence for each mistake.

    known: the attentions that a row may name. Raises FileNotFoundError.
    """
    try:
        text = path.read_text(encoding=ENCODING)
    except UnicodeDecodeError:
        return [f"{path.name} is no text in UTF-8; save it as CSV in UTF-8."]
    named = re.fullmatch(NAME, path.name)
    if not named:
        return [f"The file is called {path.name}; call it by what it holds, as {EXAMPLE} or models_infer-..."]
    _, rows, mistakes = _parse(text, ROWS[named[1]])
    cases = Counter(map(_case, rows))
    twice = [" ".join(map(str, case)) for case, count in cases.items() if count > 1]
    mistakes += [f"There are several rows of {case}; keep one." for case in twice]
    # Figures in a file have four digits.
    mistakes += [
        f"The quartiles of {' '.join(map(str, _case(row)))} lie more than {STEADY:.0%} of its median apart; note it as "
        f"{UNSTABLE}."
        for row in rows
        if not row.note and steadiness(*_spreads(row)[0], slack=1e-3)
    ]
    if named[1] == "atlas":
        unknown = sorted({row.kind for row in rows} - set(known))
        mistakes += [f"There is no attention {kind}; give names of soft_vit.layers.ATTENTIONS." for kind in unknown]
        uneven = sorted({row.tokens for row in rows if math.isqrt(row.tokens) ** 2 != row.tokens})
        mistakes += [f"No square map has {tokens} tokens; give such as 3136." for tokens in uneven]
        modes = sorted({row.mode for row in rows} - set(MODES))
        mistakes += [f"There is no mode {mode}; give {' or '.join(MODES)}." for mode in modes]
    return mistakes


def _case(row: Row | InferRow | TrainRow) -> tuple[str | int, ...]:
    """What a row measured."""
    match row:
        case Row():
            return row.kind, row.mode, row.head_dim, row.tokens
        case InferRow():
            return row.model, row.infer_img_size, row.form, row.infer_batch_size
        case TrainRow():
            return row.model, row.train_img_size, row.form, row.train_batch_size


def _spreads(row: Row | InferRow | TrainRow) -> list[tuple[float | None, float | None, float | None]]:
    """Lower quartile, median and upper quartile of each figure."""
    match row:
        case Row():
            return [
                (row.seconds_lower, row.seconds, row.seconds_upper),
                (row.ratio_lower, row.ratio, row.ratio_upper),
            ]
        case InferRow():
            return [(row.lower, row.infer_samples_per_sec, row.upper)]
        case TrainRow():
            return [(row.lower, row.train_samples_per_sec, row.upper)]


def _parse(text: str, row_type: type[RowT]) -> tuple[dict[str, str], list[RowT], list[str]]:
    """The head, the rows that can be read, and mistakes."""
    lines = text.splitlines()
    head = {
        name: value.strip()
        for line in lines
        if line.startswith("#")
        for name, _, value in [line[1:].strip().partition(": ")]
    }
    mistakes: list[str] = [
        f"The head names no {name}; add a line '# {name}: ...'." for name in HEAD if not head.get(name)
    ]
    if head.get("date") and not _is_date(head["date"]):
        mistakes.append(f"The date is {head['date']}; write it as 2026-01-31.")
    columns = [field.name for field in fields(row_type)]
    try:
        found, *body = list(csv.reader(line for line in lines if line and not line.startswith("#"))) or [[]]
    except csv.Error as error:
        return head, [], [*mistakes, f"The rows are no CSV ({error}); write them as {EXAMPLE} has them."]
    if found != columns:
        return head, [], [*mistakes, f"The columns are {','.join(found)}; they have to be {','.join(columns)}."]
    if not body:
        mistakes.append("There are no rows; measure first.")
    rows, hints = [], get_type_hints(row_type)
    for number, cells in enumerate(body, 1):
        try:
            if len(cells) != len(columns):
                raise ValueError(f"has {len(cells)} cells; give {len(columns)}")
            values = {name: _value(name, cell, hints[name]) for name, cell in zip(columns, cells, strict=True)}
            if None in values.values() and not values["note"]:
                raise ValueError("lacks figures; let its note say why")
            row = row_type(**values)
            for lower, middle, upper in _spreads(row):
                known = [x for x in (lower, middle, upper) if x is not None]
                if known != sorted(known):
                    raise ValueError(f"has {middle} outside of its quartiles {lower} and {upper}; measure it again")
            rows.append(row)
        except ValueError as error:
            mistakes.append(f"Row {number} {error}.")
    return head, rows, mistakes


def _value(name: str, cell: str, hint: Any) -> Any:
    """A cell by the type of its column. ValueError where it does not fit."""
    if hint is str:
        return cell
    if not cell and type(None) in get_args(hint):
        return None
    kind = int if hint is int else float
    try:
        value = kind(cell)
    except ValueError:
        raise ValueError(f"has {name}={cell!r}; give {'a whole number' if kind is int else 'a number'}") from None
    # A kind that was skipped has no rounds, and some layers neither memory nor products.
    least_is_zero = name in ("rounds", "megabytes", "infer_gmacs")
    if not math.isfinite(value) or value < 0 or (value == 0 and not least_is_zero):
        raise ValueError(f"has {name}={cell}; give a positive number")
    return value


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
