"""A model to export, with what a program needs to run it."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from soft_vit.version import __version__
from soft_vit.weights.spec import ModelSpec


class FeatureMaps(nn.Module):
    """Maps of chosen stages of a timm model: images `[B, C, H, W]` to a tuple of maps, the largest first.

    indices: of the stages, from 0; negative ones count from the end.
    """

    def __init__(self, model: nn.Module, indices: Sequence[int]) -> None:
        super().__init__()
        count = len(getattr(model, "feature_info", ()))
        if not all(-count <= index < count for index in indices):
            raise ValueError(f"stages must be from 0 to {count - 1}, got {list(indices)}.")
        self.model = model
        self.indices = sorted(index % count for index in indices)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.model.forward_intermediates(x, indices=self.indices, intermediates_only=True))


class Preprocessed(nn.Module):
    """A model of uint8 images `[B, C, H, W]`. mean, std: of each channel, for values in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, 255 * torch.tensor(values)[:, None, None])

    def forward(self, x: Tensor, **given: Any) -> Any:
        return self.model((x.float() - self.mean) / self.std, **given)


class Half(nn.Module):
    """A copy of a model in fp16, whose formulas are computed in fp32, with images and outputs in fp32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = deepcopy(model).half()

    def forward(self, x: Tensor) -> Any:
        return tree_map(Tensor.float, self.model(x.half()))


@dataclass(frozen=True)
class ExportModel:
    """A model in eval mode on the CPU, and how its images are prepared.

    input_size: (C, H, W). mean, std: of each channel of an image with values in [0, 1]. classes: names in the order of
    the logits, `class 3` and so on where unknown, or empty if all are. outputs: a name for each tensor of the result.
    notes: a sentence for each change of the weights. crop: timm's crop_pct, crop_mode and interpolation, as far as they
    are known. spec: the record of the model. dtype: of the images, fp32 or uint8. needs_given: whether the model takes
    the outputs of a file as `given`, to return what they must be, see `MaskRCNNBoxes`. min_side: smallest side of
    images of any size: models treat a map of one token differently.
    """

    name: str
    model: nn.Module
    input_size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("logits",)
    notes: tuple[str, ...] = ()
    crop: Mapping[str, Any] = field(default_factory=dict)
    spec: ModelSpec = field(default_factory=ModelSpec)
    dtype: torch.dtype = torch.float32
    needs_given: bool = False
    min_side: int = 64

    def images(self, batch: int, height: int, width: int, generator: torch.Generator | None = None) -> Tensor:
        """Return random images `[B, C, H, W]`."""
        shape = batch, self.input_size[0], height, width
        if self.dtype == torch.uint8:
            return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        return torch.randn(shape, generator=generator)

    def with_preprocessing(self) -> "ExportModel":
        """Return the model with the normalisation inside: its images are uint8, and have no mean and std."""
        return replace(self, model=Preprocessed(self.model, self.mean, self.std), mean=(), std=(), dtype=torch.uint8)

    def half(self) -> "ExportModel":
        """Return the model in half precision, see `Half`."""
        return replace(self, model=Half(self.model))

    def metadata(self) -> dict[str, str]:
        """Return the metadata of an exported file; lists are JSON."""
        lists = {key: json.dumps(getattr(self, key)) for key in ("input_size", "mean", "std", "classes", "outputs")}
        crop = {key: str(value) for key, value in self.crop.items()}
        told = {"multi_label": json.dumps(self.spec.multi_label), "options": json.dumps(dict(self.spec.options))}
        told["dtype"] = str(self.dtype).removeprefix("torch.")
        return {"model": self.name, **lists, **crop, **told, "soft_vit_version": __version__}
