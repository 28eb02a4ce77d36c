"""The kernels' tests on a CPU, through Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from soft_vit.ops.soft.triton.support import interpreter_unavailable_reason


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_and_operator(which):
    pytest.importorskip("triton")
    if reason := interpreter_unavailable_reason():
        pytest.skip(reason)
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short", "-m", which]
    command = [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[4])
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
