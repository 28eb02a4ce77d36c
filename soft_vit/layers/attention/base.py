"""What every attention of the pyramid has in common."""

from collections.abc import MutableMapping
from typing import ClassVar

from timm.layers import to_2tuple, use_fused_attn
from torch import Tensor, nn


def check_heads(dim: int, num_heads: int) -> int:
    """The width of one head; ValueError unless num_heads divides dim."""
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"{num_heads} heads do not divide the width {dim}; choose a divisor of {dim} for num_heads.")
    return dim // num_heads


def grid_limit(name: str, value: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """The largest grid (height, width) of tokens, from one side or both; ValueError for one that has no token."""
    if value is None:
        return None
    limit = tuple(to_2tuple(value))
    if len(limit) != 2 or min(limit) < 1:
        raise ValueError(f"{name}={value} leaves no token; use a positive side such as 7, two of them, or None.")
    return limit


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Tokens `[B, N, C]` as those of every head, `[B, H, N, C / H]`."""
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


def split_parts(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """What one layer projects tokens to, such as keys and values, `[B, N, parts * C]`: each `[B, H, N, C / H]`."""
    return x.unflatten(2, (parts, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def merge_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`: `[B, H, N, D]` to `[B, N, H * D]`."""
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Mixes tokens `x: [B, N, C]` that lie on a map of `feat_size = (H, W)`, `N = H * W`, row by row.

    A subclass takes `(dim, num_heads, *, feat_size, sr_ratio, ..., device, dtype)`: feat_size is the map it is built
    for, sr_ratio the side of the window that one reduced token stands for (8, 4, 2, 1 in the four stages), which
    kinds without reduced tokens ignore.

    The attention itself is a method `attend`, from which its matrix can be read: the values are its argument `v`
    (further ones `v_...`), it is linear in them, and all channels of a head share one matrix. Whatever
    else is computed from the values stands outside of it, or enters as `residual`, which is added to the result.
    """

    cost: str
    """Growth of time and memory with the number of tokens N, such as "N" or "N^2"; an instance states its own."""

    fixed_feat_size: ClassVar[bool] = False
    """Whether the weights belong to one map size; such weights are resampled when a checkpoint has another."""

    needs_grid: ClassVar[bool] = True
    """Whether the tokens must fill the map exactly, which leaves no place for a class token."""

    fused_attn: bool
    """Whether softmax attention runs in torch's fused kernels: timm's switch (`set_fused_attn`) when it was made."""

    attn_drop: float = 0.0
    """Rate at which a kind that takes it as an argument drops attention weights in training."""

    def __init__(self) -> None:
        super().__init__()
        self.fused_attn = use_fused_attn()

    @property
    def dropout_p(self) -> float:
        """The rate at which attention weights are dropped in the module's present mode."""
        return self.attn_drop if self.training else 0.0

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
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
    feat_size and sr_ratio; nothing here depends on them.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: tuple[int, int] | None = None,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = check_heads(dim, num_heads)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, **dd)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, feat_size: tuple[int, int]) -> Tensor:
        """Queries, keys and values `[B, heads, N, C / heads]` to the result of that shape."""
        raise NotImplementedError

    def add_residual(self, x: Tensor, v: Tensor, feat_size: tuple[int, int]) -> Tensor:
        """The result x of `attend` plus what a kind adds from the values v; most add nothing."""
        return x

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        q, k, v = split_parts(self.qkv(x), 3, self.num_heads)
        x = self.add_residual(self.attend(q, k, v, feat_size), v, feat_size)
        return self.proj_drop(self.proj(merge_heads(x)))
