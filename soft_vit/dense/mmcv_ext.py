"""A stand-in for `mmcv._ext`, the compiled part of mmcv, with which mmdet and mmseg run on mmcv-lite.

Importing this module installs it, unless mmcv is compiled. It must come before `mmcv.ops`, which mmdet and mmseg
import: a config lists it first in its custom_imports, a program imports it first.

torchvision computes nms, roi_align with means, and the sigmoid focal loss (which mmdet calls on a GPU only). Any other
function raises NotImplementedError when it is called. Arguments are those of mmcv 2.1, csrc/pytorch/pybind.cpp; results
are written into tensors of the caller.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision import ops

_NAME = "mmcv._ext"
_AVERAGE = 1


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return indices of the kept boxes of `[N, 4]`, best first; offset: 1 if x2 and y2 belong to the box."""
    boxes = _widen(boxes)
    return ops.nms(boxes + boxes.new_tensor([0, 0, offset, offset]), scores.to(boxes), iou_threshold)


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor, **options: Any
) -> None:
    """Pool maps `[B, C, H, W]` inside rois `[K, 5]` (image, x1, y1, x2, y2) into output `[K, C, height, width]`."""
    output.copy_(_roi_align(_widen(input), rois, **options))


def roi_align_backward(
    grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor, grad_input: Tensor, **options: Any
) -> None:
    """Write the gradient of the maps, `[B, C, H, W]`, into grad_input."""
    with torch.enable_grad():
        # Sampling is linear, so any map has this gradient.
        maps = torch.zeros_like(_widen(grad_input), requires_grad=True)
        grad_input.copy_(torch.autograd.grad(_roi_align(maps, rois, **options), maps, grad_output.to(maps))[0])


def _roi_align(
    maps: Tensor, rois: Tensor, *, pool_mode: int, aligned_height: int, aligned_width: int, **options: Any
) -> Tensor:
    if pool_mode != _AVERAGE:
        raise NotImplementedError("roi_align with pool_mode='max' needs the compiled mmcv; choose pool_mode='avg'.")
    return ops.roi_align(maps, rois.to(maps), (aligned_height, aligned_width), **options)


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss (arXiv 1708.02002) of logits `[N, C]` and labels `[N]` (C is background) into output.

    weight: of each class, `[C]`, or empty.
    """
    output.copy_(_focal_loss(input, target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the derivative of each loss by its logit, `[N, C]`, into grad_input."""
    with torch.enable_grad():
        logits = _widen(input).detach().requires_grad_()
        grad_input.copy_(torch.autograd.grad(_focal_loss(logits, target, weight, gamma, alpha).sum(), logits)[0])


def _focal_loss(logits: Tensor, target: Tensor, weight: Tensor, gamma: float, alpha: float) -> Tensor:
    logits = _widen(logits)
    count = logits.shape[1]
    one_hot = F.one_hot(target, count + 1)[:, :count].to(logits.dtype)
    loss = ops.sigmoid_focal_loss(logits, one_hot, alpha, gamma)
    # As compiled: a row has the weight of its label.
    return loss * F.pad(weight, (0, 1), value=1.0)[target][:, None] if weight.numel() else loss


def _widen(tensor: Tensor) -> Tensor:
    """Return float32 instead of a 16-bit type, which torchvision's functions do not take on every device."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


_SERVED = (nms, roi_align_forward, roi_align_backward, sigmoid_focal_loss_forward, sigmoid_focal_loss_backward)


def _missing(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{name} needs the compiled mmcv, 2.1 built with MMCV_WITH_OPS=1.")

    return refuse


def install() -> bool:
    """Put the stand-in into sys.modules; return False if a compiled module or a stand-in is there."""
    if _NAME in sys.modules or importlib.util.find_spec(_NAME) is not None:
        return False
    module = ModuleType(_NAME, "Served by soft_vit.dense.mmcv_ext.")
    # importlib refuses a module without a spec.
    module.__spec__ = ModuleSpec(_NAME, loader=None, origin=__file__)
    module.__dict__.update({function.__name__: function for function in _SERVED})
    module.get_compiler_version = lambda: "none: torchvision serves nms and roi_align"
    module.get_compiling_cuda_version = module.get_compiler_version
    module.__getattr__ = _missing
    sys.modules[_NAME] = module
    # mmcv.cnn lacks a name when it is imported before mmcv.ops, as mmpretrain does.
    transformer = sys.modules.get("mmcv.cnn.bricks.transformer")
    name = "MultiScaleDeformableAttention"
    if transformer is not None and not hasattr(transformer, name):
        setattr(transformer, name, getattr(importlib.import_module("mmcv.ops"), name))
    return True


install()
