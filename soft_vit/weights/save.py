"""Convert files of weights, bit for bit, between the released layout, MMEngine's, timm's and safetensors."""

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
from soft_vit.weights.build import complete_spec, create_noted
from soft_vit.weights.fetch import check_command
from soft_vit.weights.files import write_atomically
from soft_vit.weights.index import RECORDED_WEIGHTS
from soft_vit.weights.load import fit, require_classifier
from soft_vit.weights.read import (
    AVERAGED_KEYS,
    PLAIN_KEYS,
    NotedWeights,
    read_checkpoint_file,
    recorded_spec,
    spec_of,
    unwrap_state_dict,
)
from soft_vit.weights.spec import NOTES_KEY, ModelSpec

LAYOUTS = ("released", "mmengine", "timm", "safetensors")
"""The layouts of files of weights."""

WeightsChoice = Literal["ema", "plain"]
"""The averaged or the plain weights of a training checkpoint."""


@dataclass(frozen=True)
class TrainedFile:
    """The weights of one model in a file, with its record.

    weights: under the names of network, in the order of the file. network: the model of spec on the meta device.
    layout: one of `LAYOUTS`. chosen: the set of weights that was taken, None if the file has only one. dropped: keys of
    the file's other contents.
    """

    weights: dict[str, Tensor]
    spec: ModelSpec
    network: nn.Module
    layout: str
    chosen: WeightsChoice | None = None
    dropped: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """Return the timm name of the model."""
        return str(self.spec.model)


def convert(
    source: str | Path,
    target: str | Path,
    layout: str,
    *,
    weights: WeightsChoice | None = None,
    model: str | None = None,
) -> list[str]:
    """Write the weights of a file in another layout; return a sentence for each thing done.

    layout: one of `LAYOUTS`. weights, model: see `read_trained_file`. Raises what `read_trained_file` raises, and
    ValueError for a target that exists or has the wrong suffix for its layout.
    """
    target = Path(target)
    suffixes = (".safetensors",) if layout == "safetensors" else (".pth", ".pt", ".bin")
    if target.suffix not in suffixes:
        raise ValueError(f"target must end in {' or '.join(suffixes)} for the layout {layout}, got {target}.")
    if target.exists():
        raise ValueError(f"target must be a file that does not exist yet, got {target}.")
    file = read_trained_file(source, weights, model)
    write_atomically(target, written(file, layout))
    sentences = [f"{source} holds weights of {file.model} in the layout {file.layout}."]
    if file.chosen is not None:
        sentences.append(f"It has two sets; the {'averaged' if file.chosen == 'ema' else 'plain'} ones were taken.")
    if file.dropped:
        sentences.append(f"Left out: {', '.join(file.dropped)}.")
    if layout in ("released", "timm") and file.spec.options:
        options = ", ".join(f"{key}={value!r}" for key, value in file.spec.options.items())
        sentences.append(f"This layout cannot hold the options of the model: create it with {options}.")
    return [*sentences, f"Written: {target} ({layout}, {target.stat().st_size / 1e6:.1f} MB)."]


def read_trained_file(path: str | Path, weights: WeightsChoice | None = None, model: str | None = None) -> TrainedFile:
    """Read the weights of a model from a file; nothing in it is executed.

    weights: averaged (`ema`) or `plain`, by default the averaged ones if the file has them. model: timm's name of the
    model, if the file does not note it. Raises FileNotFoundError, or ValueError for a file that is not a checkpoint,
    lacks the requested weights, or does not fit its model.
    """
    content = read_checkpoint_file(path)
    safetensors = Path(path).suffix == ".safetensors"
    of_mmengine = not safetensors and "meta" in content and isinstance(content.get("state_dict"), Mapping)
    chosen, loaded = _choose(content, of_mmengine, weights, path)
    loaded.source = str(path)
    require_classifier(loaded)
    spec = recorded_spec(path) or spec_of(content)
    # The metadata of the state dict has the image size.
    spec = replace(spec, options={**loaded.spec.options, **spec.options})
    if spec.model and timm.is_model(spec.model) and model not in (None, spec.model):
        raise ValueError(f"model must be {spec.model}, which {path} notes, got {model}.")
    loaded.spec = replace(spec, model=model or _noted_model(spec, path))
    loaded.spec = complete_spec(loaded)
    network = create_noted(str(loaded.spec.model), loaded, device="meta")
    # Without a tag, which says which published weights they began with.
    loaded.spec = replace(loaded.spec, model=cast(Any, network).pretrained_cfg["architecture"])
    fit(loaded, network)
    state = cast(Any, network).from_released(loaded) if hasattr(network, "from_released") else dict(loaded)
    released = any(state.get(name) is not value for name, value in loaded.items())
    layout = "released" if released else "safetensors" if safetensors else "mmengine" if of_mmengine else "timm"
    # Safetensors files and bare state dicts hold weights alone.
    bare = safetensors or all(isinstance(value, Tensor) for value in content.values())
    dropped = () if bare else tuple(str(name) for name in content if name not in PLAIN_KEYS)
    return TrainedFile(state, loaded.spec, network, layout, chosen, dropped)


def written(file: TrainedFile, layout: str) -> bytes:
    """Return the bytes of a file in a layout; ValueError for weights that have no names in the released layout."""
    if layout == "safetensors":
        return safetensors_bytes(file.weights, file.spec)
    content: Mapping[str, Any] = file.weights
    network: Any = file.network
    if layout == "released":
        if not hasattr(network, "to_released"):
            raise ValueError(f"layout must not be 'released' for {file.model}, whose weights were never released.")
        content = {"arch": file.model, getattr(network, "released_key", "model"): network.to_released(file.weights)}
    elif layout == "mmengine":
        meta: dict[str, Any] = {"soft_vit_version": __version__, NOTES_KEY: file.spec.to_dict()}
        if classes := file.spec.label_names:
            meta["dataset_meta"] = {"classes": classes}
        content = {"meta": meta, "state_dict": file.weights}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def safetensors_bytes(weights: Mapping[str, Tensor], spec: ModelSpec | None = None) -> bytes:
    """Return weights as safetensors, with their record in the metadata; equal weights and records give equal bytes."""
    data = safetensors.torch.save({name: value.contiguous() for name, value in weights.items()})
    # The library writes metadata in random order, so the header and its length are written here.
    size = int.from_bytes(data[:8], "little")
    record = {} if spec is None or spec.model is None else spec.to_dict()
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in record.items()}
    content = {"__metadata__": {"format": "pt", **texts}, **json.loads(data[8 : 8 + size])}
    header = json.dumps(content, separators=(",", ":")).encode()
    # The tensors begin at a multiple of eight.
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _choose(
    content: Mapping[str, Any], of_mmengine: bool, weights: WeightsChoice | None, path: str | Path
) -> tuple[WeightsChoice | None, NotedWeights]:
    """Return a set of weights under the names in the file, and which it is (None if the file has only one)."""
    if of_mmengine and content.get("ema_state_dict") is not None:
        # MMEngine saves the average as `state_dict`, and a counter of steps with the plain weights.
        plain = content["ema_state_dict"].items()
        choices: dict[str, Any] = {
            "ema": content["state_dict"],
            "plain": {name.removeprefix("module."): value for name, value in plain if name.startswith("module.")},
        }
    else:
        averaged, plain = (
            next((content[key] for key in keys if isinstance(content.get(key), Mapping)), None)
            for keys in (AVERAGED_KEYS, PLAIN_KEYS)
        )
        choices = {"ema": averaged, "plain": plain if plain or averaged else content}
    several = bool(choices["ema"]) and bool(choices["plain"])
    choice: WeightsChoice = weights or ("ema" if choices["ema"] else "plain")
    if weights and not choices[choice]:
        raise ValueError(f"{path} must hold {choice} weights, got {'plain' if choice == 'ema' else 'ema'} ones only.")
    return choice if several else None, unwrap_state_dict(choices[choice], str(path))


def _noted_model(spec: ModelSpec, path: str | Path) -> str:
    """Return the model that a file notes, or for which its file name is recorded; ValueError without one."""
    if spec.model and timm.is_model(spec.model):
        return spec.model
    for entry in RECORDED_WEIGHTS.values():
        if entry.file == Path(path).name:
            return entry.model
    raise ValueError(f"{path} must record its model; give --model, one that `{check_command(path)}` prints.")
