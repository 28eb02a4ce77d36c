"""Weights and images generated as tests/data/golden/README.md says, weights in the layout of the released SOFT."""

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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


def hollow(shapes: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """Zeros of these shapes, each with one number in memory."""
    return {name: torch.zeros(()).expand(tuple(shape)) for name, shape in shapes.items()}


@cache
def released_state_dict(depths: tuple[int, ...] = (1, 2, 3, 2), scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Weights drawn from each parameter's name; scale 0.5 gives nearly flat kernels."""
    return {name: draw(name, shape, scale) for name, shape in released_shapes(depths).items()}


def draw(
    name: str,
    shape: tuple[int, ...],
    scale: float = 1.0,
    own: Callable[[str, np.ndarray], np.ndarray | None] = lambda name, z: None,
) -> torch.Tensor:
    """Values of a parameter, drawn from its name; scale: of weights that make the released kernels flat.

    own: gives other values, or None, from the name and standard normal numbers.
    """
    z = np.asarray(np.random.RandomState(zlib.crc32(name.encode()) & 0xFFFFFFFF).standard_normal(shape))
    if (drawn := own(name, z)) is not None:
        value = drawn
    elif name.endswith("num_batches_tracked"):
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


def images(batch: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Images of the golden files of that seed."""
    shape = (batch, 3, height, width)
    return torch.from_numpy(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


@dataclass(frozen=True)
class GoldenFile:
    """Outputs of a released model; what its name says of the images, and the scale of the weights (see `draw`)."""

    path: Path
    model: str
    batch: int
    height: int
    width: int
    seed: int
    scale: float

    def pixels(self) -> int:
        return self.batch * self.height * self.width

    def images(self) -> torch.Tensor:
        return images(self.batch, self.height, self.width, self.seed)

    def arrays(self) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(value) for name, value in np.load(self.path).items()}


def golden_files(folder: Path, pattern: str = "*.npz") -> list[GoldenFile]:
    """The golden files in a folder."""
    files = []
    for path in sorted(folder.glob(pattern)):
        match = re.fullmatch(r"(\w+?)_b(\d+)_(\d+)x(\d+)_seed(\d+)(?:_s([\d.]+))?", path.stem)
        assert match
        model, *numbers, scale = match.groups()
        files.append(GoldenFile(path, model, *map(int, numbers), float(scale or 1)))
    return files


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


def check_features(
    golden: Mapping[str, torch.Tensor], features: Mapping[str, torch.Tensor], tolerance: float, unbiased: bool
) -> None:
    """Assert first values, mean and standard deviation of those features that a golden file has."""
    names = {name.removesuffix("_head") for name in golden if name.endswith("_head")}
    for name in names & features.keys():
        feature, head = features[name], golden[f"{name}_head"]
        assert relative_error(feature.flatten()[: head.numel()], head) < tolerance, name
        mean_std = torch.stack([feature.double().mean(), feature.double().std(correction=int(unbiased))])
        torch.testing.assert_close(mean_std, golden[f"{name}_mean_std"].double(), rtol=0, atol=tolerance, msg=name)
