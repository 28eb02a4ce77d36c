"""Tables that are written are read as they were; files with mistakes are refused, a sentence for each."""

from dataclasses import replace

import pytest

from benchmarks.atlas.table import EXAMPLE, InferRow, Row, Table, TrainRow, mistakes_in, read_table
from soft_vit.layers.choice import SHIPPED

ROW = Row("soft", "N", "training", 32, 784, 9, 0.5, 0.25, 0.75, 2.0, 1.5, 2.5, 3.0, "unstable")
SKIPPED = replace(
    ROW, tokens=3136, rounds=0, seconds=None, seconds_lower=None, seconds_upper=None, note="skipped: too, large"
)
TABLE = Table("a machine; torch 2.15", "2026-11-23", "python tools/atlas.py", (ROW, SKIPPED))
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
    ("old", "new", "message"),
    [
        ("# machine: a machine; torch 2.15\n", "", "The head names no machine; add a line '# machine: ...'."),
        ("# command: python tools/atlas.py", "# command:", "The head names no command; add a line '# command: ...'."),
        ("2026-11-23", "23.11.2026", "The date is 23.11.2026; write it as 2026-01-31."),
        ("kind,cost", "name,cost", "The columns are name,cost,mode"),
        (LINE, LINE.replace("soft", "sofd"), "There is no attention sofd; give names of soft_vit.layers.ATTENTIONS."),
        ("training,32", "train,32", "There is no mode train; give inference or training."),
        (LINE, LINE.replace("784", "78.4"), "Row 1 has tokens='78.4'; give a whole number."),
        (LINE, LINE.replace("0.5", "fast"), "Row 1 has seconds='fast'; give a number."),
        (LINE, LINE.replace("0.25", "-0.25"), "Row 1 has seconds_lower=-0.25; give a positive number."),
        (LINE, LINE.replace("0.75", "nan"), "Row 1 has seconds_upper=nan; give a positive number."),
        (LINE, LINE.replace("3,unst", "-3,unst"), "Row 1 has megabytes=-3; give a positive number."),
        (LINE, LINE.replace("2.5,3", "2.5,inf"), "Row 1 has megabytes=inf; give a positive number."),
        (LINE, LINE.replace("0.75", "0.4"), "Row 1 has 0.5 outside of its quartiles 0.25 and 0.4; measure it again."),
        (LINE, LINE.replace("784", "785"), "No square map has 785 tokens; give such as 3136."),
        (LINE, LINE + "\n" + LINE, "There are several rows of soft training 32 784; keep one."),
        (LINE, LINE.replace("0.75", "").replace("unstable", ""), "Row 1 lacks figures; let its note say why."),
        (LINE, LINE + ",", "Row 1 has 15 cells; give 14."),
        (
            LINE,
            LINE.replace("unstable", ""),
            "The quartiles of soft training 32 784 lie more than 10% of its median apart",
        ),
        (LINE, LINE.replace("soft", "soft" * 50_000), "The rows are no CSV (field larger than field limit"),
        (LINE, "", None),
        ("# machine", "\ufeff# machine", None),
    ],
)
def test_each_mistake_is_one_sentence(old, new, message, tmp_path):
    path = tmp_path / EXAMPLE
    text = TABLE.as_csv()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    found = mistakes_in(path, ["soft"])
    assert len(found) == (message is not None)
    if message:
        assert found[0].startswith(message)
        assert found[0].endswith(".")


def test_a_file_of_another_name_or_without_rows(tmp_path):
    (tmp_path / "mine.csv").write_text(TABLE.as_csv())
    assert mistakes_in(tmp_path / "mine.csv", ["soft"])[0].startswith("The file is called mine.csv; call it")
    (tmp_path / EXAMPLE).write_text("\n".join(TABLE.as_csv().splitlines()[:4]))
    assert mistakes_in(tmp_path / EXAMPLE, ["soft"]) == ["There are no rows; measure first."]
    (tmp_path / EXAMPLE).write_text("")
    assert len(mistakes_in(tmp_path / EXAMPLE, ["soft"])) == 4
    (tmp_path / EXAMPLE).write_text(TABLE.as_csv(), encoding="utf-16")
    assert mistakes_in(tmp_path / EXAMPLE, ["soft"]) == [f"{EXAMPLE} is no text in UTF-8; save it as CSV in UTF-8."]
    with pytest.raises(FileNotFoundError):
        mistakes_in(tmp_path / "none.csv", ["soft"])
    (tmp_path / EXAMPLE).write_text("")
    with pytest.raises(ValueError, match="The head names no machine"):
        read_table(tmp_path / EXAMPLE, Row)


def test_shipped_tables_could_be_submitted():
    from soft_vit.layers import ATTENTIONS

    results = (SHIPPED.parents[2] / "benchmarks" / "results").glob("models_*.csv")
    assert [mistake for path in (SHIPPED, *results) for mistake in mistakes_in(path, list(ATTENTIONS))] == []
    assert {row.kind for row in read_table(SHIPPED, Row).rows} == ATTENTIONS.keys()
