"""Settings and fixtures of all tests."""

import os

# Read when torch is first imported: waiting threads that spin make a busy machine many times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)
