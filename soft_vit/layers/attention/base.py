"""What every attention has in common."""

import math
from collections.abc import MutableMapping
from typing import Any, ClassVar

import torch
from timm.layers import to_2tuple, use_fused_attn
from torch import Tensor, nn

from soft_vit.ops.layout import FeatSize, Layout, token_layout

# A leaf of symbolic tracing: it looks at sizes.
torch.fx.wrap("token_layout")


def check_heads(dim: int, num_heads: int) -> int:
    """The width of one head; ValueError unless num_heads divides dim."""
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"{num_heads} heads do not divide the width {dim}; choose a divisor of {dim} for num_heads.")
    return dim // num_heads


def grid_limit(name: str, value: int | tuple[int, ...] | None, sequence: bool = False) -> tuple[int, int] | None:
    """The largest grid (height, width) of tokens, from one side or both; along a sequence as many, in one column.

    ValueError for a grid that has no token. For a sequence, value may be their number, (M,).
    """
    if value is None:
        return None
    limit = tuple(to_2tuple(value))
    if min(limit) < 1 or len(limit) not in ((1, 2) if sequence else (2,)):
        raise ValueError(f"{name}={value} leaves no token; use a positive side such as 7, two of them, or None.")
    return (math.prod(limit), 1) if sequence else limit


def window(side: int, sequence: bool) -> tuple[int, int]:
    """A window of that side on a map, or of that length along a sequence."""
    return side, 1 if sequence else side


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Tokens `[B, N, C]` as those of every head, `[B, H, N, C / H]`."""
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


def split_parts(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """What one layer projects tokens to, such as keys and values, `[B, N, parts * C]`: each `[B, H, N, C / H]`."""
    # Not unbind of one permuted tensor, whose gradient is copied twice. By index, as symbolic tracing cannot iterate.
    chunks = x.chunk(parts, dim=-1)
    return tuple(split_heads(chunks[i], num_heads) for i in range(parts))


def merge_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`: `[B, H, N, D]` to `[B, N, H * D]`."""
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Mixes tokens `x: [B, P + N, C]`: P prefix tokens, then those of a map (H, W), `N = H * W`, row by row, or (N,).

    A subclass takes `(dim, num_heads, *, feat_size, sr_ratio, ..., device, dtype)`: feat_size is the map it is built
    for, or the length (N,) of a sequence; sr_ratio the side of the window that one reduced token stands for (8, 4, 2, 1
    in the pyramid's stages), which kinds without reduced tokens ignore.

    The attention itself is a method `attend`, from which its matrix can be read: the values are its argument `v`
    (further ones `v_...`), it is linear in them, and all channels of a head share one matrix. Whatever
    else is computed from the values stands outside of it, or enters as `residual`, which is added to the result.

    >>> attn = attention_class("soft")(64, num_heads=2, feat_size=(14, 14), sr_ratio=2)
    >>> attn(torch.randn(8, 196, 64), (14, 14)).shape
    torch.Size([8, 196, 64])
    >>> attn = attention_class("performer")(64, num_heads=2, feat_size=(100,))
    >>> counts = torch.arange(100) < torch.tensor([[100], [60]])
    >>> attn(torch.randn(2, 100, 64), (100,), key_padding_mask=counts).shape
    torch.Size([2, 100, 64])
    """

    cost: str
    """Growth of time and memory with the number of tokens N, such as "N" or "N^2"; an instance states its own."""

    fixed_feat_size: ClassVar[bool] = False
    """Whether the weights belong to one map size; such weights are resampled when a checkpoint has another."""

    needs_grid: ClassVar[bool] = True
    """Whether tokens of the map and prefix tokens are treated in two ways; `prefix` says how."""

    prefix: ClassVar[str] = "as all tokens"
    """What becomes of prefix tokens, for the table of kinds."""

    qk_norm: ClassVar[bool] = True
    """Whether there are queries or keys that a norm could be put on, see `q_norm`."""

    key_is_query: ClassVar[bool] = False
    """Whether `q_norm` is of both, and nothing passes `k_norm`."""

    qk_of_each_token: ClassVar[bool] = True
    """Whether these are of each token, as a rotation by place (a rotary embedding) needs."""

    no_mask: str = "this kind defines none"
    """Why a key_padding_mask is refused, as the end of a sentence; empty where masks are taken."""

    fused_attn: bool
    """Whether softmax attention runs in torch's fused kernels: timm's switch (`set_fused_attn`) when it was made."""

    attn_drop: float = 0.0
    """Rate at which a kind that takes it as an argument drops attention weights in training."""

    def __init__(self, dim: int, num_heads: int, *, feat_size: FeatSize | None = None, **options: Any) -> None:
        # options are for type checkers: of an attention that is looked up by name they see this signature.
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = check_heads(dim, num_heads)
        self.fused_attn = use_fused_attn()
        self.sequence = feat_size is not None and len(feat_size) == 1
        # Norms of each head's queries and keys; models that have such put theirs here.
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()

    @property
    def dropout_p(self) -> float:
        """The rate at which attention weights are dropped in the module's present mode."""
        return self.attn_drop if self.training else 0.0

    def layout(self, x: Tensor, feat_size: FeatSize, num_prefix_tokens: int, key_padding_mask: Tensor | None) -> Layout:
        """How the tokens x of a forward lie; ValueError where the arguments do not fit each other or this attention."""
        return token_layout(x, feat_size, num_prefix_tokens, key_padding_mask, self.sequence, self.no_mask)

    def forward(
        self, x: Tensor, feat_size: FeatSize, num_prefix_tokens: int = 0, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Mix tokens x `[B, P + N, C]`, the first num_prefix_tokens P of which lie beside the map or sequence.

        key_padding_mask: bool `[B, P + N]`, True where a token counts. The result at the tokens that count is that of
        the tokens without the others, where these leave the kind's structure as it is: any for kinds that mix all
        tokens alike, trailing ones for kinds with windows. The result at the others is finite and means nothing.

        Raises ValueError for tokens that do not fill feat_size, and for a mask of another shape or dtype, without any
        token, or for a kind that takes none (`no_mask`).
        """
        raise NotImplementedError

    def resize(self, feat_size: tuple[int, int]) -> None:
        """Resample the weights that belong to one map to another, for good; most kinds have none."""

    def resample_state(self, prefix: str, state_dict: MutableMapping[str, Tensor]) -> None:
        """Resample, in state_dict, this module's weights of another map to its own; most kinds have none.

        prefix: what the names of this module's weights begin with, such as "stages.0.blocks.1.attn.".
        """


class SelfAttention(Attention):
    """An attention that projects tokens to queries, keys and values of every head, and the heads' results back.

    A subclass implements `attend`, and has an `__init__` where it has options of its own. Every attention is given
    feat_size and sr_ratio; of them this needs whether there is a map or a sequence.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: FeatSize | None = None,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(dim, num_heads, feat_size=feat_size)
        dd = {"device": device, "dtype": dtype}
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, **dd)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Queries, keys and values `[B, heads, P + N, C / heads]` to the result of that shape."""
        raise NotImplementedError

    def add_residual(self, x: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """The result x of `attend` plus what a kind adds from the values v; most add nothing."""
        return x

    def forward(
        self, x: Tensor, feat_size: FeatSize, num_prefix_tokens: int = 0, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        layout = self.layout(x, feat_size, num_prefix_tokens, key_padding_mask)
        q, k, v = split_parts(self.qkv(x), 3, self.num_heads)
        q, k = self.q_norm(q), self.k_norm(k)
        x = self.add_residual(self.attend(q, k, v, layout), v, layout)
        return self.proj_drop(self.proj(merge_heads(x)))
