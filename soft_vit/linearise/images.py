"""Unlabelled images of a folder, in an order and with crops that follow from the step of a run."""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
import torch
from PIL import Image, ImageOps
from timm.layers import to_2tuple
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from soft_vit.data.archives import open_storage
from soft_vit.data.images import BadImage, is_image, load_image
from soft_vit.resume.stop import shield

# Of the area of an image, as for pretraining on crops; the sides of a crop differ by at most 4 / 3.
MIN_AREA, MAX_RATIO = 0.25, 4 / 3
# Of crops with other colours, and of crops that are blended with another one.
VARIED, BLENDED = 0.8, 0.5
# Radians by which hues turn, and the range of factors of saturation, and of contrast and brightness.
HUE, SATURATION, CONTRAST = 0.5, (0.0, 1.4), (0.6, 1.4)
# Images for each one that may be held out.
MIN_SHARE = 10


class UnlabelledImages(Dataset):
    """The images below a folder, or in a TAR or ZIP: a random crop of each, normalised, `[3, size, size]`.

    An item is (position, size): positions count the images of a run. Each pass over the folder has its own order, and
    order and crop follow from seed and position alone. The next image replaces a damaged one, with a warning. Raises
    ValueError for a folder without images, BadImage if none can be read.

    vary: change the colours of most crops, and blend half of them with a crop of another image. A student and its
    teacher see the same pictures, so that more different ones are better (Beyer et al., arXiv 2106.05237).
    """

    def __init__(
        self, path: str | Path, mean: tuple[float, ...], std: tuple[float, ...], seed: int = 0, vary: bool = True
    ) -> None:
        storage = open_storage(Path(path).expanduser())
        self.entries = [entry for entry in storage.entries() if is_image(entry.name)] if storage else []
        if storage is None or not self.entries:
            raise ValueError(f"images must be a folder, a TAR or a ZIP with images, got {path}.")
        self.storage, self.mean, self.std, self.seed, self.vary = storage, mean, std, seed, vary
        self.held_out: list[Any] = []

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, item: tuple[int, int]) -> Tensor:
        position, size = item
        epoch, place = divmod(position, len(self))
        rng = np.random.default_rng((self.seed, position))
        x = self._crop(int(_order(self.seed, epoch, len(self))[place]), size, rng)
        if self.vary and rng.random() < BLENDED:
            share = rng.random()
            x = share * x + (1 - share) * self._crop(int(rng.integers(len(self))), size, rng)
        return self._normalised(x)

    def _crop(self, index: int, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return a random crop of an image, `[size, size, 3]` in [0, 1]."""
        image = self._load(self.entries, index)
        area = rng.uniform(MIN_AREA, 1) * image.width * image.height
        ratio = math.exp(rng.uniform(-1, 1) * math.log(MAX_RATIO))
        width, height = min(image.width, (area * ratio) ** 0.5), min(image.height, (area / ratio) ** 0.5)
        x, y = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
        image = image.resize((size, size), Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))
        crop = np.asarray(ImageOps.mirror(image) if rng.random() < 0.5 else image) / 255
        return vary_colours(crop, rng) if self.vary and rng.random() < VARIED else crop

    def hold_out(self, count: int) -> None:
        """Take count images out, which `samples` then returns; none if they are more than a tenth of all."""
        if len(self) >= MIN_SHARE * count:
            chosen = set(np.linspace(0, len(self) - 1, count).astype(int).tolist())
            self.held_out = [self.entries[i] for i in sorted(chosen)]
            self.entries = [entry for i, entry in enumerate(self.entries) if i not in chosen]

    def samples(self, count: int, size: int | tuple[int, int]) -> Tensor:
        """Return the largest centred parts of up to count images, the same in each run, as `[count, 3, H, W]`.

        size: (H, W), or the side of squares.
        """
        entries = self.held_out or self.entries
        chosen = np.linspace(0, len(entries) - 1, min(count, len(entries))).astype(int)
        sides = to_2tuple(size)[::-1]
        parts = (ImageOps.fit(self._load(entries, int(i)), sides, Image.Resampling.BICUBIC) for i in chosen)
        return torch.stack([self._normalised(np.asarray(image) / 255) for image in parts])

    def fingerprint(self) -> str:
        """Return a text that tells these images from others, by their names and the contents of up to 16 of them."""
        found = hashlib.sha256("\n".join(PurePosixPath(entry.name).as_posix() for entry in self.entries).encode())
        for index in np.linspace(0, len(self) - 1, min(16, len(self))).astype(int):
            # A run names what cannot be read, and takes the next image.
            with suppress(OSError, ValueError):
                found.update(self.storage.read(self.entries[index]))
        return f"{len(self)} images, {found.hexdigest()[:16]}"

    def batches(
        self, plan: Callable[[int], tuple[int, int]], steps: range, rank: int = 0, world: int = 1, **kwargs: Any
    ) -> Iterator[Tensor]:
        """Yield the batch of each step; plan returns the size and number of its images in each process.

        rank, world: this process and their number. kwargs: of the DataLoader.
        """
        # Of all steps, so that no two share a position.
        largest = max(plan(step)[1] for step in range(max(steps.stop, 1))) * world

        def keys() -> Iterator[list[tuple[int, int]]]:
            for step in steps:
                size, count = plan(step)
                yield [(step * largest + rank * count + i, size) for i in range(count)]

        # A generator is enough, unlike what torch's types say.
        yield from DataLoader(self, batch_sampler=cast(Any, keys()), worker_init_fn=shield, **kwargs)

    def _load(self, entries: Sequence[Any], index: int) -> Image.Image:
        first = index
        while True:
            try:
                return load_image(self.storage, entries[index])
            except BadImage as error:
                index = (index + 1) % len(entries)
                if index == first:
                    raise
                warnings.warn(f"{error}; the next image replaces it.", stacklevel=2)

    def _normalised(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(((x - self.mean) / self.std).astype(np.float32)).permute(2, 0, 1)


def vary_colours(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an image `[H, W, 3]` in [0, 1] with other hues, saturation, contrast and brightness."""
    angle, grey = rng.uniform(-HUE, HUE), np.full((3, 3), 1 / 3)
    across = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    # A rotation around the grey axis, after which what is not grey is scaled.
    x = x @ (grey + rng.uniform(*SATURATION) * (math.cos(angle) * (np.eye(3) - grey) + math.sin(angle) * across)).T
    mean = x.mean()
    return np.clip(rng.uniform(*CONTRAST) * mean + rng.uniform(*CONTRAST) * (x - mean), 0, 1)


@lru_cache(2)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch, count)).permutation(count)
