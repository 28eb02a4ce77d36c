"""Folders in which weights are looked up, and the files that come with the package."""

import os
from pathlib import Path

import torch

__all__ = [
    "INDEX_FILE",
    "RESOURCES",
    "WEIGHTS_VARIABLE",
    "WeightsError",
    "download_folder",
    "hub_folder",
    "lookup_folders",
]

WEIGHTS_VARIABLE = "SOFT_VIT_CHECKPOINTS"
"""The environment variable that names a folder in which files of weights are looked up first."""


class WeightsError(ValueError, RuntimeError):
    """Recorded weights are missing, or are not what is recorded; its message is one sentence for the user.

    timm raises RuntimeError for the same.
    """


_PACKAGE = Path(__file__).parents[1]

RESOURCES = _PACKAGE / ".mim" if (_PACKAGE / ".mim").is_dir() else _PACKAGE.parent
"""Where configs, checkpoints/ and the metafile lie: beside the package, in a wheel where OpenMMLab looks for them."""
INDEX_FILE = RESOURCES / "checkpoints" / "index.json"
"""What records the weights."""


def hub_folder(cache_dir: str | Path | None = None) -> Path:
    """The cache of downloads: cache_dir, by default that of torch.hub."""
    return Path(cache_dir).expanduser() if cache_dir is not None else Path(torch.hub.get_dir()) / "checkpoints"


def named_folder() -> Path | None:
    """The folder that the environment names; WeightsError if it does not exist, because it may be misspelled."""
    named = os.environ.get(WEIGHTS_VARIABLE)
    if not named:
        return None
    folder = Path(os.path.expanduser(named))
    if not folder.is_dir():
        raise WeightsError(f"{WEIGHTS_VARIABLE} is {named!r}, which is not a folder; correct it or create the folder.")
    return folder


def lookup_folders(cache_dir: str | Path | None = None) -> list[Path]:
    """Where a recorded file is looked for, in this order; raises what `named_folder` raises."""
    named = named_folder()
    return [*([named] if named else []), RESOURCES / "checkpoints", hub_folder(cache_dir)]


def download_folder(cache_dir: str | Path | None = None) -> Path:
    """Where downloads are saved, by this package or a user: the folder that the environment names, else the cache."""
    return named_folder() or hub_folder(cache_dir)
