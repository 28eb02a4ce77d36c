"""A model made ready for a test: its weights, exactly, and the size of its images."""

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from timm.layers import to_2tuple
from torch import nn

from soft_vit.engine.errors import one_line
from soft_vit.engine.models.finetune import require_match
from soft_vit.engine.models.notes import model_options
from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.engine.optim.ema_hook import choose_weights
from soft_vit.weights.load import filter_weights
from soft_vit.weights.read import notes_of

__all__ = ["TestedModelHook", "changed_options", "fit_image_size"]

# Fixed by the weights, or free to choose.
_OF_THE_TEST = {"num_classes", "in_chans", "img_size", "backend"}


class TestedModelHook(Hook):
    """Loads the chosen weights exactly, and makes the model ready for another size of images.

    ema: see `evaluate`. img_size: None leaves the model as it was built. same_classes: refuse images with fewer classes
    than the model has, not only those with more. Raises ValueError when weights, size or classes do not
    fit.
    """

    # Before other hooks take the weights for themselves.
    priority = "VERY_HIGH"

    def __init__(self, ema: bool | None = None, img_size: int | None = None, same_classes: bool = False) -> None:
        self.ema = ema
        self.img_size = img_size
        self.same_classes = same_classes

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        for sentence in changed_options(checkpoint, runner.cfg):
            runner.logger.warning(sentence)
        if self.ema is not None:
            choose_weights(checkpoint, self.ema)
        network = getattr(unwrapped(runner.model), "model", None)
        if hasattr(network, "pretrained_cfg"):
            # Weights with the names of the released code, or of another grid.
            checkpoint["state_dict"] = filter_weights(checkpoint, network)
        require_match(runner, checkpoint)

    def before_test(self, runner: Runner) -> None:
        classifier = unwrapped(runner.model)
        network = getattr(classifier, "model", classifier)
        if self.img_size is not None:
            fit_image_size(network, self.img_size)
        own = getattr(network, "num_classes", None)
        names = getattr(runner.test_dataloader.dataset, "metainfo", {}).get("classes")
        if own and names and (own < len(names) or (self.same_classes and own > len(names))):
            raise ValueError(
                f"The model tells {own} classes apart and the test images have {len(names)}; set model.num_classes, or "
                "give images in folders that are named like classes of the model, as --data-root."
            )


def changed_options(checkpoint: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """A sentence for each option of the model that a config sets otherwise than the training of a checkpoint did.

    Neither weights nor shapes show these. Empty for a checkpoint that does not note its options.
    """
    notes = notes_of(checkpoint)
    if notes.model is None:
        return []
    own = model_options(config)
    names = sorted(name for name in {*notes.options, *own} - _OF_THE_TEST if "drop" not in name)
    both = [
        tuple(f"{name}={_as_noted(options[name])!r}" if name in options else f"its default {name}" for name in names)
        for options in (notes.options, own)
    ]
    return [
        f"The checkpoint was trained with {trained}, and is tested with {tested}; set model.{name} as in training "
        "unless this is meant."
        for name, trained, tested in zip(names, *both, strict=True)
        if trained != tested
    ]


def _as_noted(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def fit_image_size(network: nn.Module, img_size: int | tuple[int, int]) -> None:
    """Make a timm model ready for images of a size, in place. Raises ValueError when it cannot take them.

    img_size: pixels, one number or (H, W).
    """
    height, width = to_2tuple(img_size)
    weight = next(network.parameters())
    try:
        if hasattr(network, "set_input_size"):
            network.set_input_size((height, width))
        with torch.no_grad():
            # Calling the module would compile it where that was asked for.
            network.eval().forward(torch.zeros(1, 3, height, width, device=weight.device, dtype=weight.dtype))
    except Exception as error:
        # Every architecture has its own way of refusing.
        raise ValueError(
            f"{type(network).__name__} does not take images of {height} x {width} ({one_line(error)}); choose another "
            "img_size."
        ) from error
