"""Attention of one token: its row of the attention matrix, drawn over the image."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from soft_vit.layers import Attention
from soft_vit.layers.attention.spatial_reduction import POOLED_SIDE, SpatialReductionAttention
from soft_vit.models.pyramid import PyramidViT
from soft_vit.probe.matrix import watch_attention

# Negative weights of this magnitude relative to the largest are rounding errors.
NEGLIGIBLE = 1e-3
# Opacity of weights over their image.
OPACITY = 0.65
# Pixels for the caption below a picture.
CAPTION = 14


@dataclass
class AttentionRow:
    """One token's row of an attention matrix.

    weights: `[heads, h, w]`, see `on_map`. query: row and column of the token on the map of `feat_size`.
    """

    attention: str
    query: tuple[int, int]
    feat_size: tuple[int, int]
    weights: np.ndarray


def attention_row(
    model: PyramidViT, image: Tensor, stage: int, query: tuple[int, int] | None = None, layer: int = -1
) -> AttentionRow:
    """Return one token's row in the attention of a stage, counted from 1, and a layer of it, by default the last.

    image: `[3, H, W]`, on the model's device. query: row and column on the stage's map (default: its centre).
    """
    if not 1 <= stage <= len(model.stages):
        raise ValueError(f"stage must be from 1 to {len(model.stages)}, got {stage}.")
    blocks, prefix = model.stages[stage - 1].blocks, model.stages[stage - 1].num_prefix_tokens
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(f"layer must be from 0 to {len(blocks) - 1} in stage {stage}, got {layer}.")
    height, width = model.grids(tuple(image.shape[-2:]))[stage - 1]
    row, column = query or (height // 2, width // 2)
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(f"query must be below {height} {width} in stage {stage}, got {row} {column}.")
    attn, seen = blocks[layer].attn, []
    with watch_attention(attn, seen.append), torch.inference_mode():
        model.forward_features(image[None])
    weights = on_map(seen[0][0, :, prefix + row * width + column, prefix:].float().cpu(), attn, (height, width)).numpy()
    return AttentionRow(model.attention[stage - 1], (row, column), (height, width), weights)


def on_map(weights: Tensor, attn: Attention, feat_size: tuple[int, int]) -> Tensor:
    """Return weights `[heads, M]` of an attention's keys on the map (H, W): a window's weight for each of its tokens.

    Tokens that no window covers have zero. Those of pooled keys are 7 x 7, which cover the map.
    """
    if not isinstance(attn, SpatialReductionAttention):
        return weights.unflatten(-1, feat_size)
    if attn.linear:
        return weights.unflatten(-1, (POOLED_SIDE, POOLED_SIDE))
    maps = torch.kron(weights.unflatten(-1, (max(1, feat_size[0] // attn.window[0]), -1)), torch.ones(1, *attn.window))
    # Also cuts a window that is larger than the map.
    return F.pad(maps, (0, feat_size[1] - maps.shape[2], 0, feat_size[0] - maps.shape[1]))


def plot_attention_row(row: AttentionRow, image: np.ndarray, path: Path) -> None:
    """Draw a row over its image, uint8 `[H, W, 3]`: the mean over the heads, and each head."""
    panels = {"mean of the heads": row.weights.mean(0)} if len(row.weights) > 1 else {}
    panels |= {f"head {head}": weights for head, weights in enumerate(row.weights, 1)}
    _plot({name: (row, weights) for name, weights in panels.items()}, image, path)


def plot_attention_rows(rows: Mapping[str, AttentionRow], image: np.ndarray, path: Path) -> None:
    """Draw the mean over heads of rows of several layers or models, by title, over an image, uint8 `[H, W, 3]`."""
    _plot({title: (row, row.weights.mean(0)) for title, row in rows.items()}, image, path)


def _plot(panels: Mapping[str, tuple[AttentionRow, np.ndarray]], image: np.ndarray, path: Path) -> None:
    picture = Image.fromarray(image)
    drawn = [draw_weights(weights, picture, row.query, row.feat_size) for row, weights in panels.values()]
    captions = [f"{name}, up to {largest_weight(weights):.2g}" for name, (_, weights) in panels.items()]
    picture_grid([picture, *drawn], ["image", *captions], min_side=224).save(path)


def largest_weight(weights: np.ndarray) -> float:
    """Return the weight of the largest magnitude, with its sign."""
    return weights.flat[np.abs(weights).argmax()]


def draw_weights(
    weights: np.ndarray,
    image: Image.Image,
    query: tuple[int, int],
    feat_size: tuple[int, int],
    scale: np.ndarray | None = None,
) -> Image.Image:
    """Return the image in grey below the weights `[h, w]` of a token, with a frame around the token.

    Colours are from black for 0 to bright for the largest weight, or blue and red where weights have signs.
    scale: weights with the range of the colours (default: those that are drawn).
    """
    from matplotlib import colormaps

    scale = weights if scale is None else scale
    largest = max(np.abs(scale).max(), np.finfo(np.float32).tiny)
    signed = scale.min() < -NEGLIGIBLE * largest
    lowest = -largest if signed else 0
    painted = colormaps["RdBu_r" if signed else "inferno"]((weights - lowest) / (largest - lowest), bytes=True)
    shown = Image.fromarray(painted[..., :3]).resize(image.size, Image.Resampling.NEAREST)
    panel = Image.blend(image.convert("L").convert("RGB"), shown, OPACITY)
    (row, column), (height, width) = query, feat_size
    corners = np.array([[column, row], [column + 1, row + 1]]) / (width, height) * image.size
    (x0, y0), (x1, y1) = corners.round().astype(int).tolist()
    ImageDraw.Draw(panel).rectangle((x0 - 1, y0 - 1, x1, y1), outline="lime", width=2)
    return panel


def picture_grid(
    pictures: Sequence[Image.Image], captions: Sequence[str], min_side: int = 112, columns: int | None = None
) -> Image.Image:
    """Return RGB pictures of one size in a grid, each above its caption, which is cut off at the picture's width.

    min_side: pictures that are narrower, in pixels, are enlarged by a whole factor, which shows every pixel as it is.
    columns: by default, as many as rows.
    """
    columns = columns or math.ceil(math.sqrt(len(pictures)))
    scale = max(1, math.ceil(min_side / pictures[0].width))
    width, height = (scale * side for side in pictures[0].size)
    cell = (width + 2, height + CAPTION + 2)
    grid = Image.new("RGB", (columns * cell[0], math.ceil(len(pictures) / columns) * cell[1]), "white")
    draw = ImageDraw.Draw(grid)
    for place, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left, top = place % columns * cell[0] + 1, place // columns * cell[1] + 1
        grid.paste(picture.resize((width, height), Image.Resampling.NEAREST), (left, top))
        while draw.textlength(caption) > width and len(caption) > 1:
            caption = caption[:-1]
        draw.text((left, top + height + 1), caption, fill="black")
    return grid
