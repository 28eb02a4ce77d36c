"""Time and peak memory of a piece of work, and the machine they belong to."""

import os
import platform
import re
import time
import weakref
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Count the bytes of live tensors made by operations under it, and their peak.

    Works on any device, including meta, which computes nothing. Memory that a kernel uses internally is not seen.
    Operations that this package fuses on a CPU in inference, such as a linear layer with GELU, are counted unfused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = self.peak = 0
        self._live: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            # A view of an existing tensor takes no memory.
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                self._track(tensor.untyped_storage())
        return out

    def _track(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._live:
            return
        size = storage.nbytes()
        self._live.add(key)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._live.discard(key)
        self.current -= size


def peak_memory(work: Callable[[], Any], device: str | torch.device) -> int:
    """Return the peak bytes of work() above the bytes at its start."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with LiveTensors() as watch:
        work()
    return watch.peak


# Memory of allocators and convolutions that `peak_memory` does not see, as a factor.
_UNSEEN = 1.3


def image_memory(network: Callable[[torch.Tensor], Any], pixels: int, device: str | torch.device = "cpu") -> int:
    """Estimate the peak bytes of one image `[1, 3, H, W]` of a number of pixels and of its pass without gradients.

    Fake tensors at 2^18 and 2^19 pixels tell how the bytes grow: by a multiple of the pixels and one of their square.
    """
    linear, square = _growth(network, torch.device(device))
    return int(_UNSEEN * (linear * pixels + square * pixels**2))


@lru_cache(maxsize=1)
def _growth(network: Callable[[torch.Tensor], Any], device: torch.device) -> tuple[float, float]:
    rates, count = [], 2**18
    for width in (512, 1024):
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), LiveTensors() as watch:
            network(torch.empty(1, 3, 512, width, device=device))
        rates.append(watch.peak / (512 * width))
    square = max(rates[1] - rates[0], 0) / count
    return rates[0] - square * count, square


def free_memory(device: str | torch.device = "cpu") -> int:
    """Return the bytes that can still be taken: of a GPU, or of the machine and its control groups, as far as known."""
    device = torch.device(device)
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    free = [2**33] if os.name == "nt" else [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    if lines := _text(Path("/proc/meminfo")):
        free.append(1024 * int(re.search(r"MemAvailable:\s+(\d+)", lines)[1]))
    # A container shows its own group as the root; a job's group is within others, which limit it as well.
    own = re.search(r"^0::/(.*)", _text(Path("/proc/self/cgroup")), re.MULTILINE)
    group = Path("/sys/fs/cgroup", own[1] if own else "")
    for place in (group, *group.parents):
        if (most := _text(place / "memory.max").strip()).isdigit():
            free.append(int(most) - int(re.search(r"anon (\d+)", _text(place / "memory.stat"))[1]))
    return max(min(free), 0)


def _text(path: Path) -> str:
    """Return the text of a file, empty without one."""
    return path.read_text() if path.is_file() else ""


def seconds_of(step: Callable[[], Any], device: str | torch.device, repeats: int = 1) -> float:
    """Return the seconds of a step, GPU work included: the mean over `repeats` calls in a row."""
    on_gpu = torch.device(device).type == "cuda"
    synchronize = partial(torch.cuda.synchronize, device) if on_gpu else lambda: None
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    synchronize()
    return (time.perf_counter() - start) / repeats


def machine_description(device: str | torch.device = "cpu") -> str:
    """Return device, threads and versions, for the head of a table."""
    count = torch.get_num_threads()
    cpu = f"{_cpu_name()}, {count} thread{'s' * (count > 1)}"
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else cpu
    return f"{name}; torch {torch.__version__}, timm {timm.__version__}, Python {platform.python_version()}"


def _cpu_name() -> str:
    """Return the processor's name from Linux, or else from Python."""
    found = re.search(r"^model name\s*:(.*)", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else f"{platform.processor() or platform.machine()} CPU"
