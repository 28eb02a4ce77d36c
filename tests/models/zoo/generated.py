"""Weights and images generated as the golden files' authors did, and these files."""

import gzip
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from models.zoo.families import FAMILIES, Family
from torch import Tensor

import soft_vit  # noqa: F401  registers its models with timm

GOLDEN = Path(__file__).parents[2] / "data" / "golden_zoo"


def shapes(family: str, model: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the released file of a model, or of one built for another size, as in `NAME@256`."""
    with gzip.open(GOLDEN / (FAMILIES[family].folder or family) / "state_dict_shapes.json.gz") as file:
        content = json.load(file)
    return {name: tuple(shape) for name, shape in content.get(model, content[model.split("@")[0]]).items()}


def released_state_dict(family: str, model: str) -> dict[str, Tensor]:
    """A released file's content: weights drawn from each parameter's name, and zeros for buffers that are computed."""
    row = FAMILIES[family]
    return {
        name: torch.zeros(shape) if row.skipped and name.endswith(row.skipped) else draw(name, shape, row)
        for name, shape in shapes(family, model).items()
    }


def draw(name: str, shape: tuple[int, ...], row: Family) -> Tensor:
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
    elif (own := row.draw(name, z)) is not None:
        value = own
    elif z.ndim == 4:
        value = z / np.sqrt(np.prod(shape[1:]))
    elif "pos_embed" in name or "cls_token" in name:
        value = 0.02 * z
    else:
        value = z / np.sqrt(shape[1])
    return torch.from_numpy(np.asarray(value, dtype=np.float32)) * row.factor(name)


@dataclass(frozen=True)
class GoldenFile:
    path: Path

    @property
    def family(self) -> str:
        return next(family for family, row in FAMILIES.items() if self.model in row.models)

    def _parts(self) -> tuple[str, ...]:
        match = re.fullmatch(r"(\w+?)_b(\d+)_(\d+)x(\d+)_seed(\d+)", self.path.stem)
        assert match
        return match.groups()

    @property
    def model(self) -> str:
        return self._parts()[0]

    @property
    def img_size(self) -> tuple[int, int]:
        return int(self._parts()[2]), int(self._parts()[3])

    def images(self) -> Tensor:
        _, batch, height, width, seed = self._parts()
        return images(int(batch), int(height), int(width), int(seed))

    def arrays(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(value) for name, value in np.load(self.path).items()}


FILES = [GoldenFile(path) for path in sorted(GOLDEN.glob("*/*.npz"))]


def images(batch: int, height: int, width: int, seed: int = 0) -> Tensor:
    shape = (batch, 3, height, width)
    return torch.from_numpy(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()
