"""Which cases the Triton kernels support, without importing Triton."""

import importlib.util
import os
import shutil
import sysconfig
import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from soft_vit.ops.soft.options import InverseOptions

# Triton too reads the variable once, on import.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
INSTALLED = importlib.util.find_spec("triton") is not None

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# A tile spans all channels of a head.
MAX_HEAD_DIM = 128
# For up to 32 channels every kernel fits in the shared memory of any GPU of capability 8.0 or later. Wider heads need
# an A100 or H100.
SHARED_MEMORY_OF_WIDE_HEADS = 160 * 1024


def unsupported(
    q: Tensor, bottleneck: Tensor, v: Tensor, residual: Tensor | None, options: InverseOptions
) -> str | None:
    """Return why Triton cannot compute `soft_attention` of these, as the end of a sentence; None if it can."""
    if reason := triton_unavailable_reason(q.device):
        return reason
    newton_only_eager = options.newton_gradient == "unrolled" or options.newton_start == "guarded_batch"
    if options.inverse == "eigh" or (options.inverse == "newton" and newton_only_eager):
        return "does not support inverse='eigh', newton_start='guarded_batch' and newton_gradient='unrolled'"
    for x in (q, bottleneck, v) if residual is None else (q, bottleneck, v, residual):
        if x.dtype not in DTYPES:
            return "requires float32, bfloat16 or float16"
        if x.device != q.device:
            return "requires all tensors on one device"
        if x.dim() != 4 or 0 in x.shape:
            return "requires non-empty tensors [B, H, N, D]"
    (B, H, N, D), (*_, M, _), Dv = q.shape, bottleneck.shape, v.shape[3]
    same = bottleneck.shape == (B, H, M, D) and v.shape == (B, H, N, Dv)
    if not same or (residual is not None and residual.shape != v.shape):
        return "requires q [B, H, N, D], bottleneck [B, H, M, D] and v and residual [B, H, N, Dv], without broadcasting"
    width = max(D, Dv)
    if width > MAX_HEAD_DIM:
        return f"requires at most {MAX_HEAD_DIM} channels per head, got {width}"
    return gpu_unavailable_reason(wide_heads=width > 32)


def triton_unavailable_reason(device: torch.device) -> str | None:
    """Return why kernels cannot run on this device, as the end of a sentence; None if they can."""
    if not INSTALLED:
        return "requires the package triton"
    if device.type != "cuda" and not (INTERPRETED and device.type == "cpu"):
        return f"requires a CUDA device, got {device.type!r} (or a CPU under TRITON_INTERPRET=1)"
    return interpreter_unavailable_reason() if device.type == "cpu" else None


@cache
def interpreter_unavailable_reason() -> str | None:
    """Return why Triton's interpreter cannot run here, as the end of a sentence; None if it can."""
    triton, numpy = (tuple(map(int, version(name).split(".")[:2])) for name in ("triton", "numpy"))
    # Older interpreters convert arrays of one element to numbers, which numpy 2.4 forbids.
    return "requires Triton 3.7 or 'numpy<2.4' in the interpreter" if triton < (3, 7) and numpy >= (2, 4) else None


# Constant on a machine: torch.compile calls it once instead of tracing it.
@torch.compiler.assume_constant_result
def gpu_unavailable_reason(wide_heads: bool) -> str | None:
    """Return why the weakest visible GPU cannot run the kernels, as the end of a sentence; None if it can."""
    return _gpu_unavailable_reason(wide_heads)


# A query of the driver takes as long as a kernel.
@cache
def _gpu_unavailable_reason(wide_heads: bool) -> str | None:
    if not torch.cuda.is_available():
        # Kernels are interpreted, or the model is traced for another machine.
        return None
    if torch.version.hip is not None:
        return "requires an NVIDIA GPU"
    for index in range(torch.cuda.device_count()):
        properties: Any = torch.cuda.get_device_properties(index)
        if properties.major < 8:
            return f"requires a GPU of compute capability 8.0 or later, got {properties.major}.{properties.minor}"
        # Missing in older releases of PyTorch.
        shared_memory = getattr(properties, "shared_memory_per_block_optin", 0)
        if wide_heads and shared_memory < SHARED_MEMORY_OF_WIDE_HEADS:
            return "requires a GPU with 160 KiB of shared memory per program for heads of more than 32 channels"
    compilers = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    headers = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").is_file() or os.environ.get("CPATH")
    if not (compilers and headers):
        return "requires a C compiler (gcc, clang, or the variable CC) and Python's headers (the package python3-dev)"
    return None


# As above, torch.compile calls it once.
@torch.compiler.assume_constant_result
def warn_of_eager_form(reason: str) -> None:
    """Warn, once for each reason, that a GPU computes the eager form. reason: the end of a sentence about Triton's."""
    _warn_once(f"Softmax-free attention on a GPU runs in its eager form, because its Triton form {reason}.")


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)
