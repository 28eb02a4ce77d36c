"""A model to export, with what a program needs to run it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_model_data_config
from timm.models._input import get_model_input_config
from torch import Tensor, nn

from soft_vit.predict import ConfigPredictor, load_predictor
from soft_vit.version import __version__


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


@dataclass(frozen=True)
class ExportModel:
    """A model in eval mode on the CPU, and how its images are prepared.

    input_size: (C, H, W). mean, std: of each channel of an image with values in [0, 1]. classes: names in the order of
    the logits, empty if unknown. outputs: a name for each tensor of the result. notes: a sentence for each change of
    the weights. crop: timm's crop_pct, crop_mode and interpolation, as far as they are known.
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

    def metadata(self) -> dict[str, str]:
        """Return the metadata of an exported file; lists are JSON."""
        lists = {key: json.dumps(getattr(self, key)) for key in ("input_size", "mean", "std", "classes", "outputs")}
        crop = {key: str(value) for key, value in self.crop.items()}
        return {"model": self.name, **lists, **crop, "soft_vit_version": __version__}


def load_export_model(
    model: str | None = None,
    config: str | Path | None = None,
    checkpoint: str | Path | None = None,
    *,
    pretrained: bool = True,
    img_size: int | None = None,
    stages: Sequence[int] | None = None,
) -> ExportModel:
    """Return a timm model by name, or the classifier of a config and its checkpoint.

    pretrained: without a checkpoint, load the model's published weights; False keeps random ones. stages: export the
    maps of these stages instead of logits, see `FeatureMaps`. Raises ValueError or FileNotFoundError for a model or a
    file that cannot be used.
    """
    predictor = load_predictor(model, config, checkpoint, pretrained=pretrained, img_size=img_size, device="cpu")
    network, preprocessor = predictor.model, None
    data = getattr(predictor, "image_cfg", None)
    if isinstance(predictor, ConfigPredictor):
        preprocessor = network.data_preprocessor
        network = getattr(network, "model", None)
        if not hasattr(network, "pretrained_cfg"):
            raise ValueError(f"The config must be that of a timm classifier, got {config}.")
    usual = resolve_model_data_config(network)
    data = usual if data is None else data
    mean, std = usual["mean"], usual["std"]
    if hasattr(preprocessor, "mean"):
        values = (torch.as_tensor(value).flatten() / 255 for value in (preprocessor.mean, preprocessor.std))
        mean, std = ([round(float(value), 6) for value in channels] for channels in values)
    channels, height, width = get_model_input_config(network)["input_size"]
    if img_size is not None:
        height = width = img_size
    cfg, outputs = network.pretrained_cfg, ("logits",)
    # Names in the file of weights take precedence.
    classes = tuple(predictor.names or cfg.get("label_names") or ())
    if stages is not None:
        network = FeatureMaps(network, stages)
        outputs, classes = tuple(f"stage{index}" for index in network.indices), ()
    return ExportModel(
        # Not the path of a local folder.
        name=cfg["architecture"] if model is None or model.startswith("local-dir:") else model,
        model=network.eval().requires_grad_(False),
        input_size=(channels, height, width),
        mean=tuple(mean),
        std=tuple(std),
        classes=classes,
        outputs=outputs,
        notes=tuple(predictor.notes),
        crop={key: data[key] for key in ("crop_pct", "crop_mode", "interpolation") if key in data},
    )
