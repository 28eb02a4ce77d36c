"""The layout of tokens: prefix tokens, then those of a map or a sequence; some may be padding.

Letters: B batch, H heads, P prefix tokens, N = Y * X tokens of a map of Y rows and X columns, D channels of a head.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from soft_vit.ops.numerics import wide_dtype

FeatSize = tuple[int] | tuple[int, int]
"""The size (Y, X) of a map that tokens fill row by row, or the length (N,) of a sequence."""


def as_map(feat_size: FeatSize) -> tuple[int, int]:
    """Return the size of a map; a sequence is a map of one column."""
    return feat_size[0], 1 if len(feat_size) == 1 else feat_size[1]


def fill_padding(x: Tensor, token_mask: Tensor | None, fill: float = 0.0) -> Tensor:
    """Return tokens `[B, H, N, D]` with fill where token_mask `[B, 1, N, 1]` is False."""
    return x if token_mask is None else x.masked_fill(~token_mask, fill)


class Layout(NamedTuple):
    """P prefix tokens, such as a class token, followed by the tokens of a map; a sequence is a map of one column."""

    feat_size: tuple[int, int]
    num_prefix_tokens: int = 0
    mask: Tensor | None = None
    """Bool `[B, P + N]`, True for valid tokens; None if all are."""

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


def token_layout(
    x: Tensor,
    feat_size: FeatSize,
    num_prefix_tokens: int,
    mask: Tensor | None,
    sequence: bool,
    mask_refusal: str | None,
) -> Layout:
    """Return the layout of tokens x `[B, P + N, C]`, after checks.

    sequence: whether feat_size must be (N,), not (Y, X). mask_refusal: why a mask is refused, as the end of a
    sentence, or None. ValueError unless feat_size has the right form and as many tokens as x, and the mask has the
    shape of x and a valid token in each image.
    """
    if isinstance(feat_size, int) or (len(feat_size) == 1) != sequence:
        raise ValueError(f"feat_size must be {'a length (N,)' if sequence else 'a map (H, W)'}, got {feat_size}.")
    if mask is not None and mask_refusal:
        raise ValueError(f"key_padding_mask must be None: {mask_refusal}.")
    layout = Layout(as_map(feat_size), num_prefix_tokens, mask)
    if torch.compiler.is_compiling():
        return layout
    (Y, X), P = layout.feat_size, num_prefix_tokens
    if min(Y, X) < 1:
        raise ValueError(f"feat_size must be at least 1, got {feat_size}.")
    if x.ndim != 3 or x.shape[1] != P + Y * X:
        raise ValueError(
            f"tokens must have shape [B, {P + Y * X}, C] for {P} prefix tokens and a map of {Y} x {X}, "
            f"got {tuple(x.shape)}."
        )
    if mask is not None:
        if mask.dtype != torch.bool or mask.shape != x.shape[:2]:
            raise ValueError(
                f"key_padding_mask must be torch.bool of shape {tuple(x.shape[:2])}, True for valid tokens, "
                f"got {mask.dtype} of shape {tuple(mask.shape)}."
            )
        if not mask.any(1).all():
            raise ValueError("key_padding_mask must have at least one True in each row.")
    return layout


# timm's ViTs have at most a class token and four registers.
MAX_PREFIX_TOKENS = 5


def grid_of_tokens(
    count: int, grid: tuple[int, int] | Literal["square"], num_prefix_tokens: int | None
) -> tuple[tuple[int, int], int]:
    """Return the grid (Y, X) of P + N tokens, and P.

    grid: "square" stands for the largest square. num_prefix_tokens: P; by default the tokens that are not on the grid,
    at most 5. ValueError if the number of tokens does not fit.
    """
    if grid == "square":
        grid = (math.isqrt(max(0, count - (num_prefix_tokens or 0))),) * 2
    rest = count - grid[0] * grid[1]
    if not 0 <= rest <= MAX_PREFIX_TOKENS if num_prefix_tokens is None else rest != num_prefix_tokens:
        prefix = f"at most {MAX_PREFIX_TOKENS}" if num_prefix_tokens is None else num_prefix_tokens
        raise ValueError(
            f"tokens must be a grid of {grid[0]} x {grid[1]} and {prefix} prefix tokens, got {count}. Give attn_layer "
            f"the feat_size and num_prefix_tokens of the model, or use swap_attention, which follows images."
        )
    return grid, rest
