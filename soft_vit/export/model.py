"""A model to export, with what a program needs to run it."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from timm.data import resolve_model_data_config
from timm.models._input import get_model_input_config
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from soft_vit.engine.entries import class_of
from soft_vit.engine.merge import find_config
from soft_vit.engine.models.timm_model import timm_network
from soft_vit.predict import ConfigPredictor, load_predictor
from soft_vit.registry import MODELS
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
    the outputs of a file as `given`, to return what they must be, see `MaskRCNNBoxes`.
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


def load_export_model(
    model: str | None = None,
    config: str | Path | None = None,
    checkpoint: str | Path | None = None,
    *,
    pretrained: bool = True,
    img_size: int | None = None,
    stages: Sequence[int] | None = None,
) -> ExportModel:
    """Return a timm model by name, or the classifier, segmentor or detector of a config and its checkpoint.

    pretrained: without a checkpoint, load the model's published weights; False keeps random ones. img_size: side of the
    images; by default that of the model, of a segmentor's crops, or of a detector's shorter side in multiples of 32.
    stages: export the maps of these stages instead of logits, see `FeatureMaps`. Raises ValueError or FileNotFoundError
    for a model or a file that cannot be used.
    """
    dense = config is not None and _is_dense(config)
    own_size = None if dense else img_size
    predictor = load_predictor(model, config, checkpoint, pretrained=pretrained, img_size=own_size, device="cpu")
    if dense and stages is None:
        # Needs the packages of detection.
        from soft_vit.export.dense import dense_export_model

        return dense_export_model(predictor, img_size)
    network, preprocessor = predictor.model, None
    if isinstance(predictor, ConfigPredictor):
        preprocessor, network = network.data_preprocessor, timm_network(network)
        if network is None:
            raise ValueError(f"The config must be that of a timm classifier, got {config}.")
    usual, data = resolve_model_data_config(network), predictor.data
    mean, std = (data.get(key, usual[key]) for key in ("mean", "std"))
    if hasattr(preprocessor, "mean"):
        values = (torch.as_tensor(value).flatten() / 255 for value in (preprocessor.mean, preprocessor.std))
        mean, std = ([round(float(value), 6) for value in channels] for channels in values)
    size = data["input_size"] if preprocessor is None else get_model_input_config(network)["input_size"]
    if img_size is not None:
        size = (size[0], img_size, img_size)
    spec = replace(ModelSpec.of(network), cfg=predictor.spec.cfg)
    outputs, names = ("logits",), list(predictor.names)
    if names:
        names += [f"class {index}" for index in range(len(names), network.num_classes)]
    if stages is not None:
        network = FeatureMaps(network, stages)
        outputs, names = tuple(f"stage{index}" for index in network.indices), []
    return ExportModel(
        # Not the path of a local folder.
        name=spec.model if model is None or model.startswith("local-dir:") else model,
        model=network.eval().requires_grad_(False),
        input_size=tuple(size),
        mean=tuple(mean),
        std=tuple(std),
        classes=tuple(names),
        outputs=outputs,
        notes=tuple(predictor.notes),
        crop={key: data[key] for key in ("crop_pct", "crop_mode", "interpolation") if key in data},
        spec=spec,
    )


def _is_dense(config: str | Path) -> bool:
    """Return whether a config is of a detector or a segmentor."""
    cls = class_of(Config.fromfile(find_config(config)).get("model") or {}, MODELS)
    return cls is not None and cls.__module__.startswith("soft_vit.dense.")
