"""The base classes of attentions."""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module, use_fused_attn
from torch import Tensor, nn

from soft_vit.layers.embed import map_to_tokens, replace_parameter, tokens_to_map
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.layout import FeatSize, Layout, merge_heads, split_heads, split_parts, token_layout, window
from soft_vit.ops.numerics import at_least, at_least_float32, check_choice, full_precision, is_eager
from soft_vit.ops.packed import packing

Rotate = Callable[[Tensor], Tensor]
"""Rotates queries or keys `[B, H, P + N, D]` by their positions."""

KeyNorm = Literal["instance"]


def check_heads(dim: int, num_heads: int) -> int:
    """Return the width of one head; ValueError unless num_heads divides dim."""
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"num_heads must divide the width {dim}, got {num_heads} heads.")
    return dim // num_heads


def pad_to_window(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Pad maps `[..., Y, X]` with zeros to the size of a window, where they are smaller."""
    below, right = max(0, size[0] - maps.shape[-2]), max(0, size[1] - maps.shape[-1])
    return F.pad(maps, (0, right, 0, below)) if below or right else maps


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return tokens `[B, N, C]` with zeros where mask `[B, N]` is False, so that NaN in padding reaches no other."""
    return x if mask is None else x.masked_fill(~mask[..., None], 0)


def depthwise_conv(channels: int, side: int, sequence: bool, bias: bool = True, **dd: Any) -> nn.Conv2d:
    """Return a convolution of maps `[..., channels, H, W]` that keeps their size, with a kernel for each channel.

    side: of the kernel, odd. sequence: whether the maps, and so the kernel, have a single column.
    """
    size = window(side, sequence)
    return nn.Conv2d(channels, channels, size, padding=(size[0] // 2, size[1] // 2), groups=channels, bias=bias, **dd)


def grid_maps(v: Tensor, layout: Layout) -> Tensor:
    """Return values `[B, H, P + N, D]` as maps `[B, H * D, Y, X]`, zero for padding."""
    return tokens_to_map(merge_heads(layout.grid(layout.zero_padded(v))), layout.grid_size)


def convolve_grid(x: Tensor, conv: Callable[[Tensor], Tensor], layout: Layout) -> Tensor:
    """Return tokens `[B, P + N, C]` after a convolution of their map `[B, C, Y, X]`; prefix tokens as they are."""
    P = layout.num_prefix_tokens
    grid = map_to_tokens(conv(tokens_to_map(x[:, P:], layout.grid_size)))
    return torch.cat([x[:, :P].to(grid), grid], dim=1) if P else grid


def add_to_grid(x: Tensor, maps: Tensor, layout: Layout) -> Tensor:
    """Return tokens `[B, H, P + N, D]` plus maps `[B, H * D, Y, X]`; prefix tokens stay as they are."""
    return x + layout.pad_prefix(split_heads(maps.flatten(2).mT, x.shape[1]))


def normalize_over_tokens(x: Tensor, layout: Layout) -> Tensor:
    """Return `(x - mean) / sqrt(var + 1)` of each channel of `[B, H, P + N, D]`, over the valid tokens."""
    with full_precision(x):
        wide, count = at_least_float32(x), layout.num_tokens(x)
        centred = wide - layout.zero_padded(wide).sum(2, keepdim=True) / count
        variance = layout.zero_padded(centred).square().sum(2, keepdim=True) / count
        return (centred * (variance + 1).rsqrt()).to(x.dtype)


@dataclass(frozen=True)
class Traits:
    """What an attention is: its cost, and what it needs and takes."""

    cost: str = "unknown"
    """Growth of time and memory with the number of tokens N, such as "N" or "N^2"."""

    prefix: str = "as all tokens"
    """How prefix tokens are treated, for the table of attention types."""

    needs_grid: bool = True
    """Whether tokens of the grid and prefix tokens are treated differently; `prefix` says how."""

    needs_order: bool = False
    """Whether the order of tokens matters without a grid."""

    mask_refusal: str | None = "it does not define one"
    """Why a key_padding_mask is refused, as the end of a sentence; None where masks are taken."""

    takes_context: bool = False
    """Whether keys and values may be those of other tokens than queries (cross-attention)."""

    fixed_grid: bool = False
    """Whether the weights belong to one grid; such weights are resampled when a checkpoint has another."""

    qk: Literal["tokens", "channels", "some"] | None = "tokens"
    """What has a query and a key: each token, with heads of channels or of single ones; only some tokens; or none."""

    key_is_query: bool = False
    """Whether the key is the query, so that `k_norm` is unused."""

    @property
    def qk_norm(self) -> bool:
        """Whether there are queries or keys of heads for the norms `q_norm` and `k_norm`."""
        return self.qk in ("tokens", "some")

    @property
    def qk_of_each_token(self) -> bool:
        """Whether each token has a query and a key, as key_norm and qk_conv require."""
        return self.qk in ("tokens", "channels")

    @property
    def follows_mask(self) -> bool:
        """Whether a mask is all that it needs to know of a batch of images of many shapes."""
        return not self.needs_grid and self.mask_refusal is None


@register_notrace_module
class Attention(nn.Module):
    """Mix tokens `[B, P + N, C]`: P prefix tokens, then those of a map (H, W), `N = H * W`, row by row, or (N,).

    feat_size: the map the attention is built for, or the length (N,) of a sequence.
    sr_ratio: side of the window that one reduced token stands for (8, 4, 2, 1 in the pyramid's stages); attentions
        without reduced tokens ignore it.
    proj_drop: rate of the dropout `proj_drop` on the result.

    A subclass implements `mix`, and takes its own options in `__init__`; timm's tracer takes it as a leaf.

    The attention itself is a method `attend`, from which its matrix can be read: the values are its argument `v`
    (further ones `v_...`), it is linear in them, and all channels of a head share one matrix. Anything
    else that is computed from the values is outside of it, or is its argument `residual`, which is added to the result.

    >>> attn = attention_class("soft")(64, num_heads=2, feat_size=(14, 14), sr_ratio=2)
    >>> attn(torch.randn(8, 196, 64), (14, 14)).shape
    torch.Size([8, 196, 64])
    >>> attn = attention_class("performer")(64, num_heads=2, feat_size=(100,))
    >>> counts = torch.arange(100) < torch.tensor([[100], [60]])
    >>> attn(torch.randn(2, 100, 64), (100,), key_padding_mask=counts).shape
    torch.Size([2, 100, 64])
    """

    traits: Traits = Traits()
    """What the class is; an instance whose options change it has its own."""

    projections: ClassVar[dict[str, str]] = {}
    """The layers that project tokens to parts of C channels each: queries q, keys k, values v, a gate g of the result.

    A key that is the query is a q. Swaps carry the weights of these parts over.
    """

    resamplers: Mapping[str, Callable[[Tensor, tuple[int, int]], Tensor]] = {}
    """Parameters `[..., Y, X]` that belong to a map, and how each is resampled to another map."""

    q_conv: nn.Module
    k_conv: nn.Module

    fused_attn: bool
    """Whether softmax attention runs in torch's fused kernels: timm's switch (`set_fused_attn`) at construction."""

    attn_drop: float = 0.0
    """Rate of the dropout on attention weights, for the attentions that take it as an argument."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        key_norm: KeyNorm | None = None,
        qk_conv: bool = False,
        feat_size: FeatSize | None = None,
        sr_ratio: int = 1,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = check_heads(dim, num_heads)
        self.sr_ratio = at_least("sr_ratio", sr_ratio)
        self.fused_attn = use_fused_attn()
        self.sequence = feat_size is not None and len(feat_size) == 1
        self.key_norm = None if key_norm is None else check_choice("key_norm", key_norm, get_args(KeyNorm))
        self.qk_conv = qk_conv
        if key_norm or qk_conv:
            if not self.traits.qk_of_each_token:
                what = f"{type(self).__name__}, whose tokens do not each have a query and a key"
                got = f"key_norm={key_norm!r} and qk_conv={qk_conv}"
                raise ValueError(f"key_norm and qk_conv must not be set for {what}, got {got}.")
            self.declare(takes_context=False)
        if qk_conv:
            self.declare(needs_grid=True)
            for name in ("q_conv",) if self.traits.key_is_query else ("q_conv", "k_conv"):
                conv = depthwise_conv(dim, 3, self.sequence, bias=False, device=device, dtype=dtype)
                nn.init.zeros_(conv.weight)
                self.add_module(name, conv)
        self.proj_drop = nn.Dropout(proj_drop)
        # Norms of each head's queries and keys; models with such norms set them.
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()

    def declare(self, **traits: Any) -> None:
        """Change traits of this instance."""
        self.traits = replace(self.traits, **traits)

    @property
    def dropout_p(self) -> float:
        """Return the dropout rate of attention weights in the module's present mode."""
        return self.attn_drop if self.training else 0.0

    def layout(self, x: Tensor, feat_size: FeatSize, num_prefix_tokens: int, key_padding_mask: Tensor | None) -> Layout:
        """Return how the tokens x lie; ValueError where the arguments do not fit each other or this attention."""
        refusal = self.traits.mask_refusal
        layout = token_layout(x, feat_size, num_prefix_tokens, key_padding_mask, self.sequence, refusal)
        if layout.grid_mask is None or not self.traits.needs_grid or self.sequence or not is_eager(layout.grid_mask):
            return layout
        maps = layout.grid_mask.unflatten(1, layout.grid_size)
        if (maps[:, 1:] & ~maps[:, :-1]).any() or (maps[:, :, 1:] & ~maps[:, :, :-1]).any():
            raise ValueError("key_padding_mask must be False on the right of a map or below, got padding elsewhere.")
        return layout

    def queries(self, q: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        """Normalise each head's queries `[B, H, P + N, D]`, convolve them with `qk_conv`, then rotate them."""
        q = self.q_norm(q)
        if self.key_norm and self.traits.key_is_query:
            q = normalize_over_tokens(q, layout)
        if self.qk_conv:
            q = add_to_grid(q, self.q_conv(grid_maps(q, layout)), layout)
        return q if rotate is None else rotate(q)

    def keys(self, k: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        """Normalise each head's keys `[B, H, P + N, D]`, convolve them with `qk_conv`, then rotate them."""
        k = self.k_norm(k)
        if self.key_norm:
            k = normalize_over_tokens(k, layout)
        if self.qk_conv:
            k = add_to_grid(k, self.k_conv(grid_maps(k, layout)), layout)
        return k if rotate is None else rotate(k)

    def forward(
        self,
        x: Tensor,
        feat_size: FeatSize,
        num_prefix_tokens: int = 0,
        key_padding_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """Mix tokens x `[B, P + N, C]`, of which the first P = num_prefix_tokens precede the map or sequence.

        key_padding_mask: bool `[B, P + N]`, True for valid tokens. The result at these tokens is the
        same as without the others, whatever their values. The result at masked tokens is finite and meaningless.
        context: tokens `[B, M, C]` of keys and values, for attentions that take it (`takes_context`); the mask is then
        theirs, `[B, M]`, and convolutions of values are left out.

        Raises ValueError for tokens that do not fill feat_size, and for a mask of another shape or dtype, without any
        token, with tokens on the right of padding or below it where the place on a map counts, or for an attention
        that takes none (`Traits.mask_refusal`).
        """
        if context is None:
            return self.mix_with_padding(x, self.layout(x, feat_size, num_prefix_tokens, key_padding_mask))
        if not self.traits.takes_context:
            raise ValueError(f"context must be None for {type(self).__name__}, which relates the tokens of one map.")
        self.layout(x, feat_size, num_prefix_tokens, None)
        layout = token_layout(context, (context.shape[1],), 0, key_padding_mask, True, self.traits.mask_refusal)
        return self.cross(x, zero_padding(context, layout.mask), layout)

    def packed(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Mix packed sequences x `[T, C]`, each as if it were alone; for attentions of sequences that take masks.

        cu_seqlens: int32 or int64 `[S + 1]`, their boundaries, from 0 to T; ValueError otherwise.
        """
        lengths = packing(cu_seqlens, len(x)).lengths
        mask = torch.arange(int(lengths.max()), device=x.device) < lengths[:, None]
        padded = x.new_zeros(*mask.shape, x.shape[1]).masked_scatter(mask[..., None], x)
        return self(padded, (mask.shape[1],), 0, mask)[mask]

    def cross(self, x: Tensor, context: Tensor, layout: Layout) -> Tensor:
        """Mix context `[B, M, C]`, of that layout, for tokens x `[B, P + N, C]`."""
        raise NotImplementedError

    def mix_with_padding(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        """Mix tokens as `mix` does, with zeros for padding, which in a sequence is moved behind the other tokens."""
        x = zero_padding(x, layout.mask)
        in_order = self.traits.needs_order or (self.sequence and self.traits.needs_grid)
        if layout.mask is None or not in_order:
            return self.mix(x, layout, rotate)
        is_padding = ~layout.mask
        is_padding[:, : layout.num_prefix_tokens if self.traits.needs_grid else 0] = False
        order = is_padding.to(torch.uint8).argsort(dim=1, stable=True)
        layout = layout._replace(mask=layout.mask.gather(1, order))
        x = self.mix(x.gather(1, order[..., None].expand_as(x)), layout, rotate)
        return x.gather(1, order.argsort(dim=1)[..., None].expand_as(x))

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        """Mix tokens x `[B, P + N, C]` of that layout.

        rotate: the rotation by position of a model with a rotary embedding, for `queries` and `keys`.
        """
        raise NotImplementedError

    def resize(self, feat_size: tuple[int, int]) -> None:
        """Resample, in place, weights that belong to one map to another map; most attentions have no such weights."""
        for name, resample in self.resamplers.items():
            place, _, own = name.rpartition(".")
            replace_parameter(self.get_submodule(place), own, resample(self.get_parameter(name), feat_size))

    def resample_state(
        self, prefix: str, state_dict: MutableMapping[str, Tensor], feat_size: tuple[int, int] | None = None
    ) -> None:
        """Resample, in state_dict, weights of another map to this module's map; most attentions have no such weights.

        prefix: the beginning of the names of this module's weights, such as "stages.0.blocks.1.attn.".
        feat_size: the map of the weights, if known; otherwise a square one, or that of their shape.
        """
        for name, resample in self.resamplers.items():
            given, own = state_dict.get(prefix + name), self.get_parameter(name)
            if given is not None and given.ndim == own.ndim:
                state_dict[prefix + name] = resample(given, (own.shape[-2], own.shape[-1]))


class SelfAttention(Attention):
    """An attention that projects tokens to queries, keys and values of every head, and the heads' results back.

    A subclass implements `attend`, and `__init__` if it has options of its own.
    """

    projections: ClassVar[dict[str, str]] = {"qkv": "qkv"}

    attend: Callable[..., Tensor]
    """Maps queries, keys and values `[B, heads, P + N, C / heads]`, and the layout, to the result of that shape."""

    def __init__(self, dim: int, num_heads: int, *, qkv_bias: bool = True, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        dd = device_and_dtype(options)
        for name, parts in self.projections.items():
            self.add_module(name, Linear(dim, len(parts) * dim, bias=qkv_bias, **dd))
        self.proj = Linear(dim, dim, **dd)

    def add_residual(self, x: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Add what else is computed from the values v, such as a convolution, to the result x of `attend`."""
        return x

    def project(self, x: Tensor) -> list[Tensor]:
        """Project tokens `[B, P + N, C]` to queries, keys and values, each `[B, H, P + N, C / H]`."""
        layers = ((getattr(self, name)(x), parts) for name, parts in self.projections.items())
        return [part for y, parts in layers for part in split_parts(y, len(parts), self.num_heads)]

    def output(self, x: Tensor) -> Tensor:
        """Project the heads' results `[B, H, P + N, C / H]` to tokens `[B, P + N, C]`."""
        return self.proj_drop(self.proj(merge_heads(x)))

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k, v = self.project(x)
        x = self.attend(self.queries(q, layout, rotate), self.keys(k, layout, rotate), v, layout)
        return self.output(self.add_residual(x, v, layout))

    def cross(self, x: Tensor, context: Tensor, layout: Layout) -> Tensor:
        q, (_, k, v) = self.project(x)[0], self.project(context)
        return self.output(self.attend(self.queries(q, layout), self.keys(k, layout), v, layout))


class ScoreAttention(SelfAttention):
    """A `SelfAttention` whose scores of pairs of tokens are normalised by a softmax and can be dropped.

    attn_drop: rate of the dropout on attention weights.
    """

    def __init__(self, dim: int, num_heads: int, *, attn_drop: float = 0.0, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.attn_drop = attn_drop
