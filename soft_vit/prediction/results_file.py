"""One JSON file with the results of a run, complete on disk at any time."""

import json
import time
from pathlib import Path
from typing import Any

from soft_vit.weights.files import write_atomically

__all__ = ["ResultsFile"]

# At most this share of a run's time goes into writing the file before its end.
WRITING_SHARE = 0.05


class ResultsFile:
    """What `predictions.json` holds: `task`, the entries of `source`, `images` with their predictions, and `failed`.

    It is written as a whole, now and then and at the end.
    """

    def __init__(self, path: Path, source: dict[str, Any]) -> None:
        self.path = path
        self._head = {"task": None, **source}
        self._images: list[str] = []
        self._failed: list[dict[str, str]] = []
        self._last, self._took = 0.0, 0.0

    def add(self, task: str, entry: dict[str, Any]) -> None:
        self._head["task"] = task
        self._images.append(json.dumps(entry, allow_nan=False))

    def add_failure(self, image: str, reason: str) -> None:
        self._failed.append({"image": image, "reason": reason})

    def write_if_due(self) -> None:
        """Write what is there, unless that would take too much of the run's time."""
        if time.monotonic() - self._last >= self._took / WRITING_SHARE:
            self.write()

    def write(self) -> None:
        start = time.monotonic()
        head = json.dumps(self._head, indent=1).removesuffix("\n}")
        images = ",\n  ".join(self._images)
        failed = json.dumps(self._failed)
        write_atomically(self.path, f'{head},\n "images": [\n  {images}\n ],\n "failed": {failed}\n}}\n'.encode())
        self._last = time.monotonic()
        self._took = self._last - start
