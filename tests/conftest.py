"""Settings and fixtures of all tests."""

import os

# Read when torch is first imported. Tests run in as many processes as there are cores, with a thread each; and waiting
# threads that spin make a busy machine many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)
