"""A stand-in for `mmcv._ext`, the compiled part of mmcv, so that mmdet and mmseg run on mmcv-lite.

Importing this module installs it, unless mmcv has been compiled. It has to come before `mmcv.ops`, which mmdet and
mmseg import: a config names it first in its custom_imports, a program imports it first.

torchvision serves nms, roi_align and the sigmoid focal loss (which mmdet takes from here on a GPU alone); the
other functions of mmcv are there by name and say, once they are called, that they need the compiled mmcv. Arguments are
those of mmcv 2.1, csrc/pytorch/pybind.cpp: results go into tensors that the caller has made.
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

__all__ = ["install"]

_NAME = "mmcv._ext"
_ABSENT = "none: torchvision serves nms and roi_align"
_MAX_POOLING = 0


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices of the boxes `[N, 4]` that are kept, best first; offset: 1 where x2 and y2 belong to the box."""
    boxes = _widen(boxes)
    return ops.nms(boxes + boxes.new_tensor([0, 0, offset, offset]), scores.to(boxes), iou_threshold)


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Pool maps `[B, C, H, W]` inside rois `[K, 5]` (image, x1, y1, x2, y2) into output `[K, C, height, width]`."""
    size = (aligned_height, aligned_width)
    maps = _widen(input)
    rois = rois.to(maps)
    if pool_mode != _MAX_POOLING:
        output.copy_(ops.roi_align(maps, rois, size, spatial_scale, sampling_ratio, aligned))
        return
    samples = _sample(maps, rois, size, spatial_scale, sampling_ratio, aligned)
    values, places = F.max_pool2d(samples, sampling_ratio, return_indices=True)
    output.copy_(values)
    # The compiled function keeps coordinates here; nothing but the backward pass reads them.
    argmax_y.copy_(places)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Put the gradient of the maps, `[B, C, H, W]`, into grad_input."""
    size = (aligned_height, aligned_width)
    with torch.enable_grad():
        # Sampling is linear in the map: its gradient is the same at any map.
        maps = torch.zeros_like(_widen(grad_input), requires_grad=True)
        rois, grad_output = rois.to(maps), grad_output.to(maps)
        if pool_mode == _MAX_POOLING:
            samples = _sample(maps, rois, size, spatial_scale, sampling_ratio, aligned)
            fine = samples.shape[2:]
            grad_output = F.max_unpool2d(grad_output, argmax_y.long(), sampling_ratio, output_size=fine)
        else:
            samples = ops.roi_align(maps, rois, size, spatial_scale, sampling_ratio, aligned)
        grad_input.copy_(torch.autograd.grad(samples, maps, grad_output)[0])


def _sample(
    maps: Tensor, rois: Tensor, size: tuple[int, int], spatial_scale: float, sampling_ratio: int, aligned: bool
) -> Tensor:
    """Samples before pooling, `[K, C, height * sampling_ratio, width * sampling_ratio]`: one in each finer cell."""
    if sampling_ratio <= 0:
        raise NotImplementedError(
            f"roi_align with pool_mode='max' and sampling_ratio={sampling_ratio} needs the compiled mmcv; choose "
            "pool_mode='avg' or a fixed sampling_ratio."
        )
    height, width = size
    return ops.roi_align(maps, rois, (height * sampling_ratio, width * sampling_ratio), spatial_scale, 1, aligned)


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Focal loss (arXiv 1708.02002) of logits `[N, C]` and labels `[N]`, where label C is background, into output.

    weight: one for each class, `[C]`, or empty.
    """
    output.copy_(_focal_loss(input, target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Put the derivative of each loss by its logit, `[N, C]`, into grad_input."""
    with torch.enable_grad():
        logits = _widen(input).detach().requires_grad_()
        loss = _focal_loss(logits, target, weight, gamma, alpha)
        grad_input.copy_(torch.autograd.grad(loss.sum(), logits)[0])


def _focal_loss(logits: Tensor, target: Tensor, weight: Tensor, gamma: float, alpha: float) -> Tensor:
    logits = _widen(logits)
    count = logits.shape[1]
    one_hot = F.one_hot(target, count + 1)[:, :count].to(logits.dtype)
    loss = ops.sigmoid_focal_loss(logits, one_hot, alpha, gamma)
    # As in the compiled function, the weight is that of the label's class, for all logits of the row.
    return loss * F.pad(weight, (0, 1), value=1.0)[target][:, None] if weight.numel() else loss


def _widen(tensor: Tensor) -> Tensor:
    """float32 in place of a type of 16 bits, which torchvision's functions do not take on every device."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def get_compiler_version() -> str:
    return _ABSENT


def get_compiling_cuda_version() -> str:
    return _ABSENT


_SERVED = (
    nms,
    roi_align_forward,
    roi_align_backward,
    sigmoid_focal_loss_forward,
    sigmoid_focal_loss_backward,
    get_compiler_version,
    get_compiling_cuda_version,
)


def _missing(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{name} needs the compiled mmcv, and this is mmcv-lite, where torchvision serves nms, roi_align and the "
            "sigmoid focal loss alone; install mmcv 2.1 built with MMCV_WITH_OPS=1 in its place."
        )

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


def install() -> bool:
    """Put the stand-in into sys.modules; False if there is a compiled module, or already a stand-in."""
    if _NAME in sys.modules or importlib.util.find_spec(_NAME) is not None:
        return False
    module = ModuleType(_NAME, "Served by soft_vit.dense.mmcv_ext.")
    # mmcv asks for the spec, and importlib refuses a module without one.
    module.__spec__ = ModuleSpec(_NAME, loader=None, origin=__file__)
    for function in _SERVED:
        setattr(module, function.__name__, function)
    module.__getattr__ = _missing
    sys.modules[_NAME] = module
    _complete_transformer()
    return True


def _complete_transformer() -> None:
    """Give mmcv.cnn the name that it leaves out when it is imported without mmcv.ops, as mmpretrain does."""
    transformer = sys.modules.get("mmcv.cnn.bricks.transformer")
    name = "MultiScaleDeformableAttention"
    if transformer is not None and not hasattr(transformer, name):
        setattr(transformer, name, getattr(importlib.import_module("mmcv.ops"), name))


install()
