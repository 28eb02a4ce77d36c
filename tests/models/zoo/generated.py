"""Weights and images generated as the golden files' authors did, and these files."""

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from models.zoo.families import FAMILIES
from released import draw, images, relative_error
from torch import Tensor

import soft_vit  # noqa: F401  registers its models with timm

__all__ = ["FILES", "GoldenFile", "images", "relative_error", "released_state_dict", "shapes"]

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
        name: torch.zeros(shape)
        if row.skipped and name.endswith(row.skipped)
        else draw(name, shape, own=row.draw) * row.factor(name)
        for name, shape in shapes(family, model).items()
    }


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
