"""The pyramid that a command line names, and the words for its weights."""

from collections.abc import Sequence
from pathlib import Path

import timm
import torch

from soft_vit.analysis.machine import require_device
from soft_vit.analysis.sides import height_and_width
from soft_vit.models import PyramidViT
from soft_vit.models.soft import MODELS
from soft_vit.weights import ENTRIES

__all__ = ["load_pyramid", "require_pyramid"]


def load_pyramid(
    name: str,
    img_size: Sequence[int] | None = None,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    device: str | torch.device = "cpu",
) -> tuple[PyramidViT, str]:
    """A pyramid by its timm name, in evaluation mode, and a title: its name and where its weights are from.

    img_size: the side of its images, or height and width; its own by default. The weights are those in the file
    checkpoint, or with pretrained the recorded ones of the name, otherwise random. Raises ValueError or
    FileNotFoundError, and WeightsError for recorded weights that cannot be had.
    """
    require_pyramid(name)
    require_device(device)
    if checkpoint is not None and pretrained:
        raise ValueError(f"Both a checkpoint, {checkpoint}, and pretrained weights are given; choose one of them.")
    options = {} if img_size is None else {"img_size": height_and_width(img_size)}
    if checkpoint is not None:
        # The attention is looked at, and no head.
        options["num_classes"] = 0
    model = timm.create_model(name, pretrained=pretrained, **options)
    family = name.partition(".")[0]
    if pretrained:
        title = f"{family}.{model.pretrained_cfg['tag']}, pretrained"
    elif checkpoint is None:
        title = f"{family}, random weights"
    else:
        model.load_pretrained(checkpoint)
        title = f"{family}, {Path(checkpoint).name}"
    return model.to(device).eval(), title


def require_pyramid(name: str) -> None:
    """ValueError for a name, with or without a tag, of no pyramid of this package."""
    if name not in MODELS and name not in ENTRIES:
        raise ValueError(f"{name} is not a pyramid of this package; give a name such as soft_tiny.")
