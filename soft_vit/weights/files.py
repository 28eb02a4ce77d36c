"""Files that are either whole or not there, and their digests."""

import hashlib
import os
import tempfile
from pathlib import Path

__all__ = ["require_place", "sha256_of", "write_atomically"]


def require_place(path: str | Path) -> None:
    """Make the folder of a file that long work will end with; ValueError where the file could not be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}); give another path.") from error
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the path of a file.")


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file under a temporary name in the same folder, force it to disk, then rename it.

    A process that is killed, or a machine that stops, leaves the old file or the new one, never half of one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes the file private; a checkpoint has the permissions of any other file.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        # Opening reports the temporary name and writing none; a user knows the file by its own name.
        error.filename = str(path)
        raise
    if os.name == "posix":
        # The rename itself reaches the disk with its folder.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
