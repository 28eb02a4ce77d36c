"""Softmax-free attention (SOFT, arXiv 2110.11945) and its normalised form (arXiv 2207.03341)."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, grid_limit, merge_heads, split_heads, window
from soft_vit.layers.attention.landmarks import NO_MASK_ON_A_MAP, far_apart, run_averages, window_averages
from soft_vit.layers.attention.local_conv import head_conv, local_conv
from soft_vit.layers.sizes import same_size, smaller
from soft_vit.ops import soft_attention
from soft_vit.ops.layout import FeatSize, Layout
from soft_vit.ops.numerics import BACKENDS, Backend, at_least_float32, check_choice
from soft_vit.ops.soft.options import Inverse, InverseOptions, NewtonGradient, NewtonStart

Sampling = Literal["conv", "avg", "random", "first"]

# Exact row sums are at least 1, a token's kernel with itself; approximated ones can be anything.
LEAST_ROW_SUM = 0.01
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def as_autocast(x: Tensor) -> Tensor:
    """Cast x as autocast would for a layer."""
    device_type = x.device.type
    if x.dtype == torch.float32 and device_type != "meta" and torch.is_autocast_enabled(device_type):
        return x.to(torch.get_autocast_dtype(device_type))
    return x


def expanded_weight(linear: nn.Linear, batch_size: int) -> Tensor:
    """The weight `[B, C', C]` for batched products.

    Cast before it is expanded: autocast would cast, and in backward sum, a copy for each image.
    """
    return as_autocast(linear.weight).expand(batch_size, -1, -1)


def project_to_map(x: Tensor, linear: nn.Linear, scale: float = 1.0) -> Tensor:
    """`scale * linear(x)` for tokens `[B, N, C]`, as a map in memory: `[B, C', N]`.

    Head-wise maps and matrices are views of that layout, so no head is ever copied.
    """
    if type(linear) is not nn.Linear or torch.compiler.is_exporting():
        return scale * linear(x).mT
    weight = expanded_weight(linear, x.shape[0])
    if linear.bias is None:
        return scale * torch.bmm(weight, x.mT)
    return torch.baddbmm(as_autocast(linear.bias)[:, None], weight, x.mT, beta=scale, alpha=scale)


def project_from_map(x: Tensor, linear: nn.Linear) -> Tensor:
    """`linear` on a map `[B, C, N]`, giving tokens `[B, N, C']`."""
    if type(linear) is not nn.Linear or linear.bias is None or torch.compiler.is_exporting():
        return linear(x.mT)
    return torch.baddbmm(as_autocast(linear.bias), x.mT, expanded_weight(linear, x.shape[0]).mT)


def reduced_grid(feat_size: Sequence[int], size: tuple[int, int], limit: tuple[int, int] | None) -> tuple[int, int]:
    """The grid of whole windows of that size on a map, at most `limit`; a remainder of the map is dropped."""
    if feat_size[0] < size[0] or feat_size[1] < size[1]:
        raise ValueError(
            f"A map of {feat_size[0]} x {feat_size[1]} tokens has no window of {size[0]} x {size[1]} to sample a "
            f"bottleneck token from; use an image of at least 32 x 32 pixels, or a smaller sr_ratio."
        )
    height, width = feat_size[0] // size[0], feat_size[1] // size[1]
    return (height, width) if limit is None else (smaller(height, limit[0]), smaller(width, limit[1]))


def conv_tokens(
    q: Tensor, conv: nn.Module, size: tuple[int, int], limit: tuple[int, int] | None, layout: Layout
) -> tuple[Tensor, Tensor | None]:
    """Convolution of query maps `[P, D, H, W]` with kernel = stride, pooled to at most `limit`: tokens `[P, M, D]`.

    Second, bool `[B, M]`: which of them exist, where some tokens of a sequence do not count; otherwise None.
    """
    grid = reduced_grid(q.shape[-2:], size, limit)
    tokens = conv(q)
    if layout.grid_mask is not None:
        windows = whole_windows(layout.grid_mask, size[0])
        require_window(windows.any(1), size[0])
        return masked_averages(tokens, windows, 1, limit)
    if not same_size(tokens.shape[-2:], grid):
        tokens = window_averages(tokens, grid)
    return tokens.flatten(2).mT, None


def average_tokens(
    q: Tensor, size: tuple[int, int], limit: tuple[int, int] | None, layout: Layout
) -> tuple[Tensor, Tensor | None]:
    """Averages over equal windows of query maps `[P, D, H, W]`: tokens `[P, M, D]`; second as in `conv_tokens`."""
    grid = reduced_grid(q.shape[-2:], size, limit)
    if layout.grid_mask is not None:
        require_window(layout.grid_mask.sum(1) >= size[0], size[0])
        return masked_averages(q, layout.grid_mask, size[0], limit)
    return window_averages(q, grid).flatten(2).mT, None


def masked_averages(maps: Tensor, mask: Tensor, length: int, limit: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """`run_averages` of sequences as maps `[P, D, N, 1]` whose tokens count as mask `[B, N]` says: `[P, M, D]`."""
    tokens = maps.flatten(2).mT.unflatten(0, (mask.shape[0], -1))
    tokens, exist = run_averages(tokens, mask, length, None if limit is None else limit[0])
    return tokens.flatten(0, 1), exist


def first_tokens(q: Tensor, size: tuple[int, int], limit: tuple[int, int] | None) -> Tensor:
    """The first tokens of query maps `[P, D, H, W]` in raster order: `[P, M, D]`."""
    height, width = reduced_grid(q.shape[-2:], size, limit)
    return q.flatten(2)[..., : height * width].mT


def random_tokens(q: Tensor, size: tuple[int, int], limit: tuple[int, int] | None, redraw: bool) -> Tensor:
    """One token from each of M equal runs of query maps `[P, D, H, W]`: `[P, M, D]`, no token twice.

    redraw: draw the places within the runs; otherwise a fixed low-discrepancy sequence chooses them.
    """
    height, width = reduced_grid(q.shape[-2:], size, limit)
    count, num_tokens = height * width, q.shape[-2] * q.shape[-1]
    run = torch.arange(count, device=q.device, dtype=torch.float32)
    place = torch.rand(count, device=q.device) if redraw else (run * GOLDEN_RATIO) % 1
    index = ((run + place) * (num_tokens / count)).long().clamp(max=num_tokens - 1)
    return q.flatten(2)[..., index].mT


def whole_windows(mask: Tensor, length: int) -> Tensor:
    """Which windows of a sequence consist of tokens that count: `[B, N]` to `[B, N // length]`, bool."""
    count = mask.shape[1] // length
    return mask[:, : count * length].unflatten(1, (count, length)).all(2)


def require_window(found: Tensor, length: int) -> None:
    """ValueError unless found `[B]` is true for every image: that its tokens which count fill a window."""
    if not torch.compiler.is_compiling() and not found.all():
        raise ValueError(
            f"key_padding_mask leaves an image without a window of {length} tokens to sample a bottleneck token from; "
            f"use longer sequences, or a smaller sr_ratio."
        )


def bottleneck_heads(tokens: Tensor, exist: Tensor | None, num_heads: int) -> Tensor:
    """Tokens `[B * H, M, D]` as those of every head `[B, H, M, D]`; where some do not exist, these are far from all."""
    tokens = tokens.unflatten(0, (tokens.shape[0] // num_heads, num_heads))
    return tokens if exist is None else far_apart(tokens, exist)


def query_maps(q: Tensor, layout: Layout, num_heads: int) -> Tensor:
    """Tokens in memory as `[B, H * D, P + N]` as a map of each head, `[B * H, D, Y, X]`, without prefix tokens."""
    grid = q[..., layout.num_prefix_tokens :] if layout.num_prefix_tokens else q
    return grid.reshape(q.shape[0] * num_heads, q.shape[1] // num_heads, *layout.feat_size)


def keep_values(v: Tensor, layout: Layout) -> Tensor:
    """Values `[B, C, P + N]`, zero where a token does not count."""
    return v if layout.mask is None else v.masked_fill(~layout.mask[:, None], 0)


def local_tokens(v: Tensor, conv: nn.Conv2d, layout: Layout, num_heads: int) -> Tensor:
    """Depthwise convolution of values `[B, C, P + N]` on their map: `[B, C, P + N]`, zero at prefix tokens."""
    maps = head_conv(query_maps(v, layout, 1), conv, num_heads).flatten(2)
    return F.pad(maps, (layout.num_prefix_tokens, 0)) if layout.num_prefix_tokens else maps


def row_counts(v: Tensor, mask: Tensor | None) -> Tensor:
    """1 for each token of values `[B, H, N, D]` that counts, as mask `[B, N]` says, otherwise 0: `[B, H, N, 1]`."""
    ones = torch.ones_like(v[..., :1])
    return ones if mask is None else ones * mask[:, None, :, None]


def divide_by_sums(x: Tensor, least: float) -> Tensor:
    """`[..., D + 1]`, of which the last are sums, to the others over these: `[..., D]`, near 0 for sums below least."""
    sums = at_least_float32(x[..., -1:])
    return x[..., :-1] * (sums / (sums.square() + least**2)).to(x.dtype)


class SoftAttention(Attention):
    """`K1 A^+ (K1^T V)` through bottleneck tokens sampled from the query map, plus a depthwise convolution of V.

    K1 is the kernel `exp(-||q - l||^2 / 2)` of queries q over `D^(1/4)` and bottleneck tokens l, A that of the l.

    sr_ratio: side of the window that one bottleneck token stands for.
    sampling: `conv` (a convolution with kernel = stride = sr_ratio shared by the heads, LayerNorm, GELU: the released
        models), `avg` (window averages: the paper's default), `random` (redrawn at each training step) or `first`.
    num_bottleneck: number of bottleneck tokens on the map `feat_size`, a square number; by default that of sr_ratio.
        The window of a convolution shrinks with it where the map is small, so weights belong to a feat_size.
    max_bottleneck: grid to which sampled tokens are pooled where theirs is larger, which makes the cost linear in N; by
        default there are N / r^2 of them, r being sr_ratio, and the inverse costs their cube.
    local_kernel: side of the depthwise convolution, odd, one kernel for each head; 0 for none; by default the next odd
        number above sr_ratio.
    inverse, newton_iters, newton_start, newton_gradient, ridge, backend: see `soft_vit.ops.soft_attention`.

    Departures from the released models, off by default:

    scale_bottleneck: divide convolved bottleneck tokens by `D^(1/4)`, as queries are; `avg` tokens are queries already.
    learned_bandwidth: multiply queries and bottleneck tokens by a learned positive number for each head, 1 at first.
    normalize_rows: divide each token's result by the row sum `K1 A^+ (K1^T 1)`, which makes it an average of values.
    """

    cost: str = "N^2/r^2 + N^3/r^6"
    key_is_query: ClassVar[bool] = True
    prefix: ClassVar[str] = "as all tokens, save that no bottleneck token samples them"
    normalize: ClassVar[bool] = False
    plus: ClassVar[bool] = False
    default_start: ClassVar[NewtonStart] = "rowsum"
    default_ridge: ClassVar[float] = 0.01

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: FeatSize,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        sampling: Sampling = "conv",
        num_bottleneck: int | None = None,
        max_bottleneck: int | tuple[int, int] | None = None,
        local_kernel: int | None = None,
        inverse: Inverse = "newton",
        newton_iters: int = 20,
        newton_start: NewtonStart | None = None,
        newton_gradient: NewtonGradient = "closed_form",
        ridge: float | None = None,
        backend: Backend | None = None,
        scale_bottleneck: bool | None = None,
        learned_bandwidth: bool | None = None,
        normalize_rows: bool | None = None,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, feat_size=feat_size, sr_ratio=sr_ratio, **dd)
        self.sampling = check_choice("sampling", sampling, get_args(Sampling))
        self.backend = None if backend is None else check_choice("backend", backend, BACKENDS)
        if ridge is None:
            # Without a ridge, equal tokens have no Cholesky factor.
            ridge = SoftAttention.default_ridge if inverse == "cholesky" else self.default_ridge
        start = self.default_start if newton_start is None else newton_start
        # By the names that are given here: those of the operator are others.
        check_choice("newton_start", start, get_args(NewtonStart))
        check_choice("newton_gradient", newton_gradient, get_args(NewtonGradient))
        if newton_iters < 0:
            raise ValueError(f"newton_iters={newton_iters} must not be negative; the released models have 20.")
        self.options = InverseOptions(inverse, self.normalize, newton_iters, ridge, start, newton_gradient)
        self.limit = grid_limit("max_bottleneck", max_bottleneck, self.sequence)
        if num_bottleneck is not None:
            rows, columns = bottleneck_grid(num_bottleneck, feat_size)
            largest = (rows, columns) if self.limit is None else self.limit
            self.limit = min(rows, largest[0]), min(columns, largest[1])
            self.sr_ratio = min(sr_ratio, min(feat_size) // rows)
        if self.limit is not None:
            self.cost = "N"
        self.no_mask = "" if self.sequence else NO_MASK_ON_A_MAP
        if sampling not in ("conv", "avg"):
            self.no_mask = f"sampling={sampling!r} takes its tokens from a full sequence; use 'conv' or 'avg'"

        self.q = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.v = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.window = window(self.sr_ratio, self.sequence)
        if sampling == "conv":
            self.sample = nn.Conv2d(self.head_dim, self.head_dim, self.window, stride=self.window, bias=False, **dd)
            self.sample_norm = nn.LayerNorm(self.head_dim, eps=1e-5, **dd)
        self.scale_bottleneck = self.plus if scale_bottleneck is None else scale_bottleneck
        self.normalize_rows = self.plus if normalize_rows is None else normalize_rows
        learned_bandwidth = self.plus if learned_bandwidth is None else learned_bandwidth
        self.log_bandwidth = nn.Parameter(torch.zeros(num_heads, **dd)) if learned_bandwidth else None
        self.local = local_conv(num_heads, local_kernel, sr_ratio, self.sequence, **dd)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def reset_parameters(self) -> None:
        """A bandwidth of 1, in place."""
        if self.log_bandwidth is not None:
            nn.init.zeros_(self.log_bandwidth)

    def sample_bottleneck(self, q: Tensor, layout: Layout) -> Tensor:
        """Bottleneck tokens `[B, heads, M, D]` of queries `[B, heads * D, P + N]`."""
        maps, exist = query_maps(q, layout, self.num_heads), None
        if self.sampling == "conv":
            tokens, exist = conv_tokens(maps, self.sample, self.window, self.limit, layout)
            tokens = F.gelu(self.sample_norm(tokens))
            if self.scale_bottleneck:
                tokens = tokens * self.head_dim**-0.25
        elif self.sampling == "avg":
            tokens, exist = average_tokens(maps, self.window, self.limit, layout)
        elif self.sampling == "first":
            tokens = first_tokens(maps, self.window, self.limit)
        else:
            tokens = random_tokens(maps, self.window, self.limit, self.training)
        return bottleneck_heads(tokens, exist, self.num_heads)

    def attend(
        self, q: Tensor, bottleneck: Tensor, v: Tensor, residual: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Queries and values `[B, heads, N, C / heads]` through bottleneck tokens `[B, heads, M, C / heads]`.

        residual: shaped as the values, added to the result. mask: `[B, N]`, the tokens that count in a row sum; values
        of others are zero.
        """
        if not self.normalize_rows:
            return self._product(q, bottleneck, v, residual)
        counts = row_counts(v, mask)
        # Sums over many tokens that are alike would leave the range of fp16.
        scale = v.shape[2] ** -0.5
        x = divide_by_sums(self._product(q, bottleneck, scale * torch.cat([v, counts], dim=-1)), scale * LEAST_ROW_SUM)
        return x if residual is None else x + residual

    def _product(self, q: Tensor, bottleneck: Tensor, v: Tensor, residual: Tensor | None = None) -> Tensor:
        how = self.options
        # One by one: torch.compile of torch 2.11 captures no `asdict`.
        return soft_attention(
            q,
            bottleneck,
            v,
            inverse=how.inverse,
            normalize=how.normalize,
            iters=how.iters,
            ridge=how.ridge,
            start=how.start,
            gradient=how.gradient,
            residual=residual,
            backend=self.backend,
        )

    def scaled_queries(self, x: Tensor, rotate: Rotate | None) -> Tensor:
        """Queries of tokens `[B, P + N, C]` over `D^(1/4)`, as a map in memory: `[B, C, P + N]`."""
        scale = self.head_dim**-0.25
        if isinstance(self.q_norm, nn.Identity) and rotate is None:
            return project_to_map(x, self.q, scale)
        return scale * merge_heads(self.queries(split_heads(self.q(x), self.num_heads), rotate)).mT

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        B, N, C = x.shape
        heads = (B, self.num_heads, self.head_dim, N)
        q = self.scaled_queries(x, rotate)
        v = keep_values(project_to_map(x, self.v), layout)
        bottleneck = self.sample_bottleneck(q, layout)
        local = None
        if self.local is not None:
            local = local_tokens(v, self.local, layout, self.num_heads).reshape(heads).transpose(2, 3)
        q, v = q.reshape(heads).transpose(2, 3), v.reshape(heads).transpose(2, 3)
        if self.log_bandwidth is not None:
            bandwidth = self.log_bandwidth.exp()[:, None, None]
            q, bottleneck = bandwidth * q, bandwidth * bottleneck
        x = self.attend(q, bottleneck, v, local, layout.mask)
        x = x.transpose(2, 3).reshape(B, C, N)
        return self.proj_drop(project_from_map(x, self.proj))


class SoftNormAttention(SoftAttention):
    """`K1 D A^+ D (K1^T V)`: the normalised form, `D = diag(rowsum(A))^(-1/2)`; by default without a ridge.

    newton_start: `guarded_image` computes each image as the released models compute it alone; with `guarded_batch`, as
        in their code, an image's output depends on the others of its batch.
    newton_gradient: `unrolled` is the released gradient, another one where the iteration has not converged.
    """

    normalize: ClassVar[bool] = True
    default_start: ClassVar[NewtonStart] = "guarded_image"
    default_ridge: ClassVar[float] = 0.0


class SoftPlusAttention(SoftAttention):
    """`K1 A^+ (K1^T V) / K1 A^+ (K1^T 1)`: SOFT for training from scratch.

    By default with scale_bottleneck, learned_bandwidth and normalize_rows.
    """

    plus: ClassVar[bool] = True


def bottleneck_grid(num_bottleneck: int, feat_size: FeatSize) -> tuple[int, int]:
    """The square grid of num_bottleneck tokens on a map, or that many along a sequence; ValueError unless it fits."""
    if len(feat_size) == 1:
        if not 1 <= num_bottleneck <= feat_size[0]:
            raise ValueError(f"num_bottleneck={num_bottleneck} does not fit a sequence; use 1 to {feat_size[0]}.")
        return num_bottleneck, 1
    side = math.isqrt(max(num_bottleneck, 0))
    if side < 1 or side * side != num_bottleneck or side > min(feat_size):
        raise ValueError(
            f"num_bottleneck={num_bottleneck} is not a square grid on a map of {feat_size[0]} x {feat_size[1]} tokens; "
            f"use a square number from 1 to {min(feat_size) ** 2}, such as {min(7, *feat_size) ** 2}."
        )
    return side, side
