"""tools/benchmark.py: its tables, its CSV, its mistakes."""

import csv

import pytest

MODELS = ["soft_pico", "soft_pico+naive", "--img-size", "32", "--batch-size", "2", "--rounds", "3", "--device", "cpu"]
OPERATOR = [
    "--op",
    "naive",
    "newton",
    "--tokens",
    "20",
    "40",
    "--num-bottleneck",
    "4",
    "--rounds",
    "3",
    "--device",
    "cpu",
]
INVERSE = ["--op", "newton_inverse-products", "newton_inverse", "--problems", "3", "5", *OPERATOR[6:]]


@pytest.mark.parametrize(
    ("arguments", "rows"), [(MODELS, 4), (OPERATOR, 8), (INVERSE, 8)], ids=["models", "operator", "inverse"]
)
def test_table_and_csv(tool, arguments, rows, tmp_path, capsys):
    tool("benchmark")([*arguments, "--csv", str(tmp_path / "rows.csv")])
    head, _, *table = capsys.readouterr().out.splitlines()
    assert "torch" in head
    assert "float32" in head
    assert len([line for line in table if "forward" in line or "ference" in line or "training" in line]) >= rows
    with open(tmp_path / "rows.csv") as file:
        found = list(csv.DictReader(file))
    assert len(found) == rows
    assert found[0]["machine"] in head


@pytest.mark.parametrize(
    "arguments",
    [
        ["soft_pic"],
        [],
        ["soft_pico", "--op", "naive"],
        ["soft_pico", "--rounds", "1"],
        ["--op", "newton_inverse", "newton"],
        ["--op", "newton_inverse-triton", "--device", "cpu"],
    ],
)
def test_mistakes(tool, arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        tool("benchmark")(arguments)
    assert caught.value.code in (1, 2)
    assert "Traceback" not in capsys.readouterr().err
