"""Checkpoint loading that never runs code from a file.

A pickle names functions to call. torch.load(weights_only=True) calls only those on an allow-list; MMEngine's
checkpoints need a few more, because they hold HistoryBuffer objects and NumPy arrays. One of those is `getattr`, by
which a HistoryBuffer stores its methods and OneCycleLR its curve; the real one on the list would let a crafted file
reach anything, so a guarded one takes its place.
"""

import hashlib
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler
from mmengine.runner import CheckpointLoader

from soft_vit.weights import Entry
from soft_vit.weights.fetch import download
from soft_vit.weights.files import hub_folder
from soft_vit.weights.index import SUFFIXES, is_source
from soft_vit.weights.read import read_checkpoint_file

try:
    from numpy._core import multiarray
except ImportError:  # numpy before 1.26
    from numpy.core import multiarray

__all__ = ["install", "load_checkpoint_file"]

_METHODS = {
    HistoryBuffer: ("min", "max", "mean", "current"),
    OneCycleParamScheduler: ("_annealing_cos", "_annealing_linear"),
}
# Sources that MMEngine offers beside plain files and addresses; each reads pickles its own way.
_REFUSED_SCHEMES = (
    "pavi://",
    r"(\S+\:)?s3://",
    r"(\S+\:)?petrel://",
    "modelzoo://",
    "torchvision://",
    "open-mmlab://",
    "openmmlab://",
    "mmcls://",
)


def _method(owner: Any, name: str) -> Callable:
    if not isinstance(owner, type) or name not in _METHODS.get(owner, ()):
        raise pickle.UnpicklingError(f"the file asks for getattr({owner!r}, {name!r})")
    return getattr(owner, name)


def _bytes_of(text: Any, encoding: str) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError(f"the file asks for _codecs.encode({text!r}, {encoding!r})")
    return text.encode("latin1")


# The unpickler looks a function up by the name that the file uses.
_method.__module__, _method.__name__, _method.__qualname__ = "builtins", "getattr", "getattr"
# By which bytes are written, and NumPy's numbers hold some; torch allows it from 2.5 on.
_bytes_of.__module__, _bytes_of.__name__, _bytes_of.__qualname__ = "_codecs", "encode", "encode"


def _allowed() -> list:
    return [
        *_METHODS,
        _method,
        _bytes_of,
        multiarray._reconstruct,
        multiarray.scalar,
        np.ndarray,
        np.dtype,
        *{type(np.dtype(code)) for code in ("?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d")},
    ]


def load_checkpoint_file(path: str | Path, map_location: Any = "cpu") -> dict:
    """Read a checkpoint: a file by torch.save, or safetensors, which becomes dict(state_dict=..., meta=...).

    map_location: as in torch.load. Raises FileNotFoundError for a missing file, and ValueError for one
    that is not a checkpoint or would run code, before anything in it is called.
    """
    content = read_checkpoint_file(path, map_location)
    if not isinstance(content, dict):
        raise ValueError(f"The file {path} holds a {type(content).__name__}, not a checkpoint; give another file.")
    if isinstance(content.get("meta"), dict):
        # MMEngine runs it as Python when a run resumes; what it writes itself is called "cfg", and is never run.
        content["meta"].pop("config", None)
    return content


# MMEngine prints what follows `load_from_` as the name of the source.
def load_from_local(filename: str, map_location: Any = None) -> dict:
    return load_checkpoint_file(filename, map_location)


def load_from_http(filename: str, map_location: Any = None) -> dict:
    """Download once, into a folder of torch.hub where pretrained=True does not look, then read as any file.

    Each address has a file of its own. Raises ValueError for a file that cannot be downloaded or is not a checkpoint.
    """
    try:
        if not is_source(filename):
            raise ValueError("it is not HTTPS")
        # A download asks for an entry of the index; this one is in none.
        entry = Entry("address", "address", _cache_name(filename), (filename,))
        path = download(entry, hub_folder() / "addresses", load_checkpoint_file, progress=False)
    except ValueError as error:
        raise ValueError(
            f"{filename} cannot be fetched ({str(error).rstrip('.')}); download it and give its path."
        ) from None
    return load_checkpoint_file(path, map_location)


def _cache_name(address: str) -> str:
    """A name that no other address has; its end is that of the address, as far as it can be a file's."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", urlsplit(address).path.rsplit("/", 1)[-1])[-100:]
    suffix = "" if name.endswith(SUFFIXES) else ".pth"
    return f"{hashlib.sha256(address.encode()).hexdigest()[:16]}-{name}{suffix}"


def load_from_elsewhere(filename: str, map_location: Any = None) -> dict:
    raise ValueError(f"Checkpoints are not read from {filename}; download the file and give its local path.")


def install() -> None:
    """Make MMEngine read every checkpoint through `load_checkpoint_file`."""
    torch.serialization.add_safe_globals(_allowed())
    CheckpointLoader.register_scheme(prefixes="", loader=load_from_local, force=True)
    CheckpointLoader.register_scheme(prefixes=("http://", "https://"), loader=load_from_http, force=True)
    CheckpointLoader.register_scheme(prefixes=_REFUSED_SCHEMES, loader=load_from_elsewhere, force=True)
