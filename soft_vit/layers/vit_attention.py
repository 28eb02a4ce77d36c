"""Attention kinds in the blocks of timm's vision transformers."""

import copyreg
import math
from functools import partial
from typing import Any, cast

import torch
from timm.layers import apply_rot_embed_cat
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from soft_vit.layers.attention import ATTENTIONS, attention_class, attention_options
from soft_vit.layers.attention.base import Attention
from soft_vit.ops.layout import square_layout
from soft_vit.ops.numerics import in_backward

# Arguments that timm's blocks give every attention; a kind without one of them goes without.
BLOCK_ARGUMENTS = {"qkv_bias", "attn_drop", "proj_drop"}

# A leaf of symbolic tracing: it looks at sizes.
torch.fx.wrap("square_layout")
torch.fx.wrap("padding_mask")


def padding_mask(attn_mask: Tensor | None, is_causal: bool, x: Tensor) -> Tensor | None:
    """What timm's blocks mask of tokens `[B, N, C]` as a key_padding_mask; ValueError if it is pairs of tokens."""
    if is_causal:
        raise ValueError("is_causal masks pairs of tokens, which not every attention has; use is_causal=False.")
    if attn_mask is None:
        return None
    B, N = x.shape[:2]
    if attn_mask.dtype == torch.bool and tuple(attn_mask.shape) in ((B, N), (B, 1, 1, N)):
        return attn_mask.reshape(B, N)
    raise ValueError(
        f"attn_mask of shape {tuple(attn_mask.shape)} and {attn_mask.dtype} masks pairs of tokens; give torch.bool of "
        f"shape {(B, N)} or {(B, 1, 1, N)}, True where a token counts."
    )


class TokenGrid:
    """The map of the images that a model works on at the moment; all its attentions look here.

    A hook on the model's patch embedding, which sees the size of every batch of images. What gradient checkpointing
    computes again may be of images before those: it gets the last map of as many tokens.
    """

    def __init__(self, num_prefix_tokens: int) -> None:
        self.num_prefix_tokens = num_prefix_tokens
        self.feat_size: tuple[int, int] | None = None
        self.by_length: dict[int, tuple[int, int]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies begin without a map: one that was seen in tracing cannot be pickled.
        return TokenGrid, (self.num_prefix_tokens,)

    def __call__(self, patch_embed: Any, args: tuple[Any, ...], output: Any) -> None:
        self.feat_size = tuple(patch_embed.dynamic_feat_size(args[0].shape[-2:]))
        if isinstance(args[0], Tensor) and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.by_length[self.num_prefix_tokens + math.prod(self.feat_size)] = self.feat_size

    def of(self, x: Tensor) -> tuple[int, int] | None:
        """The map of tokens x `[B, P + N, C]`; None before the first images."""
        return self.by_length.get(x.shape[1], self.feat_size) if in_backward() else self.feat_size


class RotaryNorm(nn.Module):
    """A norm of each head's queries or keys `[B, H, P + N, D]`, and a rotation of those behind P prefix tokens."""

    def __init__(self, norm: nn.Module, rotate_half: bool) -> None:
        super().__init__()
        self.norm = norm
        self.rotate_half = rotate_half
        self.rope: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.rope is None:
            return x
        P = x.shape[2] - self.rope.shape[-2]
        return torch.cat([x[:, :, :P], apply_rot_embed_cat(x[:, :, P:], self.rope, half=self.rotate_half).to(x)], dim=2)


class ViTAttention(Attention):
    """An attention kind with the constructor and the call of `timm.layers.Attention`, on tokens `[B, P + N, C]`.

    A block of timm's gives no map. It is that of the model's `TokenGrid`, where there is one, otherwise feat_size, or
    the largest square that the tokens fill; what is before it are prefix tokens.

    feat_size: the map (H, W); weights that belong to a map are made for it, by default for 14 x 14.
    num_prefix_tokens: their number; by default what a map leaves, at most 5.
    sr_ratio: the side of the window that one reduced token stands for.
    options: of the kind.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Any = None,
        feat_size: tuple[int, int] | None = None,
        num_prefix_tokens: int | None = None,
        sr_ratio: int = 2,
        device=None,
        dtype=None,
        **options: Any,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        kind: Any = next(cls for cls in type(self).__mro__ if not issubclass(cls, ViTAttention))
        given = {"qkv_bias": qkv_bias, "attn_drop": attn_drop, "proj_drop": proj_drop, **options}
        accepted = attention_options(kind)
        given = {name: value for name, value in given.items() if name in accepted or name not in BLOCK_ARGUMENTS}
        super().__init__(dim, num_heads, feat_size=feat_size or (14, 14), sr_ratio=sr_ratio, **given, **dd)
        # Those of the block; a kind may have others, or none.
        self.block_heads = num_heads
        self.fixed_grid = feat_size
        self.num_prefix_tokens = num_prefix_tokens
        self.token_grid: TokenGrid | None = None
        if scale_norm:
            raise ValueError(f"{kind.__name__} has no norm of its result; use scale_attn_norm=False.")
        if qk_norm:
            if not self.qk_norm:
                raise ValueError(f"{kind.__name__} has no queries and keys to normalise; use qk_norm=False.")
            self.q_norm = norm_layer(self.head_dim, **dd)
            if not self.key_is_query:
                self.k_norm = norm_layer(self.head_dim, **dd)
        proj = getattr(self, "proj", None)
        if proj is not None and not proj_bias:
            self.proj = nn.Linear(proj.in_features, proj.out_features, bias=False, **dd)

    def forward(  # type: ignore[override]  # as timm's blocks call it
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        rope: Tensor | None = None,
        shared_rel_pos_bias: Tensor | None = None,
    ) -> Tensor:
        """Mix tokens x `[B, P + N, C]`.

        attn_mask: bool `[B, P + N]` or `[B, 1, 1, P + N]`, True where a token counts. rope: sines and cosines of timm's
        rotary embedding, for models whose attention has been prepared for it (`swap_attention`). ValueError for
        is_causal, a bias of scores, and masks of pairs.
        """
        if shared_rel_pos_bias is not None:
            raise ValueError(f"{type(self).__name__} has no scores of all pairs of tokens to add a bias to.")
        mask = padding_mask(attn_mask, is_causal, x)
        if not self.needs_grid:
            feat_size, num_prefix_tokens = (x.shape[1], 1), 0
        elif self.token_grid is not None and (followed := self.token_grid.of(x)) is not None:
            feat_size, num_prefix_tokens = followed, self.token_grid.num_prefix_tokens
        else:
            layout = square_layout(x, self.fixed_grid, self.num_prefix_tokens)
            feat_size, num_prefix_tokens = layout.feat_size, layout.num_prefix_tokens
        rotations = [norm for norm in (self.q_norm, self.k_norm) if isinstance(norm, RotaryNorm)]
        for norm in rotations:
            norm.rope = rope
        x = super().forward(x, feat_size, num_prefix_tokens, mask)
        for norm in rotations:
            # It may be part of a graph, which nothing copies.
            norm.rope = None
        return x


# Named in this module, so that a model which holds them can be pickled.
VIT_ATTENTIONS: dict[str, type[ViTAttention]] = {
    name: type(f"ViT{cls.__name__}", (ViTAttention, cls), {"__module__": __name__, "__doc__": cls.__doc__})
    for name, cls in ATTENTIONS.items()
}
globals().update({cls.__name__: cls for cls in VIT_ATTENTIONS.values()})


def check_options(kind: str, options: dict[str, Any]) -> None:
    """ValueError for an option that the kind does not have."""
    accepted = {*attention_options(attention_class(kind)), "sr_ratio"}
    unknown = sorted(options.keys() - accepted)
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no option of {kind!r}; it has {', '.join(sorted(accepted))}.")


class BoundAttention(type):
    """The type of what `attn_layer` returns: a class, as timm asks for, that is called with a kind's options."""

    make: partial[ViTAttention]
    recipe: partial[type[nn.Module]]

    def __call__(cls, *args: Any, **kwargs: Any) -> ViTAttention:
        return cls.make(*args, **kwargs)


# timm keeps a model's arguments beside it, and with them this class, which only exists in memory.
copyreg.pickle(BoundAttention, lambda cls: (cls.recipe, ()))  # type: ignore[arg-type, return-value]  # a class is pickled


def attn_layer(
    kind: str, feat_size: tuple[int, int] | None = None, num_prefix_tokens: int | None = None, **options: Any
) -> type[nn.Module]:
    """An attention kind for the argument `attn_layer` of timm's VisionTransformer.

    >>> attention = attn_layer("performer", num_features=64)
    >>> model = timm.create_model("vit_tiny_patch16_224", attn_layer=attention)

    A block of timm's gives its attention no map. It is taken to be the largest square behind at most five prefix
    tokens, unless feat_size (H, W) and num_prefix_tokens say otherwise. Models by name (`performer_vit_tiny_patch16`)
    and those of `swap_attention` follow the map of each image.

    options: of the kind, and sr_ratio (default 2), the side of the window that one reduced token stands for. ValueError
    for an unknown kind or option, or a feat_size that is not two positive integers.
    """
    check_options(kind, options)
    sides = feat_size if isinstance(feat_size, tuple | list) else ()
    if feat_size is not None and (len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides)):
        raise ValueError(f"feat_size={feat_size!r} is no map; give two positive integers, (H, W) in tokens.")
    cls = VIT_ATTENTIONS[kind]
    layer = BoundAttention(f"Bound{cls.__name__}", (nn.Module,), {"__module__": __name__, "__doc__": cls.__doc__})
    layer.make = partial(cls, feat_size=feat_size, num_prefix_tokens=num_prefix_tokens, **options)
    layer.recipe = partial(attn_layer, kind, feat_size, num_prefix_tokens, **options)
    return cast(type[nn.Module], layer)


def follow_grid(model: Any) -> RemovableHandle | None:
    """Let the attention kinds in a ViT of timm's work on the map of each image, of any size that the model takes.

    Returns the handle of the hook by which they do, unless the model had one or needs none. ValueError for a model that
    drops patches, of which no map is left, and a kind that needs one.
    """
    attentions = [module for module in model.modules() if isinstance(module, ViTAttention) and module.needs_grid]
    if not attentions:
        return None
    if getattr(getattr(model, "patch_drop", None), "prob", 0) > 0:
        raise ValueError(f"{type(attentions[0]).__name__} works on whole maps; use patch_drop_rate=0.")
    grids = [attention.token_grid for attention in attentions if attention.token_grid is not None]
    grid, handle = grids[0] if grids else TokenGrid(model.num_prefix_tokens), None
    if not grids:
        handle = model.patch_embed.register_forward_hook(grid)
    for attention in attentions:
        attention.token_grid = grid
    return handle
