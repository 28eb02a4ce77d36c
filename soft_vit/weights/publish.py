"""Publish the weights of a checkpoint as files that others can use and verify."""

import hashlib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import timm
from torch import nn

from soft_vit.text_tables import one_line
from soft_vit.weights.build import is_own_model
from soft_vit.weights.files import write_atomically
from soft_vit.weights.index import Entry, Metric, add_entry
from soft_vit.weights.load import load_into, parameter_names
from soft_vit.weights.model_card import model_card
from soft_vit.weights.read import NotedWeights
from soft_vit.weights.save import TrainedFile, WeightsChoice, read_trained_file, safetensors_bytes
from soft_vit.weights.spec import ModelSpec

# Digits of the digest in a file's name, as many as OpenMMLab uses.
DIGITS = 8

# Arguments that end up in file names, the index or the card: their pattern, and the same in words.
PATTERNS = {
    "tag": (r"[a-z0-9][a-z0-9_]*", "small letters, digits and _"),
    "licence": (r"[\w.+-]+", "a short name such as mit"),
    "config": (r"configs/(?:[\w-]+/)*[\w-]+\.py", "the path of a file below configs/"),
    "repo": (r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", "OWNER/NAME"),
}


def parse_metric(text: str, dataset: str, source: str) -> Metric:
    """Return `NAME=VALUE` as a measured metric."""
    if (match := re.fullmatch(r"([^=]+)=(\d+(?:\.\d+)?)", text)) is None:
        raise ValueError(f"metric must be NAME=VALUE, such as top1=97.7, got {text!r}.")
    return Metric(dataset, match[1], float(match[2]), "measured", source)


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

    The checkpoint's paths and other contents are left out; the card shows the facts of the training that it notes.
    weights, model: see `read_trained_file`. config: path of the training config below configs/, for the entry. mean,
    std: of RGB values in [0, 1]; they override those that the checkpoint notes. hf_dir: a folder to write as a Hugging
    Face repository. repo: a repository `OWNER/NAME` on the hub to push to. Returns a sentence for each thing written.
    Raises ValueError or FileNotFoundError.
    """
    for name, text in {"tag": tag, "licence": licence, "config": config, "repo": repo}.items():
        pattern, meaning = PATTERNS[name]
        if text is not None and not re.fullmatch(pattern, text):
            raise ValueError(f"{name} must be {meaning}, got {text!r}.")
    file = read_trained_file(source, weights, model)
    cfg = _pretrained_cfg(file, mean, std)
    channels, *sides = cfg["input_size"]
    options = {**file.spec.arguments({}), "num_classes": cfg["num_classes"], "in_chans": channels}
    options |= {"img_size": tuple(sides)} if is_own_model(file.model) else {}
    spec = ModelSpec(file.model, options, cfg)
    network = timm.create_model(file.model, **options, pretrained_cfg_overlay=spec.entries(options)).eval()
    own = NotedWeights(file.weights, file.spec, str(source))
    if changes := load_into(network, own, "strict").changes:
        raise ValueError(f"The weights must fit {file.model} unchanged. {changes[0]}")
    data = safetensors_bytes(network.state_dict(), spec)
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
    parameters = sum(value.numel() for value in network.parameters())
    chosen = {"ema": [("weights", "moving average")], "plain": [("weights", "plain")]}.get(file.chosen or "", [])
    facts = [*chosen, *file.spec.training.items()]

    out_dir = Path(out_dir)
    path, card_path, index = out_dir / entry.file, out_dir / f"{entry.name}.md", out_dir / "index.json"
    write_atomically(path, data)
    write_atomically(card_path, model_card(entry, parameters, facts, options).encode())
    sentences = [f"Written: {path} ({len(data) / 1e6:.1f} MB), {card_path}, and {entry.name} in {index}."]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(hf_dir or temporary)
        if hf_dir is not None or repo is not None:
            card = model_card(entry, parameters, facts, options, repo or "OWNER/NAME")
            _save_folder(network, entry, options, card, folder)
        if hf_dir is not None:
            call = f'timm.create_model("local-dir:{hf_dir}", pretrained=True)'
            sentences.append(f"Written: {hf_dir}, which {call} reads after `import soft_vit`.")
        if repo is not None:
            _push(folder, path, repo)
            call = f'timm.create_model("hf-hub:{repo}", pretrained=True)'
            sentences.append(f"Pushed: {call} reads it after `import soft_vit`.")
    # Last, so that every entry has its file.
    add_entry(entry, index)
    return sentences


def _pretrained_cfg(
    file: TrainedFile, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> dict[str, Any]:
    """Return timm's pretrained configuration of the weights: classes, size of the images and their normalisation."""
    usual: dict[str, Any] = cast(Any, file.network).pretrained_cfg
    head = next((file.weights.get(name) for name in parameter_names(file.network, "classifier", ".weight")), None)
    if head is None:
        raise ValueError("The weights must have a head; tools/weights/convert_checkpoint.py converts a backbone.")
    channels = file.weights[parameter_names(file.network, "first_conv", ".weight")[0]].shape[1]
    size = file.spec.img_size or file.spec.cfg.get("input_size", usual["input_size"])[1:]
    overridden = {key: tuple(values) for key, values in (("mean", mean), ("std", std)) if values is not None}
    cfg = {**file.spec.cfg, **overridden, "num_classes": head.shape[0], "input_size": (channels, *size)}
    if usual["pool_size"] is not None:
        stride = usual["input_size"][1] // usual["pool_size"][0]
        cfg["pool_size"] = tuple(-(-side // stride) for side in size)
    for key in ("mean", "std"):
        values = cfg.get(key, ())
        if len(values) != channels or not all(0 <= value <= 1 for value in values) or (key == "std" and 0 in values):
            raise ValueError(f"--mean and --std must be {channels} values in [0, 1] each, got {key} {list(values)}.")
    return cfg


def _save_folder(model: nn.Module, entry: Entry, arguments: dict[str, Any], card: str, folder: Path) -> None:
    """Write a model as a repository of the hub: config.json, model.safetensors, README.md."""
    written = {"config.json", "model.safetensors", "README.md"}
    if folder.exists() and {path.name for path in folder.iterdir()} - written:
        raise ValueError(f"hf_dir must be an empty folder, or one that does not exist, got {folder}.")
    cfg = dict(entry.cfg)
    labels = {"label_names": list(cfg.pop("label_names"))} if "label_names" in cfg else {}
    config = {"pretrained_cfg": {**cfg, "tag": entry.tag, "license": entry.license}, **labels}
    timm.models.save_for_hf(model, str(folder), model_config=config, model_args=arguments, safe_serialization=True)
    write_atomically(folder / "README.md", card.encode())


def _push(folder: Path, path: Path, repo: str) -> None:
    """Push a folder to a repository `OWNER/NAME` of the hub, where the user is logged in.

    path: the published file, pushed under its own name, because the entry's digest is of it.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().create_repo(repo, exist_ok=True)
        HfApi().upload_folder(repo_id=repo, folder_path=folder)
        HfApi().upload_file(repo_id=repo, path_or_fileobj=path, path_in_repo=path.name)
    except Exception as error:
        # From a missing login to a lost network, with types of several libraries.
        what = "log in with `hf auth login`, or upload the folder that --hf-dir writes"
        raise ValueError(f"Pushing to {repo} failed ({one_line(error)}); {what}.") from error
