"""Synthesizer: attention without products of tokens (Tay et al. 2020, arXiv 2005.00743).

Letters: B batch, H heads, N = Y * X tokens of a map of Y rows and X columns, row by row, C channels, D channels of a
head.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits, check_heads
from soft_vit.layers.embed import interpolate_maps
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.layout import FeatSize, Layout, as_map, merge_heads, split_heads
from soft_vit.ops.numerics import at_least_float32, check_choice

NO_MASK = "its learned scores belong to positions"


Form = Literal["dense", "random"]


def resample_map(weight: Tensor, feat_size: Sequence[int]) -> Tensor:
    """Resample values on a map `[..., Y, X]` to another, `[..., Y', X']`: bilinear (align_corners=False)."""
    old, new = tuple(weight.shape[-2:]), tuple(feat_size)
    maps = weight if old == new else interpolate_maps(weight.reshape(1, -1, *old), new)
    return maps.reshape(*weight.shape[:-2], *new)


def resample_pairs(weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Resample values of pairs of positions `[..., Y, X, Y, X]` to those of another map, `[..., Y', X', Y', X']`."""
    weight = resample_map(weight, feat_size)
    weight = resample_map(weight.movedim((-2, -1), (-4, -3)), feat_size)
    return weight.movedim((-2, -1), (-4, -3))


class Scores(nn.Module):
    """A source of scores: tokens `[B, N, C]` to `[B, H, N, N]`, or `[1, H, N, N]` where scores ignore the tokens."""

    resamplers: ClassVar[dict[str, Callable[[Tensor, tuple[int, int]], Tensor]]]
    """The parameters that belong to a map, and how each is resampled."""

    def on(self, feat_size: tuple[int, int]) -> list[Tensor]:
        """Return the parameters of `resamplers` for a map."""
        return [resample(getattr(self, name), feat_size) for name, resample in self.resamplers.items()]


class DenseScores(Scores):
    """`W2 relu(W1 x)`: scores of all positions, computed from each token alone."""

    resamplers: ClassVar = {"weight": resample_map, "bias": resample_map}

    def __init__(self, dim: int, num_heads: int, feat_size: tuple[int, int], **dd: Any) -> None:
        super().__init__()
        self.head_dim = check_heads(dim, num_heads)
        self.hidden = Linear(dim, dim, **dd)
        self.weight = nn.Parameter(torch.empty(num_heads, self.head_dim, *feat_size, **dd))
        self.bias = nn.Parameter(torch.empty(num_heads, 1, *feat_size, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.head_dim**-0.5)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        weight, bias = self.on(feat_size)
        return split_heads(self.hidden(x).relu(), len(weight)) @ weight.flatten(2) + bias.flatten(2)


class RandomScores(Scores):
    """One learned matrix for each head, independent of the tokens."""

    resamplers: ClassVar = {"weight": resample_pairs}

    def __init__(self, dim: int, num_heads: int, feat_size: tuple[int, int], **dd: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, *feat_size, *feat_size, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        (weight,) = self.on(feat_size)
        return weight.flatten(3).flatten(1, 2)[None]


class SynthesizerAttention(Attention):
    """`softmax(S) V` with scores S that are computed without products of tokens.

    The weights belong to the map feat_size; on another they are resampled.

    scores: `dense` (from each token by a two-layer perceptron) or `random` (a learned matrix).
    """

    traits = Traits("N^2", "scores of zero where no weight gives one", mask_refusal=NO_MASK, fixed_grid=True, qk=None)
    projections: ClassVar[dict[str, str]] = {"v": "v"}
    scores: Mapping[str, Scores]

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: FeatSize,
        qkv_bias: bool = True,
        scores: Form = "dense",
        attn_drop: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, feat_size=feat_size, **options)
        dd = device_and_dtype(options)
        self.attn_drop = attn_drop
        feat_size = as_map(feat_size)
        self.form = check_choice("scores", scores, get_args(Form))
        source = (DenseScores if scores == "dense" else RandomScores)(dim, num_heads, feat_size, **dd)
        # Its parameters are named by the form: scores.dense.weight.
        self.scores = nn.ModuleDict({scores: source})  # type: ignore[assignment]  # a ModuleDict knows no types
        self.resamplers = {f"scores.{scores}.{name}": resample for name, resample in source.resamplers.items()}
        self.v = Linear(dim, dim, bias=qkv_bias, **dd)
        self.proj = Linear(dim, dim, **dd)

    @property
    def source(self) -> Scores:
        """Return the module that computes the scores."""
        return self.scores[self.form]

    def attend(self, scores: Tensor, v: Tensor) -> Tensor:
        """Mix values `[B, H, N, C / H]` by the softmax of scores `[B or 1, H, N, N]`."""
        weights = at_least_float32(scores).softmax(-1)
        if self.dropout_p > 0:
            weights = F.dropout(weights.expand(v.shape[0], -1, -1, -1), self.dropout_p)
        return weights.to(v.dtype) @ v

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        P, scores = layout.num_prefix_tokens, self.source(x, layout.grid_size)
        if P:
            # Prefix tokens get a score of zero. Those of random scores also give zero to all, as they have no row.
            scores = F.pad(scores, (P, 0, x.shape[1] - scores.shape[2], 0))
        x = self.attend(scores, split_heads(self.v(x), self.num_heads))
        return self.proj_drop(self.proj(merge_heads(x)))
