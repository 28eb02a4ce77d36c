"""Images with a class for each pixel, in the layout of ADE20K (Zhou et al., arXiv 1608.05442).

The label map of `images/<split>/NAME.jpg` is `annotations/<split>/NAME.png`.
"""

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from soft_vit.data.archives import Entry, FolderStorage
from soft_vit.data.images import SUFFIXES, BadImage, decode_image, is_image, named, read_lines

__all__ = ["IGNORED", "LabelMaps", "decode_label_map", "find_label_maps"]

IGNORED = 255
"""The label of a pixel without a class, on disk and in memory."""
_MAP_SUFFIX = ".png"
# Bad label maps that an error names.
_EXAMPLES = 3


@dataclass
class LabelMaps:
    """Images and their label maps: `pairs` are files of the two folders.

    reduce_zero_label: in the files, 0 means no class and 1 the first class, as in ADE20K.
    """

    images: FolderStorage
    maps: FolderStorage
    classes: list[str]
    pairs: list[tuple[Entry, Entry]]
    reduce_zero_label: bool = True

    def load(self, pair: tuple[Entry, Entry]) -> tuple[Image.Image, np.ndarray]:
        """The image in RGB and its classes, uint8 `[H, W]`, 255 for none. Raises BadImage."""
        with named(pair[0]):
            image = decode_image(self.images.read(pair[0]))
        labels = self.load_labels(pair[1])
        if labels.shape != image.size[::-1]:
            raise BadImage(f"{pair[1].name}: not of its image's size")
        return image, labels

    def load_labels(self, entry: Entry) -> np.ndarray:
        """The classes of a label map, uint8 `[H, W]`, 255 for none. Raises BadImage."""
        with named(entry):
            values = decode_label_map(self.maps.read(entry))
            last = len(self.classes) - (0 if self.reduce_zero_label else 1)
            # Counting is much faster than sorting pixels.
            present = np.flatnonzero(np.bincount(values.ravel())) if values.dtype == np.uint8 else np.unique(values)
            beyond = [int(value) for value in present if not (0 <= value <= last or value == IGNORED)]
            if beyond:
                raise BadImage(f"it holds {beyond[-1]}, beyond the {len(self.classes)} classes")
        labels = values.astype(np.uint8)
        if self.reduce_zero_label:
            # 0 wraps around to 255.
            labels = np.where(labels == IGNORED, labels, labels - np.uint8(1))
        return labels

    def check(self) -> None:
        """Check every label map. Raises a ValueError that counts the bad ones and names the first.

        A label map must be readable, have its image's size, and hold known classes only. Unreadable images are reported
        when they are loaded.
        """
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            problems = [problem for problem in pool.map(self._problem, self.pairs) if problem is not None]
        if problems:
            raise ValueError(
                f"{len(problems)} of the {len(self.pairs)} label maps in {self.maps.path} do not fit, such as "
                f"{'; '.join(problems[:_EXAMPLES])}. Repair or remove them, or correct the {len(self.classes)} classes "
                f"or reduce_zero_label ({self.reduce_zero_label})."
            )

    def _problem(self, pair: tuple[Entry, Entry]) -> str | None:
        """The name of a label map that does not fit, and why."""
        try:
            shape = self.load_labels(pair[1]).shape
        except BadImage as error:
            return str(error)
        size = self._image_size(pair[0])
        if size in (None, shape):
            return None
        return f"{pair[1].name}: {shape[1]} x {shape[0]} pixels for an image of {size[1]} x {size[0]}"

    def _image_size(self, entry: Entry) -> tuple[int, int] | None:
        """(H, W) from the header of an image; None if that cannot be read."""
        try:
            with Image.open(self.images.path / entry.name) as image:
                return image.size[::-1]
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return None


def decode_label_map(data: bytes) -> np.ndarray:
    """The values of an encoded label map, grey or with a palette, uint8 or int32 `[H, W]`. Raises BadImage."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            values = np.asarray(image)
    except Exception as error:
        # Decoders raise errors of any kind on damaged files.
        raise BadImage(f"{type(error).__name__}: {error}") from error
    if values.ndim != 2 or values.dtype.kind == "f":
        raise BadImage("it has colours instead of one number for each pixel")
    return values if values.dtype == np.uint8 else values.astype(np.int32)


def find_label_maps(
    root: str | Path, split: str, *, classes: Sequence[str] | None = None, reduce_zero_label: bool = True
) -> LabelMaps:
    """The images of a split in `root/images/<split>` with their label maps in `root/annotations/<split>`.

    split: "training" or "validation". classes: names in order; by default the lines of `root/classes.txt`, else those
    of ADE20K's `root/objectInfo150.txt`. reduce_zero_label: see `LabelMaps`.

    Raises FileNotFoundError for a missing folder or list of classes, ValueError for images without a label map.
    """
    root = Path(root).expanduser()
    folders = [root / kind / split for kind in ("images", "annotations")]
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(
                f"There is no folder {folder}; give the folder that holds images/{split} and annotations/{split}."
            )
    images, maps = (FolderStorage(folder) for folder in folders)
    pairs = [(entry, Entry(str(Path(entry.name).with_suffix(_MAP_SUFFIX)))) for entry in images.entries()]
    pairs = [pair for pair in pairs if is_image(pair[0].name)]
    if not pairs:
        raise ValueError(f"{images.path} holds no images ({', '.join(sorted(SUFFIXES))}); give a folder that does.")
    there = {entry.name for entry in maps.entries()}
    missing = [image.name for image, label in pairs if label.name not in there]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(pairs)} images in {images.path} have no label map in {maps.path}, such as "
            f"{missing[0]}; add {Path(missing[0]).with_suffix(_MAP_SUFFIX)}, or remove the image."
        )
    names = list(classes) if classes is not None else _listed_classes(root)
    return LabelMaps(images, maps, names, pairs, reduce_zero_label)


def _listed_classes(root: Path) -> list[str]:
    """Class names from a file in the root. Raises FileNotFoundError without one."""
    listed, ade = root / "classes.txt", root / "objectInfo150.txt"
    if listed.is_file():
        return read_lines(listed)
    if ade.is_file():
        # Columns Idx, Ratio, Train, Val, Stuff, Name; synonyms follow a name.
        rows = [line.split("\t") for line in read_lines(ade)[1:]]
        return [row[-1].split(",")[0].strip() for row in rows]
    raise FileNotFoundError(
        f"There is neither {listed} nor {ade.name} beside it; write one class on each line, or give the class names."
    )
