"""Labelled images on disk: a folder for each class, or one folder with a list of labels."""

import csv
import io
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any
from unittest.mock import patch

from PIL import ExifTags, Image, UnidentifiedImageError

from soft_vit.data.archives import FolderStorage, Storage, StoredFile, open_storage, require_storage

SUFFIXES = {".apng", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo", ".png", ".tif", ".tiff", ".webp"}
# Some of these need a recent Pillow or a plugin; without it they are reported as unreadable.
SUFFIXES |= {".avif", ".heic", ".heif", ".j2k", ".jp2", ".pbm", ".pgm", ".pnm", ".ppm", ".qoi", ".tga"}
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I")
# A grey image below this value is darker than a fourth of the range of 16 bits.
_DARK = 2**14
# Tags of TIFF: bits of a value, and the largest value.
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO, _MAX_SAMPLE_VALUE = 258, 262, 0, 281
# What shows an image of each EXIF orientation upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadImage(ValueError):
    """A file that is not an image, or is damaged."""


@dataclass
class LabelledImages:
    """Images with labels: `samples` are files with the index of their class in `classes`, or a tuple of such indices.

    left_out: number of files by suffix that are not images.
    """

    storage: Storage
    classes: list[str]
    samples: list[tuple[StoredFile, int | tuple[int, ...]]]
    left_out: dict[str, int] = field(default_factory=dict)

    def load(self, entry: StoredFile, **options: Any) -> Image.Image:
        """Return the image in a file, in RGB. Raises BadImage if it cannot be read. options: of `decode_image`."""
        return load_image(self.storage, entry, **options)

    def summary(self) -> str:
        """Return a line about the files of each class and those left out."""
        counts = Counter(i for _, label in self.samples for i in (label if isinstance(label, tuple) else (label,)))
        ranked = sorted((counts[label], name) for label, name in enumerate(self.classes))
        sizes = " to ".join(f"{count} ({name})" for count, name in (ranked[0], ranked[-1]))
        others = ", ".join(f"{count} {suffix or 'without one'}" for suffix, count in self.left_out.items()) or "none"
        return f"{len(self.samples)} images in {len(ranked)} classes of {sizes}; files left out by suffix: {others}."


@contextmanager
def named(entry: StoredFile) -> Iterator[None]:
    """Turn an error of reading into a BadImage that starts with the file's name."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise BadImage(f"{entry.name}: {error}") from error


def load_image(storage: Storage, entry: StoredFile, **options: Any) -> Image.Image:
    """Return the image in a stored file, in RGB; options: of `decode_image`.

    Raises BadImage, whose message begins with the file's name.
    """
    with named(entry):
        return decode_image(storage.read(entry), **options)


def decode_image(
    data: bytes,
    max_pixels: int | None = None,
    *,
    bits: int | None = None,
    size: tuple[int, int] | None = None,
    upright: bool | None = None,
) -> Image.Image:
    """Return the first frame of an encoded image, in RGB. Raises BadImage.

    max_pixels: refuse larger images before their pixels are decoded, instead of by Pillow's own limit. bits: see
    `to_rgb`.

    Transparency is dropped; CMYK and palettes are converted. The image is turned as its EXIF orientation says. Pillow's
    limit against decompression bombs is 179 million pixels.

    size: (H, W) of its annotations, which may belong to the image as stored instead. upright: whether they belong to
    the turned image (True) or to the stored one (False), which is returned then; by default their size decides, and an
    image for which both have that size is refused.
    """
    try:
        # The limit of Pillow, which is one of the process, gives way.
        with patch.object(Image, "MAX_IMAGE_PIXELS", None) if max_pixels is not None else nullcontext():
            image = Image.open(io.BytesIO(data))
        if max_pixels is not None and image.width * image.height > max_pixels:
            raise BadImage(f"it has {image.width} x {image.height} pixels, more than {max_pixels / 1e6:.0f} million")
        # Pillow turns a TIFF itself, and then removes the tag.
        orientation = getattr(image, "tag_v2", {}).get(ExifTags.Base.Orientation)
        pixels = to_rgb(image, bits)
        image.load()
        left = None
        with suppress(Exception):
            # Damaged EXIF data do not make an image unreadable.
            left = image.getexif().get(ExifTags.Base.Orientation)
        if (left or orientation) not in _TURNS:
            return pixels
        turned = pixels.transpose(_TURNS[left]) if left in _TURNS else pixels
        if upright or (size is None and upright is None):
            return turned
        # Turning back by 90 degrees is turning in the other direction.
        stored = pixels if left in _TURNS else pixels.transpose(_TURNS[{6: 8, 8: 6}.get(orientation, orientation)])
        if upright is None and stored.size == turned.size == size[::-1]:
            remedy = "set upright=True if annotations belong to the turned image, or upright=False"
            raise BadImage(f"its EXIF data turn it, and its size does not change; {remedy} if to the stored one")
        return stored if upright is False or stored.size == size[::-1] else turned
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        raise BadImage("not an image of a known format") from error
    except Exception as error:
        # Decoders raise errors of any kind on damaged files.
        raise BadImage(f"{type(error).__name__}: {error}") from error


def to_rgb(image: Image.Image, bits: int | None = None) -> Image.Image:
    """Return an image of Pillow in RGB; of 16 bits, the upper 8 of the range of values.

    bits: of the values in files of 16 bits, from 9 to 16; by default as many as a TIFF declares, else 16. Raises
    BadImage for floats, for 32 bits, for values beyond this range, and for an image of 16 bits without `bits` that does
    not reach a fourth of the range, since its values may have fewer bits.
    """
    # In formats other than TIFF, mode I holds 16 bits.
    if image.mode == "F" or (image.mode == "I" and image.format in (None, "TIFF")):
        what = "floating-point numbers" if image.mode == "F" else "signed or 32-bit numbers"
        raise BadImage(f"its pixels are {what} of unknown range; save it with 8 or 16 bits")
    if bits is not None and not 9 <= bits <= 16:
        raise BadImage(f"bits must be from 9 to 16, got {bits}")
    if image.mode not in _SIXTEEN_BITS:
        # Pillow keeps the upper 8 of 16 bits of a colour.
        halved = re.search(";16[BLN]", str(getattr(image, "tile", "")))
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        image = image.convert("RGB")
        if halved and bits != 16:
            _refuse_dark(256 * max(high for _, high in image.getextrema()), "save it with 8 bits")
        return image
    tags = getattr(image, "tag_v2", {})
    top = 2 ** (bits or tags.get(_BITS_PER_SAMPLE, (16,))[0]) - 1
    top = tags.get(_MAX_SAMPLE_VALUE, (top,))[0] if bits is None else top
    # Pillow would clip at 255.
    image = image.convert("I")
    _, high = image.getextrema()
    if high > top:
        raise BadImage(f"its values reach {high}, more than {top} for bits={bits}")
    if bits is None and top == 2**16 - 1:
        _refuse_dark(high, f"set bits={max(high.bit_length(), 9)} in the data set or program, or save it with 8 bits")
    scale, offset = (-256 / (top + 1), 255.999) if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else (256 / (top + 1), 0)
    return image.point(lambda value: value * scale + offset).convert("L").convert("RGB")


def _refuse_dark(high: int, remedy: str) -> None:
    if 0 < high < _DARK:
        raise BadImage(f"its 16-bit values reach only {high}, so their range is unknown; {remedy}, or set bits=16")


def read_image(path: str | Path) -> Image.Image:
    """Return the image in a file, in RGB; see `decode_image`. Raises OSError or BadImage."""
    try:
        return decode_image(Path(path).expanduser().read_bytes())
    except BadImage as error:
        raise BadImage(f"{path} cannot be read as an image ({error}).") from error


def find_images(root: str | Path, split: str, *, classes: Sequence[str] | None = None) -> LabelledImages:
    """Return the images of a split, from the first of `root/split`, `root/split.tar`, `root/split.zip` that exists.

    Without `val`, `valid` stands for it.

    It holds a folder for each class; an archive may hold these in a folder of its own. Without such folders, labels
    come from `root/split.txt`: on each line a file name and its class, as a name or an index from 0, after a space or a
    TAB.

    split: "" stands for root itself. classes: names of all classes, in order; folders and labels must be among them, or
    be indices. By default they are the lines of `root/classes.txt`, else the folders of `root/train` or of its archive,
    else those of the split, sorted by name, or by number if all are numbers.

    Raises FileNotFoundError for a missing folder, list or listed image, ValueError for an empty class, for labels that
    do not fit, and for a file or class that is listed twice.
    """
    root = Path(root).expanduser()
    split = _present(root, split)
    storage = require_storage(root, split)
    entries, left_out = [], Counter()
    for entry in storage.entries():
        if is_image(entry.name):
            entries.append(entry)
        elif not (path := PurePath(entry.name)).name.startswith("."):
            left_out[path.suffix.lower()] += 1
    if not entries:
        raise ValueError(f"{storage.path} must hold images ({', '.join(sorted(SUFFIXES))}).")
    top = "" if isinstance(storage, FolderStorage) else _common_folder(entries)
    names = list(classes) if classes is not None else _listed_classes(root, split)
    inside = [entry.name.removeprefix(top) for entry in entries]
    if any("/" in name for name in inside):
        labels, source = _labels_of_folders(storage, top, inside), f"A folder of {storage.path}"
    else:
        listed = root / f"{split}.txt"
        labels, source = _labels_of_list(storage, listed, inside), f"A label in {listed}"
    names = names or in_order(set(labels))
    places = _places(names, set(labels), source)
    samples = [(e, places[label]) for e, label in zip(entries, labels, strict=True)]
    return LabelledImages(storage, names, samples, left_out)


def find_multi_label_images(root: str | Path, split: str, *, classes: Sequence[str] | None = None) -> LabelledImages:
    """Return the images of a split, each with any number of classes, that `root/split.csv` or `root/split.txt` lists.

    The images lie in `root/split`, in an archive of it, or in root itself. A line of `split.txt` is a file name and its
    classes, separated by TABs, or by spaces in a line without TABs. `split.csv` has the file name in its first
    column. Its second and last column holds the classes, separated by the first of `|`, `;`, commas and spaces that the
    file has there; or each further column is a class, named by a header, with 1 for images that have it and 0 for
    others.

    classes: names of all classes, in order; by default the lines of `root/classes.txt`, else the columns of classes,
    else all names in the list of `train`, sorted. Images that the list leaves out are not used.

    Raises FileNotFoundError for a missing list or image, ValueError for a label outside of the classes and for an image
    that is listed twice.
    """
    root = Path(root).expanduser()
    split = _present(root, split)
    listed, columns, lines = _read_labels(root, split)
    storage = open_storage(root / split) or FolderStorage(root)
    entries = {entry.name.removeprefix(f"{split}/"): entry for entry in storage.entries() if is_image(entry.name)}
    _require_files(storage, lines, entries)
    if classes is None:
        classes = read_classes(root / "classes.txt") if (root / "classes.txt").is_file() else columns
    if classes is None:
        classes = in_order({label for labels in _read_labels(root, "train")[0].values() for label in labels})
    places = _places(list(classes), {label for labels in listed.values() for label in labels}, f"A label of {split}")
    samples = [(entries[name], tuple(sorted({places[label] for label in labels}))) for name, labels in listed.items()]
    return LabelledImages(storage, list(classes), samples)


def _present(root: Path, split: str) -> str:
    """Return the split, or `valid` for a missing `val`."""
    return "valid" if split == "val" and not open_storage(root / split) and open_storage(root / "valid") else split


def _read_labels(root: Path, split: str) -> tuple[dict[str, list[str]], list[str] | None, dict[str, int]]:
    """Return the labels of each listed file, the classes if each has a column, and the line of each file."""
    table, columns = root / f"{split}.csv", None
    if table.is_file():
        lines = numbered_lines(table)
        rows = list(csv.reader(lines.values()))
        headless = bool(rows) and is_image(rows[0][0])
        if not rows or not (len(rows[0]) == 2 if headless else len(rows[0]) > 1):
            raise ValueError(f"{table} must have a header of at least two columns, split by commas, and rows.")
        _, *columns = map(str.strip, ["file", "labels"] if headless else rows.pop(0))
        numbers = list(lines)[-len(rows) :]
        if bad := [row for row in rows if len(row) != 1 + len(columns)]:
            raise ValueError(f"{table} must have {1 + len(columns)} columns in each row, got {','.join(bad[0])}.")
        if len(columns) == 1:
            columns, separator = None, next((s for s in "|;," if any(s in labels for _, labels in rows)), None)
            rows = [[name, *filter(str.strip, labels.split(separator))] for name, labels in rows]
        elif bad := [(name, flag) for name, *flags in rows for flag in flags if flag.strip() not in ("0", "1")]:
            raise ValueError(f"Columns of classes in {table} must hold 0 or 1, got {bad[0][1]!r} for {bad[0][0]}.")
        else:
            rows = [[name, *(c for c, flag in zip(columns, flags, strict=True) if int(flag))] for name, *flags in rows]
    else:
        table = table.with_suffix(".txt")
        if not table.is_file():
            raise FileNotFoundError(f"A list of labels must exist as {root / split}.csv or {table}.")
        numbers = numbered_lines(table)
        rows = [line.split("\t" if "\t" in line else None) for line in numbers.values()]
    if not rows:
        raise ValueError(f"{table} must list images, got an empty file.")
    # A name may begin with the folder of the split.
    names = [name.strip().removeprefix(f"{split}/") for name, *_ in rows]
    labels = [[label.strip() for label in labels] for _, *labels in rows]
    return dict(zip(names, labels, strict=True)), columns, _lines_of(table, numbers, names)


def is_image(path: str | PurePath) -> bool:
    """Return whether a file has an image's ending and is not hidden."""
    path = PurePath(path)
    # macOS adds a hidden file with the same ending for each file of an archive.
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _common_folder(entries: Sequence[StoredFile]) -> str:
    """Return the folder, with its slash, that holds the folders of all classes; "" if there is none."""
    first = entries[0].name.split("/")[0] + "/"
    return first if all(entry.name.startswith(first) and entry.name.count("/") > 1 for entry in entries) else ""


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of classes sorted by number if all are numbers, else as text."""
    names = sorted(names)
    return sorted(names, key=int) if all(map(str.isdecimal, names)) else names


def _labels_of_folders(storage: Storage, top: str, names: Sequence[str]) -> list[str]:
    """Return the folder of each file. Raises ValueError for a file outside of folders and for an empty folder."""
    if loose := [name for name in names if "/" not in name]:
        raise ValueError(f"{storage.path} must hold images in one folder per class, got {loose[0]}.")
    labels = [name.split("/")[0] for name in names]
    folders = {folder.removeprefix(top) for folder in storage.folders() if folder.startswith(top)}
    if empty := sorted({folder for folder in folders if folder and "/" not in folder} - set(labels)):
        raise ValueError(f"Folders of {storage.path} must hold images, {len(empty)} are empty, such as {empty[0]}.")
    return labels


def _places(names: Sequence[str], given: set[str], what: str) -> dict[str, int]:
    """Return the index of each given class: by name, or by number if all are numbers and not names."""
    places = {name: index for index, name in enumerate(names)}
    if not given & set(places) and all(name.isdecimal() for name in given):
        places = {name: int(name) for name in given if int(name) < len(names)}
    # Names that stand twice, such as ImageNet's two cranes, can be told apart by number alone.
    if twice := [name for name, count in Counter(names).items() if count > 1 and name in given and name in places]:
        raise ValueError(f"{what} must name one class, got {twice[0]!r}, the name of {names.count(twice[0])}.")
    if unknown := sorted(given - set(places)):
        known = f"the {len(names)} classes ({names[0]}, ... {names[-1]}) or a number below {len(names)}"
        raise ValueError(f"{what} must be one of {known}, got {unknown[0]!r}.")
    return places


def _listed_classes(root: Path, split: str) -> list[str] | None:
    if (listed := root / "classes.txt").is_file():
        return read_classes(listed)
    if split in ("", "train") or (train := open_storage(root / "train")) is None:
        return None
    if isinstance(train, FolderStorage):
        # Faster than listing a million files.
        folders = {path.name for path in train.path.iterdir() if path.is_dir() and not path.name.startswith(".")}
        return in_order(folders)
    images = [entry for entry in train.entries() if is_image(entry.name)]
    top = _common_folder(images) if images else ""
    inside = [entry.name.removeprefix(top) for entry in images]
    return in_order({name.split("/")[0] for name in inside if "/" in name})


def _labels_of_list(storage: Storage, path: Path, names: Sequence[str]) -> list[str]:
    """Return the label of each file. Raises FileNotFoundError without the list, ValueError if it does not fit."""
    if not path.is_file():
        raise FileNotFoundError(f"{storage.path} must have a folder per class, or a list of labels {path} must exist.")
    lines = numbered_lines(path)
    # A class may contain spaces after a TAB; else it is the last word.
    pairs = {n: line.split("\t", 1) if "\t" in line else line.rsplit(maxsplit=1) for n, line in lines.items()}
    if bad := [number for number, pair in pairs.items() if len(pair) < 2]:
        raise ValueError(f"{path} must have a file and a class on each line, got {lines[bad[0]]!r} on line {bad[0]}.")
    _require_files(storage, _lines_of(path, pairs, (pair[0].strip() for pair in pairs.values())), set(names))
    labels = {name.strip(): label.strip() for name, label in pairs.values()}
    if missing := [name for name in names if name not in labels]:
        raise ValueError(f"{path} must name each image's class, {len(missing)} are missing, such as {missing[0]}.")
    return [labels[name] for name in names]


def _require_files(storage: Storage, lines: Mapping[str, int], files: Container[str]) -> None:
    """Raise FileNotFoundError unless each listed name is one of the files. lines: by name."""
    if missing := [name for name in lines if name not in files]:
        where = f"{len(missing)} are not there, such as {missing[0]} on line {lines[missing[0]]}"
        raise FileNotFoundError(f"{storage.path} must hold each listed image, {where}.")


def _lines_of(path: Path, numbers: Iterable[int], names: Iterable[str]) -> dict[str, int]:
    """Return the number of the line of each name. Raises ValueError for a name on two lines."""
    lines: dict[str, int] = {}
    for number, name in zip(numbers, names, strict=False):
        if (first := lines.setdefault(name, number)) != number:
            raise ValueError(f"{path} must list each name once, got {name} on lines {first} and {number}.")
    return lines


def read_classes(path: Path) -> list[str]:
    """Return the names of classes in a list. Raises ValueError for a name on two lines."""
    lines = numbered_lines(path)
    return list(_lines_of(path, lines, lines.values()))


def numbered_lines(path: Path) -> dict[int, str]:
    """Return the lines of a UTF-8 text by number from 1, stripped and without empty ones.

    Raises ValueError for another encoding.
    """
    # Some editors put a byte order mark first.
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    return {number: line.strip() for number, line in enumerate(lines, 1) if line.strip()}
