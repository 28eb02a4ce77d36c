"""Fit the weights of a checkpoint to the model of a run."""

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import BaseLoop, Runner
from timm.layers import to_2tuple
from torch import nn

from soft_vit.engine.models.notes import model_options
from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.engine.optim.ema_hook import choose_weights
from soft_vit.registry import HOOKS, register
from soft_vit.text_tables import one_line
from soft_vit.weights.load import describe_mismatch, filter_weights, fit_weights
from soft_vit.weights.read import notes_of, unwrap_state_dict

# Options that the weights fix or a test may choose.
_OF_THE_TEST = {"num_classes", "in_chans", "img_size", "backend"}


@register(HOOKS)
class WeightsHook(Hook):
    """Fits the weights of a checkpoint to the model; MMEngine would log a mismatch and go on.

    A training that begins from `load_from` adapts heads and grids, see `fit_weights`; a head for classes with
    other names is replaced. A resumed run and a test need weights that fit exactly.

    For a test, ema: the averaged (True) or the plain weights of a checkpoint with both, None for the averaged ones.
    img_size: prepare the model for this size. Raises ValueError for weights, sizes or classes that do not fit.
    """

    # Before hooks that copy the weights, such as EMAHook.
    priority = "VERY_HIGH"

    def __init__(self, ema: bool | None = None, img_size: int | None = None) -> None:
        self.ema = ema
        self.img_size = img_size

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        network = getattr(unwrapped(runner.model), "model", None)
        of_timm = hasattr(network, "pretrained_cfg")
        if runner._resume:
            if "message_hub" not in checkpoint:
                raise ValueError("--resume needs the checkpoint of a run; begin one from other weights with load_from.")
            if "ema_state_dict" in checkpoint and not any(isinstance(hook, EMAHook) for hook in runner.hooks):
                # A hook that averages puts the plain weights back itself.
                choose_weights(checkpoint, ema=False)
            require_match(runner, checkpoint)
            classes, trained = _classes(runner), [str(name) for name in notes_of(checkpoint).cfg.get("label_names", ())]
            if classes and trained and classes != trained:
                raise ValueError(f"The classes must be {', '.join(trained[:10])}, got {', '.join(classes[:10])}.")
            if of_timm:
                # Refuses notes of another model with equal parameter names.
                filter_weights(unwrap_state_dict(checkpoint), network)
        elif isinstance(runner._train_loop, BaseLoop) and of_timm:
            checkpoint["state_dict"], sentences = fit_weights(checkpoint, network, classes=_classes(runner))
            for sentence in sentences:
                runner.logger.info(f"Weights of {runner.cfg.get('load_from')}: {sentence}")
        elif isinstance(runner._train_loop, BaseLoop):
            require_match(runner, checkpoint, exact=False)
        else:
            for name, (trained, tested) in changed_options(checkpoint, runner.cfg).items():
                runner.logger.warning(f"model.{name} was {trained!r} in training, now {tested!r} (None: the default).")
            if self.ema is not None:
                choose_weights(checkpoint, self.ema)
            if of_timm:
                # Renames released weights, and resamples those of another grid.
                checkpoint["state_dict"] = filter_weights(unwrap_state_dict(checkpoint), network)
            require_match(runner, checkpoint)

    def before_test(self, runner: Runner) -> None:
        classifier = unwrapped(runner.model)
        network = getattr(classifier, "model", classifier)
        if self.img_size is not None:
            fit_image_size(network, self.img_size)
        own = getattr(network, "num_classes", None)
        names = getattr(runner.test_dataloader.dataset, "metainfo", {}).get("classes")
        if own and names and own < len(names):
            raise ValueError(f"The test images must be of the {own} classes of the model, got {len(names)}.")


def _classes(runner: Runner) -> list[str]:
    """Return the names of the classes of the training data; [] without any."""
    return list(map(str, getattr(runner.train_dataloader.dataset, "metainfo", {}).get("classes") or ()))


def require_match(runner: Runner, checkpoint: dict, exact: bool = True) -> None:
    """Raise ValueError unless names and shapes of a checkpoint are the model's; without `exact`, unless any are."""
    expected = unwrapped(runner.model).state_dict()
    given = checkpoint.get("state_dict", checkpoint)
    given = {name.removeprefix("module."): value for name, value in given.items() if hasattr(value, "shape")}
    mismatch = describe_mismatch(expected, given)
    fitting = any(name in given and expected[name].shape == given[name].shape for name in expected)
    if mismatch and (exact or not fitting):
        raise ValueError(f"The config must be that of the checkpoint: {mismatch}.")


def changed_options(checkpoint: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the model's options that differ between a checkpoint's notes and a config, as (noted, configured).

    None stands for an option that is not set. Empty for a checkpoint without notes.
    """
    notes = notes_of(checkpoint)
    if notes.model is None:
        return {}
    noted, configured = (
        {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
        for options in (notes.options, model_options(config))
    )
    names = sorted(name for name in {*noted, *configured} - _OF_THE_TEST if "drop" not in name)
    pairs = {name: (noted.get(name), configured.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def fit_image_size(network: nn.Module, img_size: int | tuple[int, int]) -> None:
    """Prepare a timm model for an image size, in place. Raises ValueError for a size that it does not take.

    img_size: pixels, one number or (H, W).
    """
    height, width = to_2tuple(img_size)
    weight = next(network.parameters())
    try:
        if hasattr(network, "set_input_size"):
            network.set_input_size((height, width))
        with torch.no_grad():
            # Calling the module would run torch.compile.
            network.eval().forward(torch.zeros(1, 3, height, width, device=weight.device, dtype=weight.dtype))
    except Exception as error:
        # Each architecture raises an error of its own.
        name = type(network).__name__
        raise ValueError(f"img_size must fit {name}, got {height} x {width} ({one_line(error)}).") from error
