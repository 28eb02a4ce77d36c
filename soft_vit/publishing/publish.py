"""From a checkpoint of a training to files that others can use and trust."""

import hashlib
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import timm
from mmengine.config import Config
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn

from soft_vit.engine.config import one_line
from soft_vit.engine.errors import UserError
from soft_vit.engine.eval_data import view_of_config
from soft_vit.engine.finetune import fit_weights
from soft_vit.layers import ATTENTIONS, attention_options
from soft_vit.models.pyramid import PyramidViT
from soft_vit.publishing.conversion import require_model
from soft_vit.publishing.hub import push, save_folder
from soft_vit.publishing.layouts import safetensors_bytes
from soft_vit.publishing.model_card import model_card
from soft_vit.publishing.trained_file import TrainedFile, WeightsChoice, is_plain_text, read_trained_file
from soft_vit.weights import Entry, Metric, add_entry
from soft_vit.weights.files import write_atomically

__all__ = ["parse_metric", "publish"]

# Of the digest in a file's name, as OpenMMLab has it.
DIGITS = 8


def parse_metric(text: str, dataset: str, source: str) -> Metric:
    """`NAME=VALUE` as a measured metric; UserError for another form."""
    name, _, value = text.partition("=")
    try:
        return Metric(dataset, name, float(value), "measured", source)
    except ValueError as error:
        raise UserError(f"The metric {text!r} is not of the form NAME=VALUE, such as top1=97.7.") from error


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
    hf_dir: str | Path | None = None,
    repo: str | None = None,
) -> list[str]:
    """Write a checkpoint's weights as `MODEL.TAG-DIGEST.safetensors`, with a model card and an entry in the index.

    Of the checkpoint's notes only named facts of its training are kept, and no path. weights: see `read_trained_file`.
    config: that it was trained with, below configs/. hf_dir: a folder to write as a Hugging Face repository; repo:
    one on the hub, `OWNER/NAME`, to push to. Returns a sentence for each thing written. Raises UserError (a
    ValueError) or FileNotFoundError.
    """
    file = read_trained_file(source, weights)
    name = require_model(file, model)
    cfg = pretrained_values(file, name)
    arguments = model_arguments(file, cfg)
    network = fitted(file, name, cfg, arguments)
    data = safetensors_bytes(network.state_dict())
    digest = hashlib.sha256(data).hexdigest()
    try:
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
            cfg=cfg,
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    parameters = sum(value.numel() for value in network.parameters())
    facts = training_facts(file)
    card, hub_card = model_card(entry, parameters, facts), model_card(entry, parameters, facts, repo or "OWNER/NAME")

    out_dir = Path(out_dir)
    path, card_path, index = out_dir / entry.file, out_dir / f"{entry.name}.md", out_dir / "index.json"
    write_atomically(path, data)
    write_atomically(card_path, card.encode())
    sentences = [f"Written: {path} ({len(data) / 1e6:.1f} MB), {card_path}, and {entry.name} in {index}."]
    if hf_dir is not None:
        save_folder(network, entry, arguments, hub_card, hf_dir)
        sentences.append(f'Written: {hf_dir}, which timm.create_model("local-dir:{hf_dir}", pretrained=True) reads.')
    if repo is not None:
        push(network, entry, arguments, hub_card, data, repo)
        sentences.append(f'Pushed: timm.create_model("hf-hub:{repo}", pretrained=True) reads it.')
    # Last: an entry names only what is there.
    add_entry(entry, index)
    return sentences


def pretrained_values(file: TrainedFile, name: str) -> dict[str, Any]:
    """What timm has to know of the weights: classes, size of the images and how they are normalised."""
    prepared = _mapping(file.config, "data_preprocessor")
    size = _mapping(file.config, "model").get("img_size")
    size = tuple(size) if _are_numbers(size, 2) else (size, size) if isinstance(size, int) else _square_size(file)
    if "head.weight" not in file.weights:
        raise UserError("The weights have no head; convert a backbone with tools/convert_checkpoint.py instead.")
    cfg = {
        "num_classes": file.weights["head.weight"].shape[0],
        "input_size": (file.weights["stages.0.patch_embed.0.conv.weight"].shape[1], *size),
        "pool_size": tuple(-(-side // 32) for side in size),
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
    }
    if all(_are_numbers(prepared.get(key), cfg["input_size"][0]) for key in ("mean", "std")):
        cfg |= {key: tuple(value / 255 for value in prepared[key]) for key in ("mean", "std")}
    cfg |= _view(file)
    if len(file.classes) == cfg["num_classes"]:
        cfg["label_names"] = file.classes
    return cfg


def _view(file: TrainedFile) -> dict[str, Any]:
    """How the test images of the training config were cropped and resized; nothing where it does not say."""
    try:
        view = view_of_config(Config(dict(file.config)), None, None)
    except (UserError, AttributeError, TypeError):
        return {}
    return {"crop_pct": view.crop_pct, "interpolation": view.interpolation, "crop_mode": view.crop_mode}


def _are_numbers(values: Any, count: int) -> bool:
    return isinstance(values, list) and len(values) == count and all(isinstance(value, int | float) for value in values)


def _square_size(file: TrainedFile) -> tuple[int, int]:
    """The size of the square images that the first position embedding, of stride 4, is made for."""
    side = 4 * round(file.weights["stages.0.pos_embed"].shape[1] ** 0.5)
    return side, side


def model_arguments(file: TrainedFile, cfg: Mapping[str, Any]) -> dict[str, Any]:
    """What the model is made with: its sizes, and the options of its training config, such as the inverse."""
    own = set(signature(PyramidViT.__init__).parameters) - {"self", "device", "dtype", "attn_options"}
    for cls in ATTENTIONS.values():
        own |= attention_options(cls).keys()
    return {
        **{key: value for key, value in _mapping(file.config, "model").items() if key in own},
        "num_classes": cfg["num_classes"],
        "img_size": cfg["input_size"][1:],
        "in_chans": cfg["input_size"][0],
    }


def fitted(file: TrainedFile, name: str, cfg: Mapping[str, Any], arguments: Mapping[str, Any]) -> nn.Module:
    """The model with exactly these weights, on the CPU in eval mode; UserError where they do not fit."""
    try:
        network = timm.create_model(name, **arguments, pretrained_cfg_overlay=dict(cfg))
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{name} cannot be made as the checkpoint says: {one_line(error)}.") from error
    weights, changes = fit_weights(file.weights, network)
    if changes:
        raise UserError(f"The weights do not fit {name} as they are: {changes[0]}")
    network.load_state_dict(weights)
    return network.eval()


def training_facts(file: TrainedFile) -> list[tuple[str, str]]:
    """Chosen facts of the training config in a checkpoint; nothing else of it reaches a published file."""
    wrapper, train = _mapping(file.config, "optim_wrapper"), _mapping(file.config, "train_cfg")
    optimizer, loader = _mapping(wrapper, "optimizer"), _mapping(file.config, "train_dataloader")
    found = [
        ("weights", {"ema": "moving average", "plain": "plain"}.get(file.chosen or "")),
        ("epochs", train.get("max_epochs")),
        ("iterations", train.get("max_iters")),
        ("optimizer", optimizer.get("type")),
        ("learning rate", optimizer.get("lr")),
        ("weight decay", optimizer.get("weight_decay")),
        ("batch size of a process", loader.get("batch_size")),
    ]
    return [(name, str(value)) for name, value in found if value is not None and is_plain_text(str(value))]


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}
