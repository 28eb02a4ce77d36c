"""Focused linear attention of FLatten transformers (Han et al. 2023, arXiv 2308.00442)."""

from functools import partial

from torch import Tensor

from soft_vit.ops.layout import WHOLE
from soft_vit.ops.linear import linear_attention
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.packed import AnyLayout

# Added to features, so that a vector of zeros has a direction.
FLOOR = 1e-6


def focused(x: Tensor, power: float) -> Tensor:
    """Return `x^p` at the length of x: its direction moves towards its largest features; x `[..., D]`, positive."""
    # The length of the base cancels. Divided by its largest entry, its power neither overflows nor vanishes.
    raised = (x / x.detach().amax(-1, keepdim=True)) ** power
    return raised * (x.norm(dim=-1, keepdim=True) / raised.norm(dim=-1, keepdim=True))


def focused_features(x: Tensor, power: float) -> Tensor:
    """Return `relu(x)`, focused; x and the result `[..., D]`, the result at least fp32."""
    return focused(at_least_float32(x).relu() + FLOOR, power)


def focused_attention(q: Tensor, k: Tensor, v: Tensor, layout: AnyLayout = WHOLE, power: float = 3.0) -> Tensor:
    """Return `linear_attention` by `phi(x) = |relu(x)| relu(x)^p / |relu(x)^p|`, p the power, of `[B, H, N, D]`."""
    return linear_attention(q, k, v, layout, phi=partial(focused_features, power=power))
