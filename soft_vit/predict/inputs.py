"""Find the images of files and folders, and names for their results."""

import os
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from soft_vit.data.archives import FolderStorage
from soft_vit.data.images import SUFFIXES, is_image

__all__ = ["Input", "find_inputs", "free_name", "printable"]


class Input(NamedTuple):
    """An image file, and its path below the folder that named it."""

    path: Path
    name: PurePosixPath


def find_inputs(given: Sequence[str | Path], out: Path) -> list[Input]:
    """Return the images of files and of folders, at any depth, each one once.

    A file may have any name; of folders, files with the ending of an image are taken. Files in `out`, the folder of
    the results, are left out. Raises FileNotFoundError for a missing path, and ValueError for an empty one or if no
    image is left.
    """
    if "" in given:
        # Path("") is the working folder.
        raise ValueError("Images must be files or folders, got an empty string.")
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
    if not path.exists():
        raise FileNotFoundError(f"The image {given} does not exist.")
    if not path.is_dir():
        yield Input(path, PurePosixPath(path.name))
        return
    for entry in FolderStorage(path).entries():
        if is_image(entry.name):
            yield Input(path / entry.name, PurePosixPath(entry.name))


def printable(path: Path | PurePosixPath) -> str:
    """Return a path as text; bytes of its name that are not UTF-8 are replaced."""
    return os.fsencode(path).decode(errors="replace")


def free_name(name: PurePosixPath, taken: set[str]) -> str:
    """Return a name that is not taken, numbered where needed, and add it to `taken`.

    taken: case-folded names, since some disks ignore case.
    """
    name = PurePosixPath(printable(name))
    names = chain([name], (name.with_stem(f"{name.stem}_{number}") for number in count(2)))
    free = next(str(name) for name in names if str(name).casefold() not in taken)
    taken.add(free.casefold())
    return free
