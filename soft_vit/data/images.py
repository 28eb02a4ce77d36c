"""Labelled images on disk: a tree with a folder for each class, or a flat folder with a list of labels."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from PIL import Image, UnidentifiedImageError

from soft_vit.data.archives import Entry, FolderStorage, Storage, open_storage, require_storage
from soft_vit.data.lists import read_lines

__all__ = ["BadImage", "LabelledImages", "decode_image", "find_images", "is_image", "read_image"]

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".apng"}


class BadImage(ValueError):
    """A file that is no image, or only a part of one."""


@dataclass
class LabelledImages:
    """Images and what they show: `samples` are files with the index of their class in `classes`."""

    storage: Storage
    classes: list[str]
    samples: list[tuple[Entry, int]]

    def load(self, entry: Entry) -> Image.Image:
        """The decoded image of a file, in RGB. Raises BadImage when it cannot be read or decoded."""
        try:
            data = self.storage.read(entry)
        except (OSError, ValueError) as error:
            raise BadImage(f"{entry.name}: {error}") from error
        try:
            return decode_image(data)
        except BadImage as error:
            raise BadImage(f"{entry.name}: {error}") from error.__cause__


def decode_image(data: bytes) -> Image.Image:
    """The first frame of an encoded image, in RGB. Raises BadImage.

    Transparency is dropped, CMYK and palettes are converted, 16 bits become the upper 8. The orientation that a camera
    noted is left alone, as torchvision and timm leave it. An image of more than 179 million pixels is refused by its
    header: Pillow's limit against decompression bombs.
    """
    try:
        image = Image.open(io.BytesIO(data))
        if image.mode in ("I;16", "I;16B", "I;16L", "I"):
            # Pillow would cut off at 255 instead of scaling.
            image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
        elif image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        return image.convert("RGB")
    except UnidentifiedImageError as error:
        raise BadImage("no image of a known format") from error
    except Exception as error:
        # A damaged file can end in any error of any decoder.
        raise BadImage(f"{type(error).__name__}: {error}") from error


def read_image(path: str | Path) -> Image.Image:
    """The image in a file, in RGB; see `decode_image`. FileNotFoundError or BadImage, in a sentence that names it."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no image {path}; give the path of a file that exists.")
    try:
        return decode_image(path.read_bytes())
    except (OSError, BadImage) as error:
        raise BadImage(f"The file {path} cannot be read as an image ({error}); give another.") from error


def find_images(
    root: str | Path, split: str, *, label_file: str | Path | None = None, classes: Sequence[str] | None = None
) -> LabelledImages:
    """The images of a split, from the first of `root/split`, `root/split.tar`, `root/split.zip` that exists.

    In it lies a folder for each class; an archive may hold them below one folder of its own. Without such folders
    labels come from `label_file`, by default `root/split.txt`: lines of a file's name and its class, a name or an index
    from 0; or a class alone a line, for the files in the order of their names. split: "" stands for root itself.

    classes: names of all classes, in order; folders and labels must be among them, or be numbers. By default they are
    the lines of `root/classes.txt`, else the folders of `root/train` or of its archive, else those of the split;
    folders are ordered by name, by number where all are numbers.

    Raises FileNotFoundError for what is missing, ValueError for an empty class or labels that do not fit.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}; give the folder that holds the images of each split.")
    storage = require_storage(root, split)
    entries = [entry for entry in storage.entries() if is_image(entry.name)]
    if not entries:
        raise ValueError(f"{storage.path} holds no images ({', '.join(sorted(SUFFIXES))}); give a folder that does.")
    top = "" if isinstance(storage, FolderStorage) else _common_folder(entries)
    names = list(classes) if classes is not None else _listed_classes(root, split)
    inside = [entry.name.removeprefix(top) for entry in entries]
    if any("/" in name for name in inside):
        labels = _labels_of_folders(storage, top, inside)
        source = f"a folder of {storage.path}"
    else:
        listed = root / (f"{split}.txt" if label_file is None else label_file)
        labels = _labels_of_list(storage, listed, inside)
        source = f"a label in {listed}"
    names = names or _ordered(set(labels))
    places = _places(names, set(labels), source)
    return LabelledImages(storage, names, [(e, places[label]) for e, label in zip(entries, labels, strict=True)])


def is_image(path: str | PurePath) -> bool:
    """Whether a file is called as an image."""
    path = PurePath(path)
    # Hidden files are no images; macOS puts one beside each file of an archive, with the same ending.
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _common_folder(entries: Sequence[Entry]) -> str:
    """The folder, with its slash, that holds everything in it and folders of classes below; else ""."""
    first = entries[0].name.split("/")[0] + "/"
    if all(entry.name.startswith(first) and entry.name.count("/") > 1 for entry in entries):
        return first
    return ""


def _ordered(names: set[str]) -> list[str]:
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)


def _labels_of_folders(storage: Storage, top: str, names: Sequence[str]) -> list[str]:
    """The folder that each file lies in. Raises ValueError for a file in none and for a folder without files."""
    loose = [name for name in names if "/" not in name]
    if loose:
        raise ValueError(f"{storage.path} holds {loose[0]} beside the folders of classes; move it into one of them.")
    labels = [name.split("/")[0] for name in names]
    folders = {folder.removeprefix(top) for folder in storage.folders() if folder.startswith(top)}
    empty = sorted({folder for folder in folders if folder and "/" not in folder} - set(labels))
    if empty:
        raise ValueError(
            f"{len(empty)} classes of {storage.path} have no images, such as {empty[0]}; add some or remove the folder."
        )
    return labels


def _places(names: Sequence[str], given: set[str], what: str) -> dict[str, int]:
    """The index of each given class among the names: by name, or where no given one is a name, by number."""
    places = {name: index for index, name in enumerate(names)}
    if not given & set(places) and all(name.isdecimal() for name in given):
        places = {name: int(name) for name in given if int(name) < len(names)}
    unknown = sorted(given - set(places))
    if unknown:
        raise ValueError(
            f"{unknown[0]!r}, {what}, is none of the {len(names)} classes ({names[0]}, ... {names[-1]}); use their "
            f"names or numbers from 0 to {len(names) - 1}."
        )
    return places


def _listed_classes(root: Path, split: str) -> list[str] | None:
    listed = root / "classes.txt"
    if listed.is_file():
        return read_lines(listed)
    train = open_storage(root / "train") if split not in ("", "train") else None
    if train is None:
        return None
    if isinstance(train, FolderStorage):
        # Does not walk through a million files.
        folders = {path.name for path in train.path.iterdir() if path.is_dir() and not path.name.startswith(".")}
        return _ordered(folders)
    images = [entry for entry in train.entries() if is_image(entry.name)]
    top = _common_folder(images) if images else ""
    inside = [entry.name.removeprefix(top) for entry in images]
    return _ordered({name.split("/")[0] for name in inside if "/" in name})


def _labels_of_list(storage: Storage, path: Path, names: Sequence[str]) -> list[str]:
    """The label of each named file. Raises FileNotFoundError without the list, ValueError when it does not fit."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{storage.path} has no folders of classes, and there is no list of labels {path}; write one with a file "
            "name and a class a line."
        )
    lines = read_lines(path)
    if all(len(line.split()) == 1 for line in lines):
        if len(lines) != len(names):
            raise ValueError(f"{path} has {len(lines)} labels for {len(names)} images; give one for each.")
        if "ground_truth" in path.name:
            # ImageNet's development kit counts from 1, in an order of its own.
            raise ValueError(
                f"{path} looks like that of ImageNet's development kit, whose numbers are not those of the sorted "
                "classes; write the synset of each image instead."
            )
        return lines
    labels = dict(line.rsplit(maxsplit=1) for line in lines if len(line.split()) > 1)
    missing = [name for name in names if name not in labels]
    if missing:
        raise ValueError(f"{path} names no class for {len(missing)} images, such as {missing[0]}; add them.")
    return [labels[name] for name in names]
