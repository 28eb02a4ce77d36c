"""tools/benchmark.py: its tables, its CSV, its mistakes."""

import csv

import pytest

from soft_vit.analysis import bandwidth

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
AUTO = [*MODELS, "--batch-size", "auto", "--max-batch-size", "2"]
INVERSE = ["--op", "newton_inverse-products", "newton_inverse", "--problems", "3", "5", *OPERATOR[6:]]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [(MODELS, 4), (AUTO, 4), (OPERATOR, 8), (INVERSE, 8)],
    ids=["models", "auto", "operator", "inverse"],
)
def test_table_and_csv(tool, arguments, rows, tmp_path, capsys):
    tool("benchmark")([*arguments, "--csv", str(tmp_path / "new" / "rows.csv")])
    head, _, *table = capsys.readouterr().out.splitlines()
    assert "torch" in head
    assert "float32" in head
    assert len([line for line in table if "forward" in line or "ference" in line or "training" in line]) >= rows
    with open(tmp_path / "new" / "rows.csv") as file:
        found = list(csv.DictReader(file))
    assert len(found) == rows
    assert found[0]["machine"] in head


def test_bandwidth(tool, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bandwidth, "COPIED_BYTES", 1 << 20)
    tool("benchmark")([*OPERATOR, "--bandwidth", "--csv", str(tmp_path / "new" / "rows.csv")])
    head, _, columns, *_ = capsys.readouterr().out.splitlines()
    assert head.endswith(" GB/s")
    assert "% of bandwidth | extra memory" in columns
    with open(tmp_path / "new" / "rows.csv") as file:
        for row in csv.DictReader(file):
            assert float(row["bandwidth_gb_per_s"]) > 0
            assert float(row["gb_per_s"]) > 0
            assert float(row["extra_memory"]) >= 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["soft_pic"],
        [],
        ["soft_pico", "--op", "naive"],
        ["soft_pico", "--rounds", "1"],
        ["--op", "newton_inverse", "newton"],
        ["--op", "newton_inverse-triton", "--device", "cpu"],
        ["soft_pico+triton", "--img-size", "32", "--device", "cpu"],
        ["soft_pico", "--batch-size", "some"],
        ["soft_pico", "--batch-size", "0"],
        ["soft_pico", "--max-batch-size", "4"],
        ["soft_pico", "--device", "cud"],
        ["soft_pico", "--threads", "-1"],
        ["soft_pico", "--csv", f"{__file__}/rows.csv"],
        ["soft_pico", "--bandwidth"],
        ["--op", "newton_inverse", "--bandwidth"],
        ["--op", "newton", "--batch-size", "auto"],
    ],
)
def test_mistakes(tool, arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        tool("benchmark")(arguments)
    assert caught.value.code in (1, 2)
    error = capsys.readouterr().err
    assert "error: " in error
    assert "Traceback" not in error
