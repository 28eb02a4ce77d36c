"""Weights that a run begins with or resumes from, fitted to its model or refused, and stages that it does not train."""

from collections.abc import Mapping
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import CheckpointLoader, Runner
from timm.models import group_parameters
from torch import nn

from soft_vit.engine.models.timm_model import create_timm_model, unwrapped
from soft_vit.registry import HOOKS, register
from soft_vit.weights.load import describe_mismatch, filter_weights, fit_weights
from soft_vit.weights.read import NOTES_KEY, Notes

__all__ = [
    "TIMM_PREFIX",
    "CheckpointMatchHook",
    "StartWeightsHook",
    "flat_name",
    "freeze_stages",
    "require_match",
]

TIMM_PREFIX = "timm://"


# MMEngine prints what follows `load_from_` as the name of the source.
def load_from_timm(filename: str, map_location: Any = None) -> dict:
    """The published weights of a timm model, `timm://NAME`, as a checkpoint.

    Raises what `create_timm_model` raises.
    """
    model = create_timm_model(filename.removeprefix(TIMM_PREFIX), pretrained=True)
    weights = {key: value.to(map_location or "cpu") for key, value in model.state_dict().items()}
    cfg = model.pretrained_cfg
    # soft_small, for one, gives a model of another name.
    notes = Notes(cfg.get("architecture"), cfg={"label_names": cfg.get("label_names") or ()})
    return {"state_dict": weights, "meta": {NOTES_KEY: notes.to_dict()}}


CheckpointLoader.register_scheme(prefixes=TIMM_PREFIX, loader=load_from_timm, force=True)


@register(HOOKS)
class StartWeightsHook(Hook):
    """Makes the weights of `load_from` fit the model, and logs what that took; see `fit_weights`.

    Where the checkpoint and the training data name their classes, rows of the head follow the names. For a run that
    begins; a resumed one has to find its own weights: `CheckpointMatchHook`.
    """

    # Before other hooks, such as EMAHook, take the weights for themselves.
    priority = "VERY_HIGH"

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        classifier = unwrapped(runner.model)
        model = getattr(classifier, "model", None)
        if not hasattr(model, "pretrained_cfg"):
            require_match(runner, checkpoint, exact=False)
            return
        classes = getattr(runner.train_dataloader.dataset, "metainfo", {}).get("classes") or ()
        weights, sentences = fit_weights(checkpoint, model, classes=[str(name) for name in classes])
        for sentence in sentences:
            runner.logger.info(f"Weights of {runner.cfg.get('load_from')}: {sentence}")
        checkpoint["state_dict"] = weights


@register(HOOKS)
class CheckpointMatchHook(Hook):
    """Refuses to resume from a checkpoint of another model, or from weights alone, with ValueError."""

    # Before hooks that read the state of a run.
    priority = "VERY_HIGH"

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        meta = checkpoint.get("meta")
        if not (isinstance(meta, Mapping) and {"epoch", "iter"} <= meta.keys() and "message_hub" in checkpoint):
            raise ValueError(
                "The checkpoint holds no state of a run, such as its iteration, and cannot be resumed; begin a run "
                "from its weights with load_from."
            )
        require_match(runner, checkpoint)
        network = getattr(unwrapped(runner.model), "model", None)
        if hasattr(network, "pretrained_cfg"):
            # Of models whose parameters are alike, only the notes of a checkpoint tell.
            filter_weights(checkpoint, network)


def require_match(runner: Runner, checkpoint: dict, exact: bool = True) -> None:
    """ValueError if a checkpoint's names and shapes are not those of the model; if not exact, only where none fits.

    MMEngine alone only logs a warning and goes on with whatever fitted.
    """
    expected = unwrapped(runner.model).state_dict()
    given = checkpoint.get("state_dict", checkpoint)
    given = {name.removeprefix("module."): value for name, value in given.items() if hasattr(value, "shape")}
    mismatch = describe_mismatch(expected, given)
    fitting = any(name in given and expected[name].shape == given[name].shape for name in expected)
    if mismatch and (exact or not fitting):
        raise ValueError(
            f"The checkpoint belongs to another model: {mismatch}; use the config that it was trained with."
        )


def freeze_stages(model: nn.Module, stages: int, whole: nn.Module | None = None) -> list[nn.Module]:
    """Take the stem and the first stages of a timm model out of training; with 0 stages the stem alone.

    Stages are the layers that `group_matcher(coarse=True)` counts after the stem. whole: the model that has this
    method, where `model` is a feature pyramid of it. Returns the largest modules that are frozen as a whole: they
    belong in eval mode, or their BatchNorm and dropout would go on. Raises ValueError for a model without
    such groups or a number of stages that it does not have.
    """
    whole = model if whole is None else whole
    if not hasattr(whole, "group_matcher"):
        raise ValueError(f"frozen_stages is {stages}, but {type(whole).__name__} names no stages; leave it out.")
    groups = group_parameters(whole, whole.group_matcher(coarse=True))
    # The first group is the stem, the last what no pattern matches: the head.
    most = len(groups) - 2
    if not 0 <= stages <= most:
        raise ValueError(
            f"frozen_stages is {stages}, but {type(whole).__name__} has {most} stages; choose at most {most}."
        )
    frozen = {flat_name(name) for group in sorted(groups)[: stages + 1] for name in groups[group]}
    for name, parameter in model.named_parameters():
        if flat_name(name) in frozen:
            parameter.requires_grad_(False)
    return _wholly_frozen(model)


def flat_name(name: str) -> str:
    """A parameter's name without what timm changes in a feature pyramid, such as stages.0 to stages_0."""
    return name.removeprefix("model.").replace(".", "_")


def _wholly_frozen(module: nn.Module) -> list[nn.Module]:
    trained = [parameter.requires_grad for parameter in module.parameters()]
    if trained and not any(trained):
        return [module]
    return [found for child in module.children() for found in _wholly_frozen(child)]
