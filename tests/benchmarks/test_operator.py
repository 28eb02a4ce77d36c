"""Operators: all forms of softmax-free attention are one function, and what is counted of a call."""

import pytest
import torch

from benchmarks.operator import make_inputs, measure_operators
from benchmarks.registry import OPERATORS, inputs_of

TINY = dict(num_bottleneck=4, head_dim=16)


@pytest.mark.parametrize("name", [name for name in OPERATORS if "triton" not in name])
def test_forms_of_one_function(name):
    """Softmax-free forms agree on tokens far enough apart for Newton to have converged."""
    tensors = {name: 4 * tensor for name, tensor in make_inputs(63, 2, 3, 6, 16).items()}
    expected = OPERATORS["naive"](**inputs_of(OPERATORS["naive"], tensors))
    inputs = inputs_of(OPERATORS[name], tensors)
    actual = OPERATORS[name](**inputs)
    assert actual.shape == expected.shape
    if "k" not in inputs:
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_memory_by_hand(monkeypatch):
    """Of `4 (q v)`: forward holds q v with the result, and backward the result, dx, 4 dx and both gradients."""
    monkeypatch.setitem(OPERATORS, "naive", lambda q, v: q * v * 4)
    forward, both = measure_operators(["naive"], (20,), rounds=3, num_heads=1, head_dim=25)
    assert (forward.memory, both.memory) == (2 * 2000, 5 * 2000)
