"""The results of a test as text: lines to read, JSON, and CSV by class."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from soft_vit.text_tables import csv_table

__all__ = ["confusion_csv", "metrics_table", "per_class_csv", "results_json"]


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
