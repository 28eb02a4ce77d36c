"""Repositories of the Hugging Face hub, written and pushed by timm."""

import tempfile
from pathlib import Path
from typing import Any

import timm
from torch import nn

from soft_vit.engine.errors import one_line
from soft_vit.weights import Entry
from soft_vit.weights.files import write_atomically

__all__ = ["push", "save_folder"]


def _hub_config(entry: Entry) -> dict[str, Any]:
    """What timm has to know of weights on the hub."""
    cfg = dict(entry.cfg)
    labels = cfg.pop("label_names", None)
    config: dict[str, Any] = {"pretrained_cfg": {**cfg, "tag": entry.tag, "license": entry.license}}
    if labels:
        config["label_names"] = list(labels)
    return config


def save_folder(model: nn.Module, entry: Entry, arguments: dict[str, Any], card: str, folder: str | Path) -> None:
    """Write a model as a repository of the hub: config.json, model.safetensors, README.md.

    arguments: that timm makes the model with. ValueError for a folder that has something else in it.
    """
    folder = Path(folder)
    own = {"config.json", "model.safetensors", "README.md"}
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - own):
        raise ValueError(f"{folder} is no empty folder; give one that is, or that does not exist.")
    with tempfile.TemporaryDirectory() as temporary:
        timm.models.save_for_hf(
            model, temporary, model_config=_hub_config(entry), model_args=arguments, safe_serialization=True
        )
        for path in Path(temporary).iterdir():
            write_atomically(folder / path.name, path.read_bytes())
    write_atomically(folder / "README.md", card.encode())


def push(model: nn.Module, entry: Entry, arguments: dict[str, Any], card: str, data: bytes, repo: str) -> None:
    """Push a model to a repository `OWNER/NAME` of the hub, where the user is logged in; ValueError if it fails.

    data: the published file, which goes there under its own name, because the entry's digest is of it.
    """
    from huggingface_hub import HfApi

    try:
        timm.models.push_to_hf_hub(
            model, repo, model_config=_hub_config(entry), model_args=arguments, safe_serialization=True
        )
        # The card takes the place of the short one that timm writes.
        for name, content in ((entry.file, data), ("README.md", card.encode())):
            HfApi().upload_file(path_or_fileobj=content, path_in_repo=name, repo_id=repo)
    except Exception as error:
        # From a missing login to a lost network, with types of several libraries.
        raise ValueError(
            f"{repo} cannot be pushed to ({one_line(error)}); log in with `hf auth login`, or upload the folder that "
            "--hf-dir writes."
        ) from error
