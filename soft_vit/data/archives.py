"""The files of a data set, in a folder, a TAR or a ZIP; archives are read without unpacking."""

import json
import os
import posixpath
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from soft_vit.weights.files import write_atomically

# Above the size of any photograph. A larger file could fill the memory before it is decoded.
MAX_FILE_BYTES = 256 * 2**20


class StoredFile(NamedTuple):
    """A file: its path with forward slashes, and in a TAR the place of its bytes."""

    name: str
    offset: int = 0
    size: int = 0


def _check_size(name: str, size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise ValueError(f"{name} has {size} bytes, more than the {MAX_FILE_BYTES} that an image may have")


def _raise(error: OSError) -> None:
    raise error


class FolderStorage:
    """Files of a folder at any depth; links are followed.

    Listing raises PermissionError for an unreadable folder, and ValueError for a link to a folder that the link is in,
    which skip_loops leaves out instead.
    """

    def __init__(self, path: Path, skip_loops: bool = False) -> None:
        self.path, self.skip_loops = path, skip_loops

    def _walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        for folder, folders, files in os.walk(self.path, onerror=_raise, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            relative = Path(folder).relative_to(self.path).as_posix()
            holders = [self.path / part for part in (relative, *PurePosixPath(relative).parents)]
            for link in [Path(folder, name) for name in folders if os.path.islink(os.path.join(folder, name))]:
                if any(map(link.samefile, holders)) and self.skip_loops:
                    folders.remove(link.name)
                elif any(map(link.samefile, holders)):
                    raise ValueError(f"{link} must not link to a folder that it is in, got {os.readlink(link)}.")
            yield "" if relative == "." else relative + "/", folders, files

    def entries(self) -> list[StoredFile]:
        """Return every regular file, sorted by name."""
        return sorted(StoredFile(folder + name) for folder, _, files in self._walk() for name in files)

    def folders(self) -> set[str]:
        """Return the paths of the folders, including empty ones."""
        return {folder + name for folder, folders, _ in self._walk() for name in folders}

    def read(self, entry: StoredFile) -> bytes:
        """Return the bytes of a file. Raises OSError or ValueError for an unreadable or too large file."""
        path = self.path / entry.name
        # Reading a pipe would block.
        if not path.is_file():
            raise OSError(f"{path} is not a regular file")
        _check_size(entry.name, path.stat().st_size)
        return path.read_bytes()


class TarStorage:
    """Files of an uncompressed TAR, and links to them.

    Listing them takes a pass over the archive; the list is kept next to it in `<name>.index.json` where that can be
    written. Raises ValueError for a compressed or damaged archive.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._entries, self._folders = self._index()

    def _index(self) -> tuple[list[StoredFile], set[str]]:
        status = self.path.stat()
        stamp = ["without hidden files", status.st_size, status.st_mtime_ns]
        kept = self.path.with_name(self.path.name + ".index.json")
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(kept.read_text())
            if content["archive"] == stamp:
                return [StoredFile(*entry) for entry in content["files"]], set(content["folders"])
        try:
            with tarfile.open(self.path, "r:") as archive:
                members = [member for member in archive.getmembers() if not _is_hidden(member.name)]
        except tarfile.TarError as error:
            raise ValueError(f"{self.path} must be an uncompressed TAR ({error}).") from error
        places = {_plain(m.name): (m.offset_data, m.size) for m in members if m.isreg()}
        # Hard links first, which name a member; symbolic ones, which may lead to those, a path from their folder.
        for m in sorted((m for m in members if m.islnk() or m.issym()), key=tarfile.TarInfo.issym):
            folder = posixpath.dirname(m.name) if m.issym() else ""
            target = posixpath.normpath(posixpath.join(folder, m.linkname))
            if target in places:
                places[_plain(m.name)] = places[target]
        entries = sorted(StoredFile(name, *place) for name, place in places.items())
        # `tar -C train -cf train.tar .` lists the top folder as well.
        folders = {_plain(m.name) for m in members if m.isdir()} - {"."}
        index = {"archive": stamp, "files": entries, "folders": sorted(folders)}
        with suppress(OSError):
            write_atomically(kept, json.dumps(index).encode())
        return entries, folders

    def entries(self) -> list[StoredFile]:
        return self._entries

    def folders(self) -> set[str]:
        return self._folders

    def read(self, entry: StoredFile) -> bytes:
        _check_size(entry.name, entry.size)
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        # Forked processes share the file position, which pread ignores.
        data = os.pread(self._descriptor, entry.size, entry.offset)
        if len(data) < entry.size:
            raise OSError(f"{self.path} ends within {entry.name}")
        return data

    def __getstate__(self) -> dict:
        # Each sample holds its entry, so workers need no list.
        return {**self.__dict__, "_descriptor": None, "_entries": [], "_folders": set()}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)


class ZipStorage:
    """Files of a ZIP, which each process opens for itself. Raises ValueError for a damaged archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: tuple[int, zipfile.ZipFile] | None = None
        try:
            self._archive()
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} must be a ZIP ({error}).") from error

    def _archive(self) -> zipfile.ZipFile:
        # Forked processes would share the file position.
        if self._open is None or self._open[0] != os.getpid():
            self._open = os.getpid(), zipfile.ZipFile(self.path)
        return self._open[1]

    def entries(self) -> list[StoredFile]:
        return sorted(StoredFile(info.filename) for info in self._members() if not info.is_dir())

    def folders(self) -> set[str]:
        return {_plain(info.filename) for info in self._members() if info.is_dir()}

    def _members(self) -> list[zipfile.ZipInfo]:
        return [info for info in self._archive().infolist() if not _is_hidden(info.filename)]

    def read(self, entry: StoredFile) -> bytes:
        archive = self._archive()
        _check_size(entry.name, archive.getinfo(entry.name).file_size)
        try:
            return archive.read(entry.name)
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            # Damaged, encrypted, or compressed in a way unknown to Python.
            raise OSError(f"{entry.name} cannot be read from {self.path}: {error}") from error

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_open": None}


Storage = FolderStorage | TarStorage | ZipStorage
"""Files by name, safe to read in forked and spawned processes."""


def _is_hidden(name: str) -> bool:
    # macOS adds a folder of file attributes.
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def _plain(name: str) -> str:
    """Return a member's path without a leading `./` or a trailing slash."""
    return PurePosixPath(name).as_posix()


def path_below(root: Path, name: str) -> Path:
    """Return the path of a name in a folder, or, if the folder has none, the name as a path of its own."""
    inside, own = root / name, Path(name).expanduser()
    return own if own.exists() and not inside.exists() else inside


def require_storage(root: Path, name: str) -> Storage:
    """Return the storage of a name in a folder, see `open_storage`. Raises FileNotFoundError if there is none."""
    if (storage := open_storage(root / name)) is None:
        raise FileNotFoundError(f"{root} must have a folder {name}, {name}.tar or {name}.zip.")
    return storage


def open_storage(path: Path) -> Storage | None:
    """Return the folder or the archive at a path, or the TAR or ZIP of its name; None if there is none."""
    if path.is_dir():
        return FolderStorage(path)
    for suffix, kind in ((".tar", TarStorage), (".zip", ZipStorage)):
        for archive in (path, path.with_name(path.name + suffix) if path.name else path):
            if archive.suffix.lower() == suffix and archive.is_file():
                return kind(archive)
    return None
