"""Recorded files: found in a folder, else downloaded; a download appears only when it is complete and correct.

Processes that want the same file take turns by the lock `.NAME.lock`: one downloads, the others find the file.
"""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from soft_vit.weights.files import RESOURCES, WeightsError, write_atomically
from soft_vit.weights.index import Entry, address_of, is_source

__all__ = [
    "WEIGHTS_VARIABLE",
    "check_command",
    "download",
    "download_folder",
    "hub_folder",
    "lookup_folders",
    "recorded_digest",
    "recorded_file",
    "require_digest",
    "sha256_of",
]

WEIGHTS_VARIABLE = "SOFT_VIT_CHECKPOINTS"
"""The environment variable that names a folder in which files of weights are looked up first."""


# Seconds without a byte after which a source counts as out of reach.
IDLE_TIMEOUT = 15.0
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def hub_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the cache of downloads: cache_dir, by default that of torch.hub."""
    return Path(cache_dir).expanduser() if cache_dir is not None else Path(torch.hub.get_dir()) / "checkpoints"


def named_folder() -> Path | None:
    """Return the folder that the environment names; WeightsError if it does not exist, as it may be misspelled."""
    named = os.environ.get(WEIGHTS_VARIABLE)
    if not named:
        return None
    folder = Path(os.path.expanduser(named))
    if not folder.is_dir():
        raise WeightsError(f"{WEIGHTS_VARIABLE} must name a folder that exists, got {named!r}.")
    return folder


def lookup_folders(cache_dir: str | Path | None = None) -> list[Path]:
    """Return the folders where a recorded file is looked for, in order; raises what `named_folder` raises."""
    named = named_folder()
    return [*([named] if named else []), RESOURCES / "checkpoints", hub_folder(cache_dir)]


def download_folder(cache_dir: str | Path | None = None) -> Path:
    """Return where downloads are saved: the folder that the environment names, else the cache."""
    return named_folder() or hub_folder(cache_dir)


def recorded_file(entry: Entry, check: Callable[[Path], object], cache_dir: str | Path | None = None) -> Path:
    """Return the path of an entry's file: in one of the folders, else downloaded; WeightsError, in one sentence.

    check: see `download`. cache_dir: instead of torch.hub's folder.
    """
    for folder in lookup_folders(cache_dir):
        path = folder / entry.file
        if path.is_file():
            require_digest(entry, path)
            return path
    folder = download_folder(cache_dir)
    place = folder / entry.file
    if not entry.sources:
        raise WeightsError(f"The weights {entry.name} cannot be downloaded; put their file at {place}.")
    try:
        return download(entry, folder, check)
    except WeightsError as error:
        raise WeightsError(
            f"The weights {entry.name} cannot be downloaded ({error}); download {entry.page} elsewhere, save it as "
            f"{place}, and check it with `{check_command(place)}`."
        ) from None


def check_command(path: Path | str) -> str:
    """Return the command that says what a file of weights is."""
    return f"python {RESOURCES / 'tools' / 'weights' / 'check_checkpoint.py'} {path}"


def require_digest(entry: Entry, path: Path) -> None:
    """Raise WeightsError for a file whose digest is not the recorded one."""
    expected = entry.sha256 or recorded_digest(path)
    if expected is not None and sha256_of(path) != expected:
        raise WeightsError(
            f"{path} is not the file of {entry.name}, or was changed (its sha256 does not begin with "
            f"{expected[:12]}); remove it, or see what it is with `{check_command(path)}`."
        )


def recorded_digest(path: Path) -> str | None:
    """Return the SHA-256 in FILE.sha256, in sha256sum's format, or None without that file.

    Raises WeightsError for a file of that name without a digest.
    """
    record = path.with_name(path.name + ".sha256")
    if not os.path.lexists(record):
        return None
    try:
        found = re.match(r"[0-9a-fA-F]{64}\b", record.read_text(errors="replace"))
    except OSError:
        found = None
    if found is None:
        raise WeightsError(f"{record} must begin with the SHA-256 of {path.name}; correct or remove it.")
    return found[0].lower()


def sha256_of(path: str | Path) -> str:
    """Return the SHA-256 of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(entry: Entry, folder: Path, check: Callable[[Path], object], *, progress: bool = True) -> Path:
    """Download an entry's file into a folder and return its path.

    check: called with a file whose digest is not recorded; raises ValueError if it is not the entry's. Its digest is
    then recorded in NAME.sha256. Raises WeightsError, whose message is a reason and not a sentence,
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
                _fetch(source, part, progress)
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


def _fetch(source: str, path: Path, progress: bool) -> None:
    """Save a source's file; WeightsError with a reason."""
    if not is_source(source):
        raise WeightsError(f"{source} is not HTTPS")
    scheme, _, rest = source.partition(":")
    host = urlsplit(address_of(source, path.name)).hostname or source
    try:
        if scheme == "gdrive":
            # It knows the page with which Google Drive asks before it serves a large file.
            import gdown

            gdown.download(id=rest, output=str(path), quiet=not progress, use_cookies=False)
        elif scheme == "hf-hub":
            from huggingface_hub import hf_hub_download

            hf_hub_download(rest, path.name, local_dir=path.parent)
        else:
            _fetch_address(source, path, progress)
    except ModuleNotFoundError as error:
        raise WeightsError(f"{error.name} is not installed; pip install {error.name}") from None
    except Exception as error:
        # Each library has its own types, from a refused certificate to a page that asks for a login.
        if isinstance(error, OSError) and error.errno in OF_THE_DISK:
            raise WeightsError(f"{path.parents[1]} cannot be written: {error.strerror}") from None
        raise WeightsError(f"{host} gives no file: {_reason(error)}") from None
    if not path.is_file():
        raise WeightsError(f"{host} has no file {path.name}")


def _fetch_address(address: str, path: Path, progress: bool) -> None:
    with (
        urlopen(address, timeout=IDLE_TIMEOUT) as response,
        open(path, "wb") as file,
        tqdm(total=response.length, unit="B", unit_scale=True, disable=not progress) as bar,
    ):
        while block := response.read(1 << 20):
            file.write(block)
            bar.update(len(block))


def _reason(error: BaseException) -> str:
    """Return the first sentence of what a library says of a failure."""
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    said = (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()
    # gdown puts the reason under a heading, and advice under both.
    paragraphs = said.partition(":\n\n")[2] or said
    return " ".join(paragraphs.split("\n\n")[0].split()).split(". ")[0].rstrip(".:")


def _verify(entry: Entry, path: Path, check: Callable[[Path], object]) -> None:
    """Raise WeightsError if a file is not the entry's."""
    try:
        if entry.size is not None and path.stat().st_size != entry.size:
            raise ValueError(f"it has {path.stat().st_size:,} bytes and not {entry.size:,}")
        if entry.sha256 is None:
            check(path)
        elif (found := sha256_of(path)) != entry.sha256:
            raise ValueError(f"its sha256 is {found[:12]}... and not {entry.sha256[:12]}...")
    except ValueError as error:
        raise WeightsError(f"what came is not {entry.file}: {str(error).rstrip('.')}") from None
