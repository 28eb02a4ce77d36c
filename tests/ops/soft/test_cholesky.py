"""The Cholesky solve against the float64 oracle, on conditioned kernels and on flat ones."""

import pytest
import torch
from kernel_matrices import SPREADS, UNIT_ROUNDOFF, kernel, relative_error
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from soft_vit.ops import cholesky_solve, eigh_inverse, self_gaussian_kernel, soft_attention
from soft_vit.ops.soft.options import add_ridge


@pytest.mark.parametrize("spread", SPREADS)
def test_cholesky_solve(spread):
    """Relative error of the solution at most `4 m u cond(P)` (Higham, Accuracy and Stability, Theorem 10.4)."""
    a = kernel(spread)
    b = torch.randn(6, 49, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).float().double()
    p = add_ridge(a, 0.01)
    bound = 4 * 49 * UNIT_ROUNDOFF * torch.linalg.cond(p)
    assert (relative_error(cholesky_solve(a.float(), b.float()), eigh_inverse(a, 0.01) @ b) <= bound).all()


def test_a_matrix_without_a_factor_gives_nan():
    """Alone: LAPACK stops there and leaves numbers, by which -1 would have the inverse 1."""
    a = torch.stack([torch.eye(3), -torch.eye(3)])
    x = cholesky_solve(a, torch.ones(2, 3, 1), ridge=1e-9)
    torch.testing.assert_close(x, torch.tensor([1.0, torch.nan])[:, None, None].expand(2, 3, 1), equal_nan=True)


@pytest.mark.parametrize("ridge", [0.01, 0.5])
def test_cholesky_gradient(ridge):
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    b = torch.randn(2, 5, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    torch.autograd.gradcheck(lambda t, b: cholesky_solve(self_gaussian_kernel(t), b, ridge), (tokens, b))


def test_cholesky_on_a_gpu_takes_no_solver_that_waits():
    """`cholesky_solve` of a batch is MAGMA's there, with memory of its own in each call."""
    seen = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with FakeTensorMode(), Names():
        tensors = [torch.ones(2, 2, rows, 8, device="cuda") for rows in (99, 70, 99)]
        soft_attention(*tensors, inverse="cholesky", backend="eager")
    assert "aten.linalg_solve_triangular.default" in seen
    assert not [name for name in seen if "cholesky_solve" in name]
