"""The layout of tokens: prefix tokens, then those of a map or a sequence; some may be padding.

Letters: B batch, H heads, P prefix tokens, N = Y * X tokens of a map of Y rows and X columns, D channels of a head.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from soft_vit.ops.numerics import is_eager, wide_dtype

Size = tuple[int, int]
"""Height and width: rows and columns of a map of tokens, or pixels of an image."""
FeatSize = tuple[int] | Size
"""The size (Y, X) of a map that tokens fill row by row, or the length (N,) of a sequence."""


def as_map(feat_size: FeatSize) -> Size:
    """Return the size of a map; a sequence is a map of one column."""
    return feat_size[0], 1 if len(feat_size) == 1 else feat_size[1]


def window(side: int, sequence: bool) -> Size:
    """Return the size of a window with this side on a map, or with this length along a sequence."""
    return side, 1 if sequence else side


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split tokens `[B, N, C]` into those of every head, `[B, H, N, C / H]`."""
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


def split_parts(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """Split the output of one layer `[B, N, parts * C]`, such as keys and values, into parts `[B, H, N, C / H]`."""
    # Not unbind of one permuted tensor, whose gradient is copied twice.
    # Not a chunk of one part, which LiteRT does not take.
    return tuple(split_heads(part, num_heads) for part in (x.chunk(parts, dim=-1) if parts > 1 else (x,)))


def merge_heads(x: Tensor) -> Tensor:
    """Invert `split_heads`: `[B, H, N, D]` to `[B, N, H * D]`."""
    return x.transpose(1, 2).flatten(2)


def fill_padding(x: Tensor, token_mask: Tensor | None, fill: float = 0.0) -> Tensor:
    """Return tokens `[B, H, N, D]` with fill where token_mask `[B, 1, N, 1]` is False."""
    return x if token_mask is None else x.masked_fill(~token_mask, fill)


class Layout(NamedTuple):
    """P prefix tokens, such as a class token, followed by the tokens of a map; a sequence is a map of one column."""

    grid_size: Size
    num_prefix_tokens: int = 0
    mask: Tensor | None = None
    """Bool `[B, P + N]`, True for valid tokens; None if all are."""
    sequence: bool = False
    """Whether the map of one column is a sequence."""

    @property
    def key_mask(self) -> Tensor | None:
        """The mask `[B, 1, 1, P + N]` of scores `[B, H, queries, P + N]`."""
        return None if self.mask is None else self.mask[:, None, None]

    @property
    def token_mask(self) -> Tensor | None:
        """The mask `[B, 1, P + N, 1]` of tokens `[B, H, P + N, D]`."""
        return None if self.mask is None else self.mask[:, None, :, None]

    @property
    def grid_mask(self) -> Tensor | None:
        """The mask `[B, N]` of the tokens of the map."""
        return None if self.mask is None else self.mask[:, self.num_prefix_tokens :]

    def grid(self, x: Tensor) -> Tensor:
        """Return the tokens of the map, `[B, H, N, D]`, of x `[B, H, P + N, D]`."""
        return x[:, :, self.num_prefix_tokens :] if self.num_prefix_tokens else x

    def pad_prefix(self, x: Tensor) -> Tensor:
        """Put zeros for prefix tokens in front of tokens of the map `[..., N, D]`: `[..., P + N, D]`."""
        if not self.num_prefix_tokens:
            return x
        # Not F.pad: the memory format of its gradient differs from what graphs of symbolic sizes expect.
        return torch.cat([x.new_zeros(*x.shape[:-2], self.num_prefix_tokens, x.shape[-1]), x], dim=-2)

    def zero_padded(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Return tokens `[B, H, P + N, D]` with fill for padding."""
        return fill_padding(x, self.token_mask, fill)

    def num_tokens(self, x: Tensor) -> Tensor | int:
        """Count the tokens of x `[B, H, P + N, D]` without padding: an int, or `[B, 1, 1, 1]` of at least fp32."""
        return x.shape[2] if self.mask is None else self.mask.sum(1).to(wide_dtype(x))[:, None, None, None]

    def positions(self, x: Tensor) -> Tensor:
        """Number the tokens of x `[B, H, P + N, D]` without padding from 0: `[1 or B, 1, P + N, 1]`, at least fp32."""
        if self.mask is None:
            return torch.arange(x.shape[2], dtype=wide_dtype(x), device=x.device)[None, None, :, None]
        return (self.mask.cumsum(1) - 1).clamp(min=0).to(wide_dtype(x))[:, None, :, None]

    def softmax(self, x: Tensor) -> Tensor:
        """Return the softmax of each channel of x `[B, H, P + N, D]` over the tokens; zero for padding."""
        return self.zero_padded(x, -math.inf).softmax(-2)

    # Tokens of packed sequences are in chunks, whose sums and maxima are not yet those of a sequence; see `Packing`.

    def total(self, x: Tensor) -> Tensor:
        """Return sums over tokens as they are."""
        return x

    def largest(self, x: Tensor) -> Tensor:
        """Return maxima over tokens as they are."""
        return x


WHOLE = Layout((1, 1))
"""The layout of tokens whose positions are of no interest, and none of which is padding."""


def token_layout(
    x: Tensor, feat_size: FeatSize, num_prefix_tokens: int, mask: Tensor | None, sequence: bool, refusal: str | None
) -> Layout:
    """Return the layout of tokens x `[B, P + N, C]`, after checks.

    sequence: whether feat_size must be (N,), not (Y, X). refusal: why a mask is refused, as the end of a
    sentence, or None. ValueError unless feat_size has the right form and as many tokens as x, and the mask has the
    shape of x and a valid token in each image.
    """
    if isinstance(feat_size, int) or (len(feat_size) == 1) != sequence:
        raise ValueError(f"feat_size must be {'a length (N,)' if sequence else 'a map (H, W)'}, got {feat_size}.")
    if mask is not None and refusal:
        raise ValueError(f"key_padding_mask must be None: {refusal}.")
    layout = Layout(as_map(feat_size), num_prefix_tokens, mask, sequence)
    if torch.compiler.is_compiling():
        return layout
    (Y, X), P = layout.grid_size, num_prefix_tokens
    if x.ndim != 3 or x.shape[1] != P + Y * X:
        what = f"[B, {P + Y * X}, C] for {P} prefix tokens and a map of {Y} x {X}"
        raise ValueError(f"tokens must have shape {what}, got {tuple(x.shape)}.")
    check_mask(mask, x.shape[:2])
    return layout


def check_mask(mask: Tensor | None, shape: Sequence[int]) -> None:
    """Raise a ValueError unless a key_padding_mask is bool `[B, N]`, of this shape, with a True in each row."""
    if mask is None:
        return
    if mask.dtype != torch.bool or tuple(mask.shape) != tuple(shape):
        what = f"torch.bool of shape {tuple(shape)}, True for valid tokens"
        raise ValueError(f"key_padding_mask must be {what}, got {mask.dtype} of shape {tuple(mask.shape)}.")
    if is_eager(mask) and not mask.any(1).all():
        raise ValueError("key_padding_mask must have at least one True in each row.")


def check_qkv(q: Tensor, k: Tensor, v: Tensor, letters: str) -> None:
    """Raise a ValueError unless q, k and v have these dimensions, such as BHND, fit each other, and have one dtype."""
    requirement = ""
    found: list[Any] = [tuple(x.shape) for x in (q, k, v)]
    if not q.ndim == k.ndim == v.ndim == len(letters):
        requirement = f"have shape [{', '.join(letters)}]"
    elif not q.shape[:2] == k.shape[:2] == v.shape[:2] or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        requirement = "agree in batch, heads, tokens and channels"
    elif 0 in k.shape[1:]:
        requirement = "have at least one head, token and channel"
    elif not (q.dtype == k.dtype == v.dtype and q.is_floating_point()):
        requirement, found = "have one floating dtype", [x.dtype for x in (q, k, v)]
    if requirement:
        # Compilers cannot write a size that is not fixed.
        raise ValueError(f"query, key and value must {requirement}, got {', '.join(map(str, found))}.")


# timm's ViTs have at most a class token and four registers.
MAX_PREFIX_TOKENS = 5


def grid_of_tokens(count: int, grid: Size | Literal["square"], num_prefix_tokens: int | None) -> tuple[Size, int]:
    """Return the grid (Y, X) of P + N tokens, and P.

    grid: "square" stands for the largest square. num_prefix_tokens: P; by default the tokens that are not on the grid,
    at most 5. ValueError if the number of tokens does not fit.
    """
    if grid == "square":
        grid = (math.isqrt(max(0, count - (num_prefix_tokens or 0))),) * 2
    rest = count - grid[0] * grid[1]
    if not 0 <= rest <= MAX_PREFIX_TOKENS if num_prefix_tokens is None else rest != num_prefix_tokens:
        prefix = f"at most {MAX_PREFIX_TOKENS}" if num_prefix_tokens is None else num_prefix_tokens
        what = f"a grid of {grid[0]} x {grid[1]} and {prefix} prefix tokens, got {count}"
        how = "the feat_size and num_prefix_tokens of the model, or use swap_attention, which follows images"
        raise ValueError(f"tokens must be {what}. Give attn_layer {how}.")
    return grid, rest
