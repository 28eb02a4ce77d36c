"""Which images are meant by files, folders and patterns, and under which names their results are kept."""

import glob
import os
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from PIL import Image

from soft_vit.data.archives import Entry, FolderStorage
from soft_vit.data.images import SUFFIXES, BadImage, decode_image, is_image
from soft_vit.engine.errors import UserError

__all__ = ["FreeNames", "Input", "find_inputs", "read_input", "shown"]

# Names are cut to this length: file systems allow 255 bytes, in which an ending and a temporary suffix must fit too.
STEM_BYTES = 180


class Input(NamedTuple):
    """An image file, and its path below the folder or pattern by which it was found."""

    path: Path
    name: PurePosixPath


def find_inputs(given: Sequence[str | Path], out: Path) -> list[Input]:
    """The images meant by files, folders (with all below them) and patterns such as `photos/**/*.jpg`, each one once.

    A file is taken whatever it is called; in folders and patterns those that are called as images are. Results of an
    earlier run, in `out`, are left out. Raises FileNotFoundError for a path that is not there, UserError (a ValueError)
    when no image is meant, or one that lies in `out`.
    """
    results = out.expanduser().resolve()
    found: dict[str, Input] = {}
    for item in given:
        for image in _meant_by(str(item), results):
            found.setdefault(os.path.realpath(image.path), image)
    if not found:
        raise UserError(
            f"There is no image in {', '.join(map(str, given))}; give files, folders or patterns with images "
            f"({', '.join(sorted(SUFFIXES))})."
        )
    for path, image in found.items():
        if Path(path).is_relative_to(results):
            raise UserError(
                f"{shown(image.path)} lies in {out}, where the results go; choose another folder with --out."
            )
    return list(found.values())


def _meant_by(given: str, results: Path) -> Iterator[Input]:
    path = Path(given).expanduser()
    if path.is_dir():
        yield from _in_folder(path, PurePosixPath(), results)
    elif path.exists():
        yield Input(path, PurePosixPath(path.name))
    elif glob.has_magic(given):
        yield from _of_pattern(str(path), results)
    else:
        raise FileNotFoundError(f"There is no image {given}; give files, folders or patterns that exist.")


def _in_folder(folder: Path, name: PurePosixPath, results: Path) -> Iterator[Input]:
    inside = folder.resolve().is_relative_to(results)
    for entry in FolderStorage(folder).entries():
        path = folder / entry.name
        if is_image(path) and (inside or not path.resolve().is_relative_to(results)):
            yield Input(path, name / entry.name)


def _of_pattern(pattern: str, results: Path) -> Iterator[Input]:
    fixed = Path(*takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))
    for hit in sorted(glob.glob(pattern, recursive=True)):
        path = Path(hit)
        parts = path.relative_to(fixed).parts if path.is_relative_to(fixed) else (path.name,)
        name = PurePosixPath(*(part for part in parts if part != ".."))
        if path.is_dir():
            # `**` meets everything below it by itself.
            if "**" not in pattern:
                yield from _in_folder(path, name, results)
        elif is_image(path) and not path.resolve().is_relative_to(results):
            yield Input(path, name)


def read_input(path: Path) -> Image.Image:
    """The image in a file, in RGB. Raises BadImage."""
    try:
        return decode_image(FolderStorage(path.parent).read(Entry(path.name)))
    except BadImage:
        raise
    except (OSError, ValueError) as error:
        raise BadImage(str(error)) from error


def shown(path: Path | str) -> str:
    """A path that can be printed: what is no text in its name is replaced."""
    return os.fsencode(path).decode(errors="replace")


class FreeNames:
    """Names of files in a folder, of which none is given twice, on a disk that ignores case either."""

    def __init__(self, folder: Path, taken: Sequence[str] = ()) -> None:
        self.folder = folder
        self._taken = {name.casefold() for name in taken}

    def take(self, name: PurePosixPath) -> str:
        """The name itself, or with a number where it is taken; relative to the folder, with forward slashes.

        Raises UserError (a ValueError) for a name that would lead out of the folder, by a link that lies in it.
        """
        name = PurePosixPath(shown(name))
        stem = name.stem.encode()[:STEM_BYTES].decode(errors="ignore")
        number, free = 2, name.with_name(stem + name.suffix)
        while str(free).casefold() in self._taken:
            free = name.with_name(f"{stem}_{number}{name.suffix}")
            number += 1
        if not (self.folder / free).parent.resolve().is_relative_to(self.folder.resolve()):
            raise UserError(
                f"{shown(self.folder / free)} would lie outside of {self.folder}, because of a link; remove the link "
                "or choose another folder with --out."
            )
        self._taken.add(str(free).casefold())
        return str(free)
