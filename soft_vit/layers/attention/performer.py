"""Performer: softmax attention by positive random features, FAVOR+ (Choromanski et al. 2020, arXiv 2009.14794)."""

import math
from typing import Any, Literal, get_args

import torch
from timm.layers import get_device_dtype
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits, at_least
from soft_vit.ops.chunked import max_over_tokens
from soft_vit.ops.layout import Layout, fill_padding
from soft_vit.ops.linear import linear_attention
from soft_vit.ops.numerics import at_least_float32, check_choice, wide_dtype

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
    blocks = -(-num_features // dim)
    basis, triangle = torch.linalg.qr(torch.randn(blocks, dim, dim, **given))
    # QR leaves the signs to the library; with these the basis is uniformly distributed.
    basis = basis * torch.where(triangle.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[:, None, :]
    lengths = torch.randn(num_features, dim, **given).norm(dim=-1, keepdim=True)
    return basis.mT.flatten(0, 1)[:num_features] * lengths


def key_exponents(k: Tensor, projection: Tensor) -> Tensor:
    """Return `W k - |k|^2 / 2` for keys `[B, H, N, D]` over `D^(1/4)` and W, projection `[M, D]`: `[B, H, N, M]`."""
    k = at_least_float32(k) * k.shape[-1] ** -0.25
    return k @ projection.mT - 0.5 * k.square().sum(-1, keepdim=True)


def key_features(k: Tensor, projection: Tensor, largest: Tensor) -> Tensor:
    """Return `exp(W k - |k|^2 / 2 - largest)`, in [0, 1]; see `query_features`."""
    # Tokens that do not count may have larger ones. A bound of 0 would stop the gradient of the largest.
    return (key_exponents(k, projection) - largest).clamp(max=1).exp()


def query_features(q: Tensor, projection: Tensor, largest: Tensor) -> Tensor:
    """Return `exp(W q + largest)` over its largest entry, in [0, 1]; q `[B, H, N, D]`, projection W `[M, D]`.

    Products with `key_features` estimate `exp(q . k / sqrt(D))`, up to a factor of each query, which cancels in the
    attention. So the largest exponents are subtracted: for every feature over the keys, `largest` `[B, H, 1, M]`,
    which is added to the query's feature, then for every query. The normaliser is then at least one for all inputs.
    """
    exponent = at_least_float32(q) * q.shape[-1] ** -0.25 @ projection.mT + largest
    return (exponent - exponent.detach().amax(-1, keepdim=True)).exp()


def relu_features(x: Tensor, projection: Tensor) -> Tensor:
    """Return the generalised form `relu(W x) + 0.001`, `[B, H, N, M]`, of x `[B, H, N, D]` over `D^(1/4)`."""
    return (at_least_float32(x) * x.shape[-1] ** -0.25 @ projection.mT).relu() + RELU_FLOOR


def favor_attention(
    q: Tensor, k: Tensor, v: Tensor, projection: Tensor, kernel: Kernel = "softmax", layout: Layout | None = None
) -> Tensor:
    """Attend by random features to all valid tokens, linear in N, at least fp32 inside.

    q, k, v: `[B, H, P + N, D]`, projection: `[M, D]`, which gets no gradient; the result has v's shape and dtype.
    """
    projection = projection.to(wide_dtype(q))
    if kernel == "relu":
        return linear_attention(q, k, v, layout, phi=relu_features, weights=(projection,))

    def exponents(k: Tensor, mask: Tensor | None) -> Tensor:
        return fill_padding(key_exponents(k, projection), mask, -math.inf)

    largest = max_over_tokens(exponents, (k, layout and layout.token_mask))
    return linear_attention(q, k, v, layout, phi=key_features, phi_q=query_features, weights=(projection, largest))


class PerformerAttention(SelfAttention):
    """`phi(Q) (phi(K)^T V) / (phi(Q) (phi(K)^T 1))` with random features phi that estimate softmax attention.

    `phi(x)_m = exp(w_m . x - |x|^2 / 2) / sqrt(M)` for x over `d^(1/4)`: numerator and denominator have no bias. The
    cost is linear in N.

    num_features: number M of random features; by default `d ln d` for heads of d channels, and at least d. The error
        falls as `1 / sqrt(M)`.
    kernel: `softmax` (positive orthogonal random features), or `relu` (the generalised attention of the paper).

    The features are a buffer `projection` [M, d], drawn once and saved with the weights; `redraw` draws others.
    """

    traits = Traits("N", mask_refusal=None, needs_grid=False, takes_context=True)
    projection: Tensor

    def __init__(
        self, dim: int, num_heads: int, *, num_features: int | None = None, kernel: Kernel = "softmax", **options: Any
    ) -> None:
        super().__init__(dim, num_heads, **options)
        self.kernel = check_choice("kernel", kernel, get_args(Kernel))
        if num_features is None:
            num_features = default_num_features(self.head_dim)
        shape = at_least("num_features", num_features), self.head_dim
        self.register_buffer("projection", torch.empty(shape, **get_device_dtype(self)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.redraw()

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw random features, from generator or else from torch's default one."""
        num_features, dim = self.projection.shape
        self.projection.copy_(orthogonal_random_features(num_features, dim, generator))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return favor_attention(q, k, v, self.projection, self.kernel, layout)
