"""Performer: softmax attention by positive random features, FAVOR+ (Choromanski et al. 2020, arXiv 2009.14794)."""

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from soft_vit.ops.layout import WHOLE
from soft_vit.ops.linear import exponential_attention, linear_attention
from soft_vit.ops.numerics import at_least_float32, check_choice, wide_dtype
from soft_vit.ops.packed import AnyLayout

Kernel = Literal["softmax", "relu"]

RELU_FLOOR = 1e-3


def default_num_features(dim: int) -> int:
    """Return the number of random features for heads of dim channels: `dim ln(dim)`, and at least dim."""
    return max(dim, int(dim * math.log(dim)))


def orthogonal_random_features(num_features: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw rows `[num_features, dim]`, fp32, each distributed as a standard normal vector, orthogonal in blocks of dim.

    Drawn on the generator's device, or the default one.
    """
    # In fp32 under any default dtype, as QR needs it.
    given: dict[str, Any] = {"generator": generator, "device": generator and generator.device, "dtype": torch.float32}
    basis, triangle = torch.linalg.qr(torch.randn(-(-num_features // dim), dim, dim, **given))
    # QR leaves the signs to the library; with these the basis is uniformly distributed.
    basis = basis * torch.where(triangle.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[:, None, :]
    lengths = torch.randn(num_features, dim, **given).norm(dim=-1, keepdim=True)
    return basis.mT.flatten(0, 1)[:num_features] * lengths


def key_exponents(k: Tensor, projection: Tensor) -> Tensor:
    """Return `W k - |k|^2 / 2` for keys `[B, H, N, D]` over `D^(1/4)` and W, projection `[M, D]`: `[B, H, N, M]`."""
    k = at_least_float32(k) * k.shape[-1] ** -0.25
    return k @ projection.mT - 0.5 * k.square().sum(-1, keepdim=True)


def query_exponents(q: Tensor, projection: Tensor) -> Tensor:
    """Return `W q` for queries `[B, H, N, D]` over `D^(1/4)`: that of their length cancels in the attention.

    Products with exponentials of `key_exponents` estimate `exp(q . k / sqrt(D))`, up to a factor of each query (Lemma
    1).
    """
    return at_least_float32(q) * q.shape[-1] ** -0.25 @ projection.mT


def relu_features(x: Tensor, projection: Tensor) -> Tensor:
    """Return the generalised form `relu(W x) + 0.001`, `[B, H, N, M]`, of x `[B, H, N, D]` over `D^(1/4)`."""
    return query_exponents(x, projection).relu() + RELU_FLOOR


def performer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: AnyLayout = WHOLE,
    projection: Tensor | None = None,
    kernel: Kernel = "softmax",
) -> Tensor:
    """Attend by random features to all valid tokens, linear in N, at least fp32 inside.

    q, k, v: `[B, H, P + N, D]`; the result has v's shape and dtype. projection: `[M, D]`, which gets no gradient; for
    None the same in all calls. kernel: `softmax` or `relu` (generalised attention).
    """
    check_choice("kernel", kernel, get_args(Kernel))
    projection = fixed_projection(q.shape[-1]) if projection is None else projection
    if projection.ndim != 2 or projection.shape[1] != q.shape[-1]:
        raise ValueError(f"projection must have shape [F, {q.shape[-1]}], got {tuple(projection.shape)}.")
    projection = projection.to(q.device, wide_dtype(q))
    if kernel == "relu":
        return linear_attention(q, k, v, layout, phi=relu_features, weights=(projection,))
    return exponential_attention(q, k, v, layout, query_exponents, key_exponents, (projection,))


# Drawn while a graph is captured, as a constant of it.
@torch.compiler.assume_constant_result
def fixed_projection(dim: int) -> Tensor:
    """Return as many random features as a module draws for heads of dim channels, the same in all calls."""
    # vmap would draw others for each of its slices, or refuse to.
    with torch._C._DisableFuncTorch():
        return orthogonal_random_features(default_num_features(dim), dim, torch.Generator().manual_seed(0))
