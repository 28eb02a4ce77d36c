"""Which predictor is meant by what a user names."""

from pathlib import Path

import torch

from soft_vit.engine.errors import UserError
from soft_vit.prediction.config_predictor import ConfigPredictor
from soft_vit.prediction.results import Predictor
from soft_vit.prediction.timm_predictor import TimmPredictor

__all__ = ["load_predictor"]


def load_predictor(
    model: str | None = None,
    config: str | Path | None = None,
    checkpoint: str | Path | None = None,
    *,
    pretrained: bool = True,
    img_size: int | None = None,
    score_thr: float = 0.3,
    topk: int = 5,
    device: str | None = None,
    options: dict | None = None,
) -> Predictor:
    """The predictor of a timm model, or of a config with a checkpoint; see `TimmPredictor` and `ConfigPredictor`.

    device: None is a GPU where there is one. Raises UserError (a ValueError) or FileNotFoundError for what cannot be
    used.
    """
    if (model is None) == (config is None):
        raise UserError(
            f"{'Neither' if model is None else 'Both'} of a model and a config are given; name a timm model with "
            "--model, or a config with --config and --checkpoint."
        )
    if not 0 <= score_thr <= 1:
        raise UserError(f"score_thr is {score_thr}; give a score from 0 to 1.")
    if topk < 1:
        raise UserError(f"topk is {topk}; give a number of classes from 1 on.")
    if img_size is not None and img_size < 1:
        raise UserError(f"img_size is {img_size}; give the pixels a side, such as 224.")
    place = _device(device)
    if model is not None:
        if options:
            raise UserError(f"{model} has no config to set options of; leave --cfg-options out, or give --config.")
        return TimmPredictor(
            model, checkpoint=checkpoint, pretrained=pretrained, img_size=img_size, topk=topk, device=place
        )
    if checkpoint is None:
        raise UserError(f"The config {config} names a model without weights; give a file of them with --checkpoint.")
    return ConfigPredictor(
        config, checkpoint, img_size=img_size, score_thr=score_thr, topk=topk, device=place, options=options
    )


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        # A name may be right and the device not there.
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"There is no device {name!r} here; give one such as cpu or cuda.") from error
