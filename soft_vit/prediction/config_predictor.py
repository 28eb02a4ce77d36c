"""Predictions of the model of a config, fed as its test loop feeds it."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, FUNCTIONS, MODELS, init_default_scope
from mmengine.structures import BaseDataElement
from PIL import Image
from torch import nn
from torchvision.transforms.v2.functional import pil_to_tensor

from soft_vit.data.label_maps import IGNORED
from soft_vit.engine.checkpoints.checkpoint_match import describe_mismatch
from soft_vit.engine.checkpoints.safe_checkpoint import load_checkpoint_file
from soft_vit.engine.config import apply_options, load_config, type_name
from soft_vit.engine.data.data_checks import fill_data_root
from soft_vit.engine.data.eval_data import set_view, view_of_config
from soft_vit.engine.errors import UserError, as_user_error
from soft_vit.engine.models.finetune import fit_weights
from soft_vit.engine.models.tested_model import fit_image_size
from soft_vit.engine.run import StartHook, config_errors
from soft_vit.prediction.results import Result, result_of
from soft_vit.prediction.timm_predictor import readable_names
from soft_vit.weights.reading import unwrap_state_dict

__all__ = ["ConfigPredictor"]


class ConfigPredictor:
    """The model of a config with the weights of a checkpoint, and the config's test pipeline.

    Averaged weights of a run come before its plain ones. img_size: side of the images of a classifier, by default the
    config's. score_thr: least score of an instance. topk: classes of an image. options: entries of the config by dotted
    name. Names of classes are those in the checkpoint, else those of the config's test data.

    Raises UserError (a ValueError) or FileNotFoundError for what cannot be used.
    """

    def __init__(
        self,
        config: str | Path,
        checkpoint: str | Path,
        *,
        img_size: int | None = None,
        score_thr: float = 0.3,
        topk: int = 5,
        device: str | torch.device = "cpu",
        options: dict | None = None,
    ) -> None:
        self.score_thr = score_thr
        self.topk = topk
        self.notes: list[str] = []
        cfg = apply_options(load_config(config), options)
        content = load_checkpoint_file(checkpoint)
        with config_errors(StartHook(), cfg):
            init_default_scope(cfg.get("default_scope") or "mmengine")
            self.model = _build(cfg)
            _set_image_size(cfg, self.model, img_size)
            self.notes = _load(self.model, content, checkpoint)
            self.names = _class_names(cfg, content)
            self.prepare = _preparation(cfg)
            self.collate = _collate(cfg)
        self.model.to(device).eval()

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[Result]:
        """A result for each RGB image, of any size."""
        batch = self.collate([self.prepare(image) for image in images])
        samples = self.model.test_step(batch)
        return [result_of(sample, self.names, self.score_thr, self.topk) for sample in samples]


def _build(cfg: Config) -> nn.Module:
    model = cfg.model
    if cfg.get("data_preprocessor") is not None:
        # As Runner does.
        model.setdefault("data_preprocessor", cfg.data_preprocessor)
    if model.get("pretrained") is True:
        # The checkpoint holds all weights; others need not be downloaded first.
        model.pretrained = False
    return MODELS.build(model)


def _load(model: nn.Module, content: dict[str, Any], source: str | Path) -> list[str]:
    """Load weights of which all have to fit, in place; returns what had to be changed in them."""
    with as_user_error():
        given = unwrap_state_dict(content, str(source))
    sentences: list[str] = []
    mismatch = describe_mismatch(model.state_dict(), given)
    if mismatch and _is_timm_classifier(model):
        # The names of the released code, or parameters of another grid.
        given, sentences = fit_weights(content, model.model)
        mismatch = describe_mismatch(model.state_dict(), given)
    if mismatch:
        raise UserError(
            f"The checkpoint {source} belongs to another model: {mismatch}; use the config that it was trained with."
        )
    model.load_state_dict(given, strict=False)
    return sentences


def _is_timm_classifier(model: nn.Module) -> bool:
    return hasattr(getattr(model, "model", None), "pretrained_cfg")


def _set_image_size(cfg: Config, model: nn.Module, img_size: int | None) -> None:
    """Make a classifier and the test images of its config have a size, in place; None for that of the config."""
    if img_size is not None and not _is_timm_classifier(model):
        raise UserError(
            f"img_size is {img_size}, which changes classifiers of timm alone; set what resizes the images of this "
            "config with --cfg-options, such as model.min_size."
        )
    # A config whose test images are generated at one size has no transform that resizes images on disk.
    if img_size is not None or "size" in cfg.test_dataloader.dataset:
        set_view(cfg, view_of_config(cfg, img_size, None))
    if img_size is not None:
        fit_image_size(model.model, img_size)


def _class_names(cfg: Config, content: dict[str, Any]) -> list[str]:
    names = ((content.get("meta") or {}).get("dataset_meta") or {}).get("classes")
    if not names:
        dataset = cfg.test_dataloader.dataset
        described = {**getattr(DATASETS.get(dataset.type), "METAINFO", {}), **(dataset.get("metainfo") or {})}
        names = described.get("classes")
    if not names:
        try:
            fill_data_root(cfg)
            names = DATASETS.build(cfg.test_dataloader.dataset).metainfo.get("classes")
        except (OSError, ValueError):
            # Without the data, classes go by their numbers.
            names = ()
    return readable_names(names or ())


def _collate(cfg: Config) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """What makes a batch of samples in the test loop of a config."""
    arguments = dict(cfg.test_dataloader.get("collate_fn") or {"type": "pseudo_collate"})
    return partial(FUNCTIONS.get(arguments.pop("type")), **arguments)


def _preparation(cfg: Config) -> Callable[[Image.Image], dict[str, Any]]:
    """A function that makes a sample of an image as the test data set of a config does."""
    dataset = cfg.test_dataloader.dataset
    if "pipeline" not in dataset:
        # CocoImages: the whole image, which the detector itself makes fit.
        return lambda image: {
            "inputs": pil_to_tensor(image),
            "data_samples": BaseDataElement(metainfo={"ori_shape": image.size[::-1]}),
        }
    transforms = dataset.pipeline
    pipeline = Compose([transform for transform in transforms if not type_name(transform).startswith("Load")])
    if type_name(dataset) == "LabelMapTree":
        pixels = _with_empty_labels
    elif any(type_name(transform) == "LoadImageFromFile" for transform in transforms):
        pixels = _as_mmcv_loads
    else:
        pixels = _as_array

    def prepare(image: Image.Image) -> dict[str, Any]:
        shape = image.size[::-1]
        return pipeline({**pixels(image), "img_shape": shape, "ori_shape": shape, "img_path": "", "sample_idx": 0})

    return prepare


def _as_array(image: Image.Image) -> dict[str, Any]:
    return {"img": np.array(image)}


def _as_mmcv_loads(image: Image.Image) -> dict[str, Any]:
    return {"img": np.ascontiguousarray(np.array(image)[..., ::-1])}


def _with_empty_labels(image: Image.Image) -> dict[str, Any]:
    labels = torch.full(image.size[::-1], IGNORED, dtype=torch.uint8)
    return {"img": pil_to_tensor(image), "gt_seg_map": labels}
