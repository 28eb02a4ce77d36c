import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.nystrom import iterative_pseudo_inverse, nystrom_attention


def softmax_matrix(size: int, sharpness: float, seed: int = 0) -> Tensor:
    """Softmax of queries that are their keys: the larger the sharpness, the closer to the identity."""
    x = F.normalize(
        torch.randn(2, size, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1
    )
    return (sharpness * x @ x.mT).softmax(-1)


@pytest.mark.parametrize("sharpness", [8.0, 12.0])
def test_iteration_reaches_the_inverse_of_a_conditioned_matrix(sharpness: float) -> None:
    a = softmax_matrix(49, sharpness)
    z = iterative_pseudo_inverse(a, iters=20)
    # A Newton iteration corrects itself: what is left is the rounding of one product, times the condition number.
    error = (a @ z - torch.eye(49, dtype=a.dtype)).abs().max()
    assert error < 1e-14 * torch.linalg.cond(a).max()


def test_iteration_cubes_the_residual() -> None:
    a = softmax_matrix(49, 12.0)
    eye = torch.eye(49, dtype=a.dtype)
    residual = eye - a @ iterative_pseudo_inverse(a, iters=3)
    following = eye - a @ iterative_pseudo_inverse(a, iters=4)
    # Exactly: I - A Z' = R^3 (I + 3 (I - R)) / 4 with R = I - A Z.
    cube = residual @ residual @ residual
    torch.testing.assert_close(following, cube @ (eye + 3 * (residual - eye) * -1) / 4, rtol=0, atol=1e-12)


def test_flat_matrix_stays_finite() -> None:
    a = torch.full((1, 49, 49), 1 / 49)
    # The pseudo-inverse of the averaging matrix is itself.
    torch.testing.assert_close(iterative_pseudo_inverse(a), a, rtol=0, atol=1e-5)


def test_gradient_is_that_of_the_steps_taken() -> None:
    # No two rows or columns of one sum: the largest would have no derivative.
    a = torch.rand(1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: iterative_pseudo_inverse(a, 3), (a,))


def dense(q: Tensor, k: Tensor, v: Tensor, q_landmarks: Tensor, k_landmarks: Tensor) -> Tensor:
    scale = q.shape[-1] ** -0.5
    left = (q @ k_landmarks.mT * scale).softmax(-1)
    middle = (q_landmarks @ k_landmarks.mT * scale).softmax(-1)
    right = (q_landmarks @ k.mT * scale).softmax(-1)
    return left @ torch.linalg.pinv(middle) @ right @ v


def inputs(num_tokens: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, v = torch.randn(2, 2, 3, num_tokens, 16, generator=generator, dtype=torch.float64)
    # Keys near the queries keep the landmark matrix far from singular.
    k = q + 0.1 * torch.randn(q.shape, generator=generator, dtype=torch.float64)
    return scale * q, scale * k, v


def test_exact_form_equals_the_dense_formula() -> None:
    q, k, v = inputs(63)
    landmarks = q[:, :, ::7], k[:, :, ::7]
    actual = nystrom_attention(q, k, v, *landmarks, inverse="exact")
    torch.testing.assert_close(actual, dense(q, k, v, *landmarks), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("inverse", "iters"), [("exact", 0), ("iterative", 20)])
def test_every_token_a_landmark_is_full_attention(inverse, iters: int) -> None:
    q, k, v = inputs(49, scale=1.5)
    actual = nystrom_attention(q, k, v, q, k, inverse=inverse, iters=iters)
    # S S^-1 S = S, with a condition number of the 49 x 49 softmax below 1e3.
    torch.testing.assert_close(actual, F.scaled_dot_product_attention(q, k, v), rtol=0, atol=1e-9)
