"""The operator's benchmark: who takes part, and that all of them compute the same function."""

import pytest
import torch

from benchmarks import operator
from benchmarks.operator import (
    INVERSES,
    OPERATORS,
    PASSES,
    OperatorTiming,
    least_traffic,
    measure_inverse,
    measure_operator,
    operator_table,
    slope_table,
    time_forms,
)
from soft_vit.ops import self_gaussian_kernel


def test_forms_of_one_function():
    """On tokens far enough apart for Newton to have converged."""
    q, bottleneck, v = (2 * torch.randn(2, 3, n, 16) for n in (63, 6, 63))
    expected = OPERATORS["naive"](q, bottleneck, v)
    for name in ("newton", "cholesky", "newton-eager", "cholesky-eager"):
        torch.testing.assert_close(OPERATORS[name](q, bottleneck, v), expected, rtol=1e-3, atol=1e-3, msg=name)


def test_every_form_is_timed_at_every_length():
    names = ("naive", "newton", "softmax", "newton", "softmax")
    timings = measure_operator(names, (20, 45), num_bottleneck=4, head_dim=16, rounds=3)
    directions = ("forward", "forward+backward")
    labels = ("naive", "newton", "softmax", "newton (2)", "softmax (2)")
    expected = [(n, direction, label) for n in (20, 45) for direction in directions for label in labels]
    assert [(t.tokens, t.direction, t.operator) for t in timings] == expected
    assert all(0 < t.lower_ms <= t.median_ms <= t.upper_ms and t.memory_mb > 0 for t in timings)
    # Of another function, the bytes would not compare.
    assert all((t.gb_per_s is None) == t.operator.startswith("softmax") for t in timings)
    assert len(operator_table(timings).splitlines()) == 2 + len(timings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("direction", "tensors"), [("forward", "qvqx"), ("forward+backward", "qvqxgqgqvgdd")])
def test_least_traffic(direction, tensors, dtype):
    v = torch.empty(2, 3, 63, 16, dtype=dtype)
    assert least_traffic(direction, v) == len(tensors) * 2 * 3 * 63 * 16 * dtype.itemsize


def test_extra_memory_by_hand():
    """Of `4 (a b)`, through views: forward holds a b beside inputs and x, and backward 4 dx beside all gradients."""

    def form(a, b):
        return a.flatten() * b.mT.flatten() * 4

    inputs = [torch.randn(20, 25), torch.randn(20, 25).mT]
    found = {direction: rest[-2:] for direction, _, *rest in time_forms({"form": form}, inputs, 3, "cpu")}
    size = 500 * 4 / 2**20
    assert found == {"forward": [2 * size, 1 / 3], "forward+backward": [5 * size, 1 / 6]}


def test_a_form_without_memory_leaves_the_others():
    forms = {"large": lambda a: a * torch.empty(1 << 50), "small": lambda a: 2 * a}
    found = {(direction, name): rest for direction, name, *rest in time_forms(forms, [torch.randn(5)], 3, "cpu")}
    for direction in ("forward", "forward+backward"):
        assert found[direction, "large"] == [None] * 5
        assert min(found[direction, "small"][:3]) > 0


@pytest.mark.parametrize("bandwidth", [None, 120])
def test_out_of_memory_in_the_tables(bandwidth):
    timings = [OperatorTiming(name, "forward", n, n, n, n, n, 0) for name in "ab" for n in (10, 100)]
    timings += [OperatorTiming(name, "forward", 1000, *[None] * 5) for name in "ab"]
    timings += [OperatorTiming("c", "forward", 1000, 1, 1, 1, 1, 0)]
    head, _, *rows = operator_table(timings, bandwidth=bandwidth).splitlines()
    assert {row.count("|") for row in rows} == {head.count("|")}
    assert rows[-3].startswith("| forward | 1000 | a | out of memory |")
    # Beside a first form that was not measured there is no ratio.
    assert rows[-1].split("|")[6].strip() == ""
    assert [line.split("|")[1:4] for line in slope_table(timings).splitlines()[2:]] == [
        [f" {name} ", " forward ", " 1.00 "] for name in "ab"
    ]


def test_columns_of_bandwidth():
    timings = [
        OperatorTiming("a", "forward", 10, 1, 1, 1, 5, extra_memory=0.25, gb_per_s=30),
        OperatorTiming("softmax", "forward", 10, 1, 1, 1, 5, extra_memory=0),
    ]
    head, _, *rows = operator_table(timings, bandwidth=120).splitlines()
    assert [row.split("|")[-4:-1] for row in (head, *rows)] == [
        [" GB/s ", " % of bandwidth ", " extra memory / (inputs + outputs) "],
        [" 30 ", " 25 ", " 0.25 "],
        ["  ", "  ", " 0.00 "],
    ]


def test_slopes_and_ratios():
    timings = [OperatorTiming("a", "forward", n, n**2, n, n, n, 0) for n in (10, 100)]
    timings += [OperatorTiming("b", "forward", n, 2 * n, n, n, 3, 0) for n in (10, 100)]
    ratios = [line.split("|")[-3].strip() for line in operator_table(timings).splitlines()[2:]]
    assert ratios == ["1.00", "1.00", "5.00", "50.00"]
    assert slope_table(timings).splitlines()[2:] == ["| a | forward | 2.00 | 1.00 |", "| b | forward | 1.00 | 0.00 |"]
    assert slope_table(timings[:1]) == ""


@pytest.mark.parametrize(
    ("names", "kwargs", "message"),
    [
        (["fast"], {}, "no operator fast"),
        (["newton"], {"rounds": 1}, "rounds must be at least 3, got 1"),
        (["newton"], {"tokens": (20, 0)}, "tokens is 0; use at least 1"),
        (["newton"], {"batch_size": 0}, "batch_size is 0"),
        (["newton"], {"head_dim": -1}, "head_dim is -1"),
    ],
)
def test_bad_arguments(names, kwargs, message):
    with pytest.raises(ValueError, match=message):
        measure_operator(names, **{"tokens": (20,), **kwargs})


def test_forms_of_the_inverse():
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
    timings = measure_inverse(names, (2, 5), num_bottleneck=4, rounds=3)
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
        (["newton_inverse"], {"rounds": 1}, "rounds must be at least 3, got 1"),
        (["newton_inverse"], {"num_bottleneck": 0}, "num_bottleneck is 0; use at least 1"),
        (["newton_inverse-triton"], {}, "backend='triton' runs on a CUDA device"),
    ],
)
def test_bad_arguments_of_the_inverse(names, kwargs, message):
    with pytest.raises(ValueError, match=message):
        measure_inverse(names, (2,), **{"num_bottleneck": 4, **kwargs})


def test_bytes_are_read_and_written(monkeypatch):
    monkeypatch.setattr(operator, "COPIED_BYTES", 4096)
    copies = []

    def seconds(steps, rounds, device):
        for copy in steps.values():
            copies.append(copy())
        return {name: [4.0, 2.0, 1.0][:rounds] for name in steps}

    monkeypatch.setattr(operator, "time_in_turn", seconds)
    assert operator.copy_bandwidth("cpu", rounds=3) == pytest.approx(2 * 4096 / 2.0 / 1e9)
    assert copies[0].nbytes == 4096
    assert copies[0].eq(1).all()
