"""Checkpoint loading that never runs code from a file.

`soft_vit.weights.read` reads; MMEngine's own classes are allowed here, and its loaders replaced.
"""

import hashlib
import re
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler
from mmengine.runner import CheckpointLoader
from torch.utils.serialization import config as torch_config

from soft_vit.text_tables import one_line
from soft_vit.weights import Entry
from soft_vit.weights.fetch import download, hub_folder
from soft_vit.weights.index import SUFFIXES, is_source
from soft_vit.weights.read import allow_classes, read_checkpoint_file

_NUMBERED = re.compile(r"(epoch|iter|stopped_iter)_\d+\.pth")

# Methods that HistoryBuffer and OneCycleLR store by name.
_METHODS = {HistoryBuffer: ("min", "max", "mean", "current")}
_METHODS |= {OneCycleParamScheduler: ("_annealing_cos", "_annealing_linear")}


def load_checkpoint_file(path: str | Path, map_location: Any = "cpu", mapped: bool = True) -> dict:
    """Read a checkpoint: a file by torch.save, or safetensors, which becomes dict(state_dict=..., meta=...).

    map_location: as in torch.load. mapped: read tensors when they are used, so that the file must stay as it is. Raises
    FileNotFoundError for a missing file, and ValueError for one that is not a checkpoint or would run code, before
    anything in it is called.
    """
    # Files of old versions of torch cannot be mapped.
    with torch_config.patch("load.mmap", mapped and zipfile.is_zipfile(path)):
        content = read_checkpoint_file(path, map_location)
    if isinstance(content.get("meta"), dict):
        # MMEngine runs it as Python when a run resumes; what it writes itself is called "cfg", and is never run.
        content["meta"].pop("config", None)
    return content


# MMEngine prints what follows `load_from_` as the name of the source.
def load_from_local(filename: str, map_location: Any = None) -> dict:
    # A run removes old checkpoints, also the one that it resumes from.
    return load_checkpoint_file(filename, map_location, mapped=False)


def load_from_http(filename: str, map_location: Any = None) -> dict:
    """Download once, into a folder of torch.hub where pretrained=True does not look, then read as any file.

    Each address has its own file. Raises ValueError for a file that cannot be downloaded or is not a checkpoint.
    """
    try:
        if not is_source(filename):
            raise ValueError("it is not HTTPS")
        # A download asks for an entry of the index; this one is in none.
        entry = Entry("address", "address", _cache_name(filename), (filename,))
        path = download(entry, hub_folder() / "addresses", load_checkpoint_file)
    except ValueError as error:
        why = f"{filename} cannot be downloaded ({error}); download it elsewhere, and give its path."
        raise ValueError(why) from None
    return load_checkpoint_file(path, map_location)


def _cache_name(address: str) -> str:
    """Return a file name that is unique to an address, and ends like it."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", urlsplit(address).path.rsplit("/", 1)[-1])[-100:]
    suffix = "" if name.endswith(SUFFIXES) else ".pth"
    return f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}{suffix}"


def install() -> None:
    """Make MMEngine read every checkpoint through `load_checkpoint_file`; its other sources become missing files."""
    allow_classes(_METHODS)
    # Each of MMEngine's own loaders reads pickles its own way.
    own = [item for item in CheckpointLoader._schemes.items() if item[1].__module__.startswith("soft_vit.")]
    CheckpointLoader._schemes = dict(own)
    CheckpointLoader.register_scheme(prefixes="", loader=load_from_local, force=True)
    CheckpointLoader.register_scheme(prefixes=("http://", "https://"), loader=load_from_http, force=True)


def find_newest_checkpoint(work_dir: str | Path, since: float = 0.0) -> Path | None:
    """Return the newest intact checkpoint of a folder, or None. Prints why damaged ones are skipped.

    The newest one is that in the file `last_checkpoint`, of which the name alone counts, since the folder may have
    moved. Without a usable name it is the one of the highest iteration. A folder without checkpoints may name another
    folder there, the `out_dir` of the hook, which is searched instead. since: leave out files with an earlier
    modification time, in seconds.
    """
    folder = Path(work_dir)
    note = folder / "last_checkpoint"
    newest = Path(note.read_text(errors="replace").strip() or "-") if note.is_file() else None
    if newest is not None:
        if newest.is_file() and not _numbered(folder, since):
            folder = newest.parent
        newest = folder / newest.name
    if newest is not None and _is_written(newest, since) and _iteration_of(newest) is not None:
        return newest
    others = [path for path in _numbered(folder, since) if path != newest]
    intact = [(iteration, path) for path in others if (iteration := _iteration_of(path)) is not None]
    return max(intact)[1] if intact else None


def _numbered(folder: Path, since: float) -> list[Path]:
    return [path for path in folder.glob("*.pth") if _NUMBERED.fullmatch(path.name) and _is_written(path, since)]


def _is_written(path: Path, since: float) -> bool:
    return path.is_file() and path.stat().st_mtime >= since


def _iteration_of(path: Path) -> int | None:
    """Return the iteration of a checkpoint, or print why it is damaged and return None."""
    try:
        # Torch does not look at the checksums that it writes.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is None:
            return int(load_checkpoint_file(path)["meta"]["iter"])
        reason = f"{damaged} in it has changed"
    except Exception as error:
        # Readers raise errors of any type on changed bytes.
        reason = one_line(error)
    print(f"The checkpoint {path} is damaged and skipped ({reason}).")
    return None
