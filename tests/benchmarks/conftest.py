"""A small matrix product beside models, whose rate no test reads."""

import pytest


@pytest.fixture(autouse=True)
def small_product(monkeypatch):
    monkeypatch.setattr("benchmarks.models.PEAK_SIDE", 32)
