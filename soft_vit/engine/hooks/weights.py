"""Fit the weights of a checkpoint to the model of a run."""

import json
from typing import Any

import torch
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import BaseLoop, Runner
from timm.layers import to_2tuple
from timm.models._input import get_model_input_config
from torch import nn

from soft_vit.engine.models.timm_model import classes_of, timm_network, unwrapped
from soft_vit.engine.optim.ema_hook import choose_weights
from soft_vit.registry import HOOKS, register
from soft_vit.text_tables import one_line
from soft_vit.weights.load import fit, load_into
from soft_vit.weights.read import spec_of, unwrap_state_dict
from soft_vit.weights.spec import ModelSpec

# Options that the weights fix or a test may choose.
_OF_THE_TEST = {"num_classes", "in_chans", "img_size", "backend"}


@register(HOOKS)
class WeightsHook(Hook):
    """Fits the weights of a checkpoint to the model, where MMEngine would log a mismatch and continue.

    Training from `load_from` adapts heads and grids, see `load_into`, and replaces a head for classes of other names.
    A resumed run and a test need weights that fit exactly.

    For a test, ema: the averaged (True) or the plain weights of a checkpoint with both, None for the averaged ones.
    img_size: prepare the model for this size. Raises ValueError for weights, sizes or classes that do not fit.
    """

    # Before hooks that copy the weights, such as EMAHook.
    priority = "VERY_HIGH"

    def __init__(self, ema: bool | None = None, img_size: int | None = None) -> None:
        self.ema, self.img_size = ema, img_size

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        network = timm_network(model := unwrapped(runner.model))
        target, spec = (model if network is None else network), spec_of(checkpoint)
        source = str(runner.cfg.get("load_from") or "the checkpoint")
        if runner._resume:
            remedy = "begin another run from weights with load_from."
            if "message_hub" not in checkpoint:
                raise ValueError(f"--resume needs the checkpoint of a run; {remedy}")
            if "ema_state_dict" in checkpoint and not any(isinstance(hook, EMAHook) for hook in runner.hooks):
                # A hook that averages puts the plain weights back itself.
                choose_weights(checkpoint, ema=False)
            if changes := fit(unwrap_state_dict(checkpoint, source), target, "strict")[1].changes:
                # Its optimizer's state has the shapes of before.
                raise ValueError(f"--resume needs a model with the sizes of its checkpoint; {remedy} {changes[0]}")
            classes = classes_of(runner.train_dataloader.dataset)
            if classes and spec.label_names and classes != spec.label_names:
                trained, present = (", ".join(names[:10]) for names in (spec.label_names, classes))
                raise ValueError(f"The classes must be {trained}, as in the checkpoint, got {present}.")
            return
        begins = isinstance(runner._train_loop, BaseLoop)
        if not begins and self.ema is not None:
            choose_weights(checkpoint, self.ema)
        weights = unwrap_state_dict(checkpoint, source)
        if begins:
            classes = classes_of(runner.train_dataloader.dataset)
            report = load_into(target, weights, "fit", network is not None, classes=classes)
        else:
            for name, (trained, tested) in changed_options(spec, target).items():
                runner.logger.warning(f"model.{name} was {trained!r} in training, now {tested!r}.")
            report = load_into(target, weights, "strict")
        for sentence in report.changes:
            runner.logger.info(f"Weights of {source}: {sentence}")
        # MMEngine loads these again.
        checkpoint["state_dict"] = target.state_dict()

    def before_test(self, runner: Runner) -> None:
        classifier = unwrapped(runner.model)
        network = getattr(classifier, "model", classifier)
        if self.img_size is not None:
            fit_image_size(network, self.img_size)
        outputs = getattr(network, "num_classes", None)
        names = classes_of(runner.test_dataloader.dataset)
        if outputs is not None and outputs < len(names):
            raise ValueError(f"The test images must be of the {outputs} classes of the model, got {len(names)}.")


def changed_options(spec: ModelSpec, model: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return the options of a timm model that differ from those of its weights, as (recorded, current).

    Options that the weights fix or a test may choose are left out. Other models have none.
    """
    current = ModelSpec.of(model).options if hasattr(model, "pretrained_cfg") else {}
    options = sorted(spec.arguments({}).items())
    pairs = {name: (value, current[name]) for name, value in options if name in current and name not in _OF_THE_TEST}
    return {name: pair for name, pair in pairs.items() if json.dumps(pair[0]) != json.dumps(pair[1])}


def fit_image_size(network: nn.Module, img_size: int | tuple[int, int]) -> None:
    """Prepare a timm model for an image size, in place. Raises ValueError for a size that it does not take.

    img_size: pixels, one number or (H, W).
    """
    height, width = to_2tuple(img_size)
    channels, *size = get_model_input_config(network)["input_size"]
    if size == [height, width]:
        return
    try:
        if hasattr(network, "set_input_size"):
            network.set_input_size((height, width))
        with torch.no_grad():
            # Calling the module would run torch.compile.
            network.eval().forward(next(network.parameters()).new_zeros(1, channels, height, width))
    except Exception as error:
        # Each architecture raises an error of its own.
        name = type(network).__name__
        raise ValueError(f"img_size must fit {name}, got {height} x {width} ({one_line(error)}).") from error
