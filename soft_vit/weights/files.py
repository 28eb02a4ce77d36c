"""Locate the files of the package, and write files atomically."""

import os
import tempfile
from pathlib import Path


class WeightsError(ValueError, RuntimeError):
    """Raised for weights that are missing, changed or of the wrong shape; also a RuntimeError, as timm raises."""


_PACKAGE = Path(__file__).parents[1]

RESOURCES = _PACKAGE / ".mim" if (_PACKAGE / ".mim").is_dir() else _PACKAGE.parent
"""Folder of configs/, checkpoints/ and the metafile: next to the package, or `.mim` in a wheel, as in OpenMMLab."""
INDEX_FILE = RESOURCES / "checkpoints" / "index.json"
"""The index of recorded weights."""


def ensure_writable(path: str | Path) -> None:
    """Create the folder of a file before long work. Raises ValueError if the file could not be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}); give another path.") from error
    if path.exists() and not path.is_file():
        # Renaming a file to /dev/null would replace the device.
        raise ValueError(f"path must be that of a file, got {path}, a folder or a device.")


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file under a temporary name in the same folder, force it to disk, then rename it.

    If the process is killed or the machine stops, the old file or the new one remains, never a part of one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[-50:]}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes the file private; give it the usual permissions.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        # Report the file instead of its temporary name.
        error.filename = str(path)
        raise
    if os.name == "posix":
        # Force the rename to disk.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
