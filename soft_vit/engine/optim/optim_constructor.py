"""Group parameters by timm's rules."""

import fnmatch
import math
from typing import Any

from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS, OPTIMIZERS
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.registry import OPTIM_WRAPPER_CONSTRUCTORS, register

_FALLBACK = ("fallback_list", "fallback_no_weight_decay")


@register(OPTIM_WRAPPER_CONSTRUCTORS)
class TimmOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Groups parameters as timm's training does: `optim_wrapper=dict(constructor="TimmOptimWrapperConstructor", ...)`.

    Vectors (biases, norms) and the parameters in the model's `no_weight_decay()` are exempt from weight decay.
    `paramwise_cfg=dict(layer_decay=0.75)` multiplies the learning rate by 0.75 for every layer below the head, as
    `group_matcher()` counts them (BEiT, arXiv 2106.08254, Sec. 3.1), also in the body of a detector or segmentor.
    `fallback_list=["head.*"]` gives parameters of the timm model, by name or pattern, to the second optimizer of a
    hybrid one, such as AdamW in `timm.muon`; `fallback_no_weight_decay=True` adds those in `no_weight_decay()`. Frozen
    parameters are left out, and those outside of the timm model get the optimizer's learning rate. Raises ValueError
    for another key, a layer_decay of a model without a group_matcher, and a pattern without a parameter.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        super().__init__(optim_wrapper_cfg, None)
        options = dict(paramwise_cfg or {})
        self.layer_decay = options.pop("layer_decay", None)
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must be above 0 and at most 1, got {self.layer_decay}.")
        self.fallback = {key: options.pop(key) for key in _FALLBACK if key in options}
        if options:
            keys = ", ".join(("layer_decay", *_FALLBACK))
            raise ValueError(f"paramwise_cfg must have no keys except {keys}, got {', '.join(options)}.")

    def __call__(self, model: nn.Module) -> OptimWrapper:
        model = unwrapped(model)
        # A classifier of MMEngine holds the timm model, a detector or segmentor holds it in its backbone.
        inside = (part for part in model.modules() if hasattr(part, "group_matcher"))
        timm_model = getattr(model, "model", None) or next(inside, model)
        if self.layer_decay is not None and not hasattr(timm_model, "group_matcher"):
            raise ValueError(f"layer_decay needs a model with a group_matcher, got {type(timm_model).__name__}.")
        grouped = {id(parameter) for parameter in timm_model.parameters()}
        others = [p for p in model.parameters() if p.requires_grad and id(p) not in grouped]
        config = dict(self.optimizer_cfg)
        vectors = [p for p in others if p.ndim <= 1]
        others = [{"params": [p for p in others if p.ndim > 1]}, {"params": vectors, "weight_decay": 0.0}]
        groups = self._groups(timm_model, config) + [group for group in others if group["params"]]
        # A weight decay that the config leaves open, NaN, is the optimizer's own.
        config["params"] = [{key: x for key, x in group.items() if x is not math.nan} for group in groups]
        optimizer = OPTIMIZERS.build(config)
        for group in optimizer.param_groups:
            # Of the optimizer's own rate, where the config leaves it open. TimmLR reads the factor.
            group["lr"] *= group.get("lr_scale", 1)
        return OPTIM_WRAPPERS.build({"type": "OptimWrapper", **self.optim_wrapper_cfg, "optimizer": optimizer})

    def _groups(self, model: nn.Module, optimizer: dict[str, Any]) -> list[dict]:
        decay = optimizer.get("weight_decay", math.nan) or 0.0
        names = [name for name, _ in model.named_parameters()]
        for pattern in self.fallback.get("fallback_list", ()):
            if not fnmatch.filter(names, pattern):
                raise ValueError(f"fallback_list must name parameters such as {names[-1]}, got {pattern}.")
        exempt = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
        options = {"no_weight_decay_list": exempt, **self.fallback}
        if self.layer_decay is None:
            return param_groups_weight_decay(model, decay, **options)
        groups = param_groups_layer_decay(model, decay, layer_decay=self.layer_decay, **options)
        # A body without a head, as in a detector, ends one layer below it.
        top = 1 if getattr(model, "num_classes", None) else self.layer_decay
        for group in groups:
            group.pop("param_names", None)
            group["lr_scale"] *= top
        return groups
