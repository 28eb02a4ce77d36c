"""The machine that a measurement runs on."""

import platform
from pathlib import Path

import timm
import torch

__all__ = ["machine_description", "require_device", "use_threads"]


def require_device(device: str | torch.device) -> None:
    """ValueError for a device that this machine does not have."""
    try:
        # A name may be right and the device not there.
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"There is no device {str(device)!r} here; give one such as cpu or cuda.") from error


def use_threads(count: int | None) -> None:
    """Compute on so many threads of the CPU, with None on as many as torch does; ValueError below 1."""
    if count is None:
        return
    if count < 1:
        raise ValueError(f"The number of threads is {count}; give at least 1.")
    torch.set_num_threads(count)


def machine_description(device: str | torch.device = "cpu") -> str:
    """Device, threads and versions, for the head of a table."""
    device = torch.device(device)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{_cpu_name()}, {torch.get_num_threads()} threads"
    return f"{name}; torch {torch.__version__}, timm {timm.__version__}, Python {platform.python_version()}"


def _cpu_name() -> str:
    """What Linux says of the processor, or otherwise Python."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else f"{platform.processor() or platform.machine()} CPU"
