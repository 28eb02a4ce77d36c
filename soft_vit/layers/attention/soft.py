"""Softmax-free attention (SOFT, arXiv 2110.11945) and its normalised form (arXiv 2207.03341).

Letters: B batch, H heads, N tokens, C channels, D channels of a head, M bottleneck tokens.
"""

from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits
from soft_vit.layers.attention.bottleneck import bottleneck_grid, conv_tokens
from soft_vit.layers.attention.local_conv import local_conv, local_result
from soft_vit.layers.plain import Linear, device_and_dtype, may_read_weight
from soft_vit.ops.landmarks import (
    NO_MASK_ON_A_MAP,
    Limit,
    average_tokens,
    first_tokens,
    grid_limit,
    isolate_missing,
    random_tokens,
)
from soft_vit.ops.layout import FeatSize, Layout, merge_heads, split_heads, window
from soft_vit.ops.numerics import at_least, at_least_float32, check_choice
from soft_vit.ops.soft.attention import soft_attention_with_options
from soft_vit.ops.soft.options import BACKENDS, Backend, Inverse, InverseOptions, NewtonGradient, NewtonStart

Sampling = Literal["conv", "avg", "random", "first"]

# Exact row sums are at least 1, a token's kernel with itself; approximated ones can be anything.
MIN_ROW_SUM = 0.01


def cast_for_autocast(x: Tensor) -> Tensor:
    """Cast x as autocast would for a layer."""
    device = x.device.type
    lowers = x.dtype == torch.float32 and device != "meta" and torch.is_autocast_enabled(device)
    return x.to(torch.get_autocast_dtype(device)) if lowers else x


def expanded_weight(linear: nn.Linear, batch_size: int) -> Tensor:
    """Return the weight `[B, C', C]` for batched products.

    It is cast before it is expanded, as autocast would cast a copy for each image, and sum them in backward.
    """
    return cast_for_autocast(linear.weight).expand(batch_size, -1, -1)


def project_to_heads(x: Tensor, linear: nn.Linear, num_heads: int, scale: float = 1.0) -> Tensor:
    """Project tokens `[B, N, C]` to `scale * linear(x)` of every head, `[B, H, N, D]`, in memory `[B, H, D, N]`.

    A head's map and matrix are views of that layout, so that no head is ever copied. Runtimes choose their own layouts.
    """
    if torch.compiler.is_exporting():
        return split_heads(scale * linear(x), num_heads)
    if not may_read_weight(linear):
        y = scale * linear(x).mT
    elif linear.bias is None:
        y = scale * torch.bmm(expanded_weight(linear, x.shape[0]), x.mT)
    else:
        bias = cast_for_autocast(linear.bias)[:, None]
        y = torch.baddbmm(bias, expanded_weight(linear, x.shape[0]), x.mT, beta=scale, alpha=scale)
    return y.unflatten(1, (num_heads, -1)).mT


def project_from_heads(x: Tensor, linear: nn.Linear) -> Tensor:
    """Project heads `[B, H, N, D]`, laid out as by `project_to_heads`, to tokens `linear(x)` `[B, N, C]`."""
    if torch.compiler.is_exporting():
        return linear(merge_heads(x))
    x = x.mT.flatten(1, 2).mT
    if not may_read_weight(linear) or linear.bias is None:
        return linear(x)
    return torch.baddbmm(cast_for_autocast(linear.bias), x, expanded_weight(linear, x.shape[0]).mT)


def divide_by_sums(x: Tensor, smallest: float) -> Tensor:
    """Divide `[..., D + 1]` by its last channel, the sums: `[..., D]`, near 0 for sums below smallest."""
    # Not slices, whose gradients are each as large as x.
    x, sums = x.split([x.shape[-1] - 1, 1], dim=-1)
    sums = at_least_float32(sums)
    return x * (sums / (sums.square() + smallest**2)).to(x.dtype)


class SoftAttention(Attention):
    """`K1 A^+ (K1^T V)` through bottleneck tokens sampled from the query map, plus a depthwise convolution of V.

    K1 is the kernel `exp(-||q - l||^2 / 2)` of queries q over `D^(1/4)` and bottleneck tokens l, A that of the l.

    sr_ratio: side of the window that one bottleneck token stands for.
    sampling: `conv` (a convolution with kernel = stride = sr_ratio shared by the heads, LayerNorm, GELU: the released
        models), `avg` (window averages: the paper's default), `random` (redrawn at each training step) or `first`.
    num_bottleneck: number of bottleneck tokens on the map `feat_size`, a square number; by default that of sr_ratio.
        The window of a convolution shrinks with it where the map is small, so weights belong to a feat_size.
    max_bottleneck: the largest grid of bottleneck tokens; larger ones are pooled to it, which makes the cost linear in
        N. By default there are N / sr_ratio^2 bottleneck tokens, and the inverse costs their cube.
    local_kernel: side of the depthwise convolution, odd, one kernel for each head; 0 for none; by default the next odd
        number above sr_ratio.
    inverse, newton_iters, newton_start, newton_gradient, ridge, backend: see `soft_vit.ops.soft_attention`.

    Departures from the released models, off by default:

    scale_bottleneck: divide convolved bottleneck tokens by `D^(1/4)`, as queries are; `avg` tokens are queries already.
    learned_bandwidth: multiply queries and bottleneck tokens by a learned positive number for each head, 1 at first.
    normalize_rows: divide each token's result by the row sum `K1 A^+ (K1^T 1)`, which makes it an average of values.
    """

    traits = Traits("N^2/r^2 + N^3/r^6", "as all tokens, but left out of the bottleneck tokens", key_is_query=True)
    projections: ClassVar[dict[str, str]] = {"q": "q", "v": "v"}
    normalize: ClassVar[bool] = False
    default_newton_start: ClassVar[NewtonStart] = "rowsum"
    default_ridge: ClassVar[float] = 0.01
    default_scale_bottleneck = default_learned_bandwidth = default_normalize_rows = False

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
        max_bottleneck: Limit = None,
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
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, feat_size=feat_size, sr_ratio=sr_ratio, **options)
        dd = device_and_dtype(options)
        self.sampling = check_choice("sampling", sampling, get_args(Sampling))
        self.backend = None if backend is None else check_choice("backend", backend, BACKENDS)
        if ridge is None:
            # Without a ridge, equal tokens have no Cholesky factor.
            ridge = SoftAttention.default_ridge if inverse == "cholesky" else self.default_ridge
        iters, start = at_least("newton_iters", newton_iters, 0), newton_start or self.default_newton_start
        self.options = InverseOptions(inverse, self.normalize, iters, ridge, start, newton_gradient)
        self.limit = grid_limit("max_bottleneck", max_bottleneck, self.sequence)
        if num_bottleneck is not None:
            rows, columns = bottleneck_grid(num_bottleneck, feat_size)
            largest = (rows, columns) if self.limit is None else self.limit
            self.limit = min(rows, largest[0]), min(columns, largest[1])
            self.sr_ratio = min(sr_ratio, min(feat_size) // rows)
        if self.limit is not None:
            self.declare(cost="N")
        refusal = None if self.sequence else NO_MASK_ON_A_MAP
        if sampling not in ("conv", "avg"):
            refusal = f"sampling={sampling!r} takes its tokens from a full sequence; use 'conv' or 'avg'"
        self.declare(mask_refusal=refusal)

        self.q, self.v = (Linear(dim, dim, bias=qkv_bias, **dd) for _ in range(2))
        self.window = window(self.sr_ratio, self.sequence)
        if sampling == "conv":
            self.sample = nn.Conv2d(self.head_dim, self.head_dim, self.window, stride=self.window, bias=False, **dd)
            self.sample_norm = nn.LayerNorm(self.head_dim, eps=1e-5, **dd)
        self.scale_bottleneck = self.default_scale_bottleneck if scale_bottleneck is None else scale_bottleneck
        self.normalize_rows = self.default_normalize_rows if normalize_rows is None else normalize_rows
        is_learned = self.default_learned_bandwidth if learned_bandwidth is None else learned_bandwidth
        self.log_bandwidth = nn.Parameter(torch.zeros(num_heads, **dd)) if is_learned else None
        self.local = local_conv(num_heads, local_kernel, sr_ratio, self.sequence, **dd)
        self.proj = Linear(dim, dim, **dd)

    def reset_parameters(self) -> None:
        """Set the bandwidth to 1."""
        if self.log_bandwidth is not None:
            nn.init.zeros_(self.log_bandwidth)

    def sample_bottleneck(self, q: Tensor, layout: Layout) -> Tensor:
        """Sample bottleneck tokens `[B, H, M, D]` from queries `[B, H, P + N, D]`."""
        maps = layout.grid(layout.zero_padded(q)).flatten(0, 1).mT.contiguous().unflatten(2, layout.grid_size)
        if self.sampling == "conv":
            tokens, exist = conv_tokens(maps, self.sample, self.window, self.limit, layout)
            tokens = F.gelu(self.sample_norm(tokens))
            if self.scale_bottleneck:
                tokens = tokens * self.head_dim**-0.25
        elif self.sampling == "avg":
            tokens, exist = average_tokens(maps, self.window, self.limit, layout)
        elif self.sampling == "first":
            tokens, exist = first_tokens(maps, self.window, self.limit), None
        else:
            tokens, exist = random_tokens(maps, self.window, self.limit, self.training), None
        tokens = tokens.unflatten(0, q.shape[:2])
        return tokens if exist is None else isolate_missing(tokens, exist)

    def attend(
        self, q: Tensor, bottleneck: Tensor, v: Tensor, residual: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Mix values `[B, H, N, D]` by queries of that shape, through bottleneck tokens `[B, H, M, D]`.

        residual: shaped as the values, added to the result. mask: `[B, N]`, the valid tokens in a row sum; values
        of others are zero.
        """
        if not self.normalize_rows:
            return soft_attention_with_options(self.options, q, bottleneck, v, residual, self.backend)
        counts = torch.ones_like(v[..., :1])
        if mask is not None:
            counts = counts * mask[:, None, :, None]
        # Sums over many tokens that are alike would leave the range of fp16.
        scale = v.shape[2] ** -0.5
        values = scale * torch.cat([v, counts], dim=-1)
        sums = soft_attention_with_options(self.options, q, bottleneck, values, backend=self.backend)
        x = divide_by_sums(sums, scale * MIN_ROW_SUM)
        return x if residual is None else x + residual

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        scale = self.head_dim**-0.25
        if isinstance(self.q_norm, nn.Identity) and rotate is None and not (self.key_norm or self.qk_conv):
            q = project_to_heads(x, self.q, self.num_heads, scale)
        else:
            q = scale * self.queries(split_heads(self.q(x), self.num_heads), layout, rotate)
        v = layout.zero_padded(project_to_heads(x, self.v, self.num_heads))
        bottleneck = self.sample_bottleneck(q, layout)
        residual = None if self.local is None else local_result(v, self.local, layout)
        if self.log_bandwidth is not None:
            bandwidth = self.log_bandwidth.exp()[:, None, None]
            q, bottleneck = bandwidth * q, bandwidth * bottleneck
        x = self.attend(q, bottleneck, v, residual, layout.mask)
        return self.proj_drop(project_from_heads(x, self.proj))


class SoftNormAttention(SoftAttention):
    """`K1 D A^+ D (K1^T V)`: the normalised form, `D = diag(rowsum(A))^(-1/2)`; by default without a ridge.

    newton_start: `guarded_image` computes each image as the released models compute a single image; with
        `guarded_batch`, as in their code, an image's output depends on the others of its batch.
    newton_gradient: `unrolled` is the released gradient, which differs where the iteration has not converged.
    """

    normalize: ClassVar[bool] = True
    default_newton_start: ClassVar[NewtonStart] = "guarded_image"
    default_ridge: ClassVar[float] = 0.0


class SoftPlusAttention(SoftAttention):
    """`K1 A^+ (K1^T V) / K1 A^+ (K1^T 1)`: SOFT for training from scratch.

    By default with scale_bottleneck, learned_bandwidth and normalize_rows.
    """

    default_scale_bottleneck = default_learned_bandwidth = default_normalize_rows = True
