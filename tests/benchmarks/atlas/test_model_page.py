"""Rates of models with an unstable row, a batch, a failure and a case that was not measured."""

from benchmarks.atlas.model_page import rates_table
from benchmarks.atlas.table import ModelRow

SOFT, DEIT = "soft_tiny+capped", "deit_small_patch16_224"
SIZES = (50.0, 5.0, 1.0, 2.0)
ROWS = [
    ModelRow(SOFT, "inference", "224", 1, "eager", 20.0, 19.0, 23.0, *SIZES, "unstable"),
    ModelRow(SOFT, "inference", "224", 8, "eager", 30.0, 29.5, 30.0, *SIZES),
    ModelRow(SOFT, "inference", "800x1333", 1, "compiled", 1.25, 1.25, 1.26, *SIZES),
    ModelRow(DEIT, "inference", "224", 1, "eager", 10.0, 9.9, 10.1, *SIZES),
    ModelRow(DEIT, "inference", "800x1333", 1, "compiled", note="ValueError: too wide"),
]


def test_rates():
    head, _, *rows = rates_table("inference", ROWS).splitlines()
    assert head == "| inference | 224 | 224, best batch | 800x1333, compiled |"
    assert rows == [f"| `{DEIT}` | 10 |  | fails |", f"| `{SOFT}` | 20* | 30 (8) | 1.25 |"]
