"""The page of models from tables with an unstable row, a batch, a failure and a case that was not measured."""

from benchmarks.atlas.model_page import models_page
from benchmarks.atlas.table import InferRow, Table, TrainRow

SOFT, DEIT = "soft_tiny+capped", "deit_small_patch16_224"
INFER = [
    InferRow(SOFT, "224", 20.0, 50.0, 1, 5.0, 1.0, 2.0, "eager", 19.0, 23.0, "unstable"),
    InferRow(SOFT, "224", 30.0, 266.7, 8, 5.0, 1.0, 2.0, "eager", 29.5, 30.0),
    InferRow(SOFT, "800x1333", 1.25, 800.0, 1, 5.0, 1.0, 2.0, "compiled", 1.25, 1.26),
    InferRow(DEIT, "224", 10.0, 100.0, 1, 5.0, 1.0, 2.0, "eager", 9.9, 10.1),
    InferRow(DEIT, "800x1333", None, None, 1, None, None, None, "compiled", None, None, "ValueError: too wide"),
]
TRAIN = [TrainRow(SOFT, 4.0, 250.0, 1, "224", 5.0, "eager", 3.9, 4.1)]


def test_page(tmp_path):
    for mode, rows in (("infer", INFER), ("train", TRAIN)):
        table = Table("a machine; torch 2.11", "2026-01-31", "a command", rows)
        (tmp_path / f"models_{mode}-fp32-pt2110-cpu-a.csv").write_text(table.as_csv())
    page = models_page(tmp_path, "there")
    assert "## a machine\n" in page
    assert "[training](there/models_train-fp32-pt2110-cpu-a.csv)" in page
    assert "1 of 5 rows" in page
    lines = page.splitlines()
    start = lines.index("| inference | 224 | 224, best batch | 800x1333, compiled |")
    assert lines[start + 2 : start + 4] == [f"| `{DEIT}` | 10 |  | fails |", f"| `{SOFT}` | 20* | 30 (8) | 1.25 |"]
    assert lines[-3:] == ["| training | 224 |", "|---|---|", f"| `{SOFT}` | 4 |"]
