"""Gated attention unit (FLASH; Hua et al. 2022, arXiv 2202.10447).

Letters: B batch, N tokens, C channels, S channels of the shared query and key, E expanded channels, L tokens of a
chunk, K chunks.
"""

from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, check_heads
from soft_vit.ops.layout import FeatSize, Layout
from soft_vit.ops.numerics import at_least_float32, check_choice, full_precision

Form = Literal["quadratic", "linear"]


def squared_relu_attention(q: Tensor, k: Tensor, v: Tensor, count: Tensor | int, dropout_p: float = 0.0) -> Tensor:
    """`relu(q k^T / sqrt(S))^2 v / count`; q and k `[..., N, S]`, v and the result `[..., N, E]`."""
    weights = (q @ k.mT * q.shape[-1] ** -0.5).relu().square() / count
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return weights @ v


def quadratic_form(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0) -> Tensor:
    """Squared ReLU attention over all pairs of tokens; `[B, N, S]`, `[B, N, S]`, `[B, N, E]` to `[B, N, E]`.

    mask: bool `[B, N]`, the tokens that count. Everything inside, and the result, is at least fp32.
    """
    with full_precision(q):
        q, k, v = map(at_least_float32, (q, k, v))
        if mask is None:
            return squared_relu_attention(q, k, v, v.shape[1], dropout_p)
        k, v = (x.masked_fill(~mask[..., None], 0) for x in (k, v))
        return squared_relu_attention(q, k, v, mask.sum(1)[:, None, None], dropout_p)


def linear_form(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_linear: Tensor,
    k_linear: Tensor,
    chunk_size: int,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Squared ReLU attention within chunks of consecutive tokens plus `q (k^T v) / N` over all tokens.

    All queries and keys `[B, N, S]`, v and the result `[B, N, E]`. The last chunk may be shorter; it averages over the
    tokens that it has. mask: bool `[B, N]`, the tokens that count. Everything inside, and the result, is at least fp32.
    """
    with full_precision(q):
        q, k, v, q_linear, k_linear = map(at_least_float32, (q, k, v, q_linear, k_linear))
        N = v.shape[1]
        chunk_size = min(chunk_size, N)
        below = -N % chunk_size
        if mask is not None:
            k, v, k_linear = (x.masked_fill(~mask[..., None], 0) for x in (k, v, k_linear))
        # Keys of zero have no weight, so the tokens that fill up the last chunk need no mask.
        chunks = (F.pad(x, (0, 0, 0, below)).unflatten(1, (-1, chunk_size)) for x in (q, k, v))
        starts = torch.arange(0, N, chunk_size, device=v.device)
        count = (N - starts).clamp(max=chunk_size)[:, None, None]
        total: Tensor | int = N
        if mask is not None:
            count = F.pad(mask, (0, below)).unflatten(1, (-1, chunk_size)).sum(2).clamp(min=1)[..., None, None]
            total = mask.sum(1)[:, None, None]
        q_chunks, k_chunks, v_chunks = chunks
        x = squared_relu_attention(q_chunks, k_chunks, v_chunks, count, dropout_p).flatten(1, 2)[:, :N]
        return x + q_linear @ (k_linear.mT @ v / total)


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """`gate * x` `[B, N, E]` in the gate's dtype, kept so small that E of them have a finite sum.

    The result grows with the sixth power of the tokens, beyond fp16 for weights of a few times their initial size. The
    LayerNorm that follows squares it in fp32: hence the second limit, which leaves room for the projection.
    """
    limit = min(torch.finfo(gate.dtype).max, 1e16) / gate.shape[-1]
    return (gate * x).clamp(-limit, limit).to(gate.dtype)


# Leaves of symbolic tracing: they look at sizes.
torch.fx.wrap("quadratic_form")
torch.fx.wrap("linear_form")
torch.fx.wrap("gated")


class GatedAttentionUnit(Attention):
    """`(u * A v) W_o` with gate u and values v of an expanded width, and A of squared ReLUs on one shared low-dim z.

    Single-headed, as the gate makes up for heads: num_heads only sets the default of qk_dim. Scores are
    `relu(q k^T / sqrt(S))^2 / N`: the division by N once, behind the square, makes the result an average on any map,
    where the paper's, before the square, makes it vanish as N grows. The paper's relative position bias is left to the
    pyramid's position embedding.

    form: `quadratic`, or `linear`: quadratic within chunks of chunk_size consecutive tokens plus a linear term over all
        tokens, which is not causal.
    expansion: width of u and v in multiples of dim.
    qk_dim: width S of z; by default that of two heads, which is the paper's 128 for heads of 64.
    """

    cost: str = "N"
    needs_grid: ClassVar[bool] = False
    qk_norm: ClassVar[bool] = False
    no_mask: str = ""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: FeatSize,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        form: Form = "linear",
        expansion: float = 2.0,
        qk_dim: int | None = None,
        chunk_size: int = 64,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(feat_size)
        dd = {"device": device, "dtype": dtype}
        head_dim = check_heads(dim, num_heads)
        qk_dim = 2 * head_dim if qk_dim is None else qk_dim
        self.form = check_choice("form", form, get_args(Form))
        width = int(expansion * dim)
        if width < 1 or qk_dim < 1 or chunk_size < 1:
            raise ValueError(
                f"expansion={expansion}, qk_dim={qk_dim} and chunk_size={chunk_size} must be positive; the paper's are "
                f"2, 128 and 256."
            )
        if form == "quadratic":
            self.cost = "N^2"
        self.chunk_size = chunk_size
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
        """Copies of z as it is."""
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.offset)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: Layout,
        q_linear: Tensor | None = None,
        k_linear: Tensor | None = None,
    ) -> Tensor:
        """Queries and keys `[B, N, S]`, the linear form's own as well, and values `[B, N, E]` to the values' shape."""
        if q_linear is None or k_linear is None:
            return quadratic_form(q, k, v, layout.mask, self.dropout_p)
        return linear_form(q, k, v, q_linear, k_linear, self.chunk_size, layout.mask, self.dropout_p)

    def forward(
        self, x: Tensor, feat_size: FeatSize, num_prefix_tokens: int = 0, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        layout = self.layout(x, feat_size, num_prefix_tokens, key_padding_mask)
        u, v = F.silu(self.uv(x)).chunk(2, dim=-1)
        z = F.silu(self.z(x))
        copies = [z * self.scale[i] + self.offset[i] for i in range(2 if self.form == "quadratic" else 4)]
        return self.proj_drop(self.proj(gated(self.attend(copies[0], copies[1], v, layout, *copies[2:]), u)))
