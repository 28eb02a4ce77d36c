"""Tables that are written are read as they were; files with mistakes are refused, a sentence for each."""

import re
from dataclasses import replace

import pytest

from benchmarks.atlas.check import EXAMPLE, mistakes_in
from benchmarks.atlas.table import InferRow, Row, Table, TrainRow, read_table
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.choice import SHIPPED

ROW = Row("soft", "N", "training", 32, 784, 9, 0.5, 0.25, 0.75, 2.0, 1.5, 2.5, 3.0, "unstable")
SKIPPED = replace(
    ROW, tokens=3136, rounds=0, seconds=None, seconds_lower=None, seconds_upper=None, note="skipped: too, large"
)
TABLE = Table("a machine; torch 2.15", "2026-11-23", "python -m benchmarks atlas", (ROW, SKIPPED))
INFER = InferRow("deit_tiny_patch16_224", "224", 80.5, 12.5, 1, 5.75, 1.25, 6.0, "eager", 80.0, 81.0)
TRAIN = TrainRow("deit_tiny_patch16_224", 10.5, 95.5, 1, "800x1333", 5.75, "compiled", 10.0, 11.0)
LINE = "soft,N,training,32,784,9,0.5,0.25,0.75,2,1.5,2.5,3,unstable"


@pytest.mark.parametrize("rows", [(ROW, SKIPPED), (INFER,), (TRAIN,)])
def test_round_trip(rows, tmp_path):
    path = tmp_path / "table.csv"
    table = replace(TABLE, rows=rows)
    path.write_text(table.as_csv())
    assert replace(table, rows=list(rows)) == read_table(path, type(rows[0]))


def test_columns_of_models_begin_as_those_of_timm():
    """As in the files of results/ of huggingface/pytorch-image-models."""
    infer = "model,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count"
    infer += ",infer_gmacs,infer_macts"
    train = "model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count"
    for row, columns in ((INFER, infer), (TRAIN, train)):
        assert replace(TABLE, rows=(row,)).as_csv().splitlines()[3].startswith(f"{columns},form,")


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("# machine: a machine; torch 2.15\n", "", "machine"),
        ("# command: python -m benchmarks atlas", "# command:", "command"),
        ("2026-11-23", "23.11.2026", "23.11.2026"),
        ("kind,cost", "name,cost", "name,cost,mode"),
        (LINE, LINE.replace("soft", "sofd"), "sofd"),
        ("training,32", "train,32", "train."),
        (LINE, LINE.replace("784", "78.4"), "'78.4'"),
        (LINE, LINE.replace("0.5", "fast"), "'fast'"),
        (LINE, LINE.replace("0.25", "-0.25"), "seconds_lower .* -0.25"),
        (LINE, LINE.replace("0.75", "nan"), "seconds_upper .* nan"),
        (LINE, LINE.replace("3,unst", "-3,unst"), "megabytes .* -3"),
        (LINE, LINE.replace("2.5,3", "2.5,inf"), "megabytes .* inf"),
        (LINE, LINE.replace("0.75", "0.4"), "quartiles, got 0.5 for 0.25 to 0.4"),
        (LINE, LINE.replace("784", "785"), "785"),
        (LINE, LINE + "\n" + LINE, "soft training 32 784, got 2"),
        (LINE, LINE.replace("0.75", "").replace("unstable", ""), "note"),
        (LINE, LINE + ",", "14 cells, got 15"),
        (LINE, LINE.replace("unstable", ""), "soft training 32 784 .* unstable"),
        (LINE, LINE.replace("soft", "soft" * 50_000), "field larger than field limit"),
        (LINE, "", None),
        ("# machine", "\ufeff# machine", None),
    ],
)
def test_each_mistake_is_one_sentence(old, new, value, tmp_path):
    path = tmp_path / EXAMPLE
    text = TABLE.as_csv()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    found = mistakes_in(path)
    assert len(found) == (value is not None)
    if value:
        assert re.search(value, found[0])
        assert found[0].endswith(".")


def test_a_file_of_another_name_or_without_rows(tmp_path):
    path = tmp_path / EXAMPLE
    path.write_text(TABLE.as_csv())
    path.rename(tmp_path / "mine.csv")
    assert len(mistakes_in(tmp_path / "mine.csv")) == 1
    for text, count in (("\n".join(TABLE.as_csv().splitlines()[:4]), 1), ("", 4)):
        path.write_text(text)
        assert len(mistakes_in(path)) == count
    with pytest.raises(ValueError, match="machine"):
        read_table(path, Row)
    path.write_text(TABLE.as_csv(), encoding="utf-16")
    assert len(mistakes_in(path)) == 1


def test_shipped_tables_could_be_submitted():
    results = (SHIPPED.parents[2] / "benchmarks" / "results").glob("models_*.csv")
    assert [mistake for path in (SHIPPED, *results) for mistake in mistakes_in(path)] == []
    assert {row.kind for row in read_table(SHIPPED, Row).rows} == ATTENTIONS.keys()
