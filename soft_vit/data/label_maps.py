"""Images with a class for each pixel, in the layouts of ADE20K (Zhou et al., arXiv 1608.05442) and of Cityscapes.

The label map of `images/<split>/NAME.jpg` is `annotations/<split>/NAME.png`, in Cityscapes (Cordts et al., arXiv
1604.01685) that of `leftImg8bit/<split>/CITY/NAME_leftImg8bit.png` is `gtFine/<split>/CITY/NAME_gtFine_labelIds.png`.
"""

import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image

from soft_vit.data.archives import FolderStorage, StoredFile, path_below
from soft_vit.data.images import BadImage, is_image, load_image, named, numbered_lines, read_classes
from soft_vit.ops.numerics import check_choice
from soft_vit.text_tables import read_csv

IGNORED = 255
"""The label of an unlabelled pixel, on disk and in memory."""

LABEL_SETS = ("cityscapes", "ade20k")
"""The data sets whose classes and colours are known."""

# Label maps that are looked through before a run: enough for a class that is in one image of a hundred.
_SAMPLE = 300


class LabelSet(NamedTuple):
    """The classes of a data set. values: in its files. colors: RGB, uint8 `[C, 3]`."""

    names: tuple[str, ...]
    values: tuple[int, ...]
    colors: np.ndarray


@cache
def label_set(name: str) -> LabelSet:
    """Return the classes of a data set by name, see `LABEL_SETS`."""
    check_choice("labels", name, LABEL_SETS)
    rows = [row for row in read_csv(Path(__file__).with_name("label_sets.csv")) if row["labels"] == name]
    colors = np.array([list(bytes.fromhex(row["color"])) for row in rows], np.uint8)
    return LabelSet(tuple(row["name"] for row in rows), tuple(int(row["value"]) for row in rows), colors)


def palette_of(names: Sequence[str]) -> np.ndarray | None:
    """Return the colours, uint8 `[C, 3]`, of the data set that has these classes, or None."""
    return next((found.colors for found in map(label_set, LABEL_SETS) if found.names == tuple(names)), None)


@dataclass
class LabelMaps:
    """Images and their label maps: `pairs` are files of the two folders.

    reduce_zero_label: whether 0 means unlabelled and 1 the first class in the files, as in ADE20K. values: of the
    classes in the files, where others mean unlabelled, as in Cityscapes. missing: names of label maps that images lack;
    these images are left out. numbers: of the classes in memory, by default from 0 on.
    """

    images: FolderStorage
    maps: FolderStorage
    classes: list[str]
    pairs: list[tuple[StoredFile, StoredFile]]
    reduce_zero_label: bool = False
    values: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()
    numbers: Sequence[int] = ()

    def load(self, pair: tuple[StoredFile, StoredFile], **options: Any) -> tuple[Image.Image, np.ndarray]:
        """Return the image in RGB and its classes, uint8 `[H, W]`, 255 where unlabelled. Raises BadImage.

        options: of `decode_image`.
        """
        labels = self.load_labels(pair[1])
        image = load_image(self.images, pair[0], size=labels.shape, **options)
        check_size(pair[1], labels, image)
        return image, labels

    def load_labels(self, entry: StoredFile) -> np.ndarray:
        """Return the classes of a label map, uint8 `[H, W]`, 255 for unlabelled pixels. Raises BadImage."""
        with named(entry):
            values, end = decode_label_map(self.maps.read(entry)), len(self.classes) + self.reduce_zero_label
            # A table of values leaves out those that it does not list.
            present = () if self.values else _present(values)
            if beyond := [value for value in present if not (0 <= value < end or value == IGNORED)]:
                hint = "" if self.reduce_zero_label else "; if 0 means unlabelled, set reduce_zero_label=True"
                raise BadImage(f"values must be below {end} or {IGNORED}, got {beyond[-1]}{hint}")
        # Classes by value; the last row is of values beyond a byte.
        table, known = np.full(257, IGNORED, np.uint8), self.values or range(self.reduce_zero_label, end)
        table[list(known)] = self.numbers or range(len(known))
        return table[values if values.dtype == np.uint8 else values.clip(0, 256)]

    def doubts(self) -> list[str]:
        """Return a sentence if images are left out, and one if reduce_zero_label seems wrong.

        It seems so if a sample of maps contains 0 but not the last class.
        """
        count, sentences = len(self.missing), []
        if self.missing:
            such = f"such as that of {self.missing[0]}"
            sentences.append(f"Images without a label map in {self.maps.path} are left out: {count}, {such}.")
        last, seen = len(self.classes), set()
        for _, entry in self.pairs[:: -(-len(self.pairs) // _SAMPLE)] if self.reduce_zero_label else ():
            with suppress(OSError, ValueError):
                seen.update(_present(decode_label_map(self.maps.read(entry))))
            if last in seen:
                break
        shifted = f"Maps in {self.maps.path} contain 0 but not {last}; if 0 is a class, set reduce_zero_label=False."
        return sentences + [shifted] * (0 in seen and last not in seen and not self.values)


def check_size(entry: StoredFile, labels: np.ndarray, image: Image.Image) -> None:
    """Raise BadImage if a label map `[H, W]` has another size than its image."""
    if image.size != labels.shape[::-1]:
        sizes = "{1} x {0}, got {2} x {3}".format(*image.size, *labels.shape)
        raise BadImage(f"{entry.name}: it must be as large as its image, {sizes}")


def decode_label_map(data: bytes) -> np.ndarray:
    """Return the values of an encoded label map, grey or with a palette, uint8 or int32 `[H, W]`. Raises BadImage."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            # Pillow spreads values of 2 and 4 bits over a byte.
            step = {"L;2": 85, "L;4": 17}.get(str(image.tile and image.tile[0].args), 1)
            values = np.asarray(image) // step
            turns = image.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
    except Exception as error:
        # Decoders raise errors of any kind on damaged files.
        raise BadImage(f"{type(error).__name__}: {error}") from error
    if turns:
        raise BadImage("its EXIF data must not turn it; save its pixels upright")
    if values.ndim != 2 or values.dtype.kind == "f":
        raise BadImage(f"it must have one integer per pixel, got shape {values.shape} of {values.dtype}")
    return values if values.dtype == np.uint8 else values.astype(np.int32)


def _present(values: np.ndarray) -> list[int]:
    # Counting is much faster than sorting pixels.
    return (np.flatnonzero(np.bincount(values.ravel())) if values.dtype == np.uint8 else np.unique(values)).tolist()


def find_label_maps(
    root: str | Path,
    split: str,
    *,
    classes: Sequence[str] | None = None,
    reduce_zero_label: bool = False,
    labels: str | None = None,
    ann_dir: str | None = None,
) -> LabelMaps:
    """Return the images of a split in `root/images/<split>` with their label maps in `root/annotations/<split>`.

    ann_dir: folder of label maps, in the root or a path of its own; the images are then all of the root. Without a
    list, in the root or beside it, the classes are the values in the label maps, without 255 where there are others
    than 0 and 255.

    split: "training" or "validation". classes: names in order; by default the lines of `root/classes.txt`, else those
    of ADE20K's `root/objectInfo150.txt`. reduce_zero_label: see `LabelMaps`. labels: a name of `LABEL_SETS`, whose
    classes are those of a root without a list; "cityscapes" also says how folders, files and values are named there,
    and has the splits "train" and "val".

    Raises FileNotFoundError for a missing folder or list of classes, ValueError if no image has a label map, and for
    more than 255 classes.
    """
    root, known = Path(root).expanduser(), None if labels is None else label_set(labels)
    of_cityscapes = labels == "cityscapes"
    folders, end, map_end = ("images", "annotations"), "", ".png"
    if of_cityscapes:
        folders, end, map_end = ("leftImg8bit", "gtFine"), "_leftImg8bit", "_gtFine_labelIds.png"
    places = [root / kind / split for kind in folders] if ann_dir is None else [root, path_below(root, ann_dir)]
    images, maps = map(FolderStorage, places)
    listed = [file for file in images.entries() if is_image(file.name)]
    if images.path == maps.path:
        listed = [file for file in listed if not file.name.endswith(map_end)]
    elif maps.path.is_relative_to(images.path):
        listed = [file for file in listed if not (images.path / file.name).is_relative_to(maps.path)]
    pairs = [(file, StoredFile(str(Path(file.name).with_suffix("")).removesuffix(end) + map_end)) for file in listed]
    missing = {label.name for _, label in pairs} - {entry.name for entry in maps.entries()}
    if not (pairs := [pair for pair in pairs if pair[1].name not in missing]):
        such = f", such as {min(missing)}" if missing else ""
        raise ValueError(f"{images.path} must hold images with label maps in {maps.path}{such}.")
    values = known.values if known is not None and of_cityscapes else ()
    home = root if ann_dir is None or (root / "classes.txt").is_file() else root.parent
    if classes is not None:
        names = list(classes)
    elif ann_dir is None or known is not None or (home / "classes.txt").is_file():
        names = _listed_classes(home, known)
    else:
        files = tuple(maps.path.absolute() / entry.name for _, entry in pairs)
        seen = _values_in(files, max(file.stat().st_mtime_ns for file in files))
        values = tuple(value for value in seen if value or not reduce_zero_label)
        names = ["background", "object"] if values == (0, IGNORED) else [f"value {value}" for value in values]
    if len(names) > IGNORED:
        raise ValueError(f"{home} must have at most {IGNORED} classes, got {len(names)}.")
    return LabelMaps(images, maps, names, pairs, reduce_zero_label, values, tuple(sorted(missing)))


@cache
def _values_in(files: tuple[Path, ...], changed: int) -> tuple[int, ...]:
    """Return the values of classes in label maps. changed: time of the last change, which makes others of them.

    Raises ValueError for fewer than two values.
    """
    found, bad = set(), ""
    for file in files:
        try:
            found.update(_present(decode_label_map(file.read_bytes())))
        except BadImage as error:
            bad = f" ({file.name}: {error})"
    values = tuple(sorted(found - {IGNORED} if found != {0, IGNORED} else found))
    if len(values) < 2 or values[0] < 0 or values[-1] > IGNORED:
        seen = ", ".join(map(str, sorted(found)[-10:])) or "none"
        raise ValueError(f"Label maps in {files[0].parent} must have two or more values below 255, got {seen}{bad}.")
    return values


def _listed_classes(root: Path, known: LabelSet | None = None) -> list[str]:
    """Return class names from a file in the root, else the known ones. Raises FileNotFoundError without any."""
    listed, ade = root / "classes.txt", root / "objectInfo150.txt"
    if listed.is_file():
        return read_classes(listed)
    if ade.is_file():
        # Columns Idx, Ratio, Train, Val, Stuff, Name; synonyms follow a name.
        rows = [line.split("\t") for line in list(numbered_lines(ade).values())[1:]]
        return [row[-1].split(",")[0].strip() for row in rows]
    if known is not None:
        return list(known.names)
    raise FileNotFoundError(f"{listed} or {ade.name} must exist and list the classes.")
