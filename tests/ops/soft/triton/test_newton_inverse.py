"""Newton's iteration in one kernel against float64, next to the eager form."""

import pytest
import torch

from soft_vit.ops import newton_inverse, self_gaussian_kernel

ROWSUM = dict(start="rowsum", ridge=0.01)
GUARDED = dict(start="guarded_image", ridge=0.0)


def kernel(device: str, m: int, batch: tuple[int, ...] = (2,), spread: float = 0.3) -> torch.Tensor:
    """Kernel matrices, exactly symmetric; spread 0.02 makes flat ones, 0 equal tokens."""
    a = self_gaussian_kernel(torch.randn(*batch, m, 16, generator=torch.Generator().manual_seed(m)) * spread)
    return ((a + a.mT) / 2).to(device)


def inverse_and_gradient(a: torch.Tensor, **options) -> dict[str, torch.Tensor]:
    a = a.detach().requires_grad_()
    v = newton_inverse(a, **options)
    target = torch.randn(v.shape, generator=torch.Generator().manual_seed(1)).to(v)
    return {"V": v.detach(), "dA": torch.autograd.grad(v, a, target)[0]}


def relative_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double() - exact).norm() / exact.norm())


CASES = [
    (dict(m=1), ROWSUM),
    (dict(m=1), GUARDED),
    (dict(m=3), ROWSUM),
    (dict(m=16), GUARDED),
    (dict(m=31), ROWSUM),
    (dict(m=49, batch=(3,)), ROWSUM),
    (dict(m=49), GUARDED),
    (dict(m=49, spread=0.02), ROWSUM),
    (dict(m=49, spread=0.02), GUARDED),
    (dict(m=64, spread=1.0), ROWSUM),
    (dict(m=64, spread=0.1), GUARDED),
    (dict(m=9, spread=0.0), ROWSUM),
    (dict(m=9, batch=(2, 1, 3)), GUARDED),
    (dict(m=9, batch=()), ROWSUM),
    (dict(m=9), dict(ROWSUM, iters=0)),
    (dict(m=9), dict(GUARDED, iters=3)),
]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("sizes", "variant"), CASES, ids=str)
def test_error(device, sizes, variant):
    """At most twice the error of eager, both against float64, or 16 roundings of the products."""
    a = kernel(device, **sizes)
    fused, eager = (inverse_and_gradient(a, **variant, backend=backend) for backend in ("triton", "eager"))
    for name, exact in inverse_and_gradient(a.double(), **variant).items():
        assert fused[name].shape == a.shape, name
        errors = [relative_error(form[name], exact) for form in (fused, eager)]
        assert errors[0] <= 2 * errors[1] + 16 * torch.finfo(torch.float32).eps, f"{name}: {errors}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(device, dtype):
    a = kernel(device, 9).to(dtype)
    result = inverse_and_gradient(a, backend="triton")
    assert (result["V"].dtype, result["dA"].dtype) == (torch.float32, dtype)
    torch.testing.assert_close(result["V"], newton_inverse(a.float(), backend="triton"), rtol=0, atol=0)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[:, 1::2],
        lambda a: a.mT,
        lambda a: a.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
        lambda a: a[:, :1].expand(-1, 3, -1, -1),
    ],
    ids=["slices", "transposed", "matrices innermost", "expanded"],
)
def test_any_strides(device, view):
    a = view(kernel(device, 9, (2, 2)))
    strided, contiguous = (inverse_and_gradient(x, backend="triton") for x in (a, a.contiguous()))
    for name in strided:
        assert torch.equal(strided[name], contiguous[name]), name


@pytest.mark.parametrize("m", [5, 40])
def test_a_pair_far_from_all_others_keeps_its_mode(device, m):
    a = torch.eye(m, device=device)
    a[0, 1] = a[1, 0] = 0.5
    torch.testing.assert_close(newton_inverse(a, 24, 0.0, "guarded_image", backend="triton"), torch.linalg.inv(a))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scale_of_the_matrix_changes_nothing(device, scale):
    """fp16 has 5 bits of exponent; powers of two keep entries within them."""
    a = kernel(device, 33)
    scaled = newton_inverse(a * scale, ridge=0.01 * scale, backend="triton") * scale
    torch.testing.assert_close(scaled, newton_inverse(a, backend="triton"), rtol=1e-5, atol=1e-5)


def test_ends_where_the_iteration_has_converged(device):
    """Further steps would go on rounding."""
    a = kernel(device, 33, spread=0.5)
    assert torch.equal(*(newton_inverse(a, iters, backend="triton") for iters in (20, 41)))


@pytest.mark.parametrize("m", [9, 33])
def test_not_a_number_stays_in_its_problem(device, m):
    a = kernel(device, m)
    a[0, 2, 3] = torch.nan
    v = newton_inverse(a, backend="triton")
    assert v[0].isnan().all()
    assert torch.equal(v[1], newton_inverse(a[1], backend="triton"))


def test_autocast_changes_nothing(device):
    a = kernel(device, 9)
    plain = inverse_and_gradient(a, backend="triton")
    with torch.autocast(device, dtype=torch.bfloat16):
        under = inverse_and_gradient(a, backend="triton")
    for name in plain:
        assert torch.equal(plain[name], under[name]), name
