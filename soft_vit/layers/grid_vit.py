"""timm's ViTs that pass the grids of their images to attentions."""

from collections.abc import Iterable
from functools import cache, partial
from typing import Any, cast

import torch
from timm.models.beit import Block as BeitBlock
from timm.models.naflexvit import NaFlexVit
from torch import Tensor, nn

from soft_vit.layers.token_grid import ImageGrids, TokenGrid, image_grids
from soft_vit.layers.vit_attention import ViTAttention
from soft_vit.ops.sizes import same_size


class GridViT:
    """Mixin for timm's ViTs whose attentions work on the grid of each image, of any size that the model takes.

    timm's forwards do not pass a grid to blocks, so they run on a shallow copy of the model, whose blocks are functions
    with the grid bound to them. Gradient checkpointing recomputes such a function with its own grid, even after other
    images, and modules keep no state of a call, so that forwards may run in several threads.
    """

    _modules: dict[str, Any]
    patch_embed: Any
    num_prefix_tokens: int

    @staticmethod
    def needs_grid(attn: ViTAttention) -> bool:
        """Return whether an attention needs the grid of its tokens."""
        return attn.traits.needs_grid

    def grid_of(self, *args: Any, **kwargs: Any) -> TokenGrid | ImageGrids:
        """Return the grid of the images that a forward is called with, as far as it is known before the patches are."""
        return TokenGrid(self.patch_embed.grid_size, self.num_prefix_tokens)

    def on_grid(self, grid: TokenGrid | ImageGrids) -> Any:
        """Return a shallow copy of the model whose blocks work on a grid."""
        copy = object.__new__(type(self))
        blocks = _Chain(self._bound(block, grid) for block in self._modules["blocks"])
        copy.__dict__.update(self.__dict__, _modules={**self._modules, "blocks": blocks})
        return copy

    def _bound(self, block: Any, grid: TokenGrid | ImageGrids) -> Any:
        if isinstance(block, partial):
            return partial(block.func, block.args[0], grid)
        attentions = (module for module in block.modules() if isinstance(module, ViTAttention))
        return partial(_on_grid, block, grid) if any(map(self.needs_grid, attentions)) else block

    def set_input_size(self, *args: Any, **kwargs: Any) -> None:
        super().set_input_size(*args, **kwargs)  # type: ignore[misc]  # timm's
        for module in cast(nn.Module, self).modules():
            if isinstance(module, ViTAttention):
                module.resize(self.patch_embed.grid_size)

    def forward_features(self, *args: Any, **kwargs: Any) -> Any:
        model = self.on_grid(self.grid_of(*args, **kwargs))
        return super(GridViT, model).forward_features(*args, **kwargs)  # type: ignore[misc]  # timm's

    def forward_intermediates(self, *args: Any, **kwargs: Any) -> Any:
        model = self.on_grid(self.grid_of(*args, **kwargs))
        return super(GridViT, model).forward_intermediates(*args, **kwargs)  # type: ignore[misc]  # timm's

    def _pos_embed(self, x: Tensor) -> Any:
        """Add timm's position embedding to x, the result of patch_embed (`[B, H, W, C]` if sizes are dynamic)."""
        if self.dynamic_img_size and isinstance(self._modules["blocks"], _Chain):  # type: ignore[attr-defined]
            grid = TokenGrid((x.shape[1], x.shape[2]), self.num_prefix_tokens)
            self._modules["blocks"] = _Chain(self._bound(block, grid) for block in self._modules["blocks"])
            if torch.compiler.is_exporting() and same_size(grid.grid, self.patch_embed.grid_size):
                # In a graph, timm resamples the embedding even to its own size.
                self.__dict__["dynamic_img_size"] = False
                x = x.flatten(1, 2)
        return super()._pos_embed(x)  # type: ignore[misc]  # timm's


class NaFlexGridViT(GridViT):
    """`GridViT` for timm's NaFlexVit, whose batches hold images of many shapes.

    Attentions that need a grid or take no mask work on the images of each shape alone.
    """

    embeds: Any

    @staticmethod
    def needs_grid(attn: ViTAttention) -> bool:
        return not attn.traits.follows_mask

    def grid_of(  # type: ignore[override]  # as timm's forwards of this model are called
        self, *args: Any, patch_coord: Tensor | None = None, patch_valid: Tensor | None = None, **kwargs: Any
    ) -> TokenGrid | ImageGrids:
        x = args[0] if args else kwargs["patches"]
        if isinstance(x, dict):
            patch_coord, patch_valid = x["patch_coord"], x.get("patch_valid")
        if patch_coord is None:
            return TokenGrid(self.embeds.dynamic_feat_size(x.shape[2:]), self.num_prefix_tokens)
        return image_grids(patch_coord, patch_valid, self.num_prefix_tokens)


class _Chain(list):
    """The part of nn.Sequential that timm's forward needs."""

    def __call__(self, x: Tensor) -> Tensor:
        for block in self:
            x = block(x)
        return x


def _on_grid(block: nn.Module, grid: TokenGrid | ImageGrids, x: Tensor, **kwargs: Any) -> Tensor:
    """Call a block with the grid instead of an argument that it passes to its attention."""
    if isinstance(grid, ImageGrids):
        return block(x, **{**kwargs, "attn_mask": grid})
    name = "shared_rel_pos_bias" if isinstance(block, BeitBlock) else "attn_mask"
    return block(x, **{**kwargs, name: grid._replace(mask=kwargs.get(name))})


def follow_grid(model: Any, attentions: Iterable[ViTAttention]) -> None:
    """Make a timm ViT with these attentions follow the grid of each image (`GridViT`), in place, if one needs it.

    ValueError if it does and the model drops patches.
    """
    mixin = NaFlexGridViT if isinstance(model, NaFlexVit) else GridViT
    needing = list(filter(mixin.needs_grid, attentions))
    if needing and getattr(getattr(model, "patch_drop", None), "prob", 0) > 0:
        raise ValueError(f"patch_drop_rate must be 0 for {type(needing[0]).__name__}, which works on whole maps.")
    if needing and not isinstance(model, GridViT):
        model.__class__ = _following(cast(Any, type(model)))


@cache
def _following(cls: Any) -> Any:
    """Return a subclass of timm's class and `GridViT`, with the name of timm's."""
    mixin = NaFlexGridViT if issubclass(cls, NaFlexVit) else GridViT
    return type(cls.__name__, (mixin, cls), {"__module__": cls.__module__, "__reduce_ex__": _reduce_following})


def _reduce_following(model: Any, protocol: Any) -> tuple[Any, ...]:
    """Pickle by timm's class, because the derived one exists only in memory."""
    parts: Any = object.__reduce_ex__(model, protocol)
    return (_new_following, (type(model).__bases__[1],), *parts[2:])


def _new_following(cls: Any) -> Any:
    return object.__new__(_following(cls))
