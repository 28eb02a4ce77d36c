"""Start from published weights of a timm model, and freeze its first stages."""

from typing import Any

from mmengine.runner import CheckpointLoader
from timm.models import group_parameters
from torch import nn

from soft_vit.engine.models.timm_model import create_timm_model, published_spec
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.weights.read import recorded_spec, spec_of, unwrap_state_dict
from soft_vit.weights.spec import NOTES_KEY, ModelSpec

TIMM_PREFIX = "timm://"


# MMEngine prints what follows `load_from_` as the name of the source.
def load_from_timm(filename: str, map_location: Any = None) -> dict:
    """Return the published weights of a timm model, `timm://NAME`, as a checkpoint.

    Raises what `create_timm_model` raises.
    """
    model = create_timm_model(filename.removeprefix(TIMM_PREFIX), pretrained=True)
    weights = {key: value.to(map_location or "cpu") for key, value in model.state_dict().items()}
    # Some names, such as soft_small, build a model of another name.
    return {"state_dict": weights, "meta": {NOTES_KEY: ModelSpec.of(model).to_dict()}}


def start_spec(source: str) -> ModelSpec:
    """Return the record of weights. source: as for `load_from`, a file, an address or `timm://NAME`."""
    if source.startswith(TIMM_PREFIX):
        return published_spec(source.removeprefix(TIMM_PREFIX))
    if "://" in source:
        return spec_of(CheckpointLoader.load_checkpoint(source, map_location="cpu"))
    return recorded_spec(source) or unwrap_state_dict(load_checkpoint_file(source), source).spec


CheckpointLoader.register_scheme(prefixes=TIMM_PREFIX, loader=load_from_timm, force=True)


def freeze_stages(model: nn.Module, stages: int, whole: nn.Module | None = None) -> None:
    """Freeze the stem and the first stages of a timm model, in place; with 0 stages the stem alone.

    Stages are the groups of `group_matcher(coarse=True)` after the stem. whole: the model with this method, if `model`
    is a feature pyramid made of it. Raises ValueError for a model with fewer stages.
    """
    whole = model if whole is None else whole
    groups = group_parameters(whole, whole.group_matcher(coarse=True))
    # The first group is the stem; the last one, of parameters that match no pattern, is the head.
    most = len(groups) - 2
    if not 0 <= stages <= most:
        raise ValueError(f"frozen_stages must be from 0 to {most} for {type(whole).__name__}, got {stages}.")
    frozen = {flat_name(name) for group in sorted(groups)[: stages + 1] for name in groups[group]}
    for name, parameter in model.named_parameters():
        if flat_name(name) in frozen:
            parameter.requires_grad_(False)


def flat_name(name: str) -> str:
    """Return a parameter's name in the form of timm's feature pyramids, such as stages_0 for stages.0."""
    return name.removeprefix("model.").replace(".", "_")


def wholly_frozen(module: nn.Module) -> list[nn.Module]:
    """Return the largest modules that are frozen as a whole, which BatchNorm and dropout require to be in eval mode."""
    trained = [parameter.requires_grad for parameter in module.parameters()]
    if trained and not any(trained):
        return [module]
    return [part for child in module.children() for part in wholly_frozen(child)]
