"""The report of a GPU as a command: without a GPU, and on a CPU with tiny sizes."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from soft_vit.ops.soft.triton.support import interpreter_unavailable_reason

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_report.sh"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_needs_a_gpu(tmp_path):
    with pytest.raises(SystemExit, match=r"error: .*GPU"):
        main(["gpu", "--out", str(tmp_path / "out")])


@pytest.mark.slow
def test_dry_run_and_again(tmp_path):
    """20 CPU seconds: each part imports torch. Without MMEngine, and from any folder."""
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
    assert "tests: Newton's inverse: done" in first.stdout
    assert len(again.stdout.splitlines()) == 1
    rows = list(csv.DictReader((tmp_path / "out" / "report.csv").open()))
    assert {row["mode"] for row in rows} == {"", "forward", "forward+backward", "inference", "training"}
    assert {row["target"] for row in rows} >= {
        "copy",
        "newton-triton",
        "newton-eager",
        "naive",
        "softmax",
        "linear",
        "soft_pico",
    }
    assert all(float(row["seconds"]) > 0 and "dry run" in row["machine"] for row in rows)
    text = (tmp_path / "out" / "report.md").read_text()
    assert " passed" in text
    assert "Made by `benchmarks/gpu_report.sh OUT --dry`" in text
