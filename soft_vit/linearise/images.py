"""Unlabelled images of a folder, in an order and with crops that follow from the step of a run."""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from soft_vit.data.archives import open_storage
from soft_vit.data.images import BadImage, decode_image, is_image, named

# Of the area of an image, as for pretraining on crops; the sides of a crop differ by at most 4 / 3.
MIN_AREA, MAX_RATIO = 0.25, 4 / 3
# Images for each one that may be held out.
MIN_SHARE = 10


class UnlabelledImages(Dataset):
    """The images below a folder, or in a TAR or ZIP: a random crop of each, normalised, `[3, size, size]`.

    An item is (position, size): positions count the images of a run. Each pass over the folder has its own order, and
    order and crop follow from seed and position alone. The next image replaces a damaged one, with a warning. Raises
    ValueError for a folder without images, BadImage if none can be read.
    """

    def __init__(self, path: str | Path, mean: tuple[float, ...], std: tuple[float, ...], seed: int = 0) -> None:
        storage = open_storage(Path(path).expanduser())
        self.entries = [entry for entry in storage.entries() if is_image(entry.name)] if storage else []
        if storage is None or not self.entries:
            raise ValueError(f"images must be a folder, a TAR or a ZIP with images, got {path}.")
        self.storage, self.mean, self.std, self.seed = storage, mean, std, seed
        self.held_out: list[Any] = []

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, item: tuple[int, int]) -> Tensor:
        position, size = item
        epoch, place = divmod(position, len(self))
        image = self._load(self.entries, int(_order(self.seed, epoch, len(self))[place]))
        rng = np.random.default_rng((self.seed, position))
        area = rng.uniform(MIN_AREA, 1) * image.width * image.height
        ratio = math.exp(rng.uniform(-1, 1) * math.log(MAX_RATIO))
        width, height = min(image.width, (area * ratio) ** 0.5), min(image.height, (area / ratio) ** 0.5)
        x, y = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
        image = image.resize((size, size), Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))
        return self._normalised(ImageOps.mirror(image) if rng.random() < 0.5 else image)

    def hold_out(self, count: int) -> None:
        """Take count images out, which `samples` then returns; none if they are more than a tenth of all."""
        if len(self) >= MIN_SHARE * count:
            chosen = set(np.linspace(0, len(self) - 1, count).astype(int).tolist())
            self.held_out = [self.entries[i] for i in sorted(chosen)]
            self.entries = [entry for i, entry in enumerate(self.entries) if i not in chosen]

    def samples(self, count: int, size: int) -> Tensor:
        """Return the largest centred squares of up to count images, the same in each run, `[count, 3, size, size]`."""
        entries = self.held_out or self.entries
        chosen = np.linspace(0, len(entries) - 1, min(count, len(entries))).astype(int)
        squares = (ImageOps.fit(self._load(entries, int(i)), (size, size), Image.Resampling.BICUBIC) for i in chosen)
        return torch.stack([self._normalised(image) for image in squares])

    def fingerprint(self) -> str:
        """Return a text that tells these images from others, by their names and the contents of up to 16 of them."""
        found = hashlib.sha256("\n".join(PurePosixPath(entry.name).as_posix() for entry in self.entries).encode())
        for index in np.linspace(0, len(self) - 1, min(16, len(self))).astype(int):
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

        yield from DataLoader(self, batch_sampler=keys(), **kwargs)  # type: ignore[arg-type]  # a generator is enough

    def _load(self, entries: Sequence[Any], index: int) -> Image.Image:
        first = index
        while True:
            try:
                with named(entries[index]):
                    return decode_image(self.storage.read(entries[index]))
            except BadImage as error:
                index = (index + 1) % len(entries)
                if index == first:
                    raise
                warnings.warn(f"{error}; the next image replaces it.", stacklevel=2)

    def _normalised(self, image: Image.Image) -> Tensor:
        x = (np.asarray(image, dtype=np.float32) / 255 - self.mean) / self.std
        return torch.from_numpy(x.astype(np.float32)).permute(2, 0, 1)


@lru_cache(2)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch, count)).permutation(count)
