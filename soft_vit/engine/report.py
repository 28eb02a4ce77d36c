"""The results of a test: what is written, and as which text."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from soft_vit.text_tables import csv_table
from soft_vit.weights.files import ensure_writable, write_atomically

__all__ = ["Report", "confusion_csv", "metrics_table", "per_class_csv", "results_json"]


@dataclass(frozen=True)
class Report:
    """Files that a test writes at its end; None for none.

    out: the metrics as JSON. per_class, confusion: CSV, see `per_class_csv` and `confusion_csv`. work_dir: folder for
    logs, by default work_dirs/<config name>.
    """

    out: str | Path | None = None
    per_class: str | Path | None = None
    confusion: str | Path | None = None
    work_dir: str | Path | None = None

    @property
    def counts(self) -> bool:
        """Whether the test has to count pairs of true and predicted classes."""
        return self.per_class is not None or self.confusion is not None

    def require_places(self) -> None:
        """Raise ValueError now, not at the end of a test, for a file that cannot be written."""
        for path in (self.out, self.per_class, self.confusion):
            if path is not None:
                ensure_writable(path)

    def write(self, metrics: dict[str, float], asked: dict[str, Any]) -> None:
        if self.out is not None:
            write_atomically(self.out, results_json(metrics, asked).encode())

    def write_counts(self, table: Tensor, names: Sequence[Any]) -> None:
        """table: `[C, C]`, images by true and predicted class."""
        for path, text in ((self.per_class, per_class_csv), (self.confusion, confusion_csv)):
            if path is not None:
                write_atomically(path, text(table, names).encode())


def metrics_table(metrics: dict[str, float]) -> str:
    """A line for each: percent and rates with two digits, counts with none, all else with four."""

    def digits(name: str) -> int:
        return 0 if name == "images" else 2 if name.startswith(("accuracy/", "images_per_second/")) else 4

    return "\n".join(f"{name}: {value:.{digits(name)}f}" for name, value in metrics.items())


def per_class_csv(table: Tensor, names: Sequence[Any]) -> str:
    """class, images, correct, accuracy/top1 in percent (empty for a class without images); table: `[C, C]`."""
    images, correct = table.sum(1).tolist(), table.diagonal().tolist()
    rows = [
        (name, count, hits, f"{100 * hits / count:.2f}" if count else "")
        for name, count, hits in zip(names, images, correct, strict=True)
    ]
    return csv_table(["class", "images", "correct", "accuracy/top1"], rows)


def confusion_csv(table: Tensor, names: Sequence[Any]) -> str:
    """A row for each true class, a column for each predicted one; table: `[C, C]`."""
    rows = [(name, *counts) for name, counts in zip(names, table.tolist(), strict=True)]
    return csv_table(["true \\ predicted", *names], rows)


def results_json(metrics: dict[str, float], asked: dict[str, Any]) -> str:
    """The metrics, with null for what is no number, and what was asked for."""
    values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    values |= {
        name: str(value) if isinstance(value, Path) else value for name, value in asked.items() if value is not None
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"
