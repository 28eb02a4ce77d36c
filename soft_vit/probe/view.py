"""Where a token looks: its row of the attention matrix, drawn over the image."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soft_vit.layers import Attention
from soft_vit.layers.attention.soft import SoftAttention, reduced_grid
from soft_vit.layers.attention.spatial_reduction import POOLED_SIDE, SpatialReductionAttention
from soft_vit.models.pyramid import PyramidViT
from soft_vit.models.stage import stage_grids
from soft_vit.ops.gaussian import gaussian_kernel
from soft_vit.probe.matrix import watch_attention

# Negative weights this small relative to the largest are rounding and need no signed scale.
NEGLIGIBLE = 1e-3
# Of weights over their image.
OPACITY = 0.65


@dataclass
class AttentionRow:
    """One token's row of an attention matrix.

    weights: `[heads, h, w]`, on the grid of the keys. query: row and column of the token on the map of `feat_size`.
    bottleneck: `[heads, h', w']`, the kernel between the query and each bottleneck token, on their grid; None if the
    attention has no bottleneck tokens, or if they are not windows of the map.
    """

    attention: str
    query: tuple[int, int]
    feat_size: tuple[int, int]
    weights: np.ndarray
    bottleneck: np.ndarray | None = None


def attention_row(
    model: PyramidViT, image: Tensor, stage: int, query: tuple[int, int] | None = None, layer: int = -1
) -> AttentionRow:
    """One token's row in the attention of a stage, counted from 1, and one of its layers, by default the last.

    image: `[3, H, W]`, on the model's device. query: row and column on the stage's map (default: its centre). Raises
    ValueError for a stage, layer or query out of range.
    """
    if not 1 <= stage <= len(model.stages):
        raise ValueError(f"stage is {stage}; choose one from 1 to {len(model.stages)}.")
    blocks = model.stages[stage - 1].blocks
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(f"layer is {layer}; stage {stage} has layers 0 to {len(blocks) - 1}.")
    feat_size = stage_grids(tuple(image.shape[-2:]))[stage - 1]
    query = (feat_size[0] // 2, feat_size[1] // 2) if query is None else query
    if not all(0 <= place < side for place, side in zip(query, feat_size, strict=True)):
        raise ValueError(
            f"The query {query[0]} {query[1]} is not on the map of stage {stage}; take a row below {feat_size[0]} and "
            f"a column below {feat_size[1]}."
        )
    attn, prefix = blocks[layer].attn, model.stages[stage - 1].num_prefix_tokens
    index = prefix + query[0] * feat_size[1] + query[1]
    rows, kernels = [], []
    with watch_attention(attn, lambda matrix: rows.append(matrix[0, :, index].clone())), torch.inference_mode():
        if isinstance(attn, SoftAttention):
            attend = attn.attend

            def keep_kernel(q: Tensor, bottleneck: Tensor, *values: Tensor | None) -> Tensor:
                kernels.append(gaussian_kernel(q[0, :, index, None], bottleneck[0])[:, 0])
                return attend(q, bottleneck, *values)

            # watch_attention removes this at its end.
            attn.attend = keep_kernel
        model.forward_features(image[None])
    weights = rows[0][:, prefix:].reshape(-1, *key_grid(attn, feat_size)).float().cpu().numpy()
    bottleneck = None
    if kernels and attn.sampling in ("conv", "avg"):
        windows = reduced_grid(feat_size, attn.window, attn.limit)
        bottleneck = kernels[0].reshape(-1, *windows).float().cpu().numpy()
    return AttentionRow(model.attention[stage - 1], query, feat_size, weights, bottleneck)


def key_grid(attn: Attention, feat_size: tuple[int, int]) -> tuple[int, int]:
    """The grid of an attention's keys for a map (H, W): the map itself, unless the keys are reduced."""
    if isinstance(attn, SpatialReductionAttention) and attn.sr is not None:
        if attn.linear:
            return POOLED_SIDE, POOLED_SIDE
        side = attn.sr.kernel_size[0]
        return max(1, feat_size[0] // side), max(1, feat_size[1] // side)
    return feat_size


def plot_attention_row(row: AttentionRow, image: np.ndarray, path: Path, title: str) -> None:
    """Draw a row over its image, uint8 `[H, W, 3]`: the mean over the heads, each head, and the bottleneck tokens."""
    from matplotlib.figure import Figure

    panels: list[tuple[str, np.ndarray | None]] = [("image", None)]
    if len(row.weights) > 1:
        panels.append(("mean of the heads", row.weights.mean(0)))
    panels += [(f"head {head + 1}", weights) for head, weights in enumerate(row.weights)]
    if row.bottleneck is not None:
        panels.append(("kernel with the bottleneck tokens,\nmean of the heads", row.bottleneck.mean(0)))
    columns = min(len(panels), 6)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.6 * columns + 0.6, 2.6 * rows + 0.9), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes, (name, values) in zip(grid, panels, strict=False):
        _draw_panel(axes, name, values, row, image, windows=values is not None and name.startswith("kernel"))
    figure.savefig(path, dpi=130)


def plot_attention_rows(rows: Mapping[str, AttentionRow], image: np.ndarray, path: Path) -> None:
    """Draw an image, uint8 `[H, W, 3]`, and over it rows of several layers or models, by their titles.

    Of each row, the mean over the heads.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * (len(rows) + 1) + 0.6, 2.9), layout="constrained")
    first, *panels = figure.subplots(1, len(rows) + 1)
    _draw_panel(first, "image", None, next(iter(rows.values())), image, windows=False)
    for axes, (title, row) in zip(panels, rows.items(), strict=True):
        _draw_panel(axes, title, row.weights.mean(0), row, image, windows=False)
    figure.savefig(path, dpi=110)


def colour_scale(values: np.ndarray) -> tuple[str, float, float]:
    """The colour map for weights, and the values at its ends: around 0 if some are negative, or from 0."""
    largest = max(np.abs(values).max(), np.finfo(np.float32).tiny)
    signed = values.min() < -NEGLIGIBLE * largest
    return "RdBu_r" if signed else "inferno", -largest if signed else 0, largest


def _draw_panel(
    axes: Any, name: str, values: np.ndarray | None, row: AttentionRow, image: np.ndarray, windows: bool
) -> None:
    height, width = image.shape[:2]
    axes.set_title(name, fontsize="medium")
    axes.set_axis_off()
    extent = (0, width, height, 0)
    if values is None:
        axes.imshow(image, extent=extent)
    else:
        axes.imshow(image.mean(2), cmap="gray", extent=extent, vmin=0, vmax=255)
        colours, lowest, largest = colour_scale(values)
        shown = axes.imshow(
            values,
            cmap=colours,
            vmin=lowest,
            vmax=largest,
            alpha=OPACITY,
            extent=extent,
            interpolation="nearest",
        )
        axes.figure.colorbar(shown, ax=axes, shrink=0.7, pad=0.02).ax.tick_params(labelsize="x-small")
        if windows:
            for i in range(1, values.shape[0]):
                axes.axhline(i * height / values.shape[0], color="white", linewidth=0.5)
            for j in range(1, values.shape[1]):
                axes.axvline(j * width / values.shape[1], color="white", linewidth=0.5)
    cell = height / row.feat_size[0], width / row.feat_size[1]
    centre = (row.query[0] + 0.5) * cell[0], (row.query[1] + 0.5) * cell[1]
    axes.plot(centre[1], centre[0], "+", color="lime", markersize=9, markeredgewidth=2)
