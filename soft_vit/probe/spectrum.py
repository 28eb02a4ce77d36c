"""Spectra of attention matrices: cumulative shares of the singular values.

The Linformer paper's evidence for low rank (Wang et al. 2020, arXiv 2006.04768, Fig. 1), for any pyramid: with singular
values `s_1 >= s_2 >= ...`, the curve `(s_1 + ... + s_i) / (s_1 + s_2 + ...)` of every layer and head.

Letters: H heads, N tokens, M keys.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from soft_vit.models import PyramidViT
from soft_vit.ops.numerics import at_least_float32
from soft_vit.probe.matrix import watch_attention
from soft_vit.text_tables import csv_table

# Maximum number of indices of a curve in a table.
CSV_INDICES = 64


@dataclass
class Spectrum:
    """The curves of one layer, averaged over images. Stages, and layers (blocks) of a stage, count from 1."""

    stage: int
    layer: int
    attention: str
    cumulative: np.ndarray
    """`[H, N]`, float64: the share of the first i singular values in the sum of all, for i from 1 to N."""


def cumulative_singular_values(matrix: Tensor) -> Tensor:
    """Return the curves of matrices `[..., N, M]`: `[..., N]`, float64 on the CPU, with 1 at M and above.

    Raises ValueError for a matrix that is not finite. The curve of a zero matrix is 1 throughout. In fp32, rounding
    adds small singular values: at N = 3136, about 1e-5 of the sum.
    """
    if not matrix.isfinite().all():
        raise ValueError("Attention matrices must be finite; check weights and images for infinities and NaNs.")
    values = torch.linalg.svdvals(at_least_float32(matrix)).double().cpu()
    total = values.sum(-1, keepdim=True)
    curves = torch.where(total > 0, values.cumsum(-1) / total, 1.0)
    return F.pad(curves, (0, matrix.shape[-2] - curves.shape[-1]), value=1.0)


def measure_spectrum(model: PyramidViT, images: Sequence[Tensor]) -> list[Spectrum]:
    """Return the spectrum of every layer of model, in order.

    images: `[3, H, W]` each, of one size, on the model's device. Only one attention matrix is held at a time. Raises
    ValueError, see `watch_attention` and `cumulative_singular_values`.
    """
    blocks = {(i, j): block for i, stage in enumerate(model.stages) for j, block in enumerate(stage.blocks)}
    sums: dict[tuple[int, int], Tensor] = {}

    def add(place: tuple[int, int], matrix: Tensor) -> None:
        sums[place] = sums.get(place, 0) + cumulative_singular_values(matrix[0])
        bar.update()

    bar = tqdm(total=len(images) * len(blocks), desc="attention matrices", leave=False)
    with ExitStack() as stack, torch.inference_mode():
        stack.enter_context(bar)
        for place, block in blocks.items():
            stack.enter_context(watch_attention(block.attn, partial(add, place)))
        for image in images:
            model.forward_features(image[None])
    return [Spectrum(i + 1, j + 1, model.attention[i], (sums[i, j] / len(images)).numpy()) for i, j in blocks]


def spectrum_csv(spectra: Sequence[Spectrum]) -> str:
    """Return CSV with a row per stage, layer, head and index: up to 64 indices, denser at the low end, N the last."""
    rows = []
    for spectrum in spectra:
        count = spectrum.cumulative.shape[1]
        indices = np.unique(np.geomspace(1, count, CSV_INDICES).round().astype(int))
        for head, curve in enumerate(spectrum.cumulative, 1):
            start = (spectrum.stage, spectrum.layer, spectrum.attention, head)
            rows += ([*start, index, count, f"{curve[index - 1]:.6f}"] for index in indices)
    return csv_table(["stage", "layer", "attention", "head", "index", "tokens", "cumulative"], rows)


def plot_spectrum(spectra: Sequence[Spectrum], path: Path, title: str) -> None:
    """Draw a panel per stage: the mean of each head over layers, and the range over all layers and heads."""
    from matplotlib.figure import Figure

    stages = sorted({spectrum.stage for spectrum in spectra})
    figure, entries = Figure(figsize=(14, 4.5), layout="constrained"), {}
    figure.suptitle(title)
    for axes, stage in zip(figure.subplots(1, len(stages), sharey=True, squeeze=False)[0], stages, strict=True):
        layers = [spectrum for spectrum in spectra if spectrum.stage == stage]
        curves = np.stack([np.pad(spectrum.cumulative, ((0, 0), (1, 0))) for spectrum in layers])
        count = curves.shape[2] - 1
        share = np.arange(count + 1) / count
        for head, curve in enumerate(curves.mean(0)):
            (entries[f"head {head + 1}"],) = axes.plot(share, curve, f"C{head}", linewidth=1.2)
        low, high = curves.min((0, 1)), curves.max((0, 1))
        entries["all layers"] = axes.fill_between(share, low, high, color="0.9", linewidth=0)
        (entries["equal values"],) = axes.plot([0, 1], [0, 1], ":", color="0.5", linewidth=1)
        axes.set_title(f"Stage {stage}: {layers[0].attention}\nN = {count}, layers: {len(layers)}", fontsize="medium")
        axes.set(xlabel="index / N", xlim=(-0.02, 1.02), ylim=(0, 1.03))
    figure.supylabel("normalised cumulative singular value", fontsize="medium")
    figure.legend(entries.values(), entries.keys(), loc="outside right center", fontsize="small", frameon=False)
    figure.savefig(path, dpi=150)
