"""What the kernels in Triton support, answered without importing Triton."""

import importlib.util
import os
import shutil
import sysconfig
import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from soft_vit.ops.soft.options import InverseOptions
from soft_vit.ops.soft.triton.tiling import MAX_ON_CHIP

# Triton reads the variable once as well, when it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
INSTALLED = importlib.util.find_spec("triton") is not None

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# A tile spans all channels of a head.
MAX_HEAD_DIM = 128
# Up to 32 channels every kernel fits in what capability 8.0 and later have, beyond in that of A100, H100 and later.
SHARED_MEMORY_OF_WIDE_HEADS = 160 * 1024


def unsupported(
    q: Tensor, bottleneck: Tensor, v: Tensor, residual: Tensor | None, options: InverseOptions
) -> str | None:
    """Why `soft_attention` of these has no Triton form, as the end of a sentence; None where it has one."""
    if reason := triton_unavailable_reason(q.device):
        return reason
    of_newton = options.newton_gradient == "unrolled" or options.newton_start == "guarded_batch"
    if options.inverse == "eigh" or (options.inverse == "newton" and of_newton):
        return "has no form of inverse='eigh', newton_start='guarded_batch' and newton_gradient='unrolled'"
    for x in (q, bottleneck, v) if residual is None else (q, bottleneck, v, residual):
        if x.dtype not in DTYPES:
            return "takes float32, bfloat16 and float16"
        if x.device != q.device:
            return "takes tensors of one device"
        if x.dim() != 4 or 0 in x.shape:
            return "takes non-empty tensors [B, H, N, D]"
    (B, H, N, D), (*_, M, _), Dv = q.shape, bottleneck.shape, v.shape[3]
    same = bottleneck.shape == (B, H, M, D) and v.shape == (B, H, N, Dv)
    if not same or (residual is not None and residual.shape != v.shape):
        return "takes q [B, H, N, D], bottleneck [B, H, M, D] and v and residual [B, H, N, Dv], without broadcasting"
    width = max(D, Dv)
    if width > MAX_HEAD_DIM:
        return f"takes at most {MAX_HEAD_DIM} channels a head, not {width}"
    return gpu_unavailable_reason(wide_heads=width > 32)


def unsupported_inverse(a: Tensor, unrolled: bool) -> str | None:
    """The same for `newton_inverse`; unrolled: whether the gradient of the iterations is wanted."""
    if reason := triton_unavailable_reason(a.device):
        return reason
    if unrolled:
        return "has no form of gradient='unrolled'"
    if a.dtype not in DTYPES:
        return "takes float32, bfloat16 and float16"
    if a.dim() < 2 or a.shape[-1] != a.shape[-2] or 0 in a.shape:
        return "takes non-empty square matrices [..., M, M]"
    if a.shape[-1] > MAX_ON_CHIP:
        return f"takes matrices of at most {MAX_ON_CHIP} x {MAX_ON_CHIP}, not {a.shape[-1]} x {a.shape[-1]}"
    return gpu_unavailable_reason(wide_heads=False)


def triton_unavailable_reason(device: torch.device) -> str | None:
    """What keeps any kernel from running on tensors of this device, as the end of a sentence."""
    if not INSTALLED:
        return "needs the package triton"
    if device.type != "cuda" and not (INTERPRETED and device.type == "cpu"):
        return f"runs on a CUDA device, not on {device.type!r} (or on a CPU under TRITON_INTERPRET=1)"
    return interpreter_unavailable_reason() if device.type == "cpu" else None


@cache
def interpreter_unavailable_reason() -> str | None:
    """What keeps Triton's interpreter from running here, as the end of a sentence."""
    triton, numpy = (tuple(map(int, version(name).split(".")[:2])) for name in ("triton", "numpy"))
    # It makes numbers of arrays with one element, which numpy no longer allows.
    return "needs 'numpy<2.4' for the interpreter of Triton before 3.7" if triton < (3, 7) and numpy >= (2, 4) else None


# A constant of the machine: torch.compile shall call it once and not look into it.
@torch.compiler.assume_constant_result
def gpu_unavailable_reason(wide_heads: bool) -> str | None:
    """What the weakest visible GPU lacks, as the end of a sentence."""
    return _gpu_unavailable_reason(wide_heads)


# Asking the driver takes as long as a kernel.
@cache
def _gpu_unavailable_reason(wide_heads: bool) -> str | None:
    if not torch.cuda.is_available():
        # Interpreted, or traced for another machine.
        return None
    if torch.version.hip is not None:
        return "is made for NVIDIA GPUs"
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        if properties.major < 8:
            return f"needs a GPU of compute capability 8.0 or later, not {properties.major}.{properties.minor}"
        # Older releases of PyTorch do not tell.
        shared_memory = getattr(properties, "shared_memory_per_block_optin", 0)
        if wide_heads and shared_memory < SHARED_MEMORY_OF_WIDE_HEADS:
            return "needs a GPU with 160 KiB of shared memory a program for heads of more than 32 channels"
    compilers = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    headers = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").is_file() or os.environ.get("CPATH")
    if not (compilers and headers):
        reason = "needs a C compiler (gcc, clang, or the variable CC) and Python's headers (the package python3-dev)"
        warnings.warn(f"The eager form of softmax-free attention runs: the form in Triton {reason}.", stacklevel=2)
        return reason
    return None
