"""The benchmark of Newton's inverse: that its forms are one function, and who takes part."""

import pytest
import torch

from soft_vit.analysis.inverse import INVERSES, measure_inverse
from soft_vit.analysis.operator import PASSES, operator_table
from soft_vit.ops import self_gaussian_kernel


def test_forms_of_one_function():
    """On well-conditioned kernels, where rounding is not amplified."""
    a = self_gaussian_kernel(torch.randn(3, 7, 16)).requires_grad_()
    results = {}
    for name in ("newton_inverse-products", "newton_inverse", "newton_inverse-eager"):
        v = INVERSES[name](a)
        results[name] = (v, *torch.autograd.grad(v.square().sum(), a))
    for name, result in results.items():
        for actual, expected in zip(result, results["newton_inverse-products"], strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, msg=name)


def test_every_form_is_timed_at_every_number_of_problems():
    names = ("newton_inverse", "newton_inverse")
    timings = measure_inverse(names, (2, 5), num_bottleneck=4, rounds=3, progress=False)
    labels = ("newton_inverse", "newton_inverse (2)")
    expected = [(count, pass_, name) for count in (2, 5) for pass_ in PASSES for name in labels]
    assert [(t.problems, t.direction, t.operator) for t in timings] == expected
    assert all(0 < t.lower_ms <= t.median_ms <= t.upper_ms and t.memory_mb > 0 for t in timings)
    head, _, *rows = operator_table(timings, "problems").splitlines()
    assert "| problems |" in head
    assert [row.split("|")[2].strip() for row in rows] == ["2"] * 4 + ["5"] * 4


@pytest.mark.parametrize(
    ("names", "kwargs", "message"),
    [
        (["fast"], {}, "no operator fast; choose from newton_inverse-products"),
        (["newton_inverse"], {"rounds": 1}, "rounds=1"),
        (["newton_inverse"], {"num_bottleneck": 0}, "num_bottleneck is 0; use at least 1"),
        (["newton_inverse-triton"], {}, "backend='triton' runs on a CUDA device"),
    ],
)
def test_bad_arguments(names, kwargs, message):
    with pytest.raises(ValueError, match=message):
        measure_inverse(names, (2,), progress=False, **{"num_bottleneck": 4, **kwargs})
