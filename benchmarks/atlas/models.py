"""Measure models in the columns of timm's benchmark results: step times, images per second, and sizes.

A stopped run continues from its tables. The folder gets models_infer.csv and models_train.csv.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from tqdm import tqdm

from benchmarks.atlas.table import ModelRow, open_table, steadiness, write_table
from benchmarks.models import START, BatchSize, batch, measure_models, try_steps
from benchmarks.registry import SMALLEST, create_variant
from benchmarks.timer import MIN_ROUNDS, MODES, Timing, require_at_least
from soft_vit.cli import image_size
from soft_vit.models.eval_mode import eval_mode
from soft_vit.probe.complexity import count_complexity
from soft_vit.text_tables import error_cell

SIZES = ((224, 224), (512, 512), (800, 1333))
FORMS = ("eager", "compiled")
FILES = {"inference": "models_infer.csv", "training": "models_train.csv"}
BATCHES: tuple[BatchSize, ...] = (1, "auto")

aten = torch.ops.aten
PRODUCTS = {aten.convolution, aten.mm, aten.addmm, aten.bmm, aten.baddbmm}


def measure_cases(
    names: Sequence[str],
    done: Sequence[ModelRow],
    *,
    sizes: Sequence[tuple[int, int]] = SIZES,
    forms: Sequence[str] = FORMS,
    batches: Sequence[BatchSize] = BATCHES,
    max_batch_size: int | None = None,
    rounds: int = 7,
    device: str = "cpu",
) -> Iterator[list[ModelRow]]:
    """Measure what the rows that are done lack, all models of a case in turn; yields all rows after each case.

    A batch "auto" is the fastest of 8, 16 ... up to max_batch_size. The rows of a model that fails have notes.
    """
    rows = list(done)
    yield rows
    with tqdm(list(product(sizes, forms, batches, MODES)), desc="models", unit="case") as bar:
        for size, form, batch_size, mode in bar:
            shown = f"{size[0]}x{size[1]}" if size[0] != size[1] else f"{size[0]}"
            bar.set_postfix_str(f"{mode}, {shown}, {form}, batch {batch_size}")
            case = (mode, shown, form, batch_size == 1)
            have = {row.model for row in rows if (row.mode, row.img_size, row.form, row.batch_size == 1) == case}
            failures = {name: _failure(name, mode, size, device) for name in names if name not in have}
            able = [name + "+compiled" * (form == "compiled") for name, failure in failures.items() if not failure]
            timings = [Timing(name, mode, 1 if batch_size == 1 else START) for name in failures if failures[name]]
            if able:
                batch_sizes = dict(batch_size=batch_size, max_batch_size=max_batch_size)
                options = dict(img_size=size, modes=[mode], rounds=rounds, device=device)
                timings = measure_models(able, **batch_sizes, **options) + timings
            for timing in timings:
                name, rate = timing.target.removesuffix("+compiled"), timing.rate
                note = failures[name] or (steadiness(rate) if rate else "out of memory")
                step_time = rate and 1e3 * timing.size / rate.median
                counts = (None,) * 3 if failures[name] else sizes_of(name, size)
                figures = (*(rate or (None,) * 3), step_time, *counts, note)
                rows.append(ModelRow(name, mode, shown, timing.size, form, *figures))
            yield rows


def _failure(name: str, mode: str, size: tuple[int, int], device: str) -> str:
    """Return the error of a model on images of a size in a mode, or ""."""
    try:
        try_steps(name, 1, size, device, modes=(mode,))
    except Exception as error:
        # A failure of one model is a result and does not end the others.
        return error_cell(error)
    return ""


@cache
def sizes_of(name: str, size: tuple[int, int]) -> tuple[float, float, float]:
    """Return millions of parameters, billions of multiply-adds, and millions of activations of one image.

    Activations are counted as by fvcore, whose figures timm shows: the outputs of convolutions, linear layers and
    products of matrices; fused attention counts as its two products.
    """
    # timm publishes the counts of eager models.
    model = create_variant(name, size, device="meta")
    complexity = count_complexity(model, (1, 3, *size))
    with Activations() as activations, eval_mode(model), torch.no_grad():
        model(torch.empty(1, 3, *size, device="meta"))
    return complexity.params / 1e6, complexity.macs / 1e9, activations.count / 1e6


class Activations(TorchDispatchMode):
    """Count the outputs of convolutions and of products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function.overloadpacket in PRODUCTS:
            self.count += out.numel()
        elif "scaled_dot_product" in function.__name__:
            q, k, v = args[:3]
            self.count += math.prod(q.shape[:-1]) * (k.shape[-2] + v.shape[-1])
        return out


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(out=Path("atlas"))
    parser.add_argument("models", nargs="*", default=SMALLEST, metavar="MODEL", help="(default: smallest of families)")
    parser.add_argument("--sizes", type=image_size, nargs="+", default=SIZES, metavar="SIZE", help="such as 800x1333")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="(default: both)")
    parser.add_argument("--batches", type=batch, nargs="+", choices=BATCHES, default=BATCHES, help="auto: the fastest")
    parser.add_argument("--max-batch-size", type=int, metavar="B", help="last batch that auto tries")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Measure, and write after each case."""
    for name in args.models:
        # Unknown models and variants end the run before anything is measured.
        create_variant(name, device="meta")
    require_at_least(MIN_ROUNDS, rounds=args.rounds)
    require_at_least(1, max_batch_size=1 if args.max_batch_size is None else args.max_batch_size)
    paths = {mode: args.out / name for mode, name in FILES.items()}
    tables = {mode: open_table(path, args.device, args.command) for mode, path in paths.items()}
    done = [row for table in tables.values() for row in table.rows]
    options = dict(sizes=args.sizes, forms=args.forms, batches=args.batches, max_batch_size=args.max_batch_size)
    for rows in measure_cases(args.models, done, rounds=args.rounds, device=args.device, **options):
        for mode, path in paths.items():
            if own := [row for row in rows if row.mode == mode]:
                write_table(path, replace(tables[mode], rows=own))
    print(f"Written: {' and '.join(FILES.values())} in {args.out}.")
    if failed := sum(row.samples_per_sec is None for row in rows):
        print(f"{failed} rows have no figures; their notes give the reason.")
