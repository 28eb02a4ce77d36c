"""The progress line of a run."""

import sys

from mmengine.dist import get_world_size
from mmengine.runner import LogProcessor, Runner

from soft_vit.registry import LOG_PROCESSORS, register

try:
    import resource
except ImportError:  # Windows
    resource = None

__all__ = ["ProgressLogProcessor", "peak_memory"]


@register(LOG_PROCESSORS)
class ProgressLogProcessor(LogProcessor):
    """MMEngine's LogProcessor with images per second, of all processes together, and peak memory without a GPU as well.

    Memory is in MiB: what the GPU allocated at most, or the most that this process had in memory, workers not counted.
    """

    def get_log_after_iter(self, runner: Runner, batch_idx: int, mode: str) -> tuple[dict, str]:
        tag, line = super().get_log_after_iter(runner, batch_idx, mode)
        prefix = f"{mode}/" if self.log_with_hierarchy else ""
        seconds, waiting = tag.get(f"{prefix}time"), tag.get(f"{prefix}data_time")
        if not seconds:
            return tag, line
        batch_size = self._get_cur_loop(runner, mode).dataloader.batch_sampler.batch_size
        rate = batch_size * get_world_size() / seconds
        tag[f"{prefix}images_per_second"] = rate
        shown = f"images/s: {rate:.1f}  "
        if "memory" not in tag and (memory := peak_memory()):
            tag["memory"] = memory
            shown += f"memory: {memory}  "
        time_shown = f"data_time: {waiting:.{self.num_digits}f}  "
        return tag, line.replace(time_shown, time_shown + shown, 1)


def peak_memory() -> int:
    """The most memory that this process has had, in MiB; 0 where the system does not tell."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak >> (20 if sys.platform == "darwin" else 10)
