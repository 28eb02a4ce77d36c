"""Verified downloads: a file appears under its name only when it is complete and correct.

Processes that want the same file take turns by the lock `.NAME.lock`: one downloads, the others find the file.
"""

import http.client
import os
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import torch
from filelock import FileLock, Timeout

from soft_vit.weights.files import WeightsError, sha256_of, write_atomically
from soft_vit.weights.index import Entry, address_of, is_source

__all__ = ["download"]

# A source that sends nothing for so many seconds counts as out of reach. All sources of a file share them.
PATIENCE = 15.0


def download(entry: Entry, folder: Path, check: Callable[[Path], object], *, progress: bool = True) -> Path:
    """Download an entry's file into a folder and return its path.

    check: called with a file whose digest is not recorded; raises ValueError if it is not the entry's. Its digest is
    then recorded beside it, as NAME.sha256. Raises WeightsError, whose message is a reason and not a sentence,
    for anything that keeps the file from coming, and then leaves nothing behind.
    """
    target, waited = folder / entry.file, False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f".{entry.file}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waited = True
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        raise WeightsError(f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    try:
        if not target.is_file():
            if waited:
                # Many processes fail together rather than one after the other.
                raise WeightsError("another process tried at the same time and failed")
            _download_from_any(entry, target, check, progress)
    finally:
        lock.release()
    return target


def _download_from_any(entry: Entry, target: Path, check: Callable[[Path], object], progress: bool) -> None:
    """Download from the first source that has the file. The caller holds the lock."""
    prefix = f".{target.name}.part-"
    # What a killed process left.
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    reasons = []
    for source in entry.sources:
        try:
            with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as folder:
                part = Path(folder) / target.name
                _fetch(source, part, PATIENCE / len(entry.sources), progress)
                _verify(entry, part, check)
                if entry.sha256 is None:
                    line = f"{sha256_of(part)}  {target.name}\n"
                    write_atomically(target.with_name(target.name + ".sha256"), line.encode())
                os.replace(part, target)
                return
        except OSError as error:
            reasons.append(f"{target.parent} cannot be written: {error.strerror}")
        except WeightsError as error:
            reasons.append(str(error))
    raise WeightsError("; ".join(reasons))


def _fetch(source: str, path: Path, patience: float, progress: bool) -> None:
    """Save a source's file; WeightsError with a reason.

    The libraries that download have no time limit of their own, so a thread calls them while this one watches the
    folder grow.
    """
    if not is_source(source):
        raise WeightsError(f"{source} is not HTTPS")
    errors: list[BaseException | None] = []

    def work() -> None:
        try:
            _call_library(source, path, progress)
            errors.append(None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    size, deadline = 0, time.monotonic() + patience
    while not errors and time.monotonic() < deadline:
        thread.join(0.05)
        if (now := _size_of(path.parent)) != size:
            size, deadline = now, time.monotonic() + patience
    host = urlsplit(address_of(source, path.name)).hostname or source
    if not errors:
        raise WeightsError(f"{host} does not answer in time")
    if errors[0] is not None:
        raise WeightsError(_reason(errors[0], host, path.parent)) from None
    if not path.is_file():
        raise WeightsError(f"{host} has no file {path.name}")


def _call_library(source: str, path: Path, progress: bool) -> None:
    scheme, _, rest = source.partition(":")
    if scheme == "gdrive":
        # It knows the page with which Google Drive asks before it serves a large file.
        import gdown

        gdown.download(id=rest, output=str(path), quiet=not progress, use_cookies=False)
    else:
        torch.hub.download_url_to_file(address_of(source, path.name), str(path), progress=progress)


def _size_of(folder: Path) -> int:
    size = 0
    for file in folder.rglob("*"):
        try:
            size += file.stat().st_size
        except OSError:
            # Renamed since it was listed.
            continue
    return size


def _reason(error: BaseException, host: str, folder: Path) -> str:
    """In a few words, why a download failed."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed; pip install {error.name}"
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        # Of the connection, whatever its class: an unreachable network and a refused certificate are plain OSErrors.
        error = error.reason
    elif isinstance(error, OSError) and not isinstance(error, HTTPError):
        if error.errno is None:
            # Of gdown's own library, with a message of several lines.
            return f"{host} cannot be reached"
        if not isinstance(error, ConnectionError | TimeoutError | ssl.SSLError):
            return f"{folder.parent} cannot be written: {error.strerror}"
    if isinstance(error, http.client.HTTPException):
        return f"{host} breaks off"
    said = (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()
    # gdown puts the reason under a heading, and advice under both.
    paragraphs = said.partition(":\n\n")[2] or said
    sentence = " ".join(paragraphs.split("\n\n")[0].split()).split(". ")[0]
    return f"{host} gives no file: {sentence.rstrip('.:')}"


def _verify(entry: Entry, path: Path, check: Callable[[Path], object]) -> None:
    """WeightsError if a file is not the entry's."""
    try:
        if entry.size is not None and path.stat().st_size != entry.size:
            raise ValueError(f"it has {path.stat().st_size:,} bytes and not {entry.size:,}")
        if entry.sha256 is None:
            check(path)
        elif (found := sha256_of(path)) != entry.sha256:
            raise ValueError(f"its sha256 is {found[:12]}... and not {entry.sha256[:12]}...")
    except ValueError as error:
        raise WeightsError(f"what came is not {entry.file}: {str(error).rstrip('.')}") from None
