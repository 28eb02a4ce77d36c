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
    """Resample values on a map `[..., Y, X]` to another, `[..., Y', X']`: bilinear (align_corners=False)."""
    old, new = tuple(weight.shape[-2:]), tuple(feat_size)
    if old == new:
        return weight
    return interpolate_maps(weight.reshape(1, -1, *old), new).reshape(*weight.shape[:-2], *new)


def resample_rows(weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Resample values of the rows of a map `[..., Y]` to those of another, `[..., Y']`."""
    return resample_map(weight[..., None], (feat_size[0], 1))[..., 0]


def resample_columns(weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Resample values of the columns of a map `[..., X]` to those of another, `[..., X']`."""
    return resample_map(weight[..., None, :], (1, feat_size[1]))[..., 0, :]


def resample_pairs(weight: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Resample values of pairs of places `[..., Y, X, Y, X]` to those of another map, `[..., Y', X', Y', X']`."""
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

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        raise NotImplementedError


class DenseScores(Scores):
    """`W2 relu(W1 x)`: each token alone determines how much it looks at each place."""

    resamplers: ClassVar = {"weight": resample_map, "bias": resample_map}

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

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        weight, bias = self.on(feat_size)
        hidden = split_heads(self.hidden(x).relu(), len(weight))
        return hidden @ weight.flatten(2) + bias.flatten(2)


class FactorizedDenseScores(Scores):
    """Dense scores as a product of one for the key's row and one for its column: the paper's factors of N."""

    resamplers: ClassVar = {
        "rows": resample_rows,
        "rows_bias": resample_rows,
        "columns": resample_columns,
        "columns_bias": resample_columns,
    }

    def __init__(self, dim: int, num_heads: int, feat_size: tuple[int, int], device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.head_dim = check_heads(dim, num_heads)
        self.hidden = nn.Linear(dim, dim, **dd)
        for name, side in zip(("rows", "columns"), feat_size, strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(num_heads, self.head_dim, side, **dd)))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.empty(num_heads, 1, side, **dd)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name in ("rows", "columns"):
            nn.init.normal_(getattr(self, name), std=self.head_dim**-0.5)
            nn.init.ones_(getattr(self, f"{name}_bias"))

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        rows, rows_bias, columns, columns_bias = self.on(feat_size)
        hidden = split_heads(self.hidden(x).relu(), len(rows))
        row, column = hidden @ rows + rows_bias, hidden @ columns + columns_bias
        return (row[..., :, None] * column[..., None, :]).flatten(3)


class RandomScores(Scores):
    """One learned matrix for each head, whatever the tokens are."""

    resamplers: ClassVar = {"weight": resample_pairs}

    def __init__(self, num_heads: int, feat_size: tuple[int, int], device=None, dtype=None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, *feat_size, *feat_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        (weight,) = self.on(feat_size)
        return weight.flatten(3).flatten(1, 2)[None]


class FactorizedRandomScores(Scores):
    """One learned matrix of low rank for each head."""

    resamplers: ClassVar = {"query": resample_map, "key": resample_map}

    def __init__(self, num_heads: int, feat_size: tuple[int, int], rank: int, device=None, dtype=None) -> None:
        super().__init__()
        if rank < 1:
            raise ValueError(f"rank must be at least 1, got rank={rank}.")
        self.query = nn.Parameter(torch.empty(num_heads, rank, *feat_size, device=device, dtype=dtype))
        self.key = nn.Parameter(torch.empty(num_heads, rank, *feat_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Products of rank many pairs of these have unit variance, as the scores of the full matrix do.
        for weight in (self.query, self.key):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.25)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        query, key = self.on(feat_size)
        return (query.flatten(2).mT @ key.flatten(2))[None]


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
            raise ValueError(f"scores must be one of {', '.join(makers)}, or several joined by '+', got {scores!r}.")
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
        """Mix values `[B, H, N, C / H]` by the softmax of scores `[B or 1, H, N, N]`."""
        weights = at_least_float32(scores).softmax(-1)
        if self.dropout_p > 0:
            weights = F.dropout(weights.expand(v.shape[0], -1, -1, -1), self.dropout_p)
        return weights.to(v.dtype) @ v

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        P, parts = layout.num_prefix_tokens, [scores(x, layout.feat_size) for scores in self.scores.values()]
        if P:
            # Prefix tokens get a score of zero, and where scores ignore the tokens they give none either.
            parts = [F.pad(part, (P, 0, x.shape[1] - part.shape[2], 0)) for part in parts]
        scores = parts[0]
        if self.mixture is not None:
            shares = self.mixture.softmax(0)
            scores = shares[0] * scores
            for share, part in zip(shares[1:], parts[1:], strict=True):
                scores = scores + share * part
        x = self.attend(scores, split_heads(self.v(x), self.num_heads))
        return self.proj_drop(self.proj(merge_heads(x)))

    def resize(self, feat_size: tuple[int, int]) -> None:
        if feat_size == self.feat_size:
            return
        self.feat_size = feat_size
        for scores in self.scores.values():
            for name, weight in zip(scores.resamplers, scores.on(feat_size), strict=True):
                requires_grad = getattr(scores, name).requires_grad
                setattr(scores, name, nn.Parameter(weight.detach().clone(), requires_grad=requires_grad))

    def resample_state(self, prefix: str, state_dict: MutableMapping[str, Tensor]) -> None:
        for kind, scores in self.scores.items():
            for name, resample in scores.resamplers.items():
                key = f"{prefix}scores.{kind}.{name}"
                if key in state_dict and state_dict[key].ndim == getattr(scores, name).ndim:
                    state_dict[key] = resample(state_dict[key], self.feat_size)
