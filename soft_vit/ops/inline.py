"""InLine attention: linear attention made injective (Han et al. 2024, arXiv 2412.06590).

Letters: B batch, H heads, N = Y * X tokens of a map, C channels, D channels of a head, T taps of a kernel.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.chunked import by_heads
from soft_vit.ops.layout import WHOLE, Layout, window
from soft_vit.ops.numerics import at_least_float32, bounded, full_precision, wide_dtype

# Side of the convolution by each image's own kernels.
KERNEL = 3
# Elements of an image's map above the cache of a core.
LARGE_MAP = 1 << 17


def mean_token(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean `[B, C]` of the valid tokens of `[B, P + N, C]`: where mask `[B, P + N]` is True, or all."""
    if mask is None:
        return x.mean(1)
    # The sum and the number of many tokens are beyond fp16.
    return (x.masked_fill(~mask[..., None], 0).sum(1, dtype=wide_dtype(x)) / mask.sum(1, keepdim=True)).to(x.dtype)


def shifted(maps: Tensor, size: Sequence[int]) -> Iterator[Tensor]:
    """Yield the views of zero-padded maps `[B, C, Y, X]` that the entries of a kernel multiply, row by row."""
    Y, X = maps.shape[2:]
    below, right = size[0] // 2, size[1] // 2
    padded = F.pad(maps, (right, right, below, below))
    for i in range(size[0]):
        rows = padded[:, :, i : i + Y]
        for j in range(size[1]):
            yield rows[..., j : j + X]


def convolve_each_image(maps: Tensor, kernels: Tensor, sequence: bool) -> Tensor:
    """Convolve maps `[B, C, Y, X]` depthwise, zeros around them, each image by its own kernels `[B, C, T]`.

    T: 3 x 3 taps, row by row, or 3 along a sequence, whose maps have one column.
    """
    (B, C, Y, X), size = maps.shape, window(KERNEL, sequence)
    padding = size[0] // 2, size[1] // 2
    if B and not torch.compiler.is_compiling():
        weight = kernels.reshape(B * C, 1, *size)
        if maps.device.type == "cpu" and C * Y * X >= LARGE_MAP:
            # In the memory format of tokens, which a single convolution of all images would copy.
            pairs = zip(maps.split(1), weight.split(C), strict=True)
            return torch.cat([F.conv2d(x, w, padding=padding, groups=C) for x, w in pairs])
        # One convolution with a group for every channel of every image: three to seven times as fast on a CPU.
        return F.conv2d(maps.reshape(1, B * C, Y, X), weight, padding=padding, groups=B * C).unflatten(1, (B, C))[0]
    # Exporters take no number of groups that follows from the batch.
    taps = [view * kernels[:, :, i, None, None] for i, view in enumerate(shifted(maps, size))]
    return sum(taps[1:], start=taps[0])


@by_heads
def inline_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout = WHOLE) -> Tensor:
    """Attend by `W_ij = (q_i . k_j - q_i . mean(k)) / (n sqrt(D)) + 1 / n` to the n valid tokens.

    q: `[B, H, N, D]`, k: `[B, H, M, D]`, v: `[B, H, M, Dv]`; layout: of the keys. Everything inside is at least fp32.
    """
    with full_precision(q):
        dtype, scale = v.dtype, q.shape[3] ** -0.5
        q, k, v = at_least_float32(q), layout.zero_padded(at_least_float32(k)), layout.zero_padded(at_least_float32(v))
        count = layout.num_tokens(k)
        k_mean, v_mean = (x.sum(2, keepdim=True) / count for x in (k, v))
        # All queries share the means. The values are scaled first, so that no product overflows before its mean does.
        state = k.mT @ (v * (scale / count)) - scale * (k_mean.mT @ v_mean)
        x = torch.baddbmm(*(x.flatten(0, 1) for x in (v_mean, q, state))).unflatten(0, q.shape[:2])
        return bounded(x, dtype, x.shape[-1])
