"""Measure images decoded and augmented per second: a config's training data, in turn with timm's own loader."""

import argparse
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from benchmarks.report import Report
from benchmarks.timer import Timing, time_in_turn
from soft_vit.text_tables import markdown_table


def write_photographs(root: str | Path, count: int) -> None:
    """Write a training split of four classes: JPEGs of smooth noise, about 60 kB, at ImageNet's most frequent size."""
    rng = np.random.default_rng(0)
    for index in range(count):
        folder = Path(root) / "train" / f"class_{index % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (47, 63, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        image = np.clip(np.asarray(coarse, np.int16) + rng.integers(-12, 13, (375, 500, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(image).save(folder / f"{index}.jpg", quality=90)


def measure_data_rate(config: Any, workers: Sequence[int], batch_size: int, rounds: int) -> list[Timing]:
    """Time a config's training loader and timm's in turn over all images, with each number of workers.

    Both end with batches of uint8 images in memory; timm's uses the augmentation of the config's first transform, which
    must be a TimmAugment. Ours seeds the augmentation of each sample, as training does. The start of the workers and
    the first batch are not timed.
    """
    from mmengine.registry import DefaultScope
    from timm.data import create_dataset, create_loader

    from soft_vit.engine.data.preprocessor import collate_labels
    from soft_vit.engine.data.transforms import allow_zero_bits
    from soft_vit.engine.resume.position import SeededDataset
    from soft_vit.resume.position import SampleIndex

    augment = dict(config.train_dataloader.dataset.pipeline[0])
    if augment.pop("type") != "TimmAugment":
        raise ValueError("config must have TimmAugment, the augmentation of timm's loader, as its first transform.")
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        dataset = SeededDataset(config.train_dataloader.dataset)
    if not 1 <= batch_size <= len(dataset) // 2:
        raise ValueError(f"batch_size must be from 1 to half of {len(dataset)} images, got {batch_size}.")
    size = augment.pop("img_size")
    size = (size, size) if isinstance(size, int) else tuple(size)
    timm_set = create_dataset("", root=Path(config.data_root) / "train")
    order = [SampleIndex(index, (0, 0, index)) for index in range(len(dataset))]
    count, timings = len(dataset) // batch_size, []
    for number in workers:
        options = dict(num_workers=number, pin_memory=False, persistent_workers=False)
        ours = DataLoader(dataset, batch_size, sampler=order, collate_fn=collate_labels, drop_last=True, **options)
        options |= dict(is_training=True, device=torch.device("cpu"))
        theirs = create_loader(timm_set, (3, *size), batch_size, **options, **augment)
        allow_zero_bits(timm_set.transform)
        # Without timm's prefetcher, which normalises on the device, as our data preprocessor does.
        loaders = {"soft_vit": ours, "timm": theirs.loader}
        steps = {name: partial(_pass, loader, count) for name, loader in loaders.items()}
        found = time_in_turn(steps, rounds, "cpu", desc=f"{number} workers", clock=lambda step, *_: step())
        timings += [Timing(name, f"{number}", count * batch_size, seconds) for name, seconds in found.items()]
    return timings


def _pass(loader: Iterable, count: int) -> float:
    """Return the seconds of so many batches, by all but the first."""
    torch.manual_seed(0)
    iterator = iter(loader)
    next(iterator)
    start = time.perf_counter()
    done = sum(1 for _ in iterator)
    return (time.perf_counter() - start) * count / done


def rates_table(timings: Sequence[Timing]) -> str:
    """Return a Markdown table; the ratio is to timm's loader with as many workers."""
    of_timm = {t.mode: t.rate.median for t in timings if t.target == "timm"}
    rows = []
    for t in timings:
        per_core = t.rate.median / max(1, int(t.mode))
        figures = [*t.rate.cells(".1f"), f"{per_core:.1f}", f"{t.rate.median / of_timm[t.mode]:.2f}"]
        rows.append([t.mode, t.target, *figures])
    return markdown_table(["workers", "loader", "images / s", "quartiles", "images / s and core", "ratio"], rows)


def add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("data_root", nargs="?", metavar="DATA_ROOT", help="folder with train/")
    what.add_argument("--generate", type=int, metavar="N", help="measure on N generated JPEGs instead")
    parser.add_argument("--config", default="configs/soft_tiny.py", help="config of the training data")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="numbers of processes (default: 0 2)")
    parser.add_argument("--batch-size", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> Report:
    from soft_vit.engine.config import resolve

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if args.generate is not None:
            write_photographs(folder, args.generate)
        config = resolve(args.config, {"data_root": args.data_root or folder})
        timings = measure_data_rate(config, args.workers, args.batch_size, args.rounds)
    what = f"{args.generate} generated JPEGs of 500 x 375" if args.generate else args.data_root
    return Report("Images decoded and augmented per second", f"{args.config}, {what}", [rates_table(timings)])
