"""The composed operator: its values, its gradients, what it stores, and what half precision does to it."""

from functools import partial
from itertools import product

import pytest
import torch
from stored import LargestTensor
from torch.autograd import forward_ad

from soft_vit.ops import soft_attention, soft_attention_reference
from soft_vit.ops.soft import blocked as blocked_attention

# Starts with the ridges they are made for.
STARTS = (("rowsum", 0.01), ("guarded_image", 0.0), ("guarded_batch", 0.0))
VARIANTS = [
    dict(inverse=inverse, normalize=normalize, newton_start=start, ridge=ridge if inverse == "newton" else 0.01)
    for inverse, normalize, (start, ridge) in product(("newton", "cholesky"), (False, True), STARTS)
    if inverse == "newton" or start == "rowsum"
]
variants = pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))


def inputs(n: int = 63, m: int = 6, d: int = 8, dtype=torch.float64, spread: float = 1.0, heads: int = 3) -> tuple:
    """q, bottleneck tokens and v of 2 images; v is narrower than q."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, heads, n, d), (2, heads, m, d), (2, heads, n, d - 1))
    q, bottleneck, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return tuple((t.to(dtype)).requires_grad_() for t in (q * spread, bottleneck * spread, v))


def outputs_and_gradients(function, tensors: tuple, **variant) -> dict[str, torch.Tensor]:
    # Changed in place, as results may be.
    out = function(*tensors, **variant).add_(0)
    target = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out.dtype)
    gradients = torch.autograd.grad(out, tensors, target)
    return {"x": out.detach(), **dict(zip(("dq", "dbottleneck", "dv"), gradients, strict=True))}


def assert_equals_the_reference(tensors: tuple, variant: dict) -> None:
    actual = outputs_and_gradients(soft_attention, tensors, **variant)
    for name, expected in outputs_and_gradients(soft_attention_reference, tensors, **variant).items():
        torch.testing.assert_close(actual[name], expected, rtol=1e-7, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@variants
@pytest.mark.parametrize("spread", [1.0, 0.1])
@pytest.mark.parametrize("transposed", [False, True], ids=["heads", "maps"])
def test_equals_the_reference(variant, spread, transposed):
    tensors = inputs(spread=spread)
    if transposed:
        tensors = tuple(t.detach().mT.contiguous().mT.requires_grad_() for t in tensors)
    assert_equals_the_reference(tensors, variant)


@variants
def test_gradcheck(variant):
    """Conditioned tokens and enough steps, so that Newton's closed form is the true gradient."""
    tensors = inputs(n=4, m=3, d=2, spread=1.5, heads=2)
    torch.autograd.gradcheck(partial(soft_attention, newton_iters=40, **variant), tensors)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("iters", [3, 10])
def test_gradcheck_of_the_truncated_iteration(normalize, iters):
    tensors = inputs(n=4, m=3, d=2, spread=0.3, heads=2)
    attend = partial(soft_attention, newton_iters=iters, normalize=normalize, newton_gradient="unrolled")
    torch.autograd.gradcheck(attend, tensors)


forms = pytest.mark.parametrize(("inverse", "normalize"), [*product(("newton", "cholesky"), (False, True))])


@forms
def test_second_derivatives(inverse, normalize):
    tensors = tuple(t[:1].detach().requires_grad_() for t in inputs(n=4, m=3, d=2, heads=1))
    attend = partial(soft_attention, inverse=inverse, normalize=normalize, newton_iters=40)
    assert torch.autograd.gradgradcheck(attend, tensors)


@forms
def test_forward_mode_without_gradients(inverse, normalize):
    q, bottleneck, v = inputs(n=5, m=4, d=3, heads=2)
    attend = partial(soft_attention, inverse=inverse, normalize=normalize, newton_iters=40)
    direction = torch.randn_like(q)
    step = 1e-6 * direction
    with torch.no_grad(), forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(attend(forward_ad.make_dual(q, direction), bottleneck, v)).tangent
        difference = attend(q + step, bottleneck, v) - attend(q - step, bottleneck, v)
    torch.testing.assert_close(tangent, difference / 2e-6, rtol=1e-6, atol=1e-8)


@variants
@pytest.mark.parametrize("rows", [1, 20, 100], ids="cache of {} tokens".format)
def test_blocks_do_not_matter(variant, rows, monkeypatch):
    """Chunks of 63 tokens and parts of 6 problems that do not divide them."""
    monkeypatch.setattr(blocked_attention, "_CACHED_BYTES", rows * 6 * 8)
    monkeypatch.setattr(blocked_attention, "_MIN_CHUNK", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert_equals_the_reference(inputs(), variant)


@variants
def test_single_precision_error(variant):
    """At most twice the error of the reference in the same precision, both against float64, or 16 roundings."""
    double = inputs(n=500, m=49, d=32, spread=0.3)
    single = tuple(t.detach().float().requires_grad_() for t in double)
    exact = outputs_and_gradients(
        soft_attention_reference, tuple(t.detach().double().requires_grad_() for t in single), **variant
    )
    fast = outputs_and_gradients(soft_attention, single, **variant)
    reference = outputs_and_gradients(soft_attention_reference, single, **variant)
    for name, value in exact.items():
        fast_error, reference_error = ((t[name].double() - value).norm() / value.norm() for t in (fast, reference))
        assert fast_error <= 2 * reference_error + 16 * torch.finfo(torch.float32).eps, name


@variants
def test_nothing_larger_than_the_kernel_is_made_or_stored(variant):
    n, m, d = 500, 16, 8
    tensors = inputs(n=n, m=m, d=d, dtype=torch.float32)
    problems = 2 * 3
    stored = []
    watch = LargestTensor()
    with watch, torch.autograd.graph.saved_tensors_hooks(lambda t: stored.append(t.numel()) or t, lambda t: t):
        soft_attention(*tensors, **variant).sum().backward()
    # One kernel at a time, N x M; never N x M x anything.
    assert watch.numel <= problems * n * m
    # For backward: q, v, and tensors whose size does not depend on N.
    assert sum(stored) <= problems * (n * (d + d - 1) + 2 * m * m + m * (3 * d + 1))


FLAT = {"all tokens equal": 1.0, "zeros": 0.0, "magnitude 1e4": 1e4}


@variants
@pytest.mark.parametrize("case", FLAT)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_finite_on_hard_inputs(variant, case, dtype):
    value = FLAT[case]
    generator = torch.Generator().manual_seed(0)
    token = torch.randn(1, 1, 1, 32, generator=generator) * value
    q = token.expand(2, 2, 63, 32) if case == "all tokens equal" else torch.randn(2, 2, 63, 32) * value
    q, bottleneck, v = (t.to(dtype).clone().requires_grad_() for t in (q, q[:, :, :9], torch.randn(2, 2, 63, 32)))
    with torch.autocast("cpu", dtype=dtype):
        x = soft_attention(q, bottleneck, v, **variant)
    assert x.dtype == dtype
    assert x.isfinite().all()
    gradients = torch.autograd.grad(x.float().sum(), (q, bottleneck, v))
    for name, gradient in zip(("dq", "dbottleneck", "dv"), gradients, strict=True):
        assert gradient.isfinite().all(), name


@variants
def test_inside_is_single_precision_under_autocast(variant):
    tensors = tuple(t.detach().bfloat16() for t in inputs(dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = soft_attention(*tensors, **variant)
    expected = soft_attention(*(t.float() for t in tensors), **variant).bfloat16()
    torch.testing.assert_close(x, expected, rtol=0, atol=0)


UNKNOWN = [("inverse", "lu"), ("newton_gradient", "none"), ("newton_iters", -1), ("ridge", 0.0)]


@pytest.mark.parametrize(("name", "value"), UNKNOWN)
def test_unknown_options(name, value):
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        soft_attention(*inputs(), **{"inverse": "cholesky", name: value})
