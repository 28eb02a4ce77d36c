"""Files of features: `.safetensors`, or `.npz` of NumPy, with `features` and what they were made with.

Letters: N tiles of an image, C channels.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save
from torch import Tensor

from soft_vit.text_tables import one_line
from soft_vit.weights.files import write_atomically

FORMATS = ("safetensors", "npz")
"""The endings of files of features."""
_KEY = "made_with"


def write_features(path: str | Path, arrays: Mapping[str, np.ndarray], made_with: Mapping[str, Any]) -> None:
    """Write arrays, and a mapping that JSON can hold, to a file; its ending decides the format."""
    note = json.dumps(made_with)
    if Path(path).suffix == ".npz":
        stream = io.BytesIO()
        np.savez(stream, **arrays, **{_KEY: np.array(note)})
        data = stream.getvalue()
    else:
        data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {_KEY: note})
    write_atomically(path, data)


def read_features(path: str | Path, *, only_note: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file, {} with only_note, and what they were made with, {} if it does not say so.

    Raises ValueError for another file, and for one that was cut short. Pickles are not read.
    """
    try:
        if Path(path).suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                note = str(file[_KEY]) if _KEY in file else "{}"
                names = [name for name in file if name != _KEY]
                tensors = {name: torch.from_numpy(file[name]) for name in names if not only_note}
        else:
            with safe_open(path, "pt") as file:
                note, names = (file.metadata() or {}).get(_KEY, "{}"), list(file.keys())
                tensors = {name: file.get_tensor(name) for name in names if not only_note}
        names.index("features")
        return tensors, json.loads(note)
    except Exception as error:
        # Each format has errors of its own for a damaged file.
        raise ValueError(f"{path} must be a whole .safetensors or .npz with features ({one_line(error)}).") from error
