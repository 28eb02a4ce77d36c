"""Training where it runs: on a CPU, and on a GPU where there is one."""

import os
from collections.abc import Iterator

# Read when a GPU is first used: matrix products are equal bit for bit.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    return request.param


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Of several ways to compute, those that give the same bits in every run."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
