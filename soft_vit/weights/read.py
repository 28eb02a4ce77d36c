"""Read weights and the record of their model from files, without executing anything in them."""

import argparse
import contextlib
import json
import pickle
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.models import clean_state_dict, resolve_pretrained_cfg
from torch import Tensor

from soft_vit.weights.fetch import sha256_of
from soft_vit.weights.index import RECORDED_WEIGHTS
from soft_vit.weights.spec import NOTES_KEY, ModelSpec, as_mapping

AVERAGED_KEYS = ("state_dict_ema", "model_ema")
"""Keys of averaged weights in the checkpoints of training programs."""
PLAIN_KEYS = ("state_dict", "model", "module")
"""Keys of plain weights there."""
PRETRAINING = "pretraining."
"""Prefix of parameters that only the pre-training of a model needs, and that are never loaded into it."""


class LeftOut:
    """Stand-in for the classes in `LEFT_OUT`; ignores its arguments and its state."""

    def __init__(self, *args: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


# Classes in MMEngine's checkpoints that are left out unless soft_vit.engine allows them, see `allow_classes`.
LEFT_OUT = (
    "mmengine.logging.history_buffer.HistoryBuffer",
    "mmengine.optim.scheduler.param_scheduler.OneCycleParamScheduler",
)
_methods: dict[type, Sequence[str]] = {}


def _get_method(owner: Any, name: str) -> Any:
    """Replace the `getattr` of a pickle, which could reach anything, by one for the allowed methods."""
    if owner is LeftOut:
        return LeftOut
    if not isinstance(owner, type) or name not in _methods.get(owner, ()):
        raise pickle.UnpicklingError(f"the file refers to getattr({owner!r}, {name!r})")
    return getattr(owner, name)


# Functions by which pickles make arrays and numbers of numpy, wherever it keeps them.
make_array, make_number = np.empty(0).__reduce__()[0], np.float64().__reduce__()[0]

# Allowed in files, in addition to the list of torch.load(weights_only=True).
ALLOWED: list[Any] = [
    argparse.Namespace,
    # Swin's training scripts, and those derived from them, save their options as a yacs dictionary of plain values.
    (OrderedDict, "yacs.config.CfgNode"),
    (_get_method, "builtins.getattr"),
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in "?bBhHiIlLqQefd"},
    *((make_array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((make_number, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


def allow_classes(methods: Mapping[type, Sequence[str]]) -> None:
    """Allow classes in files that torch reads in this process, by this package or by others.

    methods: the methods of each class that a file may refer to.
    """
    _methods.update(methods)
    torch.serialization.add_safe_globals([*methods, *ALLOWED])


class NotedWeights(dict[str, Tensor]):
    """Tensors by name, with the record of their model and a name for messages."""

    def __init__(self, weights: Mapping[str, Tensor], spec: ModelSpec, source: str = "the checkpoint") -> None:
        super().__init__(weights)
        self.spec, self.source = spec, source


def load_weights(path: str | Path) -> NotedWeights:
    """Return the state dict in a file of safetensors or a torch checkpoint (EMA weights first), on the CPU.

    The record of a file whose digest is in the index is that of the index. Raises what `read_checkpoint_file` raises,
    and ValueError for a file without a state dict.
    """
    weights = unwrap_state_dict(read_checkpoint_file(path), str(path))
    weights.spec = recorded_spec(path) or weights.spec
    return weights


def read_checkpoint_file(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Return the content of a file by torch.save, or dict(state_dict=..., meta=...) of a safetensors file.

    Nothing in the file is executed. FileNotFoundError for a missing file; PermissionError for one that may not be read;
    ValueError, in one sentence, for one that is not a checkpoint or would run code.
    """
    given, path = path, Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"The checkpoint must be a file that exists, got {given}.")
    # For PermissionError, which the readers below do not raise.
    path.open("rb").close()
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        with torch.serialization.safe_globals([*ALLOWED, *_stand_ins()]):
            content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        # Readers raise many types for foreign bytes.
        raise ValueError(f"{path} must be a checkpoint that can be read safely ({_reason(error)}).") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a checkpoint, got a {type(content).__name__}.")
    return content


def unwrap_state_dict(content: Any, source: str = "the checkpoint") -> NotedWeights:
    """Return the tensors by name inside a loaded checkpoint, with its record; ValueError without tensors."""
    if isinstance(content, NotedWeights):
        return content
    spec, content = spec_of(content), as_mapping(content)
    keys = (key for key in (*AVERAGED_KEYS, *PLAIN_KEYS) if isinstance(content.get(key), Mapping))
    content = content.get(next(keys, None), content)
    weights = {key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, Tensor)}
    if not (weights := {key: value for key, value in weights.items() if not key.startswith(PRETRAINING)}):
        raise ValueError(f"{source} must hold a state dict, parameters by name, as torch.save writes one.")
    # Models of this package note their options in the metadata that torch saves with a state dict, by their own name.
    metadata = clean_state_dict({f"{name}.": entry for name, entry in getattr(content, "_metadata", {}).items()})
    noted = {**metadata.get(".", {}), **metadata.get("", {})}.get("options", {})
    return NotedWeights(clean_state_dict(weights), replace(spec, options={**noted, **spec.options}), source)


def spec_of(content: Any) -> ModelSpec:
    """Return the record in a loaded checkpoint, see `ModelSpec.from_dict`.

    In files of other programs, the model is read from `arch` or `args` (training scripts of timm and the released
    code), and the class names from MMEngine's `meta`.
    """
    content = as_mapping(content)
    meta = as_mapping(content.get("meta"))
    found = meta.get(NOTES_KEY)
    if not isinstance(found, Mapping):
        args = content.get("args")
        found = {
            "model": content.get("arch", getattr(args, "model", None)),
            "options": getattr(args, "model_kwargs", None),
            "cfg": {"label_names": as_mapping(meta.get("dataset_meta")).get("classes")},
        }
    return ModelSpec.from_dict(found)


def recorded_spec(path: str | Path) -> ModelSpec | None:
    """Return the record of a file whose digest is in the index, with the defaults of its family; None for others."""
    path = Path(path).expanduser()
    alike = [entry for entry in RECORDED_WEIGHTS.values() if entry.sha256 and entry.size in (None, path.stat().st_size)]
    digest = sha256_of(path) if alike else None
    entry = next((entry for entry in alike if entry.sha256 == digest), None)
    return None if entry is None else ModelSpec.of_cfg(resolve_pretrained_cfg(entry.name), entry.options)


def first_not_finite(content: Any, name: str = "") -> str | None:
    """Return the dotted name of the first tensor with an infinity or a NaN in nested dictionaries, or None.

    name: prefix of the names.
    """
    if isinstance(content, Tensor):
        return name if content.is_floating_point() and not _is_finite(content) else None
    if not isinstance(content, Mapping):
        return None
    names = (first_not_finite(value, f"{name}.{key}" if name else str(key)) for key, value in content.items())
    return next(filter(None, names), None)


def _is_finite(x: Tensor) -> bool:
    # A sum takes a twentieth of the time. It is finite only if all numbers are, and can overflow if they are.
    return bool(x.sum(dtype=torch.float32).isfinite() or x.isfinite().all())


def require_finite(state_dict: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError with the name of the first weight that has an infinity or a NaN."""
    if name := first_not_finite(state_dict):
        raise ValueError(f"{name} in {source} must be finite; get the file again, or another one.")


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    noted = {"model": metadata.get("model")}
    for key in ("options", "cfg", "training"):
        if key in metadata:
            with contextlib.suppress(ValueError, RecursionError):
                noted[key] = json.loads(metadata[key])
    config = path.with_name("config.json")
    if "model" not in metadata and path.name == "model.safetensors" and config.is_file():
        # In a folder of timm, this file has the record.
        with contextlib.suppress(ValueError, RecursionError):
            found = as_mapping(json.loads(config.read_text(encoding="utf-8")))
            names = {"model": "architecture", "options": "model_args", "cfg": "pretrained_cfg"}
            noted = {key: found.get(name) for key, name in names.items()}
    return {"state_dict": load_file(path), "meta": {NOTES_KEY: noted}}


def _stand_ins() -> list[tuple[Any, str]]:
    """Return stand-ins for the classes in `LEFT_OUT` that are not allowed."""
    known = {f"{cls.__module__}.{cls.__qualname__}" for cls in _methods}
    return [(LeftOut, name) for name in LEFT_OUT if name not in known]


def _reason(error: Exception) -> str:
    """Return the reason in an error of torch, without its advice to disable the safe reader."""
    if (refused := re.search(r"GLOBAL (\S+)|the file refers to ([^\n]+)", str(error))) is None:
        return "it is damaged or of another format"
    return f"it refers to {refused[1] or refused[2]}, which could run code"
