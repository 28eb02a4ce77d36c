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


@pytest.mark.slow
def test_dry_run_and_again(tmp_path):
    """30 CPU seconds: each part imports torch. Without MMEngine, and from any folder."""
    pytest.importorskip("triton")
    if reason := interpreter_unavailable_reason():
        pytest.skip(reason)
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "mmengine.py").write_text("raise ModuleNotFoundError('mmengine', name='mmengine')")
    env = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(blocked)}
    command = ["bash", str(SCRIPT), str(tmp_path / "out"), "--dry"]
    first, again = (subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env) for _ in range(2))
    for ended in (first, again):
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "tests_inverse: done" in first.stdout
    assert len(again.stdout.splitlines()) == 1
    rows = list(csv.DictReader((tmp_path / "out" / "report.csv").open()))
    assert {row["operator"] for row in rows} == {"softmax", FUSED, EAGER, "naive", "linear", ""}
    assert all(float(row["median_ms"] or row["median"]) > 0 for row in rows)
    assert "| training | soft_pico | 2 |" in (tmp_path / "out" / "report.md").read_text()
