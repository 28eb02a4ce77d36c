"""Where the kernels run: on a GPU, or on a CPU in a process that Triton's interpreter was switched on for.

Triton reads the variable when it is imported, and PyTorch may import Triton, so the interpreter has a process of its
own; `test_in_interpreter.py` starts it.
"""

import os
from collections.abc import Iterator

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Under the interpreter only the kernels' tests are of interest.
collect_ignore_glob = []
if INTERPRETED:
    collect_ignore_glob += ["test_ahead_of_time.py", "test_choice.py", "test_in_interpreter.py"]


@pytest.fixture(params=["cpu" if INTERPRETED else pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    return request.param


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Every `torch.empty` of the test is full of NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
