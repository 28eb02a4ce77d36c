"""The bandwidth of a device's memory, by a copy that no cache holds."""

from functools import partial
from statistics import median

import torch

from soft_vit.analysis.timing import time_in_turn

COPIED_BYTES = 512 << 20


def copy_bandwidth(device: str | torch.device, rounds: int = 10) -> float:
    """GB/s, read and written, of a copy of 512 MiB within the device's memory: the median over rounds."""
    # Written to, because reading untouched pages reads no memory.
    source = torch.ones(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    seconds = time_in_turn({"copy": partial(target.copy_, source)}, rounds, device)["copy"]
    return 2 * source.nbytes / median(seconds) / 1e9
