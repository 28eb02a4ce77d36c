"""The layouts of weight files, and how each is written."""

import io
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from soft_vit.models.checkpoint import RELEASED_MODULES, rename_released
from soft_vit.models.zoo import ZOO, model_on_meta
from soft_vit.publishing.trained_file import TrainedFile
from soft_vit.version import __version__
from soft_vit.weights.read import NOTES_KEY, Notes

__all__ = ["LAYOUTS", "released_name", "safetensors_bytes", "suffixes_of", "written"]

LAYOUTS = ("released", "mmengine", "timm", "safetensors")
"""The layouts of files of weights."""

# Of the last stage, whose blocks are those of a standard transformer, named alike in both.
_STANDARD_MODULES = {name: name for name in ("norm", "attn.q.", "attn.kv.", "attn.proj.", "mlp.fc")}

_TORCH_SUFFIXES = (".pth", ".pt", ".bin")


def suffixes_of(layout: str) -> tuple[str, ...]:
    """How the names of files in a layout, one of `LAYOUTS`, may end."""
    return (".safetensors",) if layout == "safetensors" else _TORCH_SUFFIXES


def released_name(name: str) -> str:
    """The released implementation's name for a parameter of ours, the inverse of `rename_released`.

    ValueError for a parameter that it does not have.
    """
    theirs = name
    if match := re.match(r"stages\.(\d)\.pos_embed$", name):
        theirs = f"pos_embed{int(match[1]) + 1}"
    elif name == "stages.3.cls_token":
        theirs = "cls_token"
    elif match := re.match(r"stages\.(\d)\.patch_embed\.(\d)\.(conv|norm)\.(.+)", name):
        # Every unit is convolution, norm, activation: three indices.
        index = 3 * int(match[2]) + ("conv", "norm").index(match[3])
        theirs = f"patch_embed{int(match[1]) + 1}.proj.{index}.{match[4]}"
    elif match := re.match(r"stages\.(\d)\.blocks\.(\d+)\.(.+)", name):
        stage, rest = int(match[1]) + 1, match[3]
        modules = _STANDARD_MODULES if stage == 4 else {ours: theirs for theirs, ours in RELEASED_MODULES.items()}
        ours = next((module for module in modules if rest.startswith(module)), None)
        if ours is not None:
            theirs = f"block{stage}.{match[2]}.{modules[ours]}{rest.removeprefix(ours)}"
    known = theirs != name or name.startswith(("norm.", "head."))
    if not known or rename_released(theirs) != name:
        raise ValueError(f"The released implementation has no parameter for {name}; choose another layout.")
    return theirs


def written(file: TrainedFile, layout: str, model: str | None = None) -> bytes:
    """The bytes of a file in a layout.

    model: timm's name of the model, noted if the layout has a place for it. Raises ValueError for weights
    that the layout has no names for.
    """
    notes = replace(file.notes, model=model)
    if layout == "safetensors":
        return safetensors_bytes(file.weights, notes)
    content: Mapping[str, Any] = file.weights
    if layout == "released" and isinstance(file.recognised, str):
        if file.recognised not in ZOO:
            raise ValueError(f"{file.recognised} was not released by anyone else; choose another layout.")
        built = model_on_meta(file.recognised, file.notes.img_size())
        content = {"model": built.released_state_dict(file.weights)}
    elif layout == "released" and not isinstance(file.recognised, str):
        if len(file.recognised.depths) != 4:
            raise ValueError("The released implementation has four stages, and these weights are of another number.")
        content = {"state_dict": {released_name(name): value for name, value in file.weights.items()}}
        if model is not None:
            content = {"arch": model, **content}
    elif layout == "mmengine":
        meta: dict[str, Any] = {"soft_vit_version": __version__}
        if model is not None:
            meta[NOTES_KEY] = notes.to_dict()
        if file.classes:
            meta["dataset_meta"] = {"classes": file.classes}
        content = {"meta": meta, "state_dict": file.weights}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def safetensors_bytes(weights: Mapping[str, Tensor], notes: Notes | None = None) -> bytes:
    """Weights as safetensors, with notes in the metadata; the same weights and notes give the same bytes."""
    data = safetensors.torch.save({name: value.contiguous() for name, value in weights.items()})
    # The library writes metadata in random order, so the header, and its length before it, are written here.
    size = int.from_bytes(data[:8], "little")
    noted = {} if notes is None or notes.model is None else notes.to_dict()
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in noted.items()}
    header = json.dumps(
        {"__metadata__": {"format": "pt", **texts}, **json.loads(data[8 : 8 + size])}, separators=(",", ":")
    ).encode()
    # The tensors begin at a multiple of eight.
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]
