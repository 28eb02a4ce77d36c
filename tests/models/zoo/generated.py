"""Weights generated as the golden files' authors did, and these files."""

import gzip
import json
from functools import cache
from pathlib import Path

import torch
from models.zoo.families import FAMILIES
from released import GoldenFile, draw, golden_files, images, relative_error
from torch import Tensor

import soft_vit  # noqa: F401  registers its models with timm

__all__ = ["FILES", "GoldenFile", "family_of", "images", "lists", "relative_error", "released_state_dict", "shapes"]

GOLDEN = Path(__file__).parents[2] / "data" / "golden_zoo"
FILES = golden_files(GOLDEN, "*/*.npz")


@cache
def _all_shapes(folder: str) -> dict[str, dict[str, list[int]]]:
    with gzip.open(GOLDEN / folder / "state_dict_shapes.json.gz") as file:
        return json.load(file)


def family_of(model: str) -> str:
    return next(family for family, row in FAMILIES.items() if model in row.models)


def lists(family: str) -> list[str]:
    """Models of a family whose names and shapes are known, and such models for another size, as in `NAME@256`."""
    row = FAMILIES[family]
    return [model for model in _all_shapes(row.folder or family) if model.split("@")[0] in row.models]


def shapes(family: str, model: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the released file of a model, or of one built for another size, as in `NAME@256`."""
    content = _all_shapes(FAMILIES[family].folder or family)
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
