"""Feature maps of any timm model, the backbone of all detectors and segmentors here."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from timm.layers import Format, LayerNorm2d, nhwc_to
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import soft_vit  # noqa: F401  registers its models with timm
from soft_vit.engine.models.finetune import TIMM_PREFIX, flat_name, freeze_stages, start_spec, wholly_frozen
from soft_vit.weights.load import fit, load_into
from soft_vit.weights.read import NotedWeights, unwrap_state_dict
from soft_vit.weights.spec import ModelSpec, usable


class TimmFeatures(nn.Module):
    """Feature maps of a timm model at several scales.

    model_name: any timm model with `features_only`. out_indices: timm's indices of the maps, returned in the order of
    the stages; None for all maps with a stride of at least `min_stride`. pretrained, checkpoint_path: the weights that
    `init_weights` loads, timm's published ones or a file (of timm, of a classification run here, or released).
    They are not read before, so that a trained detector loads without them. frozen_stages: -1 trains everything,
    0 freezes the stem, n also the first n stages. norm_eval: keep the statistics of BatchNorm. out_norm: apply a
    LayerNorm over the channels of each map. with_cp: checkpoint activations. kwargs: of the timm model; a plain ViT has
    dynamic_img_size and dynamic_img_pad by default, and Swin without img_size has no strict_img_size, and so they take
    images of any size.

    Options that the file of checkpoint_path records replace the model's own, and kwargs replace both.

    The attributes channels and reductions list channels and strides of the maps, and spec is the record of the model,
    with the mean and std of its images. Raises ValueError for a model without such maps, and if
    frozen_stages exceeds the number of stages.
    """

    def __init__(
        self,
        model_name: str,
        *,
        pretrained: bool = False,
        checkpoint_path: str = "",
        out_indices: Sequence[int] | None = None,
        min_stride: int = 4,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        out_norm: bool = True,
        with_cp: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.model_name = model_name
        self.source = checkpoint_path or (TIMM_PREFIX + model_name if pretrained else "")
        self.norm_eval = norm_eval
        noted = _noted_spec(self.source)
        if model_name.startswith("swin") and "img_size" not in kwargs:
            # Those of timm take images of one size by default.
            kwargs = {"strict_img_size": False, **kwargs}
        self._kwargs = kwargs = noted.arguments(kwargs)
        with torch.device("meta"):
            likeness = timm.create_model(model_name, features_only=True, **kwargs)
        if hasattr(getattr(likeness, "model", None), "dynamic_img_size"):
            # A plain ViT takes images of one size by default.
            self._kwargs = {"dynamic_img_size": True, "dynamic_img_pad": True, **kwargs}
        if out_indices is None:
            info = likeness.feature_info
            strides = dict(zip(info.out_indices, info.reduction(), strict=True))
            if not (out_indices := [index for index, stride in strides.items() if stride >= min_stride]):
                raise ValueError(f"{model_name} needs maps of stride {min_stride} or more, got {[*strides.values()]}.")
        # timm returns the maps in the order of the stages, each once.
        indices = tuple(sorted(set(out_indices), key=lambda index: (index < 0, index)))
        self.body = timm.create_model(model_name, features_only=True, out_indices=indices, **self._kwargs)
        cfg = self.body.pretrained_cfg
        self.spec = replace(noted, model=cfg.get("architecture"), options=kwargs, cfg={**usable(cfg), **noted.cfg})
        self.channels: list[int] = self.body.feature_info.channels()
        self.reductions: list[int] = self.body.feature_info.reduction()
        self.out_norms = nn.ModuleList(LayerNorm2d(dim) if out_norm else nn.Identity() for dim in self.channels)
        if with_cp:
            getattr(self.body, "model", self.body).set_grad_checkpointing(True)
        self._frozen = frozen_stages >= 0
        if self._frozen:
            # The feature pyramid does not describe its stages.
            with torch.device("meta"):
                whole = timm.create_model(model_name, **kwargs)
            freeze_stages(self.body, frozen_stages, whole)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Turn images `[B, 3, H, W]` into contiguous maps `[B, C_i, H_i, W_i]`."""
        maps = self.body(x)
        if Format(getattr(self.body, "output_fmt", "NCHW")) == Format.NHWC:
            maps = [nhwc_to(feature, Format.NCHW) for feature in maps]
        # mmcv's compiled RoIAlign ignores strides.
        return [norm(feature).contiguous() for norm, feature in zip(self.out_norms, maps, strict=True)]

    def init_weights(self) -> None:
        """Load the weights of the arguments. Raises ValueError if they do not fit."""
        if self.source:
            self.load_weights(CheckpointLoader.load_checkpoint(self.source, map_location="cpu"))

    def load_weights(self, content: Any) -> None:
        """Load a classification model's weights, from memory or a checkpoint's content, and log each change of them.

        The head is dropped and grids are resampled, see `load_into`. Raises ValueError for weights of another model.
        """
        weights = unwrap_state_dict(content, self.source or "the checkpoint")
        whole = timm.create_model(self.model_name, num_classes=0, device="meta", **self._kwargs)
        fitted, report = fit(weights, whole, "drop")
        flat = {flat_name(name): value for name, value in fitted.items()}
        fitting = {name: flat[flat_name(name)] for name in self.body.state_dict()}
        load_into(self.body, NotedWeights(fitting, ModelSpec()))
        for sentence in report.changes:
            print_log(f"Weights of {self.source or self.model_name}: {sentence}", "current")

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        norms = [module for module in self.modules() if isinstance(module, _BatchNorm)] if self.norm_eval else []
        for module in [*norms, *(wholly_frozen(self.body) if self._frozen else ())]:
            module.eval()
        return self


def _noted_spec(source: str) -> ModelSpec:
    """Return the record of a backbone's weights; an empty one for a missing file, as a trained detector needs none."""
    if not source or not ("://" in source or Path(source).expanduser().is_file()):
        return ModelSpec()
    spec, fitted = start_spec(source), ("num_classes", "in_chans")
    return replace(spec, options={key: value for key, value in spec.arguments({}).items() if key not in fitted})
