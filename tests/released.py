"""Weights in the layout of the released SOFT implementation, generated as tests/data/golden/README.md says."""

import json
import re
import zlib
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).parent / "data" / "golden"

# Depths that the released code builds, by our names; its "soft_small" is our soft_base.
RELEASED_DEPTHS = {"soft_tiny": (1, 2, 3, 2), "soft_base": (1, 3, 20, 4)}


def released_shapes(depths: tuple[int, ...] = (1, 2, 3, 2)) -> dict[str, tuple[int, ...]]:
    """Parameter names and shapes of a released network of tiny's widths with these depths."""
    tiny = json.loads((GOLDEN / "upstream_state_dict_shapes.json").read_text())["soft_tiny"]
    shapes = {}
    for name, shape in tiny.items():
        block = re.match(r"block(\d)\.(\d+)\.(.+)", name)
        if block is None:
            shapes[name] = tuple(shape)
        elif block[2] == "0":
            for index in range(depths[int(block[1]) - 1]):
                shapes[f"block{block[1]}.{index}.{block[3]}"] = tuple(shape)
    return shapes


def released_state_dict(depths: tuple[int, ...] = (1, 2, 3, 2), scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Weights drawn from each parameter's name; scale 0.5 gives nearly flat kernels."""
    return {name: draw(name, shape, scale) for name, shape in released_shapes(depths).items()}


def draw(name: str, shape: tuple[int, ...], scale: float) -> torch.Tensor:
    z = np.asarray(np.random.RandomState(zlib.crc32(name.encode()) & 0xFFFFFFFF).standard_normal(shape))
    if name.endswith("num_batches_tracked"):
        value = np.zeros(shape)
    elif name.endswith("running_mean"):
        value = 0.1 * z
    elif name.endswith("running_var"):
        value = 1 + 0.25 * np.tanh(z)
    elif name.endswith("bias"):
        value = 0.02 * z
    elif z.ndim == 1:
        value = 1 + 0.1 * np.tanh(z)
    elif z.ndim == 4:
        value = z / np.sqrt(np.prod(shape[1:]))
    elif "pos_embed" in name or "cls_token" in name:
        value = 0.02 * z
    else:
        value = z / np.sqrt(shape[1])
    if name.endswith("W_q.weight") or "Qnorm_act.0" in name or "sample_norm" in name:
        value = value * scale
    return torch.from_numpy(np.asarray(value, dtype=np.float32))
