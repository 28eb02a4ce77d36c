"""The teacher is trained once, each attention has a row, and a stopped command resumes."""

from pathlib import Path

import pytest

from studies.linearise import LinearisedRow, compare_linearised, linearised_table, validations

CONFIGS = Path(__file__).parents[2] / "configs" / "linearise"
STUDENT, TEACHER = CONFIGS / "linear_pico_shapes.py", CONFIGS / "softmax_pico_shapes.py"


@pytest.mark.slow
def test_rows_of_a_resumed_comparison(tmp_path):
    short = "train_dataloader = dict(batch_size=8, dataset=dict(length=16))\n"
    short += "val_dataloader = dict(dataset=dict(length=7))\n"
    config, teacher = tmp_path / "student.py", tmp_path / "teacher.py"
    config.write_text(f"_base_ = [{str(STUDENT)!r}]\n{short}")
    teacher.write_text(f"_base_ = [{str(TEACHER)!r}]\n{short}train_cfg = dict(max_epochs=1)\n")
    arguments = dict(work_dir=tmp_path / "runs", progress=False)
    *_, (first,) = compare_linearised(["linear"], config, teacher, **arguments)
    assert not first.error
    assert all(0 <= figure <= 100 for figure in (first.swap, first.phase1, first.phase2, first.agreement))
    assert first.cpu_minutes > 0
    # A run that has ended is not repeated.
    logs = sorted((tmp_path / "runs").glob("**/vis_data/scalars.json"))
    found, rows = compare_linearised(["linear", "none"], config, teacher, **arguments)
    assert found[0] == rows[0] == first
    assert rows[1].phase2 is not None
    assert len(list((tmp_path / "runs").glob("**/vis_data/scalars.json"))) == len(logs) + 1


def test_table_shows_who_reaches_the_aim():
    done = dict(teacher=80.0, swap=10.0, phase1=50.0, agreement=90.0, kl=0.1234, cpu_minutes=1.25)
    rows = [
        LinearisedRow("linear", 0, phase2=78.0, share=97.5, **done),
        LinearisedRow("none", 0, phase2=40.0, share=50.0, **done),
        LinearisedRow("soft", 1, 80.0, error="ValueError: no"),
    ]
    lines = linearised_table(rows).splitlines()[2:]
    assert [line.split(" | ")[6] for line in lines] == ["yes", "no", ""]
    assert "97.5" in lines[0]
    assert "0.123" in lines[0]
    assert "ValueError" in lines[2]


@pytest.mark.parametrize(
    ("kind", "config", "given"), [("lineal", STUDENT, "lineal"), ("linear", TEACHER, "softmax_pico_shapes")]
)
def test_mistakes(kind, config, given, tmp_path):
    with pytest.raises(ValueError, match=given):
        next(compare_linearised([kind], config, TEACHER, work_dir=tmp_path))
    assert not list(tmp_path.iterdir())


def test_incomplete_line_of_a_killed_run_is_skipped(tmp_path):
    log = tmp_path / "20260101_000000" / "vis_data" / "scalars.json"
    log.parent.mkdir(parents=True)
    log.write_text(
        '{"mode": "train", "step": 9}\n{"mode": "val", "step": 1, "accuracy/top1": 50.0}\n{"mode": "val", "st'
    )
    assert validations(tmp_path) == {1: {"mode": "val", "step": 1, "accuracy/top1": 50.0}}
