"""Circulant attention of CA-DeiT (Han et al. 2026, arXiv 2512.21542): weights of displacements, not of pairs.

Per channel, with places p and displacements d on a map of N = Y * X tokens whose opposite edges meet, so that p + d
counts modulo (Y, X):

    a[d] = N^(-1/2) sum_p q[p] k[p + d]
    s    = softmax of a over all displacements
    o[p] = sum_d s[d] v[p + d]

Both sums are products of Fourier transforms, conj(F q) F k and conj(F s) F v. As the released code computes it, the
factor is N^(-1/2), not the paper's 1 / N.

Letters: B batch, C channels, P prefix tokens, D columns of values, M = X // 2 + 1 frequencies of rows.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.layout import Layout, merge_heads, split_heads
from soft_vit.ops.numerics import at_least_float32, full_precision, wide_dtype
from soft_vit.ops.softmax import dot_product_attention


def correlate_by_fft(a: Tensor, b: Tensor) -> Tensor:
    """Return `sum_p a[p] b[p + d]` of maps a and b `[B, Y, X, C]` for the displacements d, modulo (Y, X)."""
    a_hat, b_hat = (torch.fft.rfft2(x, dim=(1, 2)) for x in (a, b))
    return torch.fft.irfft2(a_hat.conj() * b_hat, s=a.shape[1:3], dim=(1, 2))


def fourier_matrix(frequencies: int, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of 2 pi j k / size, `[frequencies, size]`, in the dtype of like."""
    j, k = (torch.arange(count, device=like.device) for count in (frequencies, size))
    # A tensor, and no remainder: exporters take sizes then.
    turns, count = j[:, None] * k, k[-1] + 1
    # Reduced to half a turn as integers: exact.
    turns = turns - (2 * turns + count) // (2 * count) * count
    angle = turns.to(like.dtype) * (2 * math.pi) / count.to(like.dtype)
    return angle.cos(), angle.sin()


def correlate_by_products(a: Tensor, b: Tensor) -> Tensor:
    """Return `correlate_by_fft` by products with Fourier matrices, without complex numbers."""
    _, Y, X, C = a.shape
    M = X // 2 + 1
    cos, sin = fourier_matrix(Y, Y, a)
    # From the real and imaginary part of each row, side by side, to all real and then all imaginary parts: [2 Y, 2 Y].
    rows = torch.cat([torch.stack([cos, sin], dim=2), torch.stack([-sin, cos], dim=2)]).flatten(1)
    cos, sin = fourier_matrix(M, X, a)
    columns = torch.cat([cos, -sin])

    def transform(x: Tensor) -> tuple[Tensor, ...]:
        x = (columns @ x).unflatten(2, (2, M)).flatten(3).flatten(1, 2)
        return (rows @ x).unflatten(1, (2, Y)).unbind(1)

    (a_real, a_imag), (b_real, b_imag) = transform(a), transform(b)
    product = torch.cat([a_real * b_real + a_imag * b_imag, a_real * b_imag - a_imag * b_real], dim=1)
    x = (rows.mT @ product).unflatten(2, (-1, C)).unflatten(1, (Y, 2)).flatten(2, 3)
    # Frequencies that are left out are conjugates of the others, except of the first and of an even side's last one.
    j = torch.arange(M, device=a.device)
    count = 2 - ((j == 0) | (2 * j == X)).to(a.dtype)
    return (columns * (count / (Y * X)).repeat(2)[:, None]).mT @ x


def wrap(x: Tensor, count: Tensor, dim: int) -> Tensor:
    """Fold sums for displacements from -S to S - 1, `2 S` places along dim, into S places modulo count `[B]`."""
    side = x.shape[dim] // 2
    index = (torch.arange(side, device=x.device) - count[:, None]) % (2 * side)
    index = index.view(-1, *(side if i == dim else 1 for i in range(1, x.ndim)))
    shape = [side if i == dim else n for i, n in enumerate(x.shape)]
    return x.narrow(dim, 0, side) + x.gather(dim, index.expand(shape))


def correlate(a: Tensor, b: Tensor, counts: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return `sum_p a[p] b[p + d]` of maps a and b `[B, Y, X, C]` for the displacements d, modulo (Y, X).

    counts: numbers of rows and of columns of each image `[B]`, modulo which p + d counts; other places are zero.
    """
    if counts is not None:
        a, b = (F.pad(x, (0, 0, 0, x.shape[2], 0, x.shape[1])) for x in (a, b))
    # Graphs of any size hold no complex numbers, and Core ATen has no transforms; these take no empty batch.
    x = correlate_by_products(a, b) if torch.compiler.is_compiling() or not len(a) else correlate_by_fft(a, b)
    return x if counts is None else wrap(wrap(x, counts[0], 1), counts[1], 2)


def attend_by_displacement(q: Tensor, k: Tensor, v: Tensor, layout: Layout, fused: bool = True) -> Tensor:
    """Return the sums o of q and k `[B, C, P + N, 1]` and v `[B, C, P + N, D]`, at least fp32 inside.

    Prefix tokens attend to all tokens by softmax of each channel's products, and no token of the map to them. fused:
    see `dot_product_attention`.
    """
    P, C, D, mask, counts = layout.num_prefix_tokens, v.shape[1], v.shape[3], layout.grid_mask, None
    N: Tensor | int = layout.grid_size[0] * layout.grid_size[1]
    if mask is not None:
        valid = mask.unflatten(1, layout.grid_size)
        counts = valid.any(2).sum(1), valid.any(1).sum(1)
        N = mask.sum(1).clamp(min=1).to(wide_dtype(q))[:, None, None]
    q, k, v = map(layout.zero_padded, (q, k, v))
    with full_precision(q):
        of_grid = (merge_heads(at_least_float32(layout.grid(x))) for x in (q, k, v))
        q_map, k_map, v_map = (x.unflatten(1, layout.grid_size) for x in of_grid)
        a = correlate(q_map, k_map, counts).flatten(1, 2) * N**-0.5
        a = a if mask is None else a.masked_fill(~mask[..., None], torch.finfo(a.dtype).min)
        s = a.softmax(1).repeat_interleave(D, dim=2) if D > 1 else a.softmax(1)
        x = correlate(s.unflatten(1, layout.grid_size), v_map, counts).flatten(1, 2)
    x = split_heads(x, C).to(v.dtype)
    return torch.cat([dot_product_attention(q[:, :, :P], k, v, layout.key_mask, fused=fused), x], dim=2) if P else x


def circulant_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Return `attend_by_displacement` of the channels of all heads, q, k and v `[B, H, N, D]`, in a sequence."""
    heads = q.shape[1]
    if v.shape[-1] != k.shape[-1]:
        raise ValueError(f"value must have as many channels as key, {k.shape[-1]}, got {v.shape[-1]}.")
    q, k, v = (x.mT.flatten(1, 2)[..., None] for x in (q, k, v))
    layout, order = layout._replace(grid_size=(q.shape[2], 1)), None
    if layout.mask is not None:
        # Padding behind the other tokens.
        order = layout.mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
        layout = layout._replace(mask=layout.mask.gather(1, order))
        q, k, v = (x.gather(2, order[:, None, :, None].expand_as(x)) for x in (q, k, v))
    x = attend_by_displacement(q, k, v, layout)
    x = x if order is None else x.gather(2, order.argsort(dim=1)[:, None, :, None].expand_as(x))
    return x[..., 0].unflatten(1, (heads, -1)).mT
