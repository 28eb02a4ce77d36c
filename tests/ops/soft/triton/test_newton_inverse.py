"""The inverse that the forward computes on chip, by Newton's iteration, against float64 and next to the eager form."""

import pytest
import torch
from released import relative_error

from soft_vit.ops import newton_inverse, self_gaussian_kernel
from soft_vit.ops.soft.triton import op

ROWSUM = dict(start="rowsum", ridge=0.01)
GUARDED = dict(start="guarded_image", ridge=0.0)


def bottleneck(m: int, spread: float = 0.3) -> torch.Tensor:
    """Bottleneck tokens of two heads; spread 0.02 makes flat kernels, 0 equal tokens."""
    return torch.randn(1, 2, m, 16, generator=torch.Generator().manual_seed(m)) * spread


def on_chip(tokens: torch.Tensor, iters: int = 20, ridge: float = 0.01, start: str = "rowsum") -> torch.Tensor:
    """W `[B, H, M, M]` of the fused forward."""
    x = tokens.new_zeros(*tokens.shape[:2], 5, 16)
    _, _, w, _, _ = op.forward(x, tokens, x, None, "newton", False, iters, ridge, start, "heads", "heads")
    return w.unflatten(0, tokens.shape[:2])


QUICK = [(dict(m=49, spread=0.02), ROWSUM), (dict(m=9, spread=0.0), ROWSUM), (dict(m=9), dict(GUARDED, iters=3))]
MORE = [(dict(m=31), ROWSUM), (dict(m=64, spread=0.1), GUARDED), (dict(m=9), dict(ROWSUM, iters=0))]
MORE += [
    (dict(m=m, spread=spread), start)
    for m, spread in ((1, 0.3), (3, 0.3), (16, 0.3), (49, 0.3), (49, 0.02), (64, 1.0))
    for start in (ROWSUM, GUARDED)
]


SIZES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("sizes", "variant"), SIZES, ids=str)
def test_error(device, sizes, variant):
    """At most twice the error of eager, both against float64, or 16 roundings of the products."""
    tokens = bottleneck(**sizes).to(device)
    exact, eager = (newton_inverse(self_gaussian_kernel(x), **variant) for x in (tokens.double(), tokens))
    errors = [relative_error(form, exact) for form in (on_chip(tokens, **variant), eager)]
    assert errors[0] <= 2 * errors[1] + 16 * torch.finfo(torch.float32).eps, errors


@pytest.mark.parametrize("m", [5, 40])
def test_a_pair_far_from_all_others_keeps_its_mode(device, m):
    tokens = torch.zeros(1, 1, m, 16, device=device)
    tokens[..., 0] = 30 * torch.arange(m)
    tokens[..., 1, 0] = 1
    w = on_chip(tokens, 24, 0.0, "guarded_image")
    torch.testing.assert_close(w, torch.linalg.inv(self_gaussian_kernel(tokens)))


def test_ends_where_the_iteration_has_converged(device):
    """Further steps would go on rounding."""
    tokens = bottleneck(33, spread=0.5).to(device)[:, :1]
    assert torch.equal(*(on_chip(tokens, iters) for iters in (20, 41)))


@pytest.mark.parametrize("m", [9, pytest.param(33, marks=pytest.mark.slow)])
def test_not_a_number_stays_in_its_problem(device, m):
    tokens = bottleneck(m).to(device)
    expected = on_chip(tokens)
    tokens[0, 0, 2, 3] = torch.nan
    w = on_chip(tokens).flatten(0, 1)
    assert w[0].isnan().all()
    assert torch.equal(w[1:], expected.flatten(0, 1)[1:])
