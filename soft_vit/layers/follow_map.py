"""Models of timm that pass the maps of their images to attentions."""

import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

from timm.models.beit import Block as BeitBlock
from timm.models.naflexvit import NaFlexVit
from torch import Tensor, nn

from soft_vit.layers.token_map import ImageMaps, TokenMap, image_maps
from soft_vit.layers.vit_attention import ViTAttention


class _Call(threading.local):
    """The innermost forward of a `FollowsMap` in each thread: the model, and the map of its images."""

    model: Any = None
    token_map: TokenMap | ImageMaps = TokenMap((0, 0), 0)


_CALL = _Call()


class FollowsMap:
    """Mixin for timm's ViTs whose attentions work on the map of each image, of any size that the model takes.

    timm's forwards do not pass a map to blocks, so within a forward `blocks` are functions with the map bound to them.
    Gradient checkpointing recomputes such a function with its own map, even after other images, and modules keep no
    state of a call, so that forwards may run in several threads.
    """

    _modules: dict[str, Any]
    patch_embed: Any
    num_prefix_tokens: int

    @property
    def blocks(self) -> Any:
        """The blocks; within a forward of this model, functions that pass the map of its images to blocks."""
        blocks = self._modules["blocks"]
        if _CALL.model is not self:
            return blocks
        token_map = _CALL.token_map
        return _Chain(partial(_on_map, block, token_map) if self.needs_map(block) else block for block in blocks)

    @staticmethod
    def needs_map(block: nn.Module) -> bool:
        """Return whether an attention of the block needs the map of its tokens."""
        return any(isinstance(module, ViTAttention) and module.traits.needs_grid for module in block.modules())

    def map_of(self, *args: Any, **kwargs: Any) -> TokenMap | ImageMaps:
        """Return the map of the images that a forward is called with, as far as it is known before the patches are."""
        return TokenMap(self.patch_embed.grid_size, self.num_prefix_tokens)

    def set_input_size(self, *args: Any, **kwargs: Any) -> None:
        super().set_input_size(*args, **kwargs)  # type: ignore[misc]  # timm's
        for module in cast(nn.Module, self).modules():
            if isinstance(module, ViTAttention):
                module.resize(self.patch_embed.grid_size)

    def forward_features(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(super().forward_features, *args, **kwargs)  # type: ignore[misc]  # timm's

    def forward_intermediates(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(super().forward_intermediates, *args, **kwargs)  # type: ignore[misc]  # timm's

    def _call(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        outer = _CALL.model, _CALL.token_map
        _CALL.model, _CALL.token_map = self, self.map_of(*args, **kwargs)
        try:
            return forward(*args, **kwargs)
        finally:
            _CALL.model, _CALL.token_map = outer

    def _pos_embed(self, x: Tensor) -> Any:
        """Add timm's position embedding to x, the result of patch_embed (`[B, H, W, C]` if sizes are dynamic)."""
        if self.dynamic_img_size and _CALL.model is self:  # type: ignore[attr-defined]  # timm's
            _CALL.token_map = TokenMap((x.shape[1], x.shape[2]), self.num_prefix_tokens)
        return super()._pos_embed(x)  # type: ignore[misc]  # timm's


class FollowsMaps(FollowsMap):
    """`FollowsMap` for timm's NaFlexVit, whose batches hold images of many shapes.

    Attentions that need a map or take no mask work on the images of each shape alone.
    """

    embeds: Any

    @staticmethod
    def needs_map(block: nn.Module) -> bool:
        attentions = (module for module in block.modules() if isinstance(module, ViTAttention))
        return not all(attention.traits.follows_mask for attention in attentions)

    def map_of(  # type: ignore[override]  # as timm's forwards of this model are called
        self, *args: Any, patch_coord: Tensor | None = None, patch_valid: Tensor | None = None, **kwargs: Any
    ) -> TokenMap | ImageMaps:
        x = args[0] if args else kwargs["patches"]
        if isinstance(x, dict):
            patch_coord, patch_valid = x["patch_coord"], x.get("patch_valid")
        if patch_coord is None:
            return TokenMap(self.embeds.dynamic_feat_size(x.shape[2:]), self.num_prefix_tokens)
        return image_maps(patch_coord, patch_valid, self.num_prefix_tokens)


class _Chain(list):
    """The part of nn.Sequential that timm's forward needs."""

    def __call__(self, x: Tensor) -> Tensor:
        for block in self:
            x = block(x)
        return x


def _on_map(block: nn.Module, token_map: TokenMap | ImageMaps, x: Tensor, **kwargs: Any) -> Tensor:
    """Call a block with the map instead of an argument that it passes to its attention."""
    if isinstance(token_map, ImageMaps):
        return block(x, **{**kwargs, "attn_mask": token_map})
    name = "shared_rel_pos_bias" if isinstance(block, BeitBlock) else "attn_mask"
    return block(x, **{**kwargs, name: token_map._replace(mask=kwargs.get(name))})


def follow_map(model: Any) -> None:
    """Make a timm ViT follow the map of each image (`FollowsMap`), in place, if one of its attentions needs a map.

    ValueError if it does and the model drops patches.
    """
    mixin = FollowsMaps if isinstance(model, NaFlexVit) else FollowsMap
    needing = [module for module in model.modules() if isinstance(module, ViTAttention) and mixin.needs_map(module)]
    if needing and getattr(getattr(model, "patch_drop", None), "prob", 0) > 0:
        raise ValueError(f"patch_drop_rate must be 0 for {type(needing[0]).__name__}, which works on whole maps.")
    if needing and not isinstance(model, FollowsMap):
        cls: Any = type(model)
        model.__class__ = _following(cls)


@cache
def _following(cls: Any) -> Any:
    """Return a subclass of timm's class and `FollowsMap`, with the name of timm's."""
    mixin = FollowsMaps if issubclass(cls, NaFlexVit) else FollowsMap
    return type(cls.__name__, (mixin, cls), {"__module__": cls.__module__, "__reduce_ex__": _reduce_following})


def _reduce_following(model: Any, protocol: Any) -> tuple[Any, ...]:
    """Pickle by timm's class, because the derived one exists only in memory."""
    parts: Any = object.__reduce_ex__(model, protocol)
    return (_new_following, (type(model).__bases__[1],), *parts[2:])


def _new_following(cls: Any) -> Any:
    following = _following(cls)
    return following.__new__(following)
