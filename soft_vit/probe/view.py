"""Attention of one token: its row of the attention matrix, drawn over the image."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soft_vit.layers import Attention
from soft_vit.layers.attention.spatial_reduction import POOLED_SIDE, SpatialReductionAttention
from soft_vit.models.pyramid import PyramidViT
from soft_vit.probe.matrix import watch_attention

# Negative weights of this magnitude relative to the largest are rounding errors.
NEGLIGIBLE = 1e-3
# Opacity of weights over their image.
OPACITY = 0.65


@dataclass
class AttentionRow:
    """One token's row of an attention matrix.

    weights: `[heads, h, w]`, on the grid of the keys. query: row and column of the token on the map of `feat_size`.
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
        raise ValueError(
            f"query must be a row below {height} and a column below {width} in stage {stage}, got {row} {column}."
        )
    attn, rows = blocks[layer].attn, []

    def keep(matrix: Tensor) -> None:
        rows.append(matrix[0, :, prefix + row * width + column, prefix:].float().cpu())

    with watch_attention(attn, keep), torch.inference_mode():
        model.forward_features(image[None])
    weights = rows[0].unflatten(-1, key_grid(attn, (height, width))).numpy()
    return AttentionRow(model.attention[stage - 1], (row, column), (height, width), weights)


def key_grid(attn: Attention, feat_size: tuple[int, int]) -> tuple[int, int]:
    """Return the grid of an attention's keys for a map (H, W): the map itself, unless the keys are reduced."""
    if isinstance(attn, SpatialReductionAttention) and attn.sr is not None:
        if attn.linear:
            return POOLED_SIDE, POOLED_SIDE
        side = attn.sr.kernel_size[0]
        return max(1, feat_size[0] // side), max(1, feat_size[1] // side)
    return feat_size


def plot_attention_row(row: AttentionRow, image: np.ndarray, path: Path, title: str) -> None:
    """Draw a row over its image, uint8 `[H, W, 3]`: the mean over the heads, and each head."""
    panels: dict[str, np.ndarray | None] = {"image": None}
    if len(row.weights) > 1:
        panels["mean of the heads"] = row.weights.mean(0)
    panels |= {f"head {head}": weights for head, weights in enumerate(row.weights, 1)}
    _plot({name: (row, weights) for name, weights in panels.items()}, image, path, title)


def plot_attention_rows(rows: Mapping[str, AttentionRow], image: np.ndarray, path: Path) -> None:
    """Draw the mean over heads of rows of several layers or models, by title, over an image, uint8 `[H, W, 3]`."""
    panels = {title: (row, row.weights.mean(0)) for title, row in rows.items()}
    _plot({"image": (next(iter(rows.values())), None), **panels}, image, path)


def _plot(
    panels: Mapping[str, tuple[AttentionRow, np.ndarray | None]], image: np.ndarray, path: Path, title: str = ""
) -> None:
    from matplotlib.figure import Figure

    columns = min(len(panels), 6)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.6 * columns + 0.6, 2.6 * rows + (0.9 if title else 0.3)), layout="constrained")
    figure.suptitle(title)
    for place, (name, (row, weights)) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, place)
        axes.set_title(name, fontsize="medium")
        _draw_panel(axes, image, row, weights)
    figure.savefig(path, dpi=130)


def colour_scale(values: np.ndarray) -> tuple[str, float, float]:
    """Return the colour map for weights and its limits, which are symmetric if some weights are negative."""
    largest = max(np.abs(values).max(), np.finfo(np.float32).tiny)
    signed = values.min() < -NEGLIGIBLE * largest
    return "RdBu_r" if signed else "inferno", -largest if signed else 0, largest


def _draw_panel(axes: Any, image: np.ndarray, row: AttentionRow, weights: np.ndarray | None) -> None:
    height, width = image.shape[:2]
    axes.set_axis_off()
    if weights is None:
        axes.imshow(image)
    else:
        axes.imshow(image.mean(2), cmap="gray", vmin=0, vmax=255)
        colours, lowest, largest = colour_scale(weights)
        scale = dict(cmap=colours, vmin=lowest, vmax=largest, alpha=OPACITY)
        shown = axes.imshow(weights, **scale, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")
        axes.figure.colorbar(shown, ax=axes, shrink=0.7, pad=0.02).ax.tick_params(labelsize="x-small")
    y, x = ((at + 0.5) * size / side for at, size, side in zip(row.query, (height, width), row.feat_size, strict=True))
    axes.plot(x - 0.5, y - 0.5, "+", color="lime", markersize=9, markeredgewidth=2)
