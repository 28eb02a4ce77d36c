"""Identify the models that a file of weights fits, for `tools/weights/check_checkpoint.py`."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from soft_vit.models import FAMILY_MODELS
from soft_vit.models.pyramid import PyramidViT
from soft_vit.models.soft import PYRAMID_MODELS
from soft_vit.models.vit import VIT_MODELS
from soft_vit.weights import RECORDED_WEIGHTS
from soft_vit.weights.fetch import lookup_folders, require_digest, sha256_of
from soft_vit.weights.load import fit, require_classifier
from soft_vit.weights.read import NotedWeights, load_weights, require_finite

__all__ = ["describe_file", "identify"]

# The position embedding of a stage of the pyramid.
POS_EMBED = r"stages\.\d+\.pos_embed"


def describe_file(path: str | Path) -> list[str]:
    """Return sentences that describe a file of weights: its models, size, head, digest and how it is found.

    Raises FileNotFoundError, or ValueError for a file that is not a checkpoint, does not fit any model of this package,
    is not finite, or differs from the weights that are recorded under its name.
    """
    path = Path(path).expanduser()
    weights = load_weights(path)
    entries = [entry for entry in RECORDED_WEIGHTS.values() if entry.file == path.name]
    for entry in entries:
        require_digest(entry, path)
    models = identify(weights)
    recorded = [entry for entry in RECORDED_WEIGHTS.values() if entry.model in models]
    if entries and not any(entry in recorded for entry in entries):
        named = " or ".join(entry.name for entry in entries)
        raise ValueError(f"{path.name} must hold weights of {named}, got those of {' or '.join(models)}.")
    count = sum(value.numel() for value in weights.values())
    lines = [f"It holds weights of {' or '.join(models)}: {count / 1e6:.2f} M numbers, all finite."]
    if weights.spec.model in models:
        lines.append("Its notes name the model.")
    names = [f"{head}.weight" for head in _heads(models[0])]
    head = next((weights[name] for name in names if name in weights), None)
    lines.append("It is without a head." if head is None else f"Its head distinguishes {head.shape[0]} classes.")
    lines.append(f"Its sha256 is {sha256_of(path)}.")
    return [*lines, _how_it_is_found(path, models)]


def identify(weights: NotedWeights) -> list[str]:
    """Return the names of the models that weights fit: the noted one, or all with equal parameters.

    Raises ValueError for weights that do not fit any model of this package or are not finite.
    """
    require_classifier(weights)
    require_finite(weights, weights.source)
    noted = [weights.spec.model] if weights.spec.model in (*PYRAMID_MODELS, *VIT_MODELS, *FAMILY_MODELS) else []
    for names in (noted, _candidates(weights)):
        if found := [name for name in names if name and _fits(weights, name)]:
            return found
    what = f"parameters such as {next(iter(weights))}"
    raise ValueError(f"The weights must be those of a model of this package, got {what}.")


def _fits(weights: NotedWeights, name: str) -> bool:
    """Return whether weights fit the named model."""
    try:
        if weights.spec.model == name:
            model = timm.create_model(name, device="meta", **weights.spec.arguments({}))
        else:
            model = _model_on_meta(name, weights.spec.img_size)
        fit(weights, model)
    except ValueError:
        return False
    return True


@cache
def _model_on_meta(name: str, img_size: tuple[int, int] | None) -> nn.Module:
    """Return the named model without numbers; several files are compared with the same models."""
    return timm.create_model(name, device="meta", img_size=img_size)


def _candidates(weights: Mapping[str, Tensor]) -> Iterable[str]:
    """Return the names of models that weights may fit, by the depths and widths of a pyramid or a ViT."""
    names = list(PyramidViT.adapter.from_released(weights))
    if "stages.0.pos_embed" in names:
        depths = _depths(names, r"stages\.(\d+)\.blocks\.(?:reversible\.)?(\d+)\.")
        embeds = [x for x, name in zip(weights.values(), names, strict=True) if re.fullmatch(POS_EMBED, name)]
        sizes = depths, tuple(x.shape[-1] for x in embeds)
        pyramids = [name for name, size in PYRAMID_MODELS.items() if (size["depths"], size["embed_dims"]) == sizes]
        # A released PVT has position embeddings of the same names.
        return pyramids or FAMILY_MODELS
    if "blocks.0.norm1.weight" in names:
        depth, width = _depths(names, r"()blocks\.(\d+)\."), weights["blocks.0.norm1.weight"].shape[0]
        vits = [name for name, size in VIT_MODELS.items() if (size["depth"], size["embed_dim"]) == (*depth, width)]
        return [*vits, *FAMILY_MODELS]
    return FAMILY_MODELS


def _depths(names: Iterable[str], pattern: str) -> tuple[int, ...]:
    """Return the number of blocks of each stage. pattern: has the stage and the block as groups."""
    blocks = {match.groups() for name in names if (match := re.match(pattern, name))}
    stages = [stage for stage, _ in blocks]
    return tuple(stages.count(stage) for stage in sorted(set(stages)))


def _heads(model: str) -> list[str]:
    """Return the names of the linear classifiers of a model in its own and in released files."""
    cfg: Any = timm.get_pretrained_cfg(model)
    names = cfg.classifier or ()
    # Of EfficientViT, the last layer of one or two.
    released = ["classifier.head", *(f"head.output_ops.0.op_list.{i}.conv" for i in (1, 0))]
    return [*([names] if isinstance(names, str) else names), *released]


def _how_it_is_found(path: Path, models: list[str]) -> str:
    """Return a sentence on how pretrained=True finds the file."""
    fitting = [entry for entry in RECORDED_WEIGHTS.values() if entry.model in models]
    if not (here := [entry.name for entry in fitting if entry.file == path.name]):
        known = dict.fromkeys(entry.file for entry in fitting if entry.sources)
        such_as = f", such as {' or '.join(known)}" if known else ""
        return f"No weights are recorded under the name {path.name}; pretrained=True looks for recorded names{such_as}."
    folders = " or ".join(map(str, lookup_folders()))
    if path.resolve().parent in [folder.resolve() for folder in lookup_folders()]:
        return f"pretrained=True reads it for {' or '.join(here)}."
    return f"For pretrained=True of {' or '.join(here)}, put it into {folders}."
