"""Find the images of files, folders, addresses and standard input, and names for their results."""

import os
import sys
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

from soft_vit.data.archives import MAX_FILE_BYTES, FolderStorage, StoredFile
from soft_vit.data.images import is_image
from soft_vit.text_tables import one_line
from soft_vit.weights.fetch import IDLE_TIMEOUT

TIFF = {".gtiff", ".ndpi", ".scn", ".svs", ".tif", ".tiff"}
"""Endings of files that can be read by window."""


class Input(NamedTuple):
    """An image: its path, its http address or `-`, and its path below the folder that named it."""

    source: Path | str
    name: PurePosixPath

    def read(self) -> bytes:
        """Return the bytes of the image. Raises OSError or ValueError if they cannot be read, or are too many."""
        if isinstance(self.source, Path):
            return FolderStorage(self.source.parent).read(StoredFile(self.source.name))
        if self.source == "-":
            content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            try:
                with urlopen(self.source, timeout=IDLE_TIMEOUT) as response:
                    content = response.read(MAX_FILE_BYTES + 1)
            except HTTPException as error:
                raise OSError(f"the download failed ({one_line(error)})") from error
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"more than the {MAX_FILE_BYTES} bytes that an image may have")
        return content


def find_inputs(given: Sequence[str | Path], out: Path) -> list[Input]:
    """Return the images of files, addresses (http, https), standard input (`-`) and folders, each one once.

    A file may have any name; of folders, at any depth, files with the ending of an image or a slide are taken. Files in
    `out`, the folder of the results, are left out. Raises FileNotFoundError for a missing path, and ValueError for an
    empty one or if no image is left.
    """
    if "" in given:
        # Path("") is the working folder.
        raise ValueError("Images must be files or folders, got an empty string.")
    found: dict[str, Input] = {}
    for item in given:
        for image in _find(str(item)):
            on_disk = isinstance(image.source, Path)
            found.setdefault(os.path.realpath(image.source) if on_disk else image.source, image)
    if not (inputs := [image for path, image in found.items() if not Path(path).is_relative_to(out.resolve())]):
        raise ValueError(f"{', '.join(map(str, given))} must hold an image outside of {out}, the folder of results.")
    return inputs


def _find(given: str) -> Iterator[Input]:
    if given == "-" or given.startswith(("http://", "https://")):
        yield Input(given, PurePosixPath(PurePosixPath(urlsplit(given).path).name.strip("-.") or "image"))
        return
    path = Path(given).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"The image {given} does not exist.")
    if not path.is_dir():
        yield Input(path, PurePosixPath(path.name))
        return
    for entry in FolderStorage(path, skip_loops=True).entries():
        if is_image(entry.name) or PurePosixPath(entry.name).suffix.lower() in TIFF:
            yield Input(path / entry.name, PurePosixPath(entry.name))


def printable(path: Path | PurePosixPath | str) -> str:
    """Return a path as text; bytes of its name that are not UTF-8 are replaced."""
    return os.fsencode(path).decode(errors="replace")


def free_name(name: PurePosixPath, taken: set[str]) -> str:
    """Return a name that is not taken, numbered where needed, and add it to `taken`.

    taken: case-folded names, since some disks ignore case.
    """
    name = PurePosixPath(printable(name))
    # File systems allow 255 bytes.
    name = name.with_name(name.name.encode()[-240:].decode(errors="ignore"))
    names = chain([name], (name.with_stem(f"{name.stem}_{number}") for number in count(2)))
    free = next(str(name) for name in names if str(name).casefold() not in taken)
    taken.add(free.casefold())
    return free
