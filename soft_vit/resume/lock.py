"""Keep two runs from writing into one folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def only_run_in(work_dir: str | Path) -> Iterator[None]:
    """Create a folder if it is missing, and hold its lock in the block, before anything else is written to it.

    The system releases the lock if this process is killed. Raises ValueError if another process holds it. Windows and
    file systems without locks are not protected.
    """
    Path(work_dir).mkdir(parents=True, exist_ok=True)
    with (Path(work_dir) / ".lock").open("w") as file:
        try:
            if fcntl is not None:
                # Unlike flock, it does not belong to data workers as well, which outlive a killed run by seconds.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(f"The folder must not be that of a run that goes on, got {work_dir}.") from None
        except OSError:
            # The file system lacks locks.
            pass
        yield
