"""tools/compare_attention.py: its two tables with their files, and one sentence for a mistake."""

import csv

import pytest

from soft_vit.analysis import lengths

TINY = ["--device", "cpu", "--size", "pico", "--img-size", "32", "64", "--batch-size", "1", "--rounds", "3"]


def test_table_and_files(tool, tmp_path, capsys):
    out = tmp_path / "folder" / "two.v1"
    tool("compare_attention")(["local", "softmax", *TINY, "--out", str(out)])
    printed = capsys.readouterr().out
    assert "; pico, batch 1, 32 x 64, float32." in printed
    assert (tmp_path / "folder" / "two.v1.md").read_text() in printed
    rows = list(csv.DictReader((tmp_path / "folder" / "two.v1.csv").open()))
    assert [row["attention"] for row in rows] == ["local", "softmax"]
    assert all(float(row["training_images_per_s"]) > 0 for row in rows)


def test_lengths(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lengths, "DEPTH", 1)
    measured = lengths.measure_lengths
    short = dict(multiples=(1, 2), depth=1)
    monkeypatch.setattr(lengths, "measure_lengths", lambda name, **options: measured(name, **options, **short))
    tool("compare_attention")(["soft", "--lengths", "--no-time", "--device", "cpu", "--out", str(tmp_path / "a.b")])
    assert "| soft | " in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.b.md", "a.b.png", "a.b.svg"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sofd"], "attention='sofd' is not known"),
        (["soft", "--batch-size", "0"], "A batch of 0 images"),
        (["soft", "--rounds", "2"], "rounds=2 give no spread"),
        (["soft", "--img-size", "1", "2", "3"], "The size 1 2 3 is of no image"),
        (["soft", "--device", "cud"], "There is no device 'cud'"),
        (["soft", "--out", f"{__file__}/table"], "table.md cannot be written"),
        (["sofd", "--lengths"], "attention='sofd' is not known"),
        (["soft", "--lengths", "--rounds", "0"], "rounds is 0"),
        (["soft", "--lengths", "--out", f"{__file__}/table"], "table.md cannot be written"),
    ],
)
def test_mistake_is_one_sentence(tool, arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        tool("compare_attention")([*TINY, *arguments])
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert sentence in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
