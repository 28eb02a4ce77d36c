"""Attentions side by side in one pyramid or ViT: parameters, FLOPs, memory of a training step, images per second.

As in the table of SOFT (arXiv 2110.11945, Sec. 4, "Attention variants"), for any attentions, resolution and device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import timm
import torch
from tqdm import tqdm

from benchmarks.memory import training_memory
from benchmarks.models import measure_throughput, try_steps
from benchmarks.timer import MIN_ROUNDS, require_at_least
from soft_vit.models import model_name
from soft_vit.models.vit import vit_name
from soft_vit.probe.complexity import count_complexity
from soft_vit.probe.load import require_device
from soft_vit.text_tables import error_cell, markdown_table

# Published for the Tiny pyramid at 224 (arXiv 2110.11945, Table 2): top-1 in percent, GFLOPs, GB at batch 1024.
PUBLISHED_TINY = {
    "softmax": "79.1 / 3.9 G / 19.0 GB at batch 256",
    "linformer": "78.2 / 1.9 G / 11.7 GB",
    "performer": "76.1 / 2.2 G / 15.0 GB",
    "nystrom": "78.6 / 2.0 G / 17.2 GB",
    "soft": "79.3 / 1.9 G / 15.8 GB",
}


@dataclass
class Row:
    """One attention: median rates, memory of a training step beyond the weights, or the error that stopped it."""

    attention: str
    params_m: float | None = None
    flops_g: float | None = None
    train_memory_mb: float | None = None
    inference_images_per_s: float | None = None
    training_images_per_s: float | None = None
    published: str = ""
    error: str = ""


def compare_attentions(
    attentions: Sequence[str],
    *,
    size: str = "tiny",
    vit: bool = False,
    img_size: tuple[int, int] = (224, 224),
    batch_size: int = 8,
    rounds: int = 5,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[Row]:
    """One row per attention; a row that fails holds its error and does not affect the others.

    vit: compare in the isotropic models, such as soft_vit_tiny_patch16, instead of the pyramids.
    The remaining rows' throughput is measured in turn, in one process. Raises ValueError for an attention or a size
    without a model, an unavailable device, an empty batch, or fewer than 3 rounds.
    """
    require_at_least(MIN_ROUNDS, rounds=rounds)
    require_at_least(1, batch_size=batch_size)
    require_device(device)
    published = PUBLISHED_TINY if size == "tiny" and not vit else {}
    named = vit_name if vit else model_name
    rows = {named(name, size): Row(name, published=published.get(name, "")) for name in attentions}
    for name, row in tqdm(rows.items(), desc="complexity and memory", leave=False):
        try:
            _count(row, name, img_size, batch_size, device, dtype)
            # Counting computes nothing except on a GPU; a model that cannot run must fail here, alone.
            try_steps(name, batch_size, img_size, device, dtype)
        except Exception as error:
            # A failure of one kind, such as out of memory, is a result and does not end the comparison.
            row.error = error_cell(error)
    able = [name for name, row in rows.items() if not row.error]
    timings = measure_throughput(
        able, batch_size=batch_size, img_size=img_size, rounds=rounds, device=device, dtype=dtype
    )
    for timing in timings:
        setattr(rows[timing.model], f"{timing.mode}_images_per_s", timing.median)
    return list(rows.values())


def _count(
    row: Row, name: str, img_size: tuple[int, int], batch_size: int, device: str | torch.device, dtype: torch.dtype
) -> None:
    build = partial(timm.create_model, name, img_size=img_size)
    complexity = count_complexity(build(device="meta"), (1, 3, *img_size))
    row.params_m, row.flops_g = complexity.params / 1e6, complexity.macs / 1e9
    autocast = {} if dtype == torch.float32 else {"dtype": dtype}
    row.train_memory_mb = training_memory(build, (batch_size, 3, *img_size), device, **autocast) / 2**20


def comparison_table(rows: Sequence[Row]) -> str:
    """A Markdown table, with a column of published figures if any row has them."""
    header = ["attention", "params (M)", "FLOPs (G)", "training step (MB)", "inference (img/s)", "training (img/s)"]
    published = any(row.published for row in rows)
    lines = []
    for row in rows:
        values = [row.params_m, row.flops_g, row.train_memory_mb, row.inference_images_per_s, row.training_images_per_s]
        if row.error:
            cells = [row.error] + [""] * (len(values) - 1)
        else:
            cells = ["not measured" if v is None else f"{v:.{2 if v < 100 else 0}f}" for v in values]
        lines.append([row.attention, *cells, *[row.published] * published])
    return markdown_table(header + ["published: top-1 / FLOPs / memory at batch 1024"] * published, lines)
