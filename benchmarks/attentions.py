"""Compare attentions in one pyramid or ViT: parameters, FLOPs, memory of a training step, images per second.

As in the table of SOFT (arXiv 2110.11945, Sec. 4, "Attention variants"), for any attentions, resolution and device.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import timm
from tqdm import tqdm

from benchmarks.memory import memory_source, training_memory
from benchmarks.models import measure_models
from benchmarks.report import Report
from soft_vit.cli import add_img_size_option
from soft_vit.layers import ATTENTIONS
from soft_vit.models import model_name
from soft_vit.models.vit import vit_name
from soft_vit.probe.complexity import count_complexity
from soft_vit.text_tables import error_cell, markdown_table

FIGURES = {"params_m": "params (M)", "flops_g": "FLOPs (G)", "train_memory_mb": "training step (MB)"}
FIGURES |= {"inference_images_per_s": "inference (img/s)", "training_images_per_s": "training (img/s)"}
"""Headings of the columns of a CSV file."""


def compare_attentions(
    models: Mapping[str, str], img_size: tuple[int, int], batch_size: int, rounds: int, device: str
) -> list[dict[str, Any]]:
    """Return a row for each attention: `FIGURES`, and the error that stopped it.

    models: attentions by the model that has each. They take turns in one process.
    """
    rows = {model: {"attention": name, **dict.fromkeys(FIGURES), "error": ""} for model, name in models.items()}
    for model, row in tqdm(rows.items(), desc="complexity and memory", leave=False):
        build = partial(timm.create_model, model, img_size=img_size)
        try:
            complexity = count_complexity(build(device="meta"), (1, 3, *img_size))
            row |= {"params_m": complexity.params / 1e6, "flops_g": complexity.macs / 1e9}
            row["train_memory_mb"] = training_memory(build, (batch_size, 3, *img_size), device) / 2**20
        except Exception as error:
            # A failure of one attention, such as out of memory, is a result and does not end the comparison.
            row["error"] = error_cell(error)
    able = [model for model, row in rows.items() if not row["error"]]
    for timing in measure_models(able, batch_size=batch_size, img_size=img_size, rounds=rounds, device=device):
        rows[timing.target][f"{timing.mode}_images_per_s"] = timing.rate and timing.rate.median
    return list(rows.values())


def attentions_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table."""
    lines = []
    for row in rows:
        cells = ["not measured" if v is None else f"{v:.{2 if v < 100 else 0}f}" for v in map(row.get, FIGURES)]
        if row["error"]:
            cells = [row["error"]] + [""] * (len(FIGURES) - 1)
        lines.append([row["attention"], *cells])
    return markdown_table(["attention", *FIGURES.values()], lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("attentions", nargs="*", default=sorted(ATTENTIONS), metavar="ATTENTION", help="(default: all)")
    parser.add_argument("--size", choices=["pico", "tiny", "small", "base"], default="tiny", help="(default: tiny)")
    parser.add_argument("--vit", action="store_true", help="compare in ViTs such as soft_vit_tiny_patch16")
    add_img_size_option(parser, default=(224, 224))
    parser.add_argument("--batch-size", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> Report:
    models = {(vit_name if args.vit else model_name)(name, args.size): name for name in args.attentions}
    rows = compare_attentions(models, args.img_size, args.batch_size, args.rounds, args.device)
    images = "batch {}, {} x {}, float32".format(args.batch_size, *args.img_size)
    words = f"{'ViT ' * args.vit}{args.size}, {images}. A multiply-add is one FLOP; memory of a training step beyond "
    words += f"the weights: {memory_source(args.device)}."
    return Report("Attentions side by side", words, [attentions_table(rows)], rows)
