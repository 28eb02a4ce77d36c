"""Logs are joined where runs were resumed, and drawn."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from soft_vit.probe.curves import read_run


def train_line(step: int, loss: float, **more) -> dict:
    """Ten iterations are an epoch."""
    return {"loss": loss, "lr": 1e-3, "time": 0.5, "epoch": (step - 1) // 10 + 1, "iter": step, "step": step, **more}


def val_line(epoch: int, top1: float) -> dict:
    return {"accuracy/top1": top1, "time": 0.1, "step": epoch}


def write_log(folder: Path, start: str, lines: list[dict], ending: str = "") -> None:
    target = folder / start / "vis_data"
    target.mkdir(parents=True)
    (target / "scalars.json").write_text("".join(json.dumps(line) + "\n" for line in lines) + ending)


FIRST = [train_line(5, 5.0), train_line(10, 4.0), val_line(1, 10.0), train_line(15, 3.0), train_line(20, 2.0)]


@pytest.mark.parametrize(
    ("first", "later", "loss", "top1"),
    [
        # Killed after iteration 20 before the validation, resumed from 10.
        (FIRST, [[train_line(15, 3.5), train_line(20, 2.5), val_line(2, 20.0)]], [5, 4, 3.5, 2.5], {1: 10, 2: 20}),
        # Resumed from the end of the first epoch, whose validation is repeated.
        (FIRST, [[val_line(1, 11.0), train_line(15, 3.5)]], [5, 4, 3.5], {1: 11}),
        # Resumed from iteration 12, in the second epoch, before its validation.
        (FIRST, [[train_line(20, 2.5)]], [5, 4, 3, 2.5], {1: 10}),
        # Resumed from before the last validation, which no longer counts.
        ([*FIRST, val_line(2, 20.0)], [[train_line(15, 3.5)]], [5, 4, 3.5], {1: 10}),
        # Started again from the beginning.
        ([*FIRST, val_line(2, 20.0)], [[train_line(5, 9.0)]], [9], {}),
        # Ended before it logged anything, and resumed after it measured something between two lines.
        (FIRST, [[], [{"residual": 0.5, "iter": 14, "step": 14}, train_line(15, 3.2)]], [5, 4, 3.2], {1: 10}),
    ],
)
def test_the_later_log_counts(tmp_path, first, later, loss, top1):
    # Written in the wrong order; names are times.
    for number, lines in reversed([*enumerate([first, *later])]):
        write_log(tmp_path, f"2026010{number}_000000", lines)
    run = read_run(tmp_path)
    assert run["loss"][2] == loss
    assert run["loss"][1] == sorted(set(run["loss"][1]))
    _, steps, values = run.get("accuracy/top1", ("epoch", [], []))
    assert dict(zip(steps, values, strict=True)) == top1


def test_incomplete_line_null_and_text(tmp_path):
    # A mode in the log decides whether a line is of training.
    first = {"mode": "train", "loss": 3.0, "step": 3}
    lines = [first, train_line(5, 2.0, grad_norm=None), train_line(10, 1.0, note="text", grad_norm=3)]
    write_log(tmp_path, "1", lines, ending='{"loss": 0.')
    run = read_run(tmp_path / "1" / "vis_data" / "scalars.json")
    assert run["loss"] == ("iteration", [3, 5, 10], [3.0, 2.0, 1.0])
    np.testing.assert_equal(run["grad_norm"][2], [math.nan, 3])
    assert "note" not in run


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_run(tmp_path)
    for number, content in enumerate(["", "x", '{"step": 1}\n[]\n{"step": 2}']):
        write_log(tmp_path / str(number), "1", [], content)
        with pytest.raises(ValueError, match=f"line {number}" if number else "empty"):
            read_run(tmp_path / str(number))
