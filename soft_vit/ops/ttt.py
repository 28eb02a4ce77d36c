"""Test-time training: inner models that one step trains on the tokens.

`gated_branch` and `conv_branch` of ViTTT (Han et al. 2025, arXiv 2512.01643), and `trained_unit` of T5 (arXiv
2605.02772).

Letters: B batch, H heads, P prefix tokens, N tokens of a map of Y rows and X columns, D channels of a head.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from soft_vit.ops.chunked import map_tokens, sum_over_tokens
from soft_vit.ops.inline import convolve_each_image, shifted
from soft_vit.ops.layout import Layout, fill_padding
from soft_vit.ops.numerics import at_least_float32, bounded, full_precision, is_eager

# Of both inner losses, for every head dimension.
SCALE = 1 / 3


def damped_step(w: Tensor, gradient: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Return w after a step along the gradient, each slice along dim shortened by its length plus one."""
    return w - gradient / (torch.linalg.vector_norm(gradient, dim=dim, keepdim=True) + 1)


def gated_branch(q: Tensor, k: Tensor, v: Tensor, w1: Tensor, w2: Tensor, layout: Layout) -> Tensor:
    """Return `F(q)` for the gated unit `F(x) = (x w1) * silu(x w2)` of every head, trained on all pairs (k, v) at once.

    The inner loss of a head is `-SCALE` times the mean of `F(k) . v` over the valid tokens; its gradient is
    written out, so that training differentiates through the step. q, k, v and the result: `[B, H, P + N, D]`, w1 and
    w2 `[1, H, D, D]`. The result has v's dtype; everything inside is at least fp32.
    """
    dtype = v.dtype
    w1, w2 = at_least_float32(w1), at_least_float32(w2)
    step_size = -SCALE / layout.num_tokens(v)

    def gradients(k: Tensor, v: Tensor, mask: Tensor | None, w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
        # The gradient of the loss for F(k).
        error = fill_padding(at_least_float32(v), mask) * step_size
        # One copy for three products.
        k = fill_padding(at_least_float32(k), mask).contiguous()
        value, gate = k @ w1, k @ w2
        open_gate = gate.sigmoid()
        silu = gate * open_gate
        return k.mT @ (error * silu), k.mT @ (error * value * torch.addcmul(silu, open_gate, 1 - silu))

    def trained(q: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        q = at_least_float32(q).contiguous()
        return (q @ w1 * F.silu(q @ w2)).to(dtype)

    with full_precision(v):
        found = sum_over_tokens(gradients, (k, v, layout.token_mask), (w1, w2))
        w1, w2 = (damped_step(w, gradient, dim=-2) for w, gradient in zip((w1, w2), found, strict=True))
        return map_tokens(trained, (q,), (w1, w2))


def conv_branch(q: Tensor, k: Tensor, v: Tensor, w3: Tensor, layout: Layout) -> Tensor:
    """Convolve the map of q depthwise by w3, trained on all pairs (k, v) at once; see `gated_branch`.

    Each channel by itself: q, k, v and the result, which is zero at prefix tokens, are `[B, D, P + N, 1]`, and w3 is
    `[1, D, 3, 3]`, or `[1, D, 3, 1]` for a sequence.
    """
    with full_precision(v):
        dtype, w3 = v.dtype, at_least_float32(w3)
        # Each channel of each image is a group. In graphs, a number of groups would fix the batch.
        groups = v.shape[0] * v.shape[1] if v.device.type == "cpu" and is_eager(q, k, v) else 0
        (q, k, v), size = (_as_map(at_least_float32(x), layout) for x in (q, k, v)), w3.shape[2:]
        kernels = damped_step(w3, _kernel_gradient(k, v, size, groups, layout), dim=(2, 3))
        maps = convolve_each_image(q, kernels.flatten(2), layout.sequence)
        return layout.pad_prefix(maps.flatten(2)[..., None].to(dtype))


def _kernel_gradient(k: Tensor, v: Tensor, size: Sequence[int], groups: int, layout: Layout) -> Tensor:
    """Return the gradient `[B, D, 3, 3]` of the inner loss of `conv_branch` for the kernel, for maps k and v."""
    count: Tensor | int = v.shape[2] * v.shape[3]
    if layout.grid_mask is not None:
        count = layout.grid_mask.sum(1).clamp(min=1)[:, None, None, None]
    error = v * -SCALE / count
    if groups:
        k, error = (x.flatten(0, 1)[None] for x in (k, error))
        gradient = conv2d_weight(k, (groups, 1, *size), error, padding=(size[0] // 2, size[1] // 2), groups=groups)
        return gradient.view(*v.shape[:2], *size)
    return torch.stack([(view * error).sum((2, 3)) for view in shifted(k, size)], dim=-1).unflatten(-1, size)


def _as_map(x: Tensor, layout: Layout) -> Tensor:
    """Return tokens `[B, D, P + N, 1]` as a map `[B, D, Y, X]`, zero for padding."""
    return layout.grid(layout.zero_padded(x)).squeeze(-1).contiguous().unflatten(2, layout.grid_size)


def trained_unit(q: Tensor, k: Tensor, v: Tensor, weights: tuple[Tensor, Tensor, Tensor], layout: Layout) -> Tensor:
    """Return `f(q)` of `f(x) = (silu(x w1) * (x w2)) w3`, after one gradient step on all pairs (k, v).

    The loss of a head is `-sum(f(k) . v) / (N sqrt(D))`, N being the number of valid tokens, and the rate is 1.
    The gradient is written out, so that training differentiates through the step. q, k, v and the result:
    `[B, H, P + N, D]`, weights `[H, D, D]`. The result has v's dtype; everything inside is at least fp32. It is clamped
    so that H * D of its values have a finite sum, and a LayerNorm can square it: it is a polynomial of q, k, v.
    """
    dtype, scale = v.dtype, -(v.shape[-1] ** -0.5) / layout.num_tokens(v)
    shared = tuple(at_least_float32(w)[None] for w in weights)

    def gradients(k: Tensor, v: Tensor, mask: Tensor | None, w1: Tensor, w2: Tensor, w3: Tensor) -> tuple[Tensor, ...]:
        k, error = fill_padding(at_least_float32(k), mask), fill_padding(at_least_float32(v), mask) * scale
        z1, z2, back = k @ w1, k @ w2, error @ w3.mT
        s = z1.sigmoid()
        of_z1, of_z2 = back * z2 * s * (1 + z1 * (1 - s)), back * z1 * s
        return k.mT @ of_z1, k.mT @ of_z2, (z1 * s * z2).mT @ error

    def read(q: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
        q = at_least_float32(q)
        return bounded(F.silu(q @ w1) * (q @ w2) @ w3, dtype, v.shape[1] * v.shape[3])

    with full_precision(v):
        found = sum_over_tokens(gradients, (k, v, layout.token_mask), shared)
        return map_tokens(read, (q,), tuple(w - gradient for w, gradient in zip(shared, found, strict=True)))
