"""Inverses of the kernel: Newton's iteration and Cholesky's factor, against float64."""

import math

import pytest
import torch
from kernel_matrices import SPREADS, STARTS, UNIT_ROUNDOFF, kernel, relative_error
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from soft_vit.ops import cholesky_solve, eigh_inverse, newton_inverse, newton_step_size, soft_attention
from soft_vit.ops.gaussian import self_gaussian_kernel
from soft_vit.ops.soft.newton import newton_iterate, newton_residual
from soft_vit.ops.soft.options import add_ridge

# Newton's iteration against the float64 oracle, on conditioned kernels and on flat ones.


def exact_iterate(a: Tensor, ridge: float, iters: int, alpha: Tensor) -> Tensor:
    """The Newton iterate `(1 - (1 - x)^(2^T)) / p` with `x = alpha p^2` of each eigenvalue p, accurate for tiny x."""
    p, basis = torch.linalg.eigh(add_ridge(a, ridge))
    alpha = alpha[..., 0]
    x = alpha * p.square()
    log_remainder = torch.where(x < 0.5, torch.log1p(-torch.where(x < 0.5, x, 0)), torch.log((1 - x).abs()))
    filtered = -torch.expm1(log_remainder * 2.0**iters)
    tiny = x < torch.finfo(x.dtype).tiny
    inverse = torch.where(tiny, 2.0**iters * alpha * p, filtered / torch.where(tiny, 1, p))
    # 2^0 is the only odd power, for which 1 - x keeps its sign.
    inverse = inverse if iters else alpha * p
    return (basis * inverse[..., None, :]) @ basis.mT


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("start", "ridge"), STARTS)
def test_newton_is_the_spectral_filter(spread, start, ridge):
    """In fp32, within the rounding that the iteration can amplify.

    Rounding of the first iterate is at most `m u alpha ||P||`. A step doubles it where the iteration has not converged,
    at most 2^T in all, and damps it where it has; there the product with P leaves `m u cond(P)`, relative. The smaller
    of the two is the bound.
    """
    iters = 20
    a = kernel(spread)
    alpha = newton_step_size(a, ridge, start)
    oracle = exact_iterate(a, ridge, iters, alpha)
    eigenvalue = torch.linalg.eigvalsh(add_ridge(a, ridge)).abs()
    norm, smallest = eigenvalue.amax(-1), eigenvalue.amin(-1).clamp(min=1e-300)
    amplified = 2.0**iters * alpha[:, 0, 0] * norm / torch.linalg.matrix_norm(oracle, 2)
    bound = a.shape[-1] * UNIT_ROUNDOFF * torch.minimum(amplified, norm / smallest)
    error = relative_error(newton_inverse(a.float(), iters, ridge, start), oracle)
    assert (error <= bound.clamp(min=4 * UNIT_ROUNDOFF)).all(), (error / bound).max()


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("start", "ridge"), STARTS)
@pytest.mark.parametrize("iters", [0, 1, 7])
def test_oracle_is_the_filter_after_any_number_of_steps(spread, start, ridge, iters):
    a = kernel(spread)
    oracle = exact_iterate(a, ridge, iters, newton_step_size(a, ridge, start))
    torch.testing.assert_close(newton_inverse(a, iters, ridge, start), oracle, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("spread", [0.5, 0.2])
@pytest.mark.parametrize(("start", "ridge"), STARTS)
def test_newton_reaches_the_inverse_of_a_conditioned_kernel(spread, start, ridge):
    a = kernel(spread)
    assert relative_error(newton_inverse(a, 40, ridge, start), eigh_inverse(a, ridge)).max() < 1e-10


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("start", "ridge"), STARTS)
@pytest.mark.parametrize("iters", [0, 5, 20])
def test_newton_residual_is_what_the_filter_leaves(spread, start, ridge, iters):
    """Against eigenvalues in float64.

    The product P V in fp32 has an error of `m u` times |P| |V|, whose norm is at most cond(P) where the iteration has
    converged and `2^T alpha ||P||^2` before; the norm of m rows of m entries adds `m u`, relative.
    """
    a = kernel(spread)
    alpha = newton_step_size(a, ridge, start)
    p = torch.linalg.eigvalsh(add_ridge(a, ridge))
    expected = (1 - alpha[..., 0] * p.square()).pow(2.0**iters).square().mean(-1).sqrt()
    norm, smallest = p.abs().amax(-1), p.abs().amin(-1).clamp(min=1e-300)
    amplified = torch.minimum(2.0**iters * alpha[:, 0, 0] * norm.square(), norm / smallest)
    residual = newton_residual(a.float(), iters, ridge, start)
    assert residual.shape == (6,)
    assert ((residual - expected).abs() <= a.shape[-1] * UNIT_ROUNDOFF * (amplified + expected)).all()


def test_twenty_steps_are_far_from_the_inverse_of_a_flat_kernel():
    """0.88 on 49 x 49 kernels whose mean entry is 0.99: published weights were trained with the filter."""
    tokens = torch.randn(4, 49, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 0.018
    a = self_gaussian_kernel(tokens)
    assert a.mean().item() == pytest.approx(0.99, abs=0.001)
    error = relative_error(newton_inverse(a), eigh_inverse(a, 0.01))
    assert error.mean().item() == pytest.approx(0.88, abs=0.01)


def test_eigh_inverse_is_the_pseudo_inverse():
    a = kernel(0.0)[:1]
    inverse = eigh_inverse(a, ridge=0.0)
    torch.testing.assert_close(a @ inverse @ a, a)
    torch.testing.assert_close(inverse @ a @ inverse, inverse)


def released_step_size(a: torch.Tensor) -> float:
    """The released rule for the matrices `[H, M, M]` of one call, as a loop."""
    identity = torch.eye(a.shape[-1], dtype=a.dtype)
    alpha = 2 / a.sum(-1).max().item() ** 2
    for _ in range(10):
        if (identity - a @ (alpha * a)).abs().sum(1).max() <= 1.01:
            break
        alpha /= 2
    return alpha


@pytest.mark.parametrize("spread", SPREADS)
def test_guarded_starts_are_the_released_rule(spread):
    """For each image alone, or for all at once; an image has flat and conditioned heads."""
    a = torch.stack([torch.cat([kernel(spread, 2), kernel(0.1, 1)]), kernel(0.3, 3, seed=1)])
    by_image = [released_step_size(image) for image in a]
    for start, expected in (("guarded_image", by_image), ("guarded_batch", [released_step_size(a.flatten(0, 1))] * 2)):
        alpha = newton_step_size(a, 0.0, start)
        expected = torch.tensor(expected, dtype=a.dtype)[:, None, None, None].expand(2, 3, 1, 1)
        torch.testing.assert_close(alpha, expected, rtol=1e-12, atol=0)


def test_a_safeguard_for_one_head_leaves_the_others_alone():
    """The pair's constant mode is at 2 and would stay zero; the other head keeps the step size of the image."""
    pair = torch.eye(9, dtype=torch.float64)
    pair[0, 1] = pair[1, 0] = 0.9
    a = torch.stack([pair, kernel(0.4, 1, m=9)[0]])
    alpha = newton_step_size(a, 0.0, "guarded_image").flatten()
    assert alpha[1] == released_step_size(a)
    assert 1 - 2e-5 < alpha[0] / alpha[1] < 1
    torch.testing.assert_close(newton_inverse(a, 24, 0.0, "guarded_image")[0], torch.linalg.inv(pair))


@pytest.mark.parametrize(("start", "ridge"), STARTS)
@pytest.mark.parametrize(("gradient", "iters"), [("closed_form", 40), ("unrolled", 3), ("unrolled", 12)])
def test_newton_gradient(start, ridge, gradient, iters):
    """The closed form where the iteration has converged; the true gradient after any number of steps."""
    tokens = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)

    def inverse(tokens):
        return newton_inverse(self_gaussian_kernel(tokens), iters, ridge, start, gradient)

    torch.autograd.gradcheck(inverse, (tokens,))


@pytest.mark.parametrize("start", ["rowsum", "guarded_image"])
@pytest.mark.parametrize("ridge", [0.0, 0.001, 0.01, 0.05, 0.06, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5, 2.0])
def test_no_ridge_makes_the_iteration_diverge(start, ridge, spread):
    """`||I - P V_T||` never exceeds 1, its value in a mode that has not converged at all."""
    a = kernel(spread, m=9)
    residual = newton_residual(a, 20, ridge, start)
    assert (residual <= 1 + 1e-6).all(), residual.max()


GROUPS = [((2, 0.5),), ((2, 0.5), (1, 0)), ((3, 0.2), (2, 0.1), (1, 0)), ((2, 0.5),) * 2, ((4, 0.05),), ((1, 0),)]
GROUPS += [((1, 0),) * 9]


@pytest.mark.parametrize("groups", GROUPS)
def test_groups_of_equal_tokens_far_from_the_rest_keep_their_mode(groups):
    """Each group's row sums agree, so its constant vector is an eigenvector: with the largest sum, it is at 2."""
    a = torch.block_diag(*(torch.full((size, size), near).fill_diagonal_(1) for size, near in groups)).double()
    inverse = newton_inverse(a, 24, 0.0, "guarded_image")
    torch.testing.assert_close(inverse, torch.linalg.inv(a), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(newton_inverse(a.float(), 24, 0.0, "guarded_image"), inverse.float())


def test_the_released_start_loses_a_mode_at_two():
    """The iterate of a 1 x 1 matrix and of an identity becomes zero and stays zero."""
    a = torch.eye(9, dtype=torch.float64).expand(3, 9, 9)
    assert not newton_inverse(a, 20, 0.0, "guarded_batch").any()
    assert not newton_inverse(a[:, :1, :1], 20, 0.0, "guarded_batch").any()


@pytest.mark.parametrize("spread", [1.0, 0.4, 0.05, 0.0, torch.tensor([1.0, 0.05, math.nan])[:, None, None]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_converged_iteration_ends_with_the_same_result(spread, dtype):
    """It ends when the last of its matrices has converged; with gradients and for NaN, it takes all steps."""
    tokens = (spread * torch.randn(3, 25, 16, generator=torch.Generator().manual_seed(0))).to(dtype)
    p = add_ridge(self_gaussian_kernel(tokens), 0.01)
    start = newton_step_size(p, 0.0, "rowsum") * p
    with torch.no_grad():
        ended = newton_iterate(p, start, 20)
    whole = newton_iterate(p, start.requires_grad_(), 20).detach()
    for one, other in zip(ended, whole, strict=True):
        # Each of up to 20 more steps rounds again, by less than sums of 25 terms do.
        bound = 25 * torch.finfo(dtype).eps * other.norm()
        assert (one.isnan() & other.isnan()).all() if bound.isnan() else (one - other).norm() <= bound


# The Cholesky solve against the float64 oracle, on conditioned kernels and on flat ones.


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
