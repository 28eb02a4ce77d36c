"""The page of models from tables with an unstable row, a batch, a failure and a case that was not measured."""

from benchmarks.atlas.model_page import models_page
from benchmarks.atlas.table import ModelRow, Table, write_table

SOFT, DEIT = "soft_tiny+capped", "deit_small_patch16_224"
SIZES = (50.0, 5.0, 1.0, 2.0)
INFER = [
    ModelRow(SOFT, "inference", "224", 1, "eager", 20.0, 19.0, 23.0, *SIZES, "unstable"),
    ModelRow(SOFT, "inference", "224", 8, "eager", 30.0, 29.5, 30.0, *SIZES),
    ModelRow(SOFT, "inference", "800x1333", 1, "compiled", 1.25, 1.25, 1.26, *SIZES),
    ModelRow(DEIT, "inference", "224", 1, "eager", 10.0, 9.9, 10.1, *SIZES),
    ModelRow(DEIT, "inference", "800x1333", 1, "compiled", note="ValueError: too wide"),
]
TRAIN = [ModelRow(SOFT, "training", "224", 1, "eager", 4.0, 3.9, 4.1, *SIZES)]


def test_page(tmp_path):
    for mode, rows in (("infer", INFER), ("train", TRAIN)):
        table = Table("a machine; torch 2.11", "2026-01-31", "a command", rows)
        write_table(tmp_path / f"models_{mode}-fp32-pt2110-cpu-a.csv", table)
    page = models_page(tmp_path, "there")
    assert "## a machine\n" in page
    assert "[training](there/models_train-fp32-pt2110-cpu-a.csv)" in page
    assert "1 of 5 rows" in page
    lines = page.splitlines()
    start = lines.index("| inference | 224 | 224, best batch | 800x1333, compiled |")
    assert lines[start + 2 : start + 4] == [f"| `{DEIT}` | 10 |  | fails |", f"| `{SOFT}` | 20* | 30 (8) | 1.25 |"]
    assert lines[-3:] == ["| training | 224 |", "|---|---|", f"| `{SOFT}` | 4 |"]
