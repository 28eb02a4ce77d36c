"""Grids of a batch of images: of one shape, or of many shapes, padded to the longest as in timm's NaFlexVit.

Letters: B batch, P prefix tokens, N tokens of the longest image, Y x X the grid of one image, C channels.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class TokenGrid(NamedTuple):
    """The grid (Y, X) of a batch of images and the mask of its tokens, which a block passes to its attention."""

    grid: tuple[int, int]
    num_prefix_tokens: int
    mask: Tensor | None = None


class ImageGrids(NamedTuple):
    """The grids of images of many shapes, which a block passes to its attention."""

    groups: list[tuple[tuple[int, int], Tensor]]
    """Each size (Y, X), and the numbers of the images that have it."""
    num_prefix_tokens: int


def image_grids(patch_coord: Tensor, patch_valid: Tensor | None, num_prefix_tokens: int) -> ImageGrids:
    """Return the grids of images from timm's coordinates of their patches.

    patch_coord: `[B, N, 2]`, row and column of each patch. patch_valid: bool `[B, N]`, False for padding; None without
    padding. ValueError unless each image has all patches of a grid, row by row, before its padding.
    """
    B, N, _ = patch_coord.shape
    valid = patch_coord.new_ones(B, N, dtype=torch.bool) if patch_valid is None else patch_valid.bool()
    row, column = (patch_coord * valid[..., None]).unbind(2)
    height, width = row.amax(1) + 1, column.amax(1) + 1
    place = torch.arange(N, device=patch_coord.device)
    whole = (place < (height * width)[:, None]) == valid
    in_order = (row * width[:, None] + column == place) | ~valid
    if not (whole & in_order).all():
        raise ValueError("patch_coord must be the patches of whole images, row by row, followed by padding.")
    return grids_of_sizes(torch.stack([height, width], dim=1), num_prefix_tokens)


def grids_of_sizes(sizes: Tensor, num_prefix_tokens: int = 0) -> ImageGrids:
    """Return the grids of images of sizes (Y, X), `[B, 2]`."""
    images: dict[tuple[int, int], list[int]] = {}
    for i, (height, width) in enumerate(sizes.tolist()):
        images.setdefault((height, width), []).append(i)
    groups = [(size, torch.tensor(numbers, device=sizes.device)) for size, numbers in images.items()]
    return ImageGrids(groups, num_prefix_tokens)


def mix_each_grid(
    mix: Callable[[Tensor, tuple[int, int], Tensor | None], Tensor], x: Tensor, grids: ImageGrids, rope: Tensor | None
) -> Tensor:
    """Mix tokens x `[B, P + N, C]` of images of many shapes: those of one size together, without their padding.

    mix: returns mixed tokens `[b, P + Y * X, C]` of such tokens, their size (Y, X) and rope `[b, H or 1, Y * X, D]`.
    rope: `[B, H or 1, N, D]`. The result at padding is zero.
    """
    P, results = grids.num_prefix_tokens, []
    for (Y, X), images in grids.groups:
        part = None if rope is None else rope[images, :, : Y * X]
        mixed = mix(x.index_select(0, images)[:, : P + Y * X], (Y, X), part)
        results.append(F.pad(mixed, (0, 0, 0, x.shape[1] - mixed.shape[1])))
    order = torch.cat([images for _, images in grids.groups]).argsort()
    return torch.cat(results).index_select(0, order)
