"""Downloads that resume, and files that appear under their name only when they are whole and right.

A partial file lies beside its target as `.part.NAME`, with what was known of it in `.part.NAME.json`. Processes that
want the same file at once take turns by `.NAME.lock`, so one downloads and the others find the file, or in
`.NAME.failed` the reason why there is none.
"""

import contextlib
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from soft_vit.weights.errors import WeightsError
from soft_vit.weights.files import sha256_of, write_atomically
from soft_vit.weights.index import Entry
from soft_vit.weights.partial_file import PartialFile

__all__ = ["download", "recorded_digest"]

# Seconds until a source counts as out of reach. A machine without a network is told so within ten.
PATIENCE = 8.0

_logger = logging.getLogger(__name__)


def download(entry: Entry, folder: Path, check: Callable[[Path], None], *, progress: bool = True) -> Path:
    """Save an entry's file in a folder, whole and right; returns its path.

    check: called with a file whose digest is not recorded, and raises ValueError for one that is not the entry's; its
    digest is then recorded beside it, see `recorded_digest`. Raises WeightsError, with a reason in place of a
    sentence, for anything that keeps the file from coming; what has come is kept, and the next call goes on there. A
    call that waited for another raises the other's reason, so that many of them fail together and not in a row.
    """
    target, failure = folder / entry.file, folder / f".{entry.file}.failed"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f".{entry.file}.lock")
        known = _version_of(failure)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _logger.info("Another process downloads %s; waiting for it.", target)
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        raise WeightsError(f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    try:
        if not target.is_file():
            # A reason that appeared since this call began, not one of an earlier day.
            with contextlib.suppress(OSError):
                if _version_of(failure) != known:
                    raise WeightsError(failure.read_text(encoding="utf-8", errors="replace"))
            _download_or_note(entry, target, check, progress, failure)
    finally:
        lock.release()
    return target


def recorded_digest(path: Path) -> str | None:
    """The SHA-256 that was recorded beside a file, in sha256sum's format, or None where nothing was.

    Raises WeightsError for a record that holds none: who put it there wants the file to be held against it.
    """
    beside = path.with_name(path.name + ".sha256")
    if not os.path.lexists(beside):
        return None
    try:
        found = re.match(r"[0-9a-fA-F]{64}\b", beside.read_text(errors="replace"))
    except OSError:
        found = None
    if found is None:
        raise WeightsError(
            f"{beside} holds no SHA-256 that can be read; write that of {path.name} into it, or remove it."
        )
    return found[0].lower()


def _version_of(path: Path) -> tuple[int, int] | None:
    """What changes when a file is replaced; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _download_or_note(entry: Entry, target: Path, check: Callable[[Path], None], progress: bool, failure: Path) -> None:
    """Download, and on a failure write its reason for those that wait."""
    try:
        _download(entry, target, check, progress)
    except WeightsError as error:
        # Where it cannot be written, they try for themselves.
        with contextlib.suppress(OSError):
            write_atomically(failure, str(error).encode())
        raise


def _download(entry: Entry, target: Path, check: Callable[[Path], None], progress: bool) -> None:
    reasons, patience = [], PATIENCE / len(entry.sources)
    for source in entry.sources:
        part = PartialFile(target, entry, source)
        try:
            resumed = part.fetch(patience, progress)
            try:
                _verify(entry, part.path, check)
            except WeightsError:
                if not resumed:
                    raise
                # The two halves may be of two files.
                part.discard()
                part.fetch(patience, progress)
                _verify(entry, part.path, check)
        except WeightsError as error:
            reasons.append(str(error))
            continue
        part.finish()
        return
    raise WeightsError("; ".join(reasons))


def _verify(entry: Entry, path: Path, check: Callable[[Path], None]) -> None:
    """WeightsError, and the file removed, if it is not the entry's."""
    try:
        if entry.size is not None and path.stat().st_size != entry.size:
            raise ValueError(f"it has {path.stat().st_size:,} bytes and not {entry.size:,}")
        if entry.sha256 is None:
            check(path)
        elif (found := sha256_of(path)) != entry.sha256:
            raise ValueError(f"its sha256 is {found[:12]}... and not {entry.sha256[:12]}...")
    except ValueError as error:
        path.unlink()
        raise WeightsError(f"what came is not {entry.file}: {str(error).rstrip('.')}") from None
