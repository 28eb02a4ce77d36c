"""Gated attention unit (FLASH; Hua et al. 2022, arXiv 2202.10447).

Letters: B batch, N tokens, C channels, S channels of the shared query and key, E expanded channels.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits, at_least
from soft_vit.layers.plain import is_plain
from soft_vit.ops.chunked import computes_parts, map_tokens
from soft_vit.ops.layout import Layout, fill_padding
from soft_vit.ops.numerics import at_least_float32, check_choice, full_precision

Form = Literal["quadratic", "linear"]


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
    if gate is None:
        return x
    limit = min(torch.finfo(gate.dtype).max, 1e16) / gate.shape[-1]
    return (F.silu(at_least_float32(gate)) * x).clamp(-limit, limit).to(gate.dtype)


class GatedAttentionUnit(Attention):
    """`(u * A v) W_o` with gate u and values v of an expanded width, and A of squared ReLUs on one shared low-dim z.

    It has a single head, as the gate replaces heads: num_heads only sets the width S of z, two heads' channels. Scores
    are `relu(q k^T / sqrt(S))^2 / N`. Division by N after the square makes the result an average on any map. In the
    paper it precedes the square, and the result vanishes as N grows. The paper's relative position bias is left to the
    pyramid's position embedding.

    form: `quadratic`, or `linear`: quadratic within chunks of chunk_size consecutive tokens plus a linear term over all
        tokens, which is not causal.
    """

    # Chunks are of consecutive tokens.
    traits = Traits("N", mask_refusal=None, needs_grid=False, needs_order=True, qk=None)

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        form: Form = "linear",
        chunk_size: int = 64,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, **options)
        dd = self.device_and_dtype(options)
        self.form = check_choice("form", form, get_args(Form))
        # As in the paper, whose heads of 64 channels give its S = 128.
        width, qk_dim = 2 * dim, 2 * self.head_dim
        if form == "quadratic":
            self.declare(cost="N^2", needs_order=False)
        self.chunk_size = at_least("chunk_size", chunk_size)
        self.attn_drop = attn_drop
        self.uv = nn.Linear(dim, 2 * width, bias=qkv_bias, **dd)
        self.z = nn.Linear(dim, qk_dim, bias=qkv_bias, **dd)
        # Queries and keys of the quadratic and, behind them, of the linear part.
        copies = 2 if form == "quadratic" else 4
        self.scale = nn.Parameter(torch.empty(copies, qk_dim, **dd))
        self.offset = nn.Parameter(torch.empty(copies, qk_dim, **dd))
        self.proj = nn.Linear(width, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make all copies equal z."""
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.offset)

    def attend(
        self,
        v: Tensor,
        z: Tensor,
        layout: Layout,
        gate: Tensor | None = None,
        z_source: tuple[Tensor, nn.Linear] | None = None,
    ) -> Tensor:
        """Mix values `[B, N, E]` by z `[B, N, S]`, queries and keys before their copies and activation.

        Without a gate, the result is at least fp32. With a gate `[B, N, E]`, it and v are before their activation, and
        the gated result has their dtype. Everything inside is at least fp32.

        z_source: the tokens `[B, N, C]` and the layer that give z. Where chunks are computed in turn, training
        projects each of them again instead of keeping z and its gradient for all, if the layer is a plain one.
        """
        if self.form == "linear":
            return self._linear(v, z, layout.mask, gate, z_source)
        with full_precision(v):
            q, k = queries_and_keys(z, (0, 1), (self.scale, self.offset))
            values = activated(v, gate is not None)
            count: Tensor | int = v.shape[1]
            if layout.mask is not None:
                k, values = (x.masked_fill(~layout.mask[..., None], 0) for x in (k, values))
                count = layout.mask.sum(1)[:, None, None]
            return gated(squared_relu_attention(q, k, values, count, self.dropout_p), gate)

    def _linear(
        self, v: Tensor, z: Tensor, mask: Tensor | None, gate: Tensor | None, z_source: tuple[Tensor, nn.Linear] | None
    ) -> Tensor:
        """Attend by squared ReLUs within chunks of consecutive tokens, plus `q (k^T v) / N` over all tokens.

        The last chunk may be shorter; it averages over its own tokens. A CPU computes large N a few chunks at a time,
        see `map_tokens`.
        """
        has_gate, dropout_p = gate is not None, self.dropout_p
        weights: list[Tensor] = [self.scale, self.offset]
        if z_source is not None and torch.is_grad_enabled() and computes_parts(v[:, None]):
            x, layer = z_source
            if is_plain(layer, nn.Linear):
                z, weights = x, [*weights, *(weight for weight in (layer.weight, layer.bias) if weight is not None)]
        total = v.shape[1] if mask is None else mask.sum(1)[:, None, None, None]

        def average(v: Tensor, z: Tensor, gate: Tensor | None, mask: Tensor | None, *weights: Tensor) -> tuple[Tensor]:
            (k,) = queries_and_keys(z, (3,), weights)
            return (fill_padding(k, mask).mT @ fill_padding(activated(v, has_gate), mask) / total,)

        def read(v: Tensor, z: Tensor, gate: Tensor | None, mask: Tensor | None, *rest: Tensor) -> Tensor:
            *weights, average = rest
            N = v.shape[2]
            length = min(self.chunk_size, N)
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
        return map_tokens(read, tokens, tuple(weights), self.chunk_size, sums=average).squeeze(1)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        gate, v = self.uv(x).chunk(2, dim=-1)
        return self.proj_drop(self.proj(self.attend(v, self.z(x), layout, gate, z_source=(x, self.z))))
