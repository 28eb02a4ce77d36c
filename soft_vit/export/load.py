"""Load a model to export: by its timm name, or by a config and its checkpoint."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from timm.data import resolve_model_data_config
from timm.layers import to_2tuple
from timm.models._input import get_model_input_config

from soft_vit.engine.entries import class_of
from soft_vit.engine.merge import find_config, read_config
from soft_vit.engine.models.timm_model import timm_network
from soft_vit.export.model import ExportModel, FeatureMaps
from soft_vit.predict import load_predictor
from soft_vit.registry import MODELS
from soft_vit.weights.spec import ModelSpec


def load_export_model(
    model: str | None = None,
    config: str | Path | None = None,
    checkpoint: str | Path | None = None,
    *,
    pretrained: bool = True,
    img_size: int | tuple[int, int] | None = None,
    stages: Sequence[int] | None = None,
) -> ExportModel:
    """Return a timm model by name, or the classifier, segmentor or detector of a config and its checkpoint.

    pretrained: without a checkpoint, load the model's published weights; False keeps random ones. img_size: side of the
    images, or (H, W); by default that of the model, of a segmentor's crops, or of a detector's shorter side in
    multiples of 32. stages: export the maps of these stages instead of logits, see `FeatureMaps`. Raises ValueError or
    FileNotFoundError for a model or a file that cannot be used.
    """
    cls = None if config is None else class_of(read_config(find_config(config)).get("model") or {}, MODELS)
    dense = cls is not None and cls.__module__.startswith("soft_vit.dense.")
    own_size = None if dense else img_size
    predictor = load_predictor(model, config, checkpoint, pretrained=pretrained, img_size=own_size, device="cpu")
    if dense and stages is None:
        # Needs the packages of detection.
        from soft_vit.export.dense import dense_export_model

        return dense_export_model(predictor, img_size)
    network = predictor.model if config is None else timm_network(predictor.model)
    if network is None:
        raise ValueError(f"The config must be that of a timm classifier, got {config}.")
    data = {**resolve_model_data_config(network), **predictor.data}
    mean, std = ([round(value, 6) for value in data[key]] for key in ("mean", "std"))
    size = (get_model_input_config(network)["input_size"][0], *to_2tuple(img_size or data["input_size"][1:]))
    spec = replace(ModelSpec.of(network), cfg=predictor.spec.cfg)
    outputs, names = ("logits",), list(predictor.names)
    if names:
        names += [f"class {index}" for index in range(len(names), network.num_classes)]
    if stages is not None:
        network = FeatureMaps(network, stages)
        outputs, names = tuple(f"stage{index}" for index in network.indices), []
    return ExportModel(
        # Not the path of a local folder.
        name=spec.model if model is None or model.startswith("local-dir:") else model,
        model=network.eval().requires_grad_(False),
        input_size=size,
        mean=tuple(mean),
        std=tuple(std),
        classes=tuple(names),
        outputs=outputs,
        notes=tuple(predictor.notes),
        crop={key: data[key] for key in ("crop_pct", "crop_mode", "interpolation") if key in predictor.data},
        spec=spec,
    )
