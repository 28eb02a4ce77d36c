"""Keep two runs from writing into one folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def only_run_in(work_dir: str | Path) -> Iterator[None]:
    """Hold the lock of a folder in the block. The system releases it if this process is killed.

    Raises ValueError if another process holds it. Windows and file systems without locks are not protected.
    """
    with (Path(work_dir) / ".lock").open("w") as file:
        try:
            if fcntl is not None:
                # Unlike flock, it does not belong to data workers as well, which outlive a killed run by seconds.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(f"work_dir must not be that of a run that goes on, got {work_dir}.") from None
        except OSError:
            # The file system lacks locks.
            pass
        yield
