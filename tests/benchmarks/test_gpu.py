"""The report of a GPU: how the script runs its parts."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import EAGER, FUSED
from soft_vit.ops.soft.triton.support import interpreter_unavailable_reason

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_report.sh"


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
