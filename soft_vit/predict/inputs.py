"""The images that files, folders and patterns stand for, and the names of their results."""

import glob
import os
from collections.abc import Iterator, Sequence
from itertools import chain, count, takewhile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from PIL import Image

from soft_vit.data.archives import Entry, FolderStorage
from soft_vit.data.images import SUFFIXES, BadImage, decode_image, is_image

__all__ = ["Input", "find_inputs", "free_name", "printable", "read_input"]

# File systems allow 255 bytes; an ending and a temporary suffix follow.
STEM_BYTES = 180


class Input(NamedTuple):
    """An image file, and its path below the folder or pattern that named it."""

    path: Path
    name: PurePosixPath


def find_inputs(given: Sequence[str | Path], out: Path) -> list[Input]:
    """Return the images of files, folders (at any depth) and patterns such as `photos/**/*.jpg`, each one once.

    A file may have any name; folders and patterns give the files with an image's ending. Files in `out`, the folder of
    the results, are left out. Raises FileNotFoundError for a missing path, ValueError for an empty one or no image.
    """
    if "" in given:
        # Path("") is the working folder.
        raise ValueError("Images must be files, folders or patterns, got an empty text; . is this folder.")
    found: dict[str, Input] = {}
    for item in given:
        for image in _find(str(item)):
            found.setdefault(os.path.realpath(image.path), image)
    inputs = [image for path, image in found.items() if not Path(path).is_relative_to(out.resolve())]
    if not inputs:
        raise ValueError(
            f"{', '.join(map(str, given))} must hold an image ({', '.join(sorted(SUFFIXES))}) outside of {out}, the "
            "folder of the results."
        )
    return inputs


def _find(given: str) -> Iterator[Input]:
    path = Path(given).expanduser()
    if path.is_dir():
        yield from _in_folder(path, PurePosixPath())
    elif path.exists():
        yield Input(path, PurePosixPath(path.name))
    elif glob.has_magic(given):
        fixed = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
        for hit in map(Path, sorted(glob.glob(str(path), recursive=True))):
            name = PurePosixPath(*(part for part in hit.parts[len(fixed.parts) :] if part != ".."))
            if hit.is_file() and is_image(hit):
                yield Input(hit, name)
            # The pattern `**` gives the files of folders by itself.
            elif hit.is_dir() and "**" not in given:
                yield from _in_folder(hit, name)
    else:
        raise FileNotFoundError(f"There is no image {given}.")


def _in_folder(folder: Path, name: PurePosixPath) -> Iterator[Input]:
    for entry in FolderStorage(folder).entries():
        if is_image(entry.name):
            yield Input(folder / entry.name, name / entry.name)


def read_input(path: Path) -> Image.Image:
    """Return the image in a file, in RGB. Raises BadImage."""
    try:
        return decode_image(FolderStorage(path.parent).read(Entry(path.name)))
    except (OSError, ValueError) as error:
        raise BadImage(str(error)) from error


def printable(path: Path | PurePosixPath) -> str:
    """Return a path as text; bytes of its name that are not UTF-8 are replaced."""
    return os.fsencode(path).decode(errors="replace")


def free_name(name: PurePosixPath, folder: Path, taken: set[str]) -> str:
    """Return a name for a file in a folder, numbered where the name is taken, and add it to `taken`.

    taken: case-folded names, since some disks ignore case. Raises ValueError if a link would lead out of the folder.
    """
    name = PurePosixPath(printable(name))
    stem = name.stem.encode()[:STEM_BYTES].decode(errors="ignore")
    names = (name.with_name(f"{stem}{end}{name.suffix}") for end in chain([""], map("_{}".format, count(2))))
    free = next(name for name in names if str(name).casefold() not in taken)
    if not (folder / free).parent.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{folder / free} must not lead out of {folder} by a link.")
    taken.add(str(free).casefold())
    return str(free)
