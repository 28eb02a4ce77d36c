"""MMEngine's file storage with atomic writing, for checkpoints."""

from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

from soft_vit.weights.files import write_atomically

__all__ = ["AtomicBackend", "remove_leftovers"]


def remove_leftovers(folder: str | Path) -> None:
    """Remove the temporary files of checkpoints that a killed process left in a folder."""
    for path in Path(folder).glob(".*.pth.*.tmp"):
        path.unlink(missing_ok=True)


class AtomicBackend(LocalBackend):
    """MMEngine's local storage with atomic writing; chosen by `backend_args=dict(backend="soft_vit.atomic")`."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        write_atomically(filepath, obj)


register_backend("soft_vit.atomic", AtomicBackend, force=True)
