"""From a checkpoint of a training to files that others can use and trust."""

import hashlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
from timm.models import resolve_pretrained_cfg
from torch import nn

from soft_vit.weights.files import write_atomically
from soft_vit.weights.index import Entry, Metric, add_entry, check_entry
from soft_vit.weights.load import fit_weights, options_of_inference
from soft_vit.weights.model_card import model_card
from soft_vit.weights.read import Notes
from soft_vit.weights.save import TrainedFile, WeightsChoice, read_trained_file, safetensors_bytes

__all__ = ["parse_metric", "publish"]

# How much of the digest stands in a file's name; as many digits as OpenMMLab uses.
DIGITS = 8


def parse_metric(text: str, dataset: str, source: str) -> Metric:
    """Return `NAME=VALUE` as a measured metric."""
    name, _, value = text.partition("=")
    try:
        if name and math.isfinite(number := float(value)):
            return Metric(dataset, name, number, "measured", source)
    except ValueError:
        pass
    raise ValueError(f"A metric must be of the form NAME=VALUE, such as top1=97.7, got {text!r}.")


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
    notes: Notes | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    hf_dir: str | Path | None = None,
    repo: str | None = None,
) -> list[str]:
    """Write a checkpoint's weights as `MODEL.TAG-DIGEST.safetensors`, with a model card and an entry in the index.

    Of the checkpoint's notes only named facts of its training are kept, and no path. weights, model: see
    `read_trained_file`. config: path of the training config below configs/, for the entry; notes: what it says, used
    where the checkpoint does not note how its images were normalised. mean, std: of RGB values in [0, 1], instead of
    what these say. hf_dir: a folder to write as a Hugging Face repository; repo: one on the hub, `OWNER/NAME`, to push
    to. Returns a sentence for each thing written. Raises ValueError or FileNotFoundError, and then writes nothing.
    """
    file = read_trained_file(source, weights, model, notes)
    cfg = _pretrained_cfg(file, _normalisation(mean, std))
    of_inference = {"img_size", *options_of_inference(file.notes)}
    options = {key: value for key, value in file.notes.options.items() if key in of_inference}
    options["img_size"] = cfg["input_size"][1:]
    arguments = {**options, "num_classes": cfg["num_classes"], "in_chans": cfg["input_size"][0]}
    network = _fitted(file, cfg, arguments)
    data = safetensors_bytes(network.state_dict(), Notes(file.model, options, cfg))
    digest = hashlib.sha256(data).hexdigest()
    entry = Entry(
        model=file.model,
        tag=tag,
        file=f"{file.model}.{tag}-{digest[:DIGITS]}.safetensors",
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
        _save_folder(network, entry, arguments, hub_card, hf_dir)
        call = f'timm.create_model("local-dir:{hf_dir}", pretrained=True)'
        sentences.append(f"Written: {hf_dir}, which {call} reads after `import soft_vit`.")
    if repo is not None:
        _push(network, entry, arguments, hub_card, data, repo)
        call = f'timm.create_model("hf-hub:{repo}", pretrained=True)'
        sentences.append(f"Pushed: {call} reads it after `import soft_vit`.")
    # Last: an entry names only what is there.
    add_entry(entry, index)
    return sentences


def _pretrained_cfg(file: TrainedFile, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what timm has to know of the weights: classes, size of the images and how they are normalised."""
    usual = resolve_pretrained_cfg(file.model)
    head = file.weights.get(f"{usual.classifier}.weight")
    if head is None:
        raise ValueError("The weights must have a head; tools/weights/convert_checkpoint.py converts a backbone.")
    channels = file.weights[f"{usual.first_conv}.weight"].shape[1]
    size = file.notes.img_size() or file.notes.cfg.get("input_size", (0,))[1:] or _square_size(file, usual.input_size)
    cfg = {**file.notes.cfg, **given, "num_classes": head.shape[0], "input_size": (channels, *size)}
    if usual.pool_size is not None:
        stride = usual.input_size[1] // usual.pool_size[0]
        cfg["pool_size"] = tuple(-(-side // stride) for side in size)
    for key in ("mean", "std"):
        if len(cfg.get(key, ())) != channels:
            raise ValueError(
                f"The {key} of the {channels} channels of images must be known; give --mean and --std, of values in "
                "[0, 1], or the training config as --config."
            )
    if len(cfg.get("label_names", ())) != head.shape[0]:
        cfg.pop("label_names", None)
    return cfg


def _square_size(file: TrainedFile, usual: tuple[int, int, int]) -> tuple[int, int]:
    """Return the size of the square images that the first position embedding, of stride 4, is made for, or timm's."""
    for name in ("stages.0.pos_embed", "layers.0.pos_embed"):
        if name in file.weights:
            return (4 * math.isqrt(file.weights[name].shape[1]),) * 2
    return usual[1:]


def _normalisation(mean: Sequence[float] | None, std: Sequence[float] | None) -> dict[str, tuple[float, ...]]:
    """Return those of mean and std that are given; ValueError for values that are not of images in [0, 1]."""
    given = {key: tuple(values) for key, values in (("mean", mean), ("std", std)) if values is not None}
    for key, values in given.items():
        if not all(0 <= value <= 1 for value in values) or (key == "std" and 0 in values):
            raise ValueError(f"{key} must be of images with values in [0, 1], got {list(values)}.")
    return given


def _fitted(file: TrainedFile, cfg: Mapping[str, Any], arguments: Mapping[str, Any]) -> nn.Module:
    """Return the model with exactly these weights, on the CPU in eval mode."""
    network = timm.create_model(file.model, **arguments, pretrained_cfg_overlay=dict(cfg))
    weights, changes = fit_weights(file.weights, network)
    if changes:
        raise ValueError(f"The weights do not fit {file.model} as they are: {changes[0]}")
    network.load_state_dict(weights)
    return network.eval()


def _hub_config(entry: Entry) -> dict[str, Any]:
    """Return what timm has to know of weights on the hub."""
    cfg = dict(entry.cfg)
    labels = cfg.pop("label_names", None)
    config: dict[str, Any] = {"pretrained_cfg": {**cfg, "tag": entry.tag, "license": entry.license}}
    if labels:
        config["label_names"] = list(labels)
    return config


def _save_folder(model: nn.Module, entry: Entry, arguments: dict[str, Any], card: str, folder: str | Path) -> None:
    """Write a model as a repository of the hub: config.json, model.safetensors, README.md."""
    folder = Path(folder)
    own = {"config.json", "model.safetensors", "README.md"}
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - own):
        raise ValueError(f"hf_dir must be an empty folder, or one that does not exist, got {folder}.")
    with tempfile.TemporaryDirectory() as temporary:
        timm.models.save_for_hf(
            model, temporary, model_config=_hub_config(entry), model_args=arguments, safe_serialization=True
        )
        for path in Path(temporary).iterdir():
            write_atomically(folder / path.name, path.read_bytes())
    write_atomically(folder / "README.md", card.encode())


def _push(model: nn.Module, entry: Entry, arguments: dict[str, Any], card: str, data: bytes, repo: str) -> None:
    """Push a model to a repository `OWNER/NAME` of the hub, where the user is logged in.

    data: the published file, which goes there under its own name, because the entry's digest is of it.
    """
    from huggingface_hub import HfApi

    try:
        timm.models.push_to_hf_hub(
            model, repo, model_config=_hub_config(entry), model_args=arguments, safe_serialization=True
        )
        # The card replaces the short one that timm writes.
        for name, content in ((entry.file, data), ("README.md", card.encode())):
            HfApi().upload_file(path_or_fileobj=content, path_in_repo=name, repo_id=repo)
    except Exception as error:
        # From a missing login to a lost network, with types of several libraries.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"{repo} cannot be pushed to ({reason}); log in with `hf auth login`, or upload the folder that "
            "--hf-dir writes."
        ) from error
