"""Tables that are written are read as they were; files with a mistake are refused."""

from dataclasses import replace

import pytest

from benchmarks.atlas.check import check
from benchmarks.atlas.table import AttentionRow, ModelRow, Table, read_table, write_table
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.choice import SHIPPED

ROW = AttentionRow("soft", "N", "training", 32, 784, 9, 0.5, 0.25, 0.75, 2.0, 1.5, 2.5, 3.0, "unstable")
SKIPPED = replace(
    ROW, tokens=3136, rounds=0, seconds=None, seconds_lower=None, seconds_upper=None, note="skipped: too, large"
)
TABLE = Table("a machine; torch 2.15", "2026-11-23", "python -m benchmarks atlas", (ROW, SKIPPED))
MODEL = ("deit_tiny_patch16_224", "inference", "224", 1, "eager", 80.5, 80.0, 81.0, 12.5, 5.75)
INFER, TRAIN = ModelRow(*MODEL, 1.25, 6.0), replace(ModelRow(*MODEL), mode="training")


INFER_COLUMNS = "model,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count"
TRAIN_COLUMNS = "model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count"


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("atlas", [ROW, SKIPPED], "kind,cost,mode,"),
        # As in the files of results/ of huggingface/pytorch-image-models.
        ("models_infer", [INFER], f"{INFER_COLUMNS},infer_gmacs,infer_macts,form,"),
        ("models_train", [TRAIN], f"{TRAIN_COLUMNS},form,"),
    ],
)
def test_round_trip(name, rows, columns, tmp_path):
    table = replace(TABLE, rows=rows)
    write_table(tmp_path / f"{name}.csv", table)
    assert table == read_table(tmp_path / f"{name}.csv")
    assert (tmp_path / f"{name}.csv").read_text().splitlines()[3].startswith(columns)


def test_shipped_tables_could_be_submitted():
    for path in (SHIPPED, *(SHIPPED.parents[2] / "benchmarks" / "results").glob("models_*.csv")):
        check(path)
    assert {row.kind for row in read_table(SHIPPED).rows} <= ATTENTIONS.keys()
