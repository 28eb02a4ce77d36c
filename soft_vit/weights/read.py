"""Weights in files: read without executing anything, with what the file notes of their model."""

import argparse
import contextlib
import json
import pickle
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.models import clean_state_dict, resolve_pretrained_cfg
from torch import Tensor

from soft_vit.weights.fetch import sha256_of
from soft_vit.weights.index import CFG_KEYS, ENTRIES

try:
    from numpy._core import multiarray
except ImportError:  # numpy before 1.26
    from numpy.core import multiarray  # type: ignore[no-redef]

__all__ = [
    "AVERAGED_KEYS",
    "NOTES_KEY",
    "PLAIN_KEYS",
    "NotedWeights",
    "Notes",
    "allow_classes",
    "first_not_finite",
    "load_weights",
    "notes_of",
    "read_checkpoint_file",
    "require_finite",
    "trained_notes",
    "unwrap_state_dict",
]

AVERAGED_KEYS = ("state_dict_ema", "model_ema")
"""Where training programs keep averaged weights inside a checkpoint."""
PLAIN_KEYS = ("state_dict", "model")
"""Where they keep the others."""
NOTES_KEY = "timm_model"
"""Where notes stand in the `meta` of a checkpoint."""


class LeftOut:
    """Replaces an object of a class in `LEFT_OUT`; it does and keeps nothing."""

    def __init__(self, *args: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


# Classes of MMEngine's checkpoints that only soft_vit.engine reads, see `allow_classes`.
LEFT_OUT = (
    "mmengine.logging.history_buffer.HistoryBuffer",
    "mmengine.optim.scheduler.param_scheduler.OneCycleParamScheduler",
)
_methods: dict[type, Sequence[str]] = {}


def _get_method(owner: Any, name: str) -> Any:
    """Replace the `getattr` that a file names, by which it could reach anything."""
    if owner is LeftOut:
        return LeftOut
    if not isinstance(owner, type) or name not in _methods.get(owner, ()):
        raise pickle.UnpicklingError(f"the file asks for getattr({owner!r}, {name!r})")
    return getattr(owner, name)


def _encode(text: Any, encoding: str) -> bytes:
    """Replace the `_codecs.encode` by which a file writes bytes, such as those of NumPy's numbers."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError(f"the file asks for _codecs.encode({text!r}, {encoding!r})")
    return text.encode("latin1")


# What a file may name, besides what torch.load(weights_only=True) allows by itself.
ALLOWED: list[Any] = [
    argparse.Namespace,
    # Training scripts of Swin's kind keep their options, plain values, in a dictionary of a class of yacs.
    (OrderedDict, "yacs.config.CfgNode"),
    (_get_method, "builtins.getattr"),
    (_encode, "_codecs.encode"),
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in "?bBhHiIlLqQefd"},
    *((multiarray._reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((multiarray.scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


def allow_classes(methods: Mapping[type, Sequence[str]]) -> None:
    """Let files hold objects of classes, in this package and in any other reader by torch in this process.

    methods: the classes, and the methods of each that a file may name.
    """
    _methods.update(methods)
    torch.serialization.add_safe_globals([*methods, *ALLOWED])


# What notes say of images; classes and maps are those of the weights themselves.
SEQUENCES = ("input_size", "mean", "std", "label_names")
IMAGE_KEYS = tuple(key for key in CFG_KEYS if key not in ("num_classes", "pool_size"))


@dataclass(frozen=True)
class Notes:
    """What a file says of the model that its weights belong to.

    model: its timm name. options: arguments of `timm.create_model` in addition to the name. cfg: entries of its
    pretrained configuration, see CFG_KEYS; mean and std are those of RGB values in [0, 1]. training: facts, for a
    model card.
    """

    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    cfg: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the notes as plain values, for `meta[NOTES_KEY]` or JSON."""
        return {key: value for key, value in asdict(self).items() if value}

    def img_size(self) -> tuple[int, int] | None:
        """Return height and width of the images that the model was made for, if noted."""
        size = self.options.get("img_size")
        sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
        right = len(sides) == 2 and all(type(side) is int and side > 0 for side in sides)
        return (sides[0], sides[1]) if right else None


class NotedWeights(dict[str, Tensor]):
    """Tensors by name, with the notes of the file that they come from."""

    def __init__(self, weights: Mapping[str, Tensor], notes: Notes) -> None:
        super().__init__(weights)
        self.notes = notes


def load_weights(path: str | Path) -> NotedWeights:
    """Return the state dict in a file, on the CPU: of safetensors, or a torch checkpoint (its EMA weights first).

    Raises what `read_checkpoint_file` raises, and ValueError for a file without a state dict.
    """
    return unwrap_state_dict(read_checkpoint_file(path), str(path))


def read_checkpoint_file(path: str | Path, map_location: Any = "cpu") -> Any:
    """Return the content of a file by torch.save, or dict(state_dict=..., meta=...) of a safetensors file.

    Nothing in the file is executed. FileNotFoundError for a missing file; PermissionError for one that may not be read;
    ValueError, in one sentence, for one that is not a checkpoint or would run code.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {path}; give the path of a file that exists.")
    # The readers' own errors do not tell that the file may not be read.
    path.open("rb").close()
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        with torch.serialization.safe_globals([*ALLOWED, *_stand_ins()]):
            return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        # Readers raise many types on bytes that are not theirs, and all of them mean the same to the caller.
        raise ValueError(
            f"The file {path} is not a checkpoint that can be read safely ({_reason(error)}); give a safetensors file, "
            f"or a torch file that holds only weights and plain values."
        ) from error


def unwrap_state_dict(content: Any, source: str = "the checkpoint") -> NotedWeights:
    """Return the tensors by name inside a loaded checkpoint, with its notes; ValueError without tensors."""
    notes = content.notes if isinstance(content, NotedWeights) else notes_of(content)
    if isinstance(content, Mapping):
        for key in (*AVERAGED_KEYS, *PLAIN_KEYS):
            if isinstance(content.get(key), Mapping):
                content = content[key]
                break
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{source} must hold a state dict, parameters by name, as torch.save writes one.")
    # Models of this package note their size of images in what torch saves next to a state dict.
    told = getattr(content, "_metadata", {}).get("", {}).get("options", {})
    notes = replace(notes, options={**told, **notes.options})
    return NotedWeights(
        clean_state_dict({key: value for key, value in content.items() if isinstance(value, Tensor)}), notes
    )


def notes_of(content: Any) -> Notes:
    """Return the notes in a loaded checkpoint, of which only plain values are kept.

    Besides the notes of this package, the training scripts of timm and of the released code note the model as `arch` or
    among their options (`args`), and MMEngine notes the names of the classes.
    """
    content = _mapping(content)
    meta = _mapping(content.get("meta"))
    found = meta.get(NOTES_KEY)
    if not isinstance(found, Mapping):
        args = content.get("args")
        found = {
            "model": content.get("arch", getattr(args, "model", None)),
            "options": getattr(args, "model_kwargs", None),
            "cfg": {"label_names": _mapping(meta.get("dataset_meta")).get("classes")},
        }
    model, noted = found.get("model"), _mapping(found.get("cfg"))
    cfg = {
        key: tuple(value) if isinstance(value, list) else value
        for key in IMAGE_KEYS
        if _is_plain(value := noted.get(key)) and isinstance(value, list | tuple) == (key in SEQUENCES) and value
    }
    return Notes(
        model if isinstance(model, str) else None,
        {key: value for key, value in _mapping(found.get("options")).items() if _is_plain(value)},
        cfg,
        {key: value for key, value in _mapping(found.get("training")).items() if isinstance(value, str)},
    )


def trained_notes(content: Mapping[str, Any], path: str | Path) -> Notes:
    """Return what is known of the weights in a file; nothing in it is executed.

    content: what was read from the file. For a recorded file, known by its digest, the index says it; for any other the
    notes in it. mean, std in cfg: of RGB values in [0, 1].
    """
    path = Path(path).expanduser()
    size = path.stat().st_size
    alike = [entry for entry in ENTRIES.values() if entry.sha256 and entry.size in (None, size)]
    digest = sha256_of(path) if alike else None
    entry = next((entry for entry in alike if entry.sha256 == digest), None)
    if entry is None:
        return notes_of(content)
    # timm's configuration adds what the entry leaves at the defaults of its family.
    cfg = resolve_pretrained_cfg(entry.name).to_dict()
    known = {key: cfg[key] for key in IMAGE_KEYS if cfg.get(key) is not None}
    return Notes(entry.model, entry.options, known)


def first_not_finite(content: Any, name: str = "") -> str | None:
    """Return the dotted name of the first tensor in nested dictionaries that is infinite or NaN somewhere, or None.

    name: of the content itself, before the names in it.
    """
    if isinstance(content, Tensor):
        return name if content.is_floating_point() and not _is_finite(content) else None
    if not isinstance(content, Mapping):
        return None
    found = (first_not_finite(value, f"{name}.{key}" if name else str(key)) for key, value in content.items())
    return next(filter(None, found), None)


def _is_finite(x: Tensor) -> bool:
    # A sum takes a twentieth of the time, and is finite only where all numbers are; theirs can overflow.
    return bool(x.sum(dtype=torch.float32).isfinite() or x.isfinite().all())


def require_finite(state_dict: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError, naming the first, if a weight is infinite or not a number."""
    if name := first_not_finite(state_dict):
        raise ValueError(f"{name} in {source} has values that are not finite; get the file again, or another one.")


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
    return {"state_dict": load_file(path), "meta": {NOTES_KEY: noted}}


def _stand_ins() -> list[tuple[Any, str]]:
    """Return stand-ins for the classes that soft_vit.engine has not allowed."""
    known = {f"{cls.__module__}.{cls.__qualname__}" for cls in _methods}
    return [(LeftOut, name) for name in LEFT_OUT if name not in known]


def _reason(error: Exception) -> str:
    """Return what is wrong with a file, without torch's advice to switch the safety off."""
    refused = re.search(r"GLOBAL (\S+)|the file asks for ([^\n]+)", str(error))
    if refused is None:
        return "it is damaged or of another kind"
    return f"it asks for {refused[1] or refused[2]}, which could run code"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, True, False, None, or a list of these."""
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)
