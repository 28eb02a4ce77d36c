"""Find the file of recorded weights in a folder, or download it.

A download appears under its name only when it is complete and verified. Processes that want the same file take turns
by the lock `.NAME.lock`: one downloads, the others find the file.
"""

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
from filelock import FileLock
from tqdm import tqdm

from soft_vit.weights.files import RESOURCES, WeightsError, write_atomically
from soft_vit.weights.index import Entry, address_of, is_source

WEIGHTS_VARIABLE = "SOFT_VIT_CHECKPOINTS"
"""The environment variable for the folder that is searched for weights first."""

# Seconds without a byte after which a download fails.
IDLE_TIMEOUT = 15.0


def recorded_file(entry: Entry, check: Callable[[Path], object], cache_dir: str | Path | None = None) -> Path:
    """Return the path of an entry's file: from one of the folders, otherwise downloaded.

    check: see `download`. cache_dir: replaces torch.hub's folder. Raises WeightsError, in one sentence, if the file is
    not available or its digest is not the recorded one.
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
        how = f"download {entry.page} elsewhere, save it as {place}, and check it with `{check_command(place)}`"
        raise WeightsError(f"The weights {entry.name} cannot be downloaded ({error}); {how}.") from None


def lookup_folders(cache_dir: str | Path | None = None) -> list[Path]:
    """Return the folders that are searched for a recorded file, in order."""
    named = os.environ.get(WEIGHTS_VARIABLE)
    return [*([Path(named).expanduser()] if named else []), RESOURCES / "checkpoints", hub_folder(cache_dir)]


def download_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the folder for downloads: the one that the environment names, otherwise the cache."""
    return lookup_folders(cache_dir)[0 if os.environ.get(WEIGHTS_VARIABLE) else -1]


def hub_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the cache of downloads: cache_dir, by default torch.hub's."""
    return Path(cache_dir).expanduser() if cache_dir is not None else Path(torch.hub.get_dir()) / "checkpoints"


def check_command(path: Path | str) -> str:
    """Return the command that identifies a file of weights."""
    return f"python {RESOURCES / 'tools' / 'weights' / 'check_checkpoint.py'} {path}"


def require_digest(entry: Entry, path: Path) -> None:
    """Raise WeightsError if the digest of a file is not the recorded one."""
    expected = entry.sha256 or recorded_digest(path)
    if expected is not None and sha256_of(path) != expected:
        command = check_command(path)
        raise WeightsError(f"{path} must have the sha256 {expected[:12]}... of {entry.name}; see `{command}`.")


def recorded_digest(path: Path) -> str | None:
    """Return the SHA-256 in FILE.sha256, in sha256sum's format, or None if that file does not exist.

    Raises WeightsError if that file does not begin with a digest.
    """
    record = path.with_name(path.name + ".sha256")
    if not os.path.lexists(record):
        return None
    if (digest := re.match(r"[0-9a-fA-F]{64}\b", record.read_text(errors="replace"))) is None:
        raise WeightsError(f"{record} must begin with the SHA-256 of {path.name}; correct or remove it.")
    return digest[0].lower()


def sha256_of(path: str | Path) -> str:
    """Return the SHA-256 of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(entry: Entry, folder: Path, check: Callable[[Path], object]) -> Path:
    """Download an entry's file into a folder and return its path.

    check: called with the file if the entry lacks a digest; raises ValueError for a wrong file. The digest of a file
    that passes is recorded in NAME.sha256. Raises WeightsError if the download fails, and then leaves nothing behind;
    its message is a reason, which the caller completes.
    """
    target = folder / entry.file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{entry.file}.lock"):
            if not target.is_file():
                _download_from_any(entry, target, check)
    except (OSError, NotImplementedError) as error:
        # File systems without locks raise the latter.
        raise WeightsError(f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    return target


def _download_from_any(entry: Entry, target: Path, check: Callable[[Path], object]) -> None:
    """Download from the first source that has the file. The caller holds the lock."""
    prefix = f".{target.name}.part-"
    # Parts of downloads that were killed.
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    reasons = []
    for source in entry.sources:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as folder:
            part = Path(folder) / target.name
            try:
                _fetch(source, part)
                _verify(entry, part, check)
            except WeightsError as error:
                reasons.append(str(error))
                continue
            if entry.sha256 is None:
                line = f"{sha256_of(part)}  {target.name}\n"
                write_atomically(target.with_name(target.name + ".sha256"), line.encode())
            os.replace(part, target)
            return
    raise WeightsError("; ".join(reasons))


def _fetch(source: str, path: Path) -> None:
    """Save the file of a source; WeightsError with a reason."""
    if not is_source(source):
        raise WeightsError(f"{source} is not HTTPS")
    scheme, _, rest = source.partition(":")
    host = urlsplit(address_of(source, path.name)).hostname or source
    try:
        if scheme == "gdrive":
            # It confirms the page that Google Drive shows before a large file.
            import gdown

            gdown.download(id=rest, output=str(path), use_cookies=False)
        elif scheme == "hf-hub":
            from huggingface_hub import hf_hub_download

            hf_hub_download(rest, path.name, local_dir=path.parent)
        else:
            _fetch_address(source, path)
    except Exception as error:
        # Each library has its own types, from a refused certificate to a page that asks for a login.
        raise WeightsError(f"{host} gives no file: {_reason(error)}") from None
    if not path.is_file():
        raise WeightsError(f"{host} gives no file {path.name}")


def _fetch_address(address: str, path: Path) -> None:
    with (
        urlopen(address, timeout=IDLE_TIMEOUT) as response,
        open(path, "wb") as file,
        # No bar in log files.
        tqdm(total=response.length, unit="B", unit_scale=True, disable=None) as bar,
    ):
        while block := response.read(1 << 20):
            file.write(block)
            bar.update(len(block))


def _reason(error: BaseException) -> str:
    """Return the first sentence of a library's error."""
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(reason.split()).split(". ")[0].rstrip(".:")


def _verify(entry: Entry, path: Path, check: Callable[[Path], object]) -> None:
    """Raise WeightsError if a file is not the entry's."""
    try:
        if entry.size is not None and path.stat().st_size != entry.size:
            raise ValueError(f"it must have {entry.size:,} bytes, got {path.stat().st_size:,}")
        if entry.sha256 is None:
            check(path)
        elif (found := sha256_of(path)) != entry.sha256:
            raise ValueError(f"its sha256 must be {entry.sha256[:12]}..., got {found[:12]}...")
    except ValueError as error:
        raise WeightsError(f"the download is not {entry.file}: {str(error).rstrip('.')}") from None
