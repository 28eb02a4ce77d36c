"""Load a pyramid for analysis by its name, weights and device."""

from pathlib import Path
from typing import Any

import timm
import torch

from soft_vit.models import PYRAMID_MODELS, PyramidViT
from soft_vit.weights import RECORDED_WEIGHTS


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
    are the published ones, or random without pretrained. Raises ValueError or FileNotFoundError, and WeightsError if
    published weights are unavailable.
    """
    require_pyramid(name)
    require_device(device)
    options: dict[str, Any] = {} if img_size is None else {"img_size": img_size}
    if checkpoint is not None:
        # The head is not needed, so the file may have any number of classes.
        options |= {"num_classes": 0, "pretrained_cfg_overlay": {"file": checkpoint}}
    model = timm.create_model(name, pretrained=pretrained or checkpoint is not None, **options).to(device).eval()
    if checkpoint is None and pretrained:
        return model, f"{name.partition('.')[0]}.{model.pretrained_cfg['tag']}, pretrained"
    return model, f"{name.partition('.')[0]}, {Path(checkpoint).name if checkpoint else 'random weights'}"


def require_pyramid(name: str) -> None:
    """Raise ValueError for a name, with or without a tag, that is not a pyramid of this package."""
    if name.partition(".")[0] not in PYRAMID_MODELS or name not in {*PYRAMID_MODELS, *RECORDED_WEIGHTS}:
        raise ValueError(f"model must be a pyramid of this package such as soft_tiny, got {name}.")
