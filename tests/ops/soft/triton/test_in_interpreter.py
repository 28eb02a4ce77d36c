"""The kernels' tests on a CPU, through Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from packaging.version import Version


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_and_operator(which):
    triton = pytest.importorskip("triton")
    # It makes numbers of arrays with one element, which numpy no longer allows.
    if Version(triton.__version__) < Version("3.7") and Version(np.__version__) >= Version("2.4"):
        pytest.skip("the interpreter of Triton before 3.7 does not run with numpy 2.4; install 'numpy<2.4'")
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short", "-m", which]
    command = [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[4])
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
