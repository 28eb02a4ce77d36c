"""Performer: softmax attention by positive random features, FAVOR+ (Choromanski et al. 2020, arXiv 2009.14794)."""

import math
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention
from soft_vit.ops.by_heads import by_heads
from soft_vit.ops.layout import FeatSize, Layout
from soft_vit.ops.linear import linear_attention
from soft_vit.ops.numerics import at_least_float32, check_choice, full_precision

Kernel = Literal["softmax", "relu"]

RELU_FLOOR = 1e-3


def orthogonal_random_features(num_features: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Rows `[num_features, dim]`, fp32, each distributed as a standard normal vector, orthogonal in blocks of dim.

    Drawn on the generator's device, or the default one.
    """
    # fp32 whatever the default dtype: there is no QR in half precision.
    given: dict[str, Any] = {"generator": generator, "device": generator and generator.device, "dtype": torch.float32}
    blocks = -(-num_features // dim)
    basis, triangle = torch.linalg.qr(torch.randn(blocks, dim, dim, **given))
    # QR leaves the signs to the library; with these the basis is uniformly distributed.
    basis = basis * torch.where(triangle.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[:, None, :]
    lengths = torch.randn(num_features, dim, **given).norm(dim=-1, keepdim=True)
    return basis.mT.flatten(0, 1)[:num_features] * lengths


def softmax_features(q: Tensor, k: Tensor, projection: Tensor, layout: Layout | None = None) -> tuple[Tensor, Tensor]:
    """Positive features whose products estimate `exp(q . k / sqrt(D))`, up to a factor of each query.

    q, k: `[B, H, N, D]`, projection: `[M, D]`; the results are `[B, H, N, M]`, in [0, 1]. Such a factor cancels in the
    attention, so the largest exponents are taken out: of every feature over the keys, returned to the query's feature,
    then of every query. The normaliser of the attention is then at least one, whatever the inputs.
    """
    scale = q.shape[-1] ** -0.25
    q, k = q * scale, k * scale
    k_exponent = k @ projection.mT - 0.5 * k.square().sum(-1, keepdim=True)
    if layout is not None:
        k_exponent = layout.keep(k_exponent, -math.inf)
    largest_key = k_exponent.detach().amax(-2, keepdim=True)
    q_exponent = q @ projection.mT + largest_key
    q_exponent = q_exponent - q_exponent.detach().amax(-1, keepdim=True)
    return q_exponent.exp(), (k_exponent - largest_key).exp()


def relu_features(q: Tensor, k: Tensor, projection: Tensor, layout: Layout | None = None) -> tuple[Tensor, Tensor]:
    """The generalised form: features `relu(W x) + 0.001`, `[B, H, N, M]`, of q and k `[B, H, N, D]` over `D^(1/4)`."""
    scale = q.shape[-1] ** -0.25
    return (q * scale @ projection.mT).relu() + RELU_FLOOR, (k * scale @ projection.mT).relu() + RELU_FLOOR


@by_heads
def favor_attention(
    q: Tensor, k: Tensor, v: Tensor, projection: Tensor, kernel: Kernel = "softmax", layout: Layout | None = None
) -> Tensor:
    """Attention by random features to all tokens that count, linear in N, at least fp32 inside.

    q, k, v: `[B, H, P + N, D]`, projection: `[M, D]`; the result has v's shape and dtype.
    """
    with full_precision(q):
        features = softmax_features if kernel == "softmax" else relu_features
        q, k = features(at_least_float32(q), at_least_float32(k), projection.to(at_least_float32(q).dtype), layout)
        return linear_attention(q, k, v, layout)


# A leaf of symbolic tracing: it looks at dtypes.
torch.fx.wrap("favor_attention")


class PerformerAttention(SelfAttention):
    """`phi(Q) (phi(K)^T V) / (phi(Q) (phi(K)^T 1))` with random features phi that estimate softmax attention.

    `phi(x)_m = exp(w_m . x - |x|^2 / 2) / sqrt(M)` for x over `d^(1/4)`: numerator and denominator have no bias. The
    cost is linear in N.

    num_features: number M of random features; by default `d ln d` for heads of d channels, and at least d. The error
        falls as `1 / sqrt(M)`.
    kernel: `softmax` (positive orthogonal random features), or `relu` (the generalised attention of the paper).

    The features are a buffer `projection` [M, d], drawn once and saved with the weights; `redraw` draws others.
    """

    cost: str = "N"
    needs_grid: ClassVar[bool] = False
    no_mask: str = ""
    projection: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: FeatSize,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        num_features: int | None = None,
        kernel: Kernel = "softmax",
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(
            dim, num_heads, feat_size=feat_size, qkv_bias=qkv_bias, proj_drop=proj_drop, device=device, dtype=dtype
        )
        self.kernel = check_choice("kernel", kernel, get_args(Kernel))
        if num_features is None:
            num_features = max(self.head_dim, int(self.head_dim * math.log(self.head_dim)))
        if num_features < 1:
            raise ValueError(f"num_features={num_features} estimates nothing; use a positive number, such as 110.")
        self.register_buffer("projection", torch.empty(num_features, self.head_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.redraw()

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw other random features, from generator or else from torch's default one."""
        num_features, dim = self.projection.shape
        self.projection.copy_(orthogonal_random_features(num_features, dim, generator))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return favor_attention(q, k, v, self.projection, self.kernel, layout)
