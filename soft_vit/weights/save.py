"""Weights of a file in another layout, bit for bit: released, MMEngine's, timm's, safetensors."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from soft_vit.version import __version__
from soft_vit.weights.fetch import check_command
from soft_vit.weights.files import write_atomically
from soft_vit.weights.index import ENTRIES
from soft_vit.weights.load import fit_weights, options_of_inference
from soft_vit.weights.read import (
    AVERAGED_KEYS,
    NOTES_KEY,
    PLAIN_KEYS,
    NotedWeights,
    Notes,
    read_checkpoint_file,
    trained_notes,
    unwrap_state_dict,
)

__all__ = ["LAYOUTS", "TrainedFile", "convert", "read_trained_file", "safetensors_bytes", "written"]

TORCH_SUFFIXES = (".pth", ".pt", ".bin")
LAYOUTS = {
    "released": TORCH_SUFFIXES,
    "mmengine": TORCH_SUFFIXES,
    "timm": TORCH_SUFFIXES,
    "safetensors": (".safetensors",),
}
"""The layouts of files of weights, and how names of such files end."""

WeightsChoice = Literal["ema", "plain"]
"""Averaged or plain weights of a training checkpoint."""


@dataclass(frozen=True)
class TrainedFile:
    """The weights of one model in a file, and what else is known.

    weights: under the names of network, in the order of the file. network: the model that notes.model names, on the
    meta device. layout: a key of `LAYOUTS`. chosen: which of two sets of weights these are; None if there is one.
    dropped: what else the file holds.
    """

    weights: dict[str, Tensor]
    notes: Notes
    network: nn.Module
    layout: str
    chosen: WeightsChoice | None = None
    dropped: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """Return the timm name of the model."""
        return str(self.notes.model)


def convert(
    source: str | Path,
    target: str | Path,
    layout: str,
    *,
    weights: WeightsChoice | None = None,
    model: str | None = None,
    force: bool = False,
) -> list[str]:
    """Write the weights of a file in another layout; return a sentence for each thing done.

    layout: a key of `LAYOUTS`. force: replace a file. weights, model, errors: see `read_trained_file`; also ValueError
    for a target that exists or ends otherwise than its layout.
    """
    target = Path(target)
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}.")
    if target.suffix not in LAYOUTS[layout]:
        raise ValueError(f"The name of a {layout} file must end in {' or '.join(LAYOUTS[layout])}, got {target}.")
    if target.exists() and not force:
        raise ValueError(f"{target} exists already; give another name, or --force to replace it.")
    file = read_trained_file(source, weights, model)
    write_atomically(target, written(file, layout))
    sentences = [f"{source} holds weights of {file.model} in the layout {file.layout}."]
    if file.chosen is not None:
        sentences.append(f"It has two sets; the {'averaged' if file.chosen == 'ema' else 'plain'} ones were taken.")
    if file.dropped:
        sentences.append(f"Left out: {', '.join(file.dropped)}.")
    if layout in ("released", "timm") and file.notes.options:
        options = ", ".join(f"{key}={value!r}" for key, value in file.notes.options.items())
        sentences.append(f"This layout cannot hold the options of the model: create it with {options}.")
    return [*sentences, f"Written: {target} ({layout}, {target.stat().st_size / 1e6:.1f} MB)."]


def read_trained_file(
    path: str | Path, weights: WeightsChoice | None = None, model: str | None = None, more: Notes | None = None
) -> TrainedFile:
    """Read the weights of a model from a file; nothing in it is executed.

    weights: averaged (`ema`) or `plain`, by default the averaged ones if there are some. model: timm's name of the
    model, where the file does not note it. more: what else is known, such as by a training config, used where the file
    does not note how its images were normalised. Raises FileNotFoundError, or ValueError for a file that is not a
    checkpoint, lacks the weights asked for, or does not fit its model.
    """
    content = read_checkpoint_file(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must hold a checkpoint, got a {type(content).__name__}.")
    safetensors = Path(path).suffix == ".safetensors"
    of_mmengine = not safetensors and "meta" in content and isinstance(content.get("state_dict"), Mapping)
    chosen, given = _choose(content, of_mmengine, weights, path)
    notes = trained_notes(content, path)
    if more is not None and "mean" not in notes.cfg:
        merged: dict[str, Any] = {
            key: {**getattr(more, key), **getattr(notes, key)} for key in ("options", "cfg", "training")
        }
        notes = replace(notes, **merged)
    if notes.model and timm.is_model(notes.model) and model not in (None, notes.model):
        raise ValueError(f"model must be {notes.model}, which {path} notes, got {model}.")
    noted = NotedWeights(given, replace(notes, model=model or _noted_model(notes, path, given)))
    network = _network(noted)
    fit_weights(noted, network, str(path))
    own = cast(Any, network).own_state_dict(noted) if hasattr(network, "own_state_dict") else dict(noted)
    released = any(own.get(name) is not value for name, value in given.items())
    layout = "released" if released else "safetensors" if safetensors else "mmengine" if of_mmengine else "timm"
    # Safetensors files and bare state dicts hold weights alone.
    bare = safetensors or all(isinstance(value, Tensor) for value in content.values())
    dropped = () if bare else tuple(str(name) for name in content if name not in PLAIN_KEYS)
    return TrainedFile(own, noted.notes, network, layout, chosen, dropped)


def written(file: TrainedFile, layout: str) -> bytes:
    """Return the bytes of a file in a layout; ValueError for weights that the layout has no names for."""
    if layout == "safetensors":
        return safetensors_bytes(file.weights, file.notes)
    content: Mapping[str, Any] = file.weights
    network: Any = file.network
    if layout == "released":
        if not hasattr(network, "released_state_dict"):
            raise ValueError(f"{file.model} was not released by anyone else; choose another layout.")
        key = getattr(network, "released_key", "model")
        content = {"arch": file.model, key: network.released_state_dict(file.weights)}
    elif layout == "mmengine":
        meta: dict[str, Any] = {"soft_vit_version": __version__, NOTES_KEY: file.notes.to_dict()}
        if classes := file.notes.cfg.get("label_names"):
            meta["dataset_meta"] = {"classes": classes}
        content = {"meta": meta, "state_dict": file.weights}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def safetensors_bytes(weights: Mapping[str, Tensor], notes: Notes | None = None) -> bytes:
    """Return weights as safetensors, with notes in the metadata; the same weights and notes give the same bytes."""
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


def _choose(
    content: Mapping[str, Any], of_mmengine: bool, weights: WeightsChoice | None, path: str | Path
) -> tuple[WeightsChoice | None, NotedWeights]:
    """Return which of two sets of weights is taken (None if there is one), and it, under the names in the file."""
    if weights not in (None, "ema", "plain"):
        raise ValueError(f"weights must be 'ema' or 'plain', got {weights!r}.")
    if of_mmengine and content.get("ema_state_dict") is not None:
        # While it trains, `state_dict` is the average; MMEngine counts its steps next to the plain weights.
        plain = content["ema_state_dict"].items()
        found: dict[str, Any] = {
            "ema": content["state_dict"],
            "plain": {name.removeprefix("module."): value for name, value in plain if name.startswith("module.")},
        }
    else:
        averaged, plain = (
            next((content[key] for key in keys if isinstance(content.get(key), Mapping)), None)
            for keys in (AVERAGED_KEYS, PLAIN_KEYS)
        )
        found = {"ema": averaged, "plain": plain if plain or averaged else content}
    both = bool(found["ema"]) and bool(found["plain"])
    choice: WeightsChoice = weights or ("ema" if found["ema"] else "plain")
    if not found[choice]:
        raise ValueError(f"{path} must hold {choice} weights, got {'plain' if choice == 'ema' else 'ema'} ones alone.")
    return choice if both else None, unwrap_state_dict(found[choice], str(path))


def _noted_model(notes: Notes, path: str | Path, given: Mapping[str, Tensor]) -> str:
    """Return the model that a file notes, or that its name is recorded for; ValueError without one."""
    if notes.model and timm.is_model(notes.model):
        return notes.model
    for entry in ENTRIES.values():
        if entry.file == Path(path).name:
            noted = NotedWeights(given, replace(notes, model=entry.model))
            try:
                fit_weights(noted, _network(noted))
            except ValueError:
                continue
            return entry.model
    raise ValueError(f"{path} does not note its model; give --model, the name that `{check_command(path)}` says.")


def _network(noted: NotedWeights) -> nn.Module:
    """Return the model of weights, on the meta device."""
    options = {"img_size": noted.notes.img_size(), **options_of_inference(noted.notes)}
    try:
        return timm.create_model(str(noted.notes.model), device="meta", **options)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{noted.notes.model} cannot be made with the options of the file: {error}.") from error
