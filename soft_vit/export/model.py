"""What is exported: a model, and what a program that runs it has to know."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from soft_vit.engine.errors import UserError, as_user_error
from soft_vit.prediction import ConfigPredictor, load_predictor
from soft_vit.version import __version__

__all__ = ["FeatureMaps", "Subject", "load_subject"]


class FeatureMaps(nn.Module):
    """The maps of chosen stages of a timm model: images `[B, C, H, W]` to a tuple of maps, of falling size.

    indices: of the stages, from 0; negative ones count from the end. ValueError for stages that the model has not.
    """

    def __init__(self, model: nn.Module, indices: Sequence[int]) -> None:
        super().__init__()
        if not hasattr(model, "forward_intermediates"):
            raise ValueError(f"{type(model).__name__} gives no features of its stages; export it with its head.")
        count = len(model.feature_info)
        if not indices or any(not -count <= index < count for index in indices):
            raise ValueError(f"The stages {list(indices)} are not all there; choose some of 0 to {count - 1}.")
        self.model = model
        self.indices = sorted(index % count for index in indices)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.model.forward_intermediates(x, indices=self.indices, intermediates_only=True))


@dataclass(frozen=True)
class Subject:
    """A model to export, in eval mode on the CPU, and how its images are prepared.

    input_size: (C, H, W). mean, std: of the channels of an image with values in [0, 1]. classes: names in the order
    of the logits, empty where they are unknown or there are none. outputs: a name for each tensor of the result. notes:
    what had to be changed in its weights.
    """

    name: str
    model: nn.Module
    input_size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("logits",)
    notes: tuple[str, ...] = ()

    def metadata(self) -> dict[str, str]:
        """What an exported file says of itself; lists are JSON."""
        return {
            "model": self.name,
            "input_size": json.dumps(self.input_size),
            "mean": json.dumps(self.mean),
            "std": json.dumps(self.std),
            "classes": json.dumps(self.classes),
            "outputs": json.dumps(self.outputs),
            "soft_vit_version": __version__,
        }


def load_subject(
    model: str | None = None,
    config: str | Path | None = None,
    checkpoint: str | Path | None = None,
    *,
    pretrained: bool = True,
    img_size: int | None = None,
    stages: Sequence[int] | None = None,
) -> Subject:
    """The timm model by name, or the classifier of a config with a checkpoint, ready to be exported.

    pretrained: the published weights of a named model, without a checkpoint; False for random ones. stages: export
    the maps of these stages in the place of logits, see `FeatureMaps`. Raises UserError (a ValueError) or
    FileNotFoundError for what cannot be used.
    """
    predictor = load_predictor(model, config, checkpoint, pretrained=pretrained, img_size=img_size, device="cpu")
    if isinstance(predictor, ConfigPredictor):
        network, prepared = _classifier_of(predictor, config)
    else:
        network, prepared = predictor.model, None
    data = resolve_model_data_config(network)
    mean, std = prepared or (data["mean"], data["std"])
    height, width = getattr(network, "img_size", None) or data["input_size"][1:]
    if img_size is not None:
        height = width = img_size
    name = model or network.pretrained_cfg["architecture"]
    outputs: tuple[str, ...] = ("logits",)
    # What a file of weights says comes first.
    classes = tuple(predictor.names or network.pretrained_cfg.get("label_names") or ())
    if stages is not None:
        with as_user_error():
            network = FeatureMaps(network, stages)
        outputs, classes = tuple(f"stage{index}" for index in network.indices), ()
    network.eval().requires_grad_(False)
    return Subject(
        name=name,
        model=network,
        input_size=(data["input_size"][0], height, width),
        mean=tuple(mean),
        std=tuple(std),
        classes=classes,
        outputs=outputs,
        notes=tuple(predictor.notes),
    )


def _classifier_of(
    predictor: ConfigPredictor, config: str | Path
) -> tuple[nn.Module, tuple[list[float], list[float]] | None]:
    """The timm model inside a config's classifier, and the mean and std that its images are normalised with."""
    network = getattr(predictor.model, "model", None)
    if not hasattr(network, "pretrained_cfg"):
        raise UserError(f"The config {config} trains no classifier of timm; export its backbone with --model.")
    preprocessor = predictor.model.data_preprocessor
    if not hasattr(preprocessor, "mean"):
        return network, None
    values = (torch.as_tensor(getattr(preprocessor, name)).flatten() / 255 for name in ("mean", "std"))
    mean, std = ([round(float(value), 6) for value in tensor] for tensor in values)
    return network, (mean, std)
