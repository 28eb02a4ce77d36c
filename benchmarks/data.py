"""Images decoded and augmented per second: a config's training data against timm's own loader on the same files."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from PIL import Image
from timm.data import create_dataset, create_loader
from torch.utils.data import DataLoader
from tqdm import tqdm

from soft_vit.engine.config_values import fill_data_root
from soft_vit.engine.data.preprocessor import collate_labels
from soft_vit.engine.data.transforms import allow_zero_bits
from soft_vit.engine.resume.position import SampleIndex, SeededDataset
from soft_vit.text_tables import markdown_table

__all__ = ["DataRate", "measure_data_rate", "rate_table", "write_photographs"]


@dataclass
class DataRate:
    """Images per second of a loader with a number of workers: median and quartiles over rounds."""

    loader: str
    workers: int
    median: float
    lower: float
    upper: float

    @property
    def per_core(self) -> float:
        return self.median / max(1, self.workers)


def write_photographs(root: str | Path, count: int) -> None:
    """Write a training split of four classes: JPEGs of smooth noise, about 60 kB, at ImageNet's most frequent size."""
    rng = np.random.default_rng(0)
    for index in range(count):
        folder = Path(root) / "train" / f"class_{index % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (47, 63, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        image = np.clip(np.asarray(coarse, np.int16) + rng.integers(-12, 13, (375, 500, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(image).save(folder / f"{index}.jpg", quality=90)


def measure_data_rate(
    config: Config, *, workers: Sequence[int] = (0, 2), batch_size: int = 32, rounds: int = 7, progress: bool = True
) -> list[DataRate]:
    """Time a config's training loader and timm's in turn over all images, in each round after a warm-up.

    Both end with batches of uint8 images in memory; timm's uses the augmentation of the config's first transform, which
    must be a TimmAugment. Ours seeds the augmentation of each sample, as training does. Raises ValueError
    for another config, fewer than 2 rounds, workers below 0, or fewer than 2 batches; the first batch is not timed.
    """
    if rounds < 2:
        raise ValueError(f"rounds is {rounds}, which gives no spread; use 2 or more.")
    if min(workers) < 0:
        raise ValueError(f"workers is {min(workers)}; give 0, to read in the process itself, or more.")
    fill_data_root(config)
    augment = dict(config.train_dataloader.dataset.pipeline[0])
    if augment.pop("type") != "TimmAugment":
        raise ValueError("timm's loader has no other augmentation; give a config whose first transform is TimmAugment.")
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        dataset = SeededDataset(config.train_dataloader.dataset)
    if not 1 <= batch_size <= len(dataset) // 2:
        raise ValueError(
            f"Batches of {batch_size} cannot be timed with {len(dataset)} images; give 2 images or more, and a "
            "batch_size from 1 to half of them."
        )
    size = augment.pop("img_size")
    timm_set = create_dataset("", root=Path(config.data_root) / "train")
    rates = []
    for count in workers:
        loaders = {
            "soft_vit": _ours(dataset, batch_size, count),
            "timm": _timms(timm_set, size, augment, batch_size, count),
        }
        seconds: dict[str, list[float]] = {name: [] for name in loaders}
        for round_ in tqdm(range(rounds + 1), disable=not progress, desc=f"{count} workers", leave=False):
            for name, batches in loaders.items():
                torch.manual_seed(round_)
                elapsed = _pass(batches(round_), len(dataset) // batch_size)
                if round_:
                    seconds[name].append(elapsed)
        for name, times in seconds.items():
            values = [len(dataset) // batch_size * batch_size / value for value in times]
            lower, _, upper = quantiles(values, n=4)
            rates.append(DataRate(name, count, median(values), lower, upper))
    return rates


def _ours(dataset: SeededDataset, batch_size: int, workers: int) -> Callable[[int], Iterable]:
    def batches(epoch: int) -> Iterable:
        order = [SampleIndex(index, (0, epoch, index)) for index in range(len(dataset))]
        return DataLoader(
            dataset, batch_size, sampler=order, num_workers=workers, collate_fn=collate_labels, drop_last=True
        )

    return batches


def _timms(dataset, size: int, augment: dict, batch_size: int, workers: int) -> Callable[[int], Iterable]:
    size = (size, size) if isinstance(size, int) else tuple(size)
    loader = create_loader(
        dataset,
        input_size=(3, *size),
        batch_size=batch_size,
        is_training=True,
        num_workers=workers,
        persistent_workers=False,
        pin_memory=False,
        device=torch.device("cpu"),
        **augment,
    )
    allow_zero_bits(dataset.transform)
    # Without timm's prefetcher, which normalises on the device, as our data preprocessor does.
    return lambda epoch: loader.loader


def rate_table(rates: Sequence[DataRate]) -> str:
    """A Markdown table; the ratio is to timm's loader with as many workers."""
    of_timm = {rate.workers: rate.median for rate in rates if rate.loader == "timm"}
    rows = [
        (
            rate.workers,
            rate.loader,
            f"{rate.median:.1f}",
            f"{rate.lower:.1f} - {rate.upper:.1f}",
            f"{rate.per_core:.1f}",
            f"{rate.median / of_timm[rate.workers]:.2f}",
        )
        for rate in rates
    ]
    return markdown_table(["workers", "loader", "images / s", "quartiles", "images / s and core", "ratio"], rows)


def _pass(batches: Iterable, count: int) -> float:
    """Seconds for a number of batches, without the start of the workers, which live through a training."""
    iterator = iter(batches)
    next(iterator)
    start = time.perf_counter()
    done = sum(1 for _ in iterator)
    elapsed = time.perf_counter() - start
    return elapsed * count / done
