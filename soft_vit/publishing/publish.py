"""From a checkpoint of a training to files that others can use and trust."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
from torch import nn

from soft_vit.engine.config import load_config
from soft_vit.engine.errors import one_line
from soft_vit.engine.models.notes import cfg_of_config, model_options, training_facts
from soft_vit.publishing.conversion import require_model
from soft_vit.publishing.hub import push, save_folder
from soft_vit.publishing.layouts import safetensors_bytes
from soft_vit.publishing.model_card import model_card
from soft_vit.publishing.trained_file import TrainedFile, WeightsChoice, read_trained_file
from soft_vit.weights import Entry, Metric, add_entry
from soft_vit.weights.files import write_atomically
from soft_vit.weights.index import check_entry
from soft_vit.weights.load import fit_weights
from soft_vit.weights.read import Notes

__all__ = ["parse_metric", "publish"]

# How much of the digest stands in a file's name; as many digits as OpenMMLab uses.
DIGITS = 8


def parse_metric(text: str, dataset: str, source: str) -> Metric:
    """`NAME=VALUE` as a measured metric; ValueError for another form."""
    name, _, value = text.partition("=")
    try:
        if not name or not math.isfinite(float(value)):
            raise ValueError(text)
        return Metric(dataset, name, float(value), "measured", source)
    except ValueError as error:
        raise ValueError(f"The metric {text!r} is not of the form NAME=VALUE, such as top1=97.7.") from error


def publish(
    source: str | Path,
    out_dir: str | Path,
    *,
    tag: str,
    licence: str,
    model: str | None = None,
    weights: WeightsChoice | None = None,
    metrics: Sequence[Metric] = (),
    config: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    hf_dir: str | Path | None = None,
    repo: str | None = None,
) -> list[str]:
    """Write a checkpoint's weights as `MODEL.TAG-DIGEST.safetensors`, with a model card and an entry in the index.

    Of the checkpoint's notes only named facts of its training are kept, and no path. weights: see `read_trained_file`.
    config: that it was trained with, below configs/; read where the checkpoint does not say how its images were
    normalised. mean, std: of RGB values in [0, 1], in the place of what these say. hf_dir: a folder to write as a
    Hugging Face repository; repo: one on the hub, `OWNER/NAME`, to push to. Returns a sentence for each thing written.
    Raises ValueError or FileNotFoundError.
    """
    file = read_trained_file(source, weights)
    if config is not None and "mean" not in file.notes.cfg:
        file = with_config(file, config)
    name = require_model(file, model)
    cfg = pretrained_values(file, name, normalisation(mean, std))
    arguments = model_arguments(file, cfg)
    network = fitted(file, name, cfg, arguments)
    options = {key: value for key, value in arguments.items() if key not in ("num_classes", "in_chans")}
    data = safetensors_bytes(network.state_dict(), Notes(name, options, cfg))
    digest = hashlib.sha256(data).hexdigest()
    entry = Entry(
        model=name,
        tag=tag,
        file=f"{name}.{tag}-{digest[:DIGITS]}.safetensors",
        sources=(f"hf-hub:{repo}",) if repo else (),
        size=len(data),
        sha256=digest,
        license=licence,
        config=config,
        metrics=tuple(metrics),
        options=options,
        cfg=cfg,
    )
    check_entry(entry)
    parameters = sum(value.numel() for value in network.parameters())
    chosen = {"ema": "moving average", "plain": "plain"}.get(file.chosen or "")
    facts = [*([("weights", chosen)] if chosen else []), *file.notes.training.items()]
    card = model_card(entry, parameters, facts, arguments)
    hub_card = model_card(entry, parameters, facts, arguments, repo or "OWNER/NAME")

    out_dir = Path(out_dir)
    path, card_path, index = out_dir / entry.file, out_dir / f"{entry.name}.md", out_dir / "index.json"
    write_atomically(path, data)
    write_atomically(card_path, card.encode())
    sentences = [f"Written: {path} ({len(data) / 1e6:.1f} MB), {card_path}, and {entry.name} in {index}."]
    if hf_dir is not None:
        save_folder(network, entry, arguments, hub_card, hf_dir)
        call = f'timm.create_model("local-dir:{hf_dir}", pretrained=True)'
        sentences.append(f"Written: {hf_dir}, which {call} reads after `import soft_vit`.")
    if repo is not None:
        push(network, entry, arguments, hub_card, data, repo)
        call = f'timm.create_model("hf-hub:{repo}", pretrained=True)'
        sentences.append(f"Pushed: {call} reads it after `import soft_vit`.")
    # Last: an entry names only what is there.
    add_entry(entry, index)
    return sentences


def pretrained_values(file: TrainedFile, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What timm has to know of the weights: classes, size of the images and how they are normalised.

    name: of the model. given: mean and std in the place of the file's. ValueError where nothing says them for each
    channel.
    """
    if "head.weight" not in file.weights:
        raise ValueError("The weights lack a head; convert a backbone with tools/weights/convert_checkpoint.py.")
    classes = file.weights["head.weight"].shape[0]
    usual = timm.get_pretrained_cfg(name)
    channels = file.weights[f"{usual.first_conv}.weight"].shape[1]
    size = file.notes.img_size() or file.notes.cfg.get("input_size", (0,))[1:] or _square_size(file, usual.input_size)
    cfg = {
        **file.notes.cfg,
        **given,
        "num_classes": classes,
        "input_size": (channels, *size),
    }
    if usual.pool_size is not None:
        stride = usual.input_size[1] // usual.pool_size[0]
        cfg["pool_size"] = tuple(-(-side // stride) for side in size)
    for key in ("mean", "std"):
        if len(cfg.get(key, ())) != channels:
            raise ValueError(
                f"Nothing says with which {key} the {channels} channels of the images were normalised; give --mean and "
                "--std, of values in [0, 1], or the training config as --config."
            )
    if len(file.classes) != classes:
        cfg.pop("label_names", None)
    return cfg


def _square_size(file: TrainedFile, usual: tuple[int, int, int]) -> tuple[int, int]:
    """The size of the square images that the first position embedding, of stride 4, is made for, or timm's."""
    for name in ("stages.0.pos_embed", "layers.0.pos_embed"):
        if name in file.weights:
            return (4 * math.isqrt(file.weights[name].shape[1]),) * 2
    return usual[1:]


def with_config(file: TrainedFile, config: str | Path) -> TrainedFile:
    """A file that notes too little, completed by the config that it was trained with."""
    values = load_config(config).to_dict()
    notes = file.notes
    options = {key: value for key, value in model_options(values).items() if "drop" not in key and key != "num_classes"}
    completed = Notes(
        notes.model,
        {**options, **notes.options},
        {**cfg_of_config(values), **notes.cfg},
        {**training_facts(values), **notes.training},
    )
    return replace(file, notes=completed)


def normalisation(mean: Sequence[float] | None, std: Sequence[float] | None) -> dict[str, tuple[float, ...]]:
    """Those of mean and std that are given; ValueError for values that are not of images in [0, 1]."""
    given = {key: tuple(values) for key, values in (("mean", mean), ("std", std)) if values is not None}
    for key, values in given.items():
        if not all(0 <= value <= 1 for value in values) or (key == "std" and 0 in values):
            raise ValueError(f"{key} is {list(values)}; give values of images in [0, 1], such as pixels' by 255.")
    return given


def model_arguments(file: TrainedFile, cfg: Mapping[str, Any]) -> dict[str, Any]:
    """What the model is made with: its sizes, and the options of its training config, such as the inverse."""
    return {
        **model_options({"model": file.notes.options}),
        "num_classes": cfg["num_classes"],
        "img_size": cfg["input_size"][1:],
        "in_chans": cfg["input_size"][0],
    }


def fitted(file: TrainedFile, name: str, cfg: Mapping[str, Any], arguments: Mapping[str, Any]) -> nn.Module:
    """The model with exactly these weights, on the CPU in eval mode; ValueError where they do not fit."""
    try:
        network = timm.create_model(name, **arguments, pretrained_cfg_overlay=dict(cfg))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} cannot be made as the checkpoint says: {one_line(error)}.") from error
    weights, changes = fit_weights(file.weights, network)
    if changes:
        raise ValueError(f"The weights do not fit {name} as they are: {changes[0]}")
    network.load_state_dict(weights)
    return network.eval()
