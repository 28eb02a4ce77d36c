"""Load a pyramid for analysis by its name, weights and device."""

from pathlib import Path
from typing import Any

import timm
import torch

from soft_vit.models import PYRAMID_MODELS, PyramidViT
from soft_vit.weights import RECORDED_WEIGHTS
from soft_vit.weights.build import model_of_file


def require_device(device: str | torch.device) -> None:
    """Raise ValueError unless this machine has the device."""
    try:
        # torch.device accepts names of devices that do not exist.
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        accelerator = torch.accelerator.current_accelerator()
        present = ["cpu", *(f"{accelerator}:{i}" for i in range(torch.accelerator.device_count()))]
        raise ValueError(f"device must be one of {', '.join(present)}, got {str(device)!r}.") from error


def load_pyramid(
    name: str,
    img_size: tuple[int, int] | None = None,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = True,
    device: str | torch.device = "cpu",
) -> tuple[PyramidViT, str]:
    """Return a pyramid by its timm name, in eval mode, and a title with its name and its weights.

    img_size: height and width of the images (default: the model's own). The weights come from the file checkpoint, or
    are the published ones, or random without pretrained. Raises ValueError, also for the file of another model, or
    FileNotFoundError, and WeightsError if published weights are unavailable.
    """
    require_pyramid(name)
    require_device(device)
    options: dict[str, Any] = {} if img_size is None else {"img_size": img_size}
    title = name.partition(".")[0]
    if checkpoint is not None:
        model, _ = model_of_file(name, checkpoint, "strict", **options)
        return model.to(device).eval(), f"{title}, {Path(checkpoint).name}"
    model = timm.create_model(name, pretrained=pretrained, **options).to(device).eval()
    return model, f"{title}.{model.pretrained_cfg['tag']}, pretrained" if pretrained else f"{title}, random weights"


def require_pyramid(name: str) -> None:
    """Raise ValueError for a name, with or without a tag, that is not a pyramid of this package."""
    if name.partition(".")[0] not in PYRAMID_MODELS or name not in {*PYRAMID_MODELS, *RECORDED_WEIGHTS}:
        raise ValueError(f"model must be a pyramid of this package such as soft_tiny, got {name}.")
