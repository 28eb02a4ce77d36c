"""The report of a GPU: what its page says of given figures, and how the script runs parts."""

import csv
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.gpu import EAGER, FUSED, SOFTMAX, aims_table, compulsory_bytes, of_floor, page
from soft_vit.ops.soft.triton.support import interpreter_unavailable_reason

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_report.sh"
PLANNED = (1024, 3136, 8192)


def test_compulsory_bytes():
    # q v x, dx, and q v dx dq dv.
    assert compulsory_bytes(FUSED, "forward+backward", 7) == 7 * (3 + 1 + 5)
    # q k v x.
    assert compulsory_bytes(SOFTMAX, "forward", 7) == 7 * 4


def rows_of(fused: float, floor: float, lengths=PLANNED, missing=()) -> list[dict[str, str]]:
    """Eager takes 16 ms and softmax 9, in both passes; floor: that of the fused form, in percent."""
    rows = []
    for n, direction in product(lengths, ("forward", "forward+backward")):
        speed = compulsory_bytes(FUSED, direction, 2 * 8 * 16 * 64 * n) / (floor / 100 * fused) / 1e6
        for form, ms in ((FUSED, fused), (EAGER, 16.0), (SOFTMAX, 9.0)):
            case = {"case": "batch 8, 16 heads of 64, M = 49", "bandwidth_gb_per_s": f"{speed}"}
            figures = {"tokens": f"{n}", "median_ms": "" if (form, n) == missing else f"{ms}"}
            rows.append({"operator": form, "direction": direction, **case, **figures})
    assert of_floor(rows[0]) == pytest.approx(floor)
    return rows


@pytest.mark.parametrize(
    ("rows", "verdicts"),
    [
        (rows_of(2.0, 61), ["reached"] * 4),
        (rows_of(2.0, 61, lengths=(3136,)), ["reached where measured"] * 4),
        (rows_of(2.0, 61, missing=(FUSED, 8192)), ["reached where measured"] * 4),
        (rows_of(2.1, 59), ["missed", "missed", "missed", "reached"]),
        # What is shorter does not count.
        (rows_of(2.0, 61) + rows_of(20.0, 10, lengths=(512,)), ["reached"] * 4),
        ([], ["not measured"] * 4),
    ],
)
def test_aims(rows, verdicts):
    _, _, *lines = aims_table(rows, PLANNED).splitlines()
    assert [line.split(" | ")[1] for line in lines] == verdicts


def test_page():
    rows = rows_of(2.0, 60.1, lengths=(1024, 3136), missing=(SOFTMAX, 3136))
    states = {"operator_8192": "not begun", "tests_some": "done, 6 s", "models": "out of time, 9 s"}
    logs = {"operator_8192": [""], "tests_some": ["== 3 passed =="], "models": ["before", "the reason"]}
    text = page("head", states, logs, {"operator_3136": rows})
    assert "| tests_some | done, 6 s | 3 passed |" in text
    assert "8192: not measured" in text
    assert "## models: out of time, 9 s\n\n~~~\nbefore\nthe reason\n~~~" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_needs_a_gpu(tmp_path):
    with pytest.raises(SystemExit, match="GPU"):
        main(["gpu", "--out", str(tmp_path / "out")])


PROGRAM = """#!/usr/bin/env bash
echo "$@" >>"{folder}/calls"
case "$*" in
    *"-m pytest"*) echo "before"; echo "the reason"; exit 3 ;;
    *"operator softmax"*) sleep 60 & echo $! >"{folder}/child" ;;
esac
"""


def test_parts_end_with_what_they_started_and_are_not_repeated(tmp_path):
    """With a program instead of Python."""
    (tmp_path / "python").write_text(PROGRAM.format(folder=tmp_path))
    (tmp_path / "python").chmod(0o755)
    out, environment = tmp_path / "out", {**os.environ, "PYTHON": str(tmp_path / "python")}
    calls = []
    for _ in range(2):
        subprocess.run(["bash", str(SCRIPT), str(out), "--dry"], env=environment, check=True, capture_output=True)
        calls.append((tmp_path / "calls").read_text().splitlines())
        (tmp_path / "calls").unlink()
    states = {path.stem: path.read_text().split(",")[0] for path in out.glob("*.state")}
    assert states == {"operator_17": "done", "tests_inverse": "failed", "models": "done"}
    assert (out / "tests_inverse.log").read_text() == "before\nthe reason\n"
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"
    assert [call.split()[2] for call in calls[0] if "benchmarks gpu" not in call] == ["operator", "-q", "models"]
    # The second time only what failed, between the check and the page.
    assert [call.split()[2] for call in calls[1] if "benchmarks gpu" not in call] == ["-q"]
    assert calls[1][-1].endswith("--final")


@pytest.mark.slow
def test_dry_run_and_again(tmp_path):
    """30 CPU seconds: each part imports torch. Without MMEngine, and from any folder."""
    pytest.importorskip("triton")
    if reason := interpreter_unavailable_reason():
        pytest.skip(reason)
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "mmengine.py").write_text("raise ModuleNotFoundError('mmengine', name='mmengine')")
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(blocked)}
    command = ["bash", str(SCRIPT), str(tmp_path / "out"), "--dry"]
    first, again = (
        subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment) for _ in range(2)
    )
    for ended in (first, again):
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "tests_inverse: done" in first.stdout
    assert len(again.stdout.splitlines()) == 1
    rows = list(csv.DictReader((tmp_path / "out" / "report.csv").open()))
    assert {row["operator"] for row in rows} == {"softmax", FUSED, EAGER, "naive", "linear", ""}
    assert all(float(row["median_ms"] or row["median"]) > 0 for row in rows)
    assert "| training | soft_pico | 2 |" in (tmp_path / "out" / "report.md").read_text()
