"""The pyramid that a command line names, and the words for its weights."""

from contextlib import suppress
from pathlib import Path

import timm
import torch

from soft_vit.analysis.machine import require_device
from soft_vit.models import PyramidViT
from soft_vit.models.pretrained import ENTRIES
from soft_vit.models.soft import MODELS

__all__ = ["load_pyramid", "require_pyramid"]


def load_pyramid(
    name: str,
    img_size: tuple[int, int] | None = None,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = True,
    device: str | torch.device = "cpu",
) -> tuple[PyramidViT, str]:
    """A pyramid by its timm name, in evaluation mode, and a title: its name and where its weights are from.

    img_size: height and width of its images; its own by default. The weights are those in the file checkpoint, if
    given, otherwise the published ones, or random ones without pretrained. Raises ValueError or FileNotFoundError, and
    WeightsError for published weights that are not available.
    """
    require_pyramid(name)
    require_device(device)
    options = {} if img_size is None else {"img_size": img_size}
    if checkpoint is not None:
        # Only the attention is needed, so any number of classes will do.
        options["num_classes"], pretrained = 0, False
    model = timm.create_model(name, pretrained=pretrained, **options)
    family = name.partition(".")[0]
    if pretrained:
        title = f"{family}.{model.pretrained_cfg['tag']}, pretrained"
    elif checkpoint is None:
        title = f"{family}, random weights"
    else:
        # The checkpoints of our own training hold more than weights; this import allows what MMEngine puts there.
        with suppress(ImportError):
            import soft_vit.engine  # noqa: F401
        model.load_pretrained(checkpoint)
        title = f"{family}, {Path(checkpoint).name}"
    return model.to(device).eval(), title


def require_pyramid(name: str) -> None:
    """ValueError for a name, with or without a tag, of no pyramid of this package."""
    if name not in MODELS and name not in ENTRIES:
        raise ValueError(f"{name} is not a pyramid of this package; give a name such as soft_tiny.")
