"""tools/plot_logs.py: files, and mistakes in a sentence."""

import pytest
from run_logs import write_log


@pytest.fixture
def plot_logs(tool, monkeypatch, tmp_path):
    for name in ("first", "second"):
        write_log(tmp_path / name, "20260101_000000", [{"loss": 1 / i, "iter": i, "step": i} for i in (1, 2, 3)])
    monkeypatch.chdir(tmp_path)

    return lambda *arguments: tool("plot_logs")(arguments)


def test_picture_and_csv(plot_logs, tmp_path, capsys):
    plot_logs("first", "second", "--out", "both.png", "--csv", "both.csv", "--smoothing", "3", "--names", "A", "B")
    assert capsys.readouterr().out == "Curves: both.png\n"
    assert (tmp_path / "both.png").stat().st_size > 10000
    rows = (tmp_path / "both.csv").read_text().splitlines()
    assert rows[1:3] == ["A,loss,iteration,1,1.0", "A,loss,iteration,2,0.5"]
    assert rows[6].startswith("B,loss")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["third"], "There is no log in third"),
        (["first", "--keys", "top1"], "No run has logged 'top1'; choose from loss."),
        (["first", "--names", "a", "b"], "1 runs and 2 names"),
        (["first", "--smoothing", "-2"], "smoothing is -2"),
        (["first", "--out", "first"], "first is a folder"),
        (["first", "--csv", f"{__file__}/rows.csv"], "rows.csv cannot be written"),
    ],
)
def test_mistake_ends_in_one_line(plot_logs, mistake, arguments, message):
    assert message in mistake("plot_logs", *arguments)
