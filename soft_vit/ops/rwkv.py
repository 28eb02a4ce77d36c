"""The averages of Vision-RWKV over all tokens (bi-WKV), as its released kernels compute them.

Duan et al. 2024, "Vision-RWKV", arXiv 2403.02308. Per channel, with a decay w and a bonus u of the token itself,

    y_t = sum_i G(t, i) exp(k_i) v_i / sum_i G(t, i) exp(k_i)

In the paper G is exp(-w (|t - i| - 1)), and exp(u) for i = t. The kernels cut the tokens into 32 chunks of L, with t0
the first token of t's chunk, and the released weights were trained with what they compute:

    exp(-w |t - i|)                                                     i > t, or i in an earlier chunk
    exp(-w (t - i - 1)) + [i > t0] (1 - exp(w)) exp(w (t - i))          i < t in the same chunk
    exp(u) + [t > t0] (1 - exp(w))                                      i = t

Letters: B batch, T tokens, C channels; G chunks of L tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.gated import delayed
from soft_vit.ops.numerics import at_least_float32, full_precision

CHUNKS = 32
EPS = 1e-6
# Of keys that no token has: without weight beside any other, and finite.
NO_KEY = -1e30
# Tokens of a chunk of which a product with a triangle of ones takes less time than running sums.
FEW = 32


def biwkv(w: Tensor, u: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the averages of values v `[B, T, C]` with weights of keys k `[B, T, C]`, in time and memory linear in T.

    w, u: `[C]`; a positive w decays with distance, a negative one grows. The result is at least fp32, and so is
    everything inside. Keys may be of any size: each chunk, and each sum of chunks, has its largest weight factored out.
    """
    with full_precision(k):
        w, u, k, v = (at_least_float32(x) for x in (w, u, k, v))
        T = k.shape[1]
        length = (T + CHUNKS - 1) // CHUNKS
        exporting = torch.compiler.is_exporting()
        # A graph for any size has all chunks, also empty ones, and one more place in each, as a size of one is special.
        count, size = (CHUNKS, length + 1) if exporting else ((T + length - 1) // length, length)
        place = torch.arange(size, device=k.device)
        if exporting:
            starts = torch.arange(count, device=k.device) * length
            index = (starts[:, None] + place).masked_fill(place == length, T)
            index = index.masked_fill(index > T, T).flatten()
            k, v = F.pad(k, (0, 0, 0, 1), value=NO_KEY), F.pad(v, (0, 0, 0, 1))
            k, v = k.index_select(1, index), v.index_select(1, index)
        else:
            rest = (0, 0, 0, count * length - T)
            k, v = F.pad(k, rest, value=NO_KEY), F.pad(v, rest)
        k, v = k.unflatten(1, (count, size)), v.unflatten(1, (count, size))
        top = k.detach().amax(2)
        # Sums of values and of weights are computed alike, side by side: [B, G, L, 2 C].
        weight = torch.exp(k - top[:, :, None])
        x = torch.cat([weight * v, weight], dim=3)
        rate, shift, own = w.repeat(2), w.exp().repeat(2), u.exp().repeat(2)
        up = torch.exp(place[:, None] * rate)
        down = torch.exp(-place[:, None] * rate)
        x_up, x_down = x * up, x * down
        passed = sums_before(x_down * (place > 0)[:, None], own=True)
        later = torch.addcmul(sums_before(x_down, backward=True), 1 - shift, passed)
        near = torch.addcmul(torch.addcmul(own * x, shift * down, sums_before(x_up)), up, later)
        # Of all chunks before each one, and of all behind it, in reversed order: [2, B, G, 2 C].
        left = torch.stack([x_up.sum(2), x_down.sum(2).flip(1)])
        left, log = sums_of_chunks(left, torch.stack([top, top.flip(1)]), length * w)
        (past, future), (log_past, log_future) = (torch.stack([x[0], x[1].flip(1)]) for x in (left, log))
        # The largest weight that EPS stands beside: of the past, as the chunk's first token reads it.
        most = torch.maximum(torch.maximum(log_past + length * w, log_future), top).detach()
        scale, *scales = (torch.exp(part - most).repeat(1, 1, 2) for part in (top, log_past, log_future))
        past, future = (part[:, :, None] for part in (past * scales[0], future * scales[1]))
        y = torch.addcmul(torch.addcmul(scale[:, :, None] * near, down, past), up, future)
        total, norm = y.flatten(1, 2).chunk(2, dim=2)
        y = total / (norm + EPS)
        if not exporting:
            return y[:, :T]
        t = torch.arange(T, device=k.device)
        # Core ML adds truth values up as floats, which are no places.
        begun = (t[:, None] >= starts).to(torch.int32).sum(1, dtype=torch.int32)
        return y.index_select(1, t + begun - 1)


def sums_before(x: Tensor, own: bool = False, backward: bool = False) -> Tensor:
    """Return for each token of x `[B, G, L, C]` the sum of those before it in its chunk, or with backward behind it.

    own: add the token itself.
    """
    size = x.shape[2]
    if not torch.compiler.is_exporting() and size <= FEW:
        ones = x.new_ones(size, size).tril(0 if own else -1)
        return (ones.mT if backward else ones) @ x
    reverse = torch.arange(size, device=x.device).flip(0)
    x = x.index_select(2, reverse) if backward else x
    sums = (x if own else delayed(x)).cumsum(2)
    return sums.index_select(2, reverse) if backward else sums


def sums_of_chunks(x: Tensor, log: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each chunk the sum over chunks before it of x `[.., G, 2 C]` times exp(log), log `[.., G, C]`.

    Each distance of one chunk multiplies by exp(-decay), `[C]`. The result is a pair like x and log.
    """
    x, log = delayed(x), delayed(log - decay, value=NO_KEY)
    # The number of chunks that each sum reaches back.
    distance = 1
    while distance < x.shape[-2]:
        other = delayed(log, distance, NO_KEY) - distance * decay
        most = torch.maximum(log, other).detach()
        scales = (torch.exp(part - most).repeat(*[1] * (x.ndim - 1), 2) for part in (log, other))
        x = next(scales) * x + next(scales) * delayed(x, distance)
        log, distance = most, 2 * distance
    return x, log
