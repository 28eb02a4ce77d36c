"""How tokens lie: prefix tokens, then a map or a sequence, some of which may be padding.

Letters: B batch, H heads, P prefix tokens, N = Y * X tokens of a map of Y rows and X columns, D channels of a head.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from soft_vit.ops.numerics import wide_dtype

FeatSize = tuple[int] | tuple[int, int]
"""The map (Y, X) that tokens fill, row by row, or the length (N,) of a sequence."""


def as_map(feat_size: FeatSize) -> tuple[int, int]:
    """A map as it is, a sequence as a map of one column."""
    return feat_size[0], 1 if len(feat_size) == 1 else feat_size[1]


def fill_masked(x: Tensor, token_mask: Tensor | None, fill: float = 0.0) -> Tensor:
    """Tokens `[B, H, N, D]`, with fill in place of those where the mask `[B, 1, N, 1]` is False."""
    return x if token_mask is None else x.masked_fill(~token_mask, fill)


class Layout(NamedTuple):
    """P prefix tokens, such as a class token, and behind them those of a map; a sequence is a map of one column."""

    feat_size: tuple[int, int]
    num_prefix_tokens: int = 0
    mask: Tensor | None = None
    """Bool `[B, P + N]`, True where a token counts; None if all do."""

    @property
    def key_mask(self) -> Tensor | None:
        """The mask for scores `[B, H, queries, P + N]`."""
        return None if self.mask is None else self.mask[:, None, None]

    @property
    def token_mask(self) -> Tensor | None:
        """The mask for tokens `[B, H, P + N, D]`."""
        return None if self.mask is None else self.mask[:, None, :, None]

    @property
    def grid_mask(self) -> Tensor | None:
        """The part `[B, N]` of the mask behind the prefix tokens."""
        return None if self.mask is None else self.mask[:, self.num_prefix_tokens :]

    def grid(self, x: Tensor) -> Tensor:
        """Those of the tokens `[B, H, P + N, D]` that lie on the map: `[B, H, N, D]`."""
        return x[:, :, self.num_prefix_tokens :] if self.num_prefix_tokens else x

    def pad_prefix(self, x: Tensor) -> Tensor:
        """Tokens of the map `[..., N, D]` behind zeros in place of prefix tokens: `[..., P + N, D]`."""
        if not self.num_prefix_tokens:
            return x
        # Not F.pad, whose gradient lies in memory in another order than graphs of symbolic sizes expect.
        return torch.cat([x.new_zeros(*x.shape[:-2], self.num_prefix_tokens, x.shape[-1]), x], dim=-2)

    def keep(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Tokens `[B, H, P + N, D]`, with fill in place of those that do not count."""
        return fill_masked(x, self.token_mask, fill)

    def num_tokens(self, x: Tensor) -> Tensor | int:
        """How many of the tokens `[B, H, P + N, D]` count: a number, or `[B, 1, 1, 1]` in x's dtype, at least fp32."""
        return x.shape[2] if self.mask is None else self.mask.sum(1).to(wide_dtype(x))[:, None, None, None]


def token_layout(
    x: Tensor, feat_size: FeatSize, num_prefix_tokens: int, mask: Tensor | None, sequence: bool, no_mask: str
) -> Layout:
    """The layout of tokens x `[B, P + N, C]`.

    sequence: whether feat_size is to be (N,). no_mask: why a mask is refused, as the end of a sentence, or empty.
    ValueError for another kind of feat_size, for another number of tokens, or a mask that is refused or does not fit.
    """
    if isinstance(feat_size, int):
        raise ValueError(f"feat_size={feat_size} is no shape; give a map (H, W), or ({feat_size},) for a sequence.")
    if (len(feat_size) == 1) != sequence:
        built, given = ("a sequence (N,)", "a map") if sequence else ("a map (H, W)", "a sequence")
        raise ValueError(f"feat_size={tuple(feat_size)} is {given}, and this attention was built for {built}.")
    if mask is not None and no_mask:
        raise ValueError(f"This attention takes no key_padding_mask: {no_mask}.")
    layout = Layout(as_map(feat_size), num_prefix_tokens, mask)
    if not torch.compiler.is_compiling():
        check_layout(x, layout)
    return layout


def check_layout(x: Tensor, layout: Layout) -> None:
    """ValueError unless the layout has as many tokens as x `[B, P + N, C]`, N > 0, and its mask one for each image."""
    (Y, X), P, mask = layout
    if min(Y, X) < 1:
        raise ValueError(f"A map of {Y} x {X} holds no token; give one of at least 1 x 1, or a sequence of at least 1.")
    if x.ndim != 3 or x.shape[1] != P + Y * X:
        raise ValueError(
            f"Tokens of shape {tuple(x.shape)} do not fill {P} prefix tokens and a map of {Y} x {X}; give "
            f"[B, {P + Y * X}, C], or the feat_size and num_prefix_tokens that they have."
        )
    if mask is None:
        return
    if mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        raise ValueError(
            f"key_padding_mask of shape {tuple(mask.shape)} and {mask.dtype} does not fit tokens of shape "
            f"{tuple(x.shape)}; give torch.bool of shape {tuple(x.shape[:2])}, True where a token counts."
        )
    if not mask.any(1).all():
        raise ValueError("key_padding_mask leaves an image without a token; keep at least one True in each row.")


# Most prefix tokens of timm's models: a class token and four registers.
MAX_PREFIX_TOKENS = 5


def square_layout(x: Tensor, feat_size: tuple[int, int] | None, num_prefix_tokens: int | None) -> Layout:
    """The layout of tokens x `[B, P + N, C]`: on the map feat_size, by default the largest square, behind P others.

    num_prefix_tokens: P; by default what the map leaves, at most 5. ValueError for tokens that do not fit.
    """
    tokens = int(x.shape[1])
    if feat_size is None:
        side = math.isqrt(max(0, tokens - (num_prefix_tokens or 0)))
        feat_size = side, side
    rest = tokens - feat_size[0] * feat_size[1]
    if not 0 <= rest <= MAX_PREFIX_TOKENS if num_prefix_tokens is None else rest != num_prefix_tokens:
        raise ValueError(
            f"{tokens} tokens are no map of {feat_size[0]} x {feat_size[1]} behind "
            f"{f'at most {MAX_PREFIX_TOKENS}' if num_prefix_tokens is None else num_prefix_tokens} prefix tokens; give "
            f"attn_layer the feat_size and num_prefix_tokens of the model, or use a model that follows its images "
            f"(swap_attention, or by name)."
        )
    return Layout(feat_size, rest)
