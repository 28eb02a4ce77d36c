"""Logs read, and joined where runs were resumed."""

import math

import pytest
from run_logs import train_line, val_line, write_log

from soft_vit.analysis.run_logs import read_run, read_runs


def points(run, key: str) -> list[tuple]:
    return list(zip(run.series[key].steps, run.series[key].values, strict=True))


def test_training_and_validation_are_told_apart(tmp_path):
    write_log(tmp_path, "20260101_000000", [train_line(5, 2.0), train_line(10, 1.5), val_line(1, 40.0)])
    run = read_run(tmp_path)
    assert set(run.series) == {"loss", "lr", "time", "val/time", "accuracy/top1"}
    assert points(run, "loss") == [(5, 2.0), (10, 1.5)]
    assert points(run, "accuracy/top1") == [(1, 40.0)]
    assert points(run, "val/time") == [(1, 0.1)]
    assert (run.series["loss"].axis, run.series["accuracy/top1"].axis) == ("iteration", "epoch")
    # The mode, where a log states it, is what counts.
    write_log(tmp_path / "b", "20260101_000000", [{"mode": "train", "loss": 1.0, "step": 3}])
    assert read_run(tmp_path / "b").series["loss"].axis == "iteration"


FIRST = [train_line(5, 5.0), train_line(10, 4.0), val_line(1, 10.0), train_line(15, 3.0), train_line(20, 2.0)]


@pytest.mark.parametrize(
    ("first", "second", "loss", "top1"),
    [
        # Killed after iteration 20 before the validation, gone on from 10.
        (FIRST, [train_line(15, 3.5), train_line(20, 2.5), val_line(2, 20.0)], [5, 4, 3.5, 2.5], {1: 10, 2: 20}),
        # Gone on from the end of the first epoch, whose validation is repeated.
        (FIRST, [val_line(1, 11.0), train_line(15, 3.5)], [5, 4, 3.5], {1: 11}),
        # Gone on from iteration 12, in the second epoch, whose validation had not been yet.
        (FIRST, [train_line(20, 2.5)], [5, 4, 3, 2.5], {1: 10}),
        # From before a validation that was done: the run has forgotten it.
        ([*FIRST, val_line(2, 20.0)], [train_line(15, 3.5)], [5, 4, 3.5], {1: 10}),
        # Begun again from the start.
        ([*FIRST, val_line(2, 20.0)], [train_line(5, 9.0)], [9], {}),
        # Ended before it logged anything.
        (FIRST, [], [5, 4, 3, 2], {1: 10}),
    ],
)
def test_the_later_log_holds(tmp_path, first, second, loss, top1):
    # Written in the wrong order: names tell the time.
    write_log(tmp_path, "20260102_000000", second)
    write_log(tmp_path, "20260101_000000", first)
    run = read_run(tmp_path)
    assert run.series["loss"].values == loss
    assert run.series["loss"].steps == sorted(set(run.series["loss"].steps))
    assert dict(points(run, "accuracy/top1") if top1 else []) == top1
    assert ("accuracy/top1" in run.series) == bool(top1)


def test_three_starts_and_measurements_between_the_lines(tmp_path):
    residual = {"newton_residual/stage1": 0.5, "epoch": 1, "iter": 6, "step": 6}
    write_log(tmp_path, "1", [train_line(5, 5.0), residual, train_line(10, 4.0)])
    write_log(tmp_path, "2", [train_line(10, 4.1), train_line(15, 3.0)])
    write_log(tmp_path, "3", [{**residual, "iter": 14, "step": 14, "epoch": 2}, train_line(15, 3.2)])
    run = read_run(tmp_path)
    assert points(run, "loss") == [(5, 5.0), (10, 4.1), (15, 3.2)]
    assert [step for step, _ in points(run, "newton_residual/stage1")] == [6, 14]


def test_cut_off_line_and_numbers_that_are_none(tmp_path):
    lines = [train_line(5, 2.0, grad_norm=None), train_line(10, 1.0, note="text", grad_norm=3)]
    write_log(tmp_path, "1", lines, ending='{"loss": 0.')
    run = read_run(tmp_path)
    assert run.series["loss"].values == [2.0, 1.0]
    assert math.isnan(run.series["grad_norm"].values[0])
    assert run.series["grad_norm"].values[1] == 3
    assert "note" not in run.series
    # As a log without JsonLinesBackend has them.
    write_log(tmp_path / "b", "1", [train_line(5, math.nan)])
    assert math.isnan(read_run(tmp_path / "b").series["loss"].values[0])


@pytest.mark.parametrize(
    "part", ["", "20260101_000000", "20260101_000000/vis_data", "20260101_000000/vis_data/scalars.json"]
)
def test_a_run_is_any_part_of_its_path(tmp_path, part):
    write_log(tmp_path / "work", "20260101_000000", [train_line(5, 2.0)])
    (run,) = read_runs([tmp_path / "work" / part])
    assert points(run, "loss") == [(5, 2.0)]
    assert run.name == ("20260101_000000" if part else "work")


def test_names_tell_runs_apart(tmp_path):
    for name in ("a/run", "b/run", "b/other"):
        write_log(tmp_path / name, "1", [train_line(5, 2.0)])
    paths = [tmp_path / "a/run", tmp_path / "b/run", tmp_path / "b/other"]
    assert [run.name for run in read_runs(paths)] == ["a/run", "b/run", "b/other"]
    assert [run.name for run in read_runs(paths[1:])] == ["run", "other"]
    assert [run.name for run in read_runs(paths, ["x", "y", "z"])] == ["x", "y", "z"]
    with pytest.raises(ValueError, match="3 runs and 1 names"):
        read_runs(paths, ["x"])


def test_what_is_no_log(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no log in .*; give the work directory"):
        read_run(tmp_path)
    (tmp_path / "config.py").write_text("a = 1\nb = 2\n")
    with pytest.raises(ValueError, match=r"Line 1 of .*config\.py"):
        read_run(tmp_path / "config.py")
    (tmp_path / "numbers.json").write_text("1\n2\n")
    with pytest.raises(ValueError, match="Line 1"):
        read_run(tmp_path / "numbers.json")
    write_log(tmp_path, "1", [])
    with pytest.raises(ValueError, match="is empty"):
        read_run(tmp_path)
