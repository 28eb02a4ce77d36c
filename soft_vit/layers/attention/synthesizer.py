"""Synthesizer: attention without products of tokens (Tay et al. 2020, arXiv 2005.00743).

Letters: B batch, H heads, N = Y * X tokens of a map of Y rows and X columns, row by row, C channels, D channels of a
head, R rank.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, check_heads, merge_heads, split_heads
from soft_vit.layers.embed import interpolate_maps
from soft_vit.ops.layout import FeatSize, Layout, as_map
from soft_vit.ops.numerics import at_least_float32


def resample_map(weight: Tensor, feat_size: Sequence[int]) -> Tensor:
    """Values on a map `[..., Y, X]` on another, `[..., Y', X']`: bilinear (align_corners=False), or as they are."""
    old, new = tuple(weight.shape[-2:]), tuple(feat_size)
    if old == new:
        return weight
    return interpolate_maps(weight.reshape(1, -1, *old), new).reshape(*weight.shape[:-2], *new)


def resample_rows(weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Values of the rows of a map `[..., Y]` for those of another, `[..., Y']`."""
    return resample_map(weight[..., None], (feat_size[0], 1))[..., 0]


def resample_columns(weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Values of the columns of a map `[..., X]` for those of another, `[..., X']`."""
    return resample_map(weight[..., None, :], (1, feat_size[1]))[..., 0, :]


def resample_pairs(weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Values of pairs of places of a map `[..., Y, X, Y, X]` for those of another, `[..., Y', X', Y', X']`."""
    weight = resample_map(weight, feat_size)
    weight = resample_map(weight.movedim((-2, -1), (-4, -3)), feat_size)
    return weight.movedim((-2, -1), (-4, -3))


def dense_scores(hidden: Tensor, weight: Tensor, bias: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Hidden features `[B, H, N, D]` by the maps `[H, D, Y, X]` and `[H, 1, Y, X]`: scores `[B, H, N, N]`."""
    return hidden @ resample_map(weight, feat_size).flatten(2) + resample_map(bias, feat_size).flatten(2)


def factorized_dense_scores(
    hidden: Tensor, rows: Tensor, rows_bias: Tensor, columns: Tensor, columns_bias: Tensor, feat_size: tuple[int, int]
) -> Tensor:
    """Scores `[B, H, N, N]`: a score for the key's row times one for its column, from hidden features `[B, H, N, D]`.

    rows: `[H, D, Y]`, rows_bias: `[H, 1, Y]`, columns: `[H, D, X]`, columns_bias: `[H, 1, X]`.
    """
    row = hidden @ resample_rows(rows, feat_size) + resample_rows(rows_bias, feat_size)
    column = hidden @ resample_columns(columns, feat_size) + resample_columns(columns_bias, feat_size)
    return (row[..., :, None] * column[..., None, :]).flatten(3)


def random_scores(weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """The scores `[H, Y, X, Y, X]` themselves: `[1, H, N, N]`."""
    return resample_pairs(weight, feat_size).flatten(3).flatten(1, 2)[None]


def factorized_random_scores(query: Tensor, key: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Scores of rank R from the maps query and key `[H, R, Y, X]`: `[1, H, N, N]`."""
    return (resample_map(query, feat_size).flatten(2).mT @ resample_map(key, feat_size).flatten(2))[None]


def synthetic_attention(scores: Tensor, v: Tensor, dropout_p: float = 0.0) -> Tensor:
    """`softmax(scores) v` for scores `[B or 1, H, N, N]` and v `[B, H, N, D]`, in v's dtype."""
    weights = at_least_float32(scores).softmax(-1)
    if dropout_p > 0:
        weights = F.dropout(weights.expand(v.shape[0], -1, -1, -1), dropout_p)
    return weights.to(v.dtype) @ v


def prefixed(scores: Tensor, layout: Layout) -> Tensor:
    """Scores `[B or 1, H, N or P + N, N]` as `[B or 1, H, P + N, P + N]`, zero where there are none."""
    (Y, X), P, _ = layout
    return F.pad(scores, (P, 0, P + Y * X - scores.shape[2], 0)) if P else scores


class Scores(nn.Module):
    """A source of scores: tokens `[B, N, C]` to `[B, H, N, N]`, or `[1, H, N, N]` where no token is looked at."""

    def resampled(self, name: str, weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
        """Values of this module's parameter of that name, learned on any map, for the map feat_size."""
        return weight

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        raise NotImplementedError


class DenseScores(Scores):
    """`W2 relu(W1 x)`: every token says by itself how much it looks at each place."""

    def __init__(self, dim: int, num_heads: int, feat_size: tuple[int, int], device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.head_dim = check_heads(dim, num_heads)
        self.hidden = nn.Linear(dim, dim, **dd)
        self.weight = nn.Parameter(torch.empty(num_heads, self.head_dim, *feat_size, **dd))
        self.bias = nn.Parameter(torch.empty(num_heads, 1, *feat_size, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.head_dim**-0.5)
        nn.init.zeros_(self.bias)

    def resampled(self, name: str, weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
        return weight if name.startswith("hidden") else resample_map(weight, feat_size)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        hidden = self.hidden(x).relu().unflatten(2, (-1, self.head_dim)).transpose(1, 2)
        return dense_scores(hidden, self.weight, self.bias, feat_size)


class FactorizedDenseScores(Scores):
    """The dense scores as a product of one for the key's row and one for its column: the paper's factors of N."""

    def __init__(self, dim: int, num_heads: int, feat_size: tuple[int, int], device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.head_dim = check_heads(dim, num_heads)
        self.hidden = nn.Linear(dim, dim, **dd)
        self.rows = nn.Parameter(torch.empty(num_heads, self.head_dim, feat_size[0], **dd))
        self.rows_bias = nn.Parameter(torch.empty(num_heads, 1, feat_size[0], **dd))
        self.columns = nn.Parameter(torch.empty(num_heads, self.head_dim, feat_size[1], **dd))
        self.columns_bias = nn.Parameter(torch.empty(num_heads, 1, feat_size[1], **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight, bias in ((self.rows, self.rows_bias), (self.columns, self.columns_bias)):
            nn.init.normal_(weight, std=self.head_dim**-0.5)
            nn.init.ones_(bias)

    def resampled(self, name: str, weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
        if name.startswith("hidden"):
            return weight
        return (resample_rows if name.startswith("rows") else resample_columns)(weight, feat_size)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        hidden = self.hidden(x).relu().unflatten(2, (-1, self.head_dim)).transpose(1, 2)
        return factorized_dense_scores(hidden, self.rows, self.rows_bias, self.columns, self.columns_bias, feat_size)


class RandomScores(Scores):
    """One learned matrix for each head, whatever the tokens are."""

    def __init__(self, num_heads: int, feat_size: tuple[int, int], device=None, dtype=None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, *feat_size, *feat_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def resampled(self, name: str, weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
        return resample_pairs(weight, feat_size)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        return random_scores(self.weight, feat_size)


class FactorizedRandomScores(Scores):
    """One learned matrix of low rank for each head."""

    def __init__(self, num_heads: int, feat_size: tuple[int, int], rank: int, device=None, dtype=None) -> None:
        super().__init__()
        if rank < 1:
            raise ValueError(f"rank={rank} leaves no scores; use a positive rank, such as 8.")
        self.query = nn.Parameter(torch.empty(num_heads, rank, *feat_size, device=device, dtype=dtype))
        self.key = nn.Parameter(torch.empty(num_heads, rank, *feat_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Products of rank many pairs of these have unit variance, as the scores of the full matrix do.
        for weight in (self.query, self.key):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.25)

    def resampled(self, name: str, weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
        return resample_map(weight, feat_size)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        return factorized_random_scores(self.query, self.key, feat_size)


class SynthesizerAttention(Attention):
    """`softmax(S) V` with scores S that no product of two tokens enters.

    The weights belong to the map feat_size; on another they are resampled.

    scores: `dense` (from each query by a two-layer perceptron), `random` (a learned matrix), `factorized_dense` (a
        score for the key's row times one for its column), `factorized_random` (a learned matrix of low rank), or a
        mixture of several, such as `dense+random`: their sum with learned weights that are a softmax.
    rank: of `factorized_random`.
    """

    cost: str = "N^2"
    fixed_feat_size: ClassVar[bool] = True
    prefix: ClassVar[str] = "scores of zero where no weight gives one"
    qk_norm: ClassVar[bool] = False
    no_mask: str = "its learned scores belong to places"
    scores: Mapping[str, Scores]

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: FeatSize,
        qkv_bias: bool = True,
        scores: str = "dense",
        rank: int = 8,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
        **options: Any,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, feat_size=feat_size, **dd, **options)
        self.attn_drop = attn_drop
        self.feat_size = feat_size = as_map(feat_size)
        makers: dict[str, Callable[[], Scores]] = {
            "dense": lambda: DenseScores(dim, num_heads, feat_size, **dd),
            "random": lambda: RandomScores(num_heads, feat_size, **dd),
            "factorized_dense": lambda: FactorizedDenseScores(dim, num_heads, feat_size, **dd),
            "factorized_random": lambda: FactorizedRandomScores(num_heads, feat_size, rank, **dd),
        }
        names = scores.split("+")
        if len(set(names)) < len(names) or not makers.keys() >= set(names):
            raise ValueError(
                f"scores={scores!r} is not known; use one of {', '.join(makers)}, or several joined by '+'."
            )
        modules = nn.ModuleDict({name: makers[name]() for name in names})
        self.scores = modules  # type: ignore[assignment]  # a ModuleDict knows no type of its modules
        self.mixture = nn.Parameter(torch.zeros(len(names), **dd)) if len(names) > 1 else None
        self.v = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def reset_parameters(self) -> None:
        """Equal shares of a mixture."""
        if self.mixture is not None:
            nn.init.zeros_(self.mixture)

    def attend(self, scores: Tensor, v: Tensor) -> Tensor:
        """Scores `[B or 1, heads, N, N]` and values `[B, heads, N, C / heads]` to the result of the values' shape."""
        return synthetic_attention(scores, v, self.dropout_p)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        v = split_heads(self.v(x), self.num_heads)
        parts = [prefixed(scores(x, layout.feat_size), layout) for scores in self.scores.values()]
        scores = parts[0]
        if self.mixture is not None:
            shares = self.mixture.softmax(0)
            scores = shares[0] * scores
            for share, part in zip(shares[1:], parts[1:], strict=True):
                scores = scores + share * part
        return self.proj_drop(self.proj(merge_heads(self.attend(scores, v))))

    def resize(self, feat_size: tuple[int, int]) -> None:
        self.feat_size = feat_size
        for scores in self.scores.values():
            for name, weight in list(scores.named_parameters()):
                with torch.no_grad():
                    resampled = scores.resampled(name, weight, feat_size)
                if resampled is not weight:
                    parameter = nn.Parameter(resampled.clone(), requires_grad=weight.requires_grad)
                    setattr(scores, name, parameter)

    def resample_state(self, prefix: str, state_dict: MutableMapping[str, Tensor]) -> None:
        for kind, scores in self.scores.items():
            for name, weight in scores.named_parameters():
                key = f"{prefix}scores.{kind}.{name}"
                if key in state_dict and state_dict[key].ndim == weight.ndim:
                    state_dict[key] = scores.resampled(name, state_dict[key], self.feat_size)
