"""Gated attention unit (FLASH; Hua et al. 2022, arXiv 2202.10447).

Letters: B batch, N tokens, C channels, S channels of the shared query and key, E expanded channels.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits
from soft_vit.layers.plain import Linear, device_and_dtype, may_read_weight
from soft_vit.ops.chunked import computes_parts
from soft_vit.ops.gau import linear_unit, quadratic_unit
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least, check_choice

Form = Literal["quadratic", "linear"]


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
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, **options)
        dd = device_and_dtype(options)
        self.form = check_choice("form", form, get_args(Form))
        # As in the paper, whose heads of 64 channels give its S = 128.
        width, qk_dim = 2 * dim, 2 * self.head_dim
        if form == "quadratic":
            self.declare(cost="N^2", needs_order=False)
        self.chunk_size = at_least("chunk_size", chunk_size)
        self.attn_drop = attn_drop
        self.uv = Linear(dim, 2 * width, bias=qkv_bias, **dd)
        self.z = Linear(dim, qk_dim, bias=qkv_bias, **dd)
        # Queries and keys of the quadratic and, behind them, of the linear part.
        copies = 2 if form == "quadratic" else 4
        self.scale, self.offset = (nn.Parameter(torch.empty(copies, qk_dim, **dd)) for _ in range(2))
        self.proj = Linear(width, dim, **dd)
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
        weights: list[Tensor] = [self.scale, self.offset]
        if self.form == "quadratic":
            return quadratic_unit(v, z, weights, layout.mask, gate, self.dropout_p)
        if z_source is not None and torch.is_grad_enabled() and computes_parts(v[:, None]):
            x, layer = z_source
            if may_read_weight(layer):
                z, weights = x, [*weights, *(weight for weight in (layer.weight, layer.bias) if weight is not None)]
        return linear_unit(v, z, weights, layout.mask, gate, self.chunk_size, self.dropout_p)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        gate, v = self.uv(x).chunk(2, dim=-1)
        return self.proj_drop(self.proj(self.attend(v, self.z(x), layout, gate, z_source=(x, self.z))))
