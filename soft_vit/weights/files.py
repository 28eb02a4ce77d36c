"""Where the files of the package lie, and how files are written atomically."""

import os
import tempfile
from pathlib import Path

__all__ = ["INDEX_FILE", "RESOURCES", "WeightsError", "ensure_writable", "write_atomically"]


class WeightsError(ValueError, RuntimeError):
    """Raised where recorded weights are missing or changed, with one sentence for the user.

    timm raises RuntimeError for the same.
    """


_PACKAGE = Path(__file__).parents[1]

RESOURCES = _PACKAGE / ".mim" if (_PACKAGE / ".mim").is_dir() else _PACKAGE.parent
"""Where configs, checkpoints/ and the metafile lie: next to the package, in a wheel where OpenMMLab looks for them."""
INDEX_FILE = RESOURCES / "checkpoints" / "index.json"
"""The index of recorded weights."""


def ensure_writable(path: str | Path) -> None:
    """Make the folder of a file that long work will end with; ValueError where the file could not be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}); give another path.") from error
    if path.is_dir():
        raise ValueError(f"{path} is a folder; the path of a file must be given.")


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file under a temporary name in the same folder, force it to disk, then rename it.

    A process that is killed, or a machine that stops, leaves the old file or the new one, never a part of one.
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
