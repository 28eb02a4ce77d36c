"""Gated attention unit (FLASH; Hua et al. 2022, arXiv 2202.10447).

Letters: B batch, N tokens, C channels, S channels of the shared query and key, E expanded channels.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.chunked import map_tokens
from soft_vit.ops.layout import fill_padding
from soft_vit.ops.numerics import at_least_float32, bounded, full_precision


def queries_and_keys(z: Tensor, indices: Sequence[int], weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the copies of these indices, `[..., N, S]`, of z before its activation; 0, 2 are queries, 1, 3 keys.

    weights: scale and offset `[copies, S]`. Where z are tokens `[..., N, C]` before their projection, the weight
    `[S, C]` and perhaps a bias `[S]` follow.
    """
    scale, offset, *projection = weights
    z = at_least_float32(z)
    if projection:
        z = F.linear(z, *map(at_least_float32, projection))
    z = F.silu(z)
    return [z * scale[i] + offset[i] for i in indices]


def squared_relu_attention(q: Tensor, k: Tensor, v: Tensor, count: Tensor | int, dropout_p: float = 0.0) -> Tensor:
    """Return `relu(q k^T / sqrt(S))^2 v / count`; q and k `[..., N, S]`, v and the result `[..., N, E]`."""
    weights = (q @ k.mT * q.shape[-1] ** -0.5).relu().square() / count
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return weights @ v


def activated(v: Tensor, has_gate: bool) -> Tensor:
    """Return the values of v, in at least fp32; where there is a gate, v is before its activation."""
    v = at_least_float32(v)
    return F.silu(v) if has_gate else v


def gated(x: Tensor, gate: Tensor | None) -> Tensor:
    """Return `silu(gate) * x` `[..., N, E]` in the gate's dtype, clamped so that E of them have a finite sum.

    The result grows with the sixth power of the tokens, beyond fp16 for weights of a few times their initial size. The
    LayerNorm that follows squares it in fp32: hence the second limit, which leaves room for the projection.
    """
    return x if gate is None else bounded(F.silu(at_least_float32(gate)) * x, gate.dtype, gate.shape[-1])


def quadratic_unit(
    v: Tensor, z: Tensor, weights: Sequence[Tensor], mask: Tensor | None, gate: Tensor | None, dropout_p: float = 0.0
) -> Tensor:
    """Return `gate * relu(q k^T / sqrt(S))^2 v / N` `[B, N, E]`, N the tokens where mask `[B, N]` is True.

    v and gate `[B, N, E]`, z: see `linear_unit`.
    """
    with full_precision(v):
        q, k = queries_and_keys(z, (0, 1), weights)
        values = activated(v, gate is not None)
        count: Tensor | int = v.shape[1]
        if mask is not None:
            k, values = (x.masked_fill(~mask[..., None], 0) for x in (k, values))
            count = mask.sum(1)[:, None, None]
        return gated(squared_relu_attention(q, k, values, count, dropout_p), gate)


def linear_unit(
    v: Tensor,
    z: Tensor,
    weights: Sequence[Tensor],
    mask: Tensor | None,
    gate: Tensor | None,
    chunk_size: int,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attend by squared ReLUs within chunks of consecutive tokens, plus `q (k^T v) / N` over all tokens.

    v: values `[B, N, E]`; with a gate `[B, N, E]`, both are before their activation, and the gated result has their
    dtype, otherwise it is at least fp32. z, weights: of `queries_and_keys`. mask: bool `[B, N]`.

    The last chunk may be shorter; it averages over its own tokens. A CPU computes large N a few chunks at a time,
    see `map_tokens`.
    """
    has_gate = gate is not None
    total = v.shape[1] if mask is None else mask.sum(1)[:, None, None, None]

    def average(v: Tensor, z: Tensor, gate: Tensor | None, mask: Tensor | None, *weights: Tensor) -> tuple[Tensor]:
        (k,) = queries_and_keys(z, (3,), weights)
        return (fill_padding(k, mask).mT @ fill_padding(activated(v, has_gate), mask) / total,)

    def read(v: Tensor, z: Tensor, gate: Tensor | None, mask: Tensor | None, *rest: Tensor) -> Tensor:
        *weights, average = rest
        N = v.shape[2]
        length = min(chunk_size, N)
        q, k, q_linear = queries_and_keys(z, (0, 1, 2), weights)
        k, values = fill_padding(k, mask), fill_padding(activated(v, has_gate), mask)
        # Keys of zero have no weight, so the tokens that fill up the last chunk need no mask.
        q, k, values = (F.pad(x, (0, 0, 0, -N % length)).unflatten(2, (-1, length)) for x in (q, k, values))
        if mask is None:
            count = (N - torch.arange(0, N, length, device=v.device)).clamp(max=length)[:, None, None]
        else:
            count = F.pad(mask, (0, 0, 0, -N % length)).unflatten(2, (-1, length)).sum(3, keepdim=True).clamp(min=1)
        x = squared_relu_attention(q, k, values, count, dropout_p).flatten(2, 3)[:, :, :N]
        return gated(x + q_linear @ average, gate)

    token_mask = None if mask is None else mask[:, None, :, None]
    # As one head.
    tokens = (v[:, None], z[:, None], None if gate is None else gate[:, None], token_mask)
    return map_tokens(read, tokens, tuple(weights), chunk_size, sums=average).squeeze(1)
