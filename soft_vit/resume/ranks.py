"""Let the processes of a run choose alike."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed

T = TypeVar("T")


def rank_and_count() -> tuple[int, int]:
    """Return the rank of this process and the number of processes, (0, 1) without a process group."""
    return (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)


def from_main(function: Callable[..., T], *args: Any) -> T:
    """Call a function in the main process, and return its result in all of them. All processes call it together.

    The result must be picklable. An exception is raised in all processes.
    """
    if not distributed.is_initialized():
        return function(*args)
    outcome: list[Any] = [None, None]
    if distributed.get_rank() == 0:
        try:
            outcome[0] = function(*args)
        except Exception as error:
            outcome[1] = error
    distributed.broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


class AnyRank:
    """Tells whether a flag is set in any process. All processes call it together."""

    def __init__(self) -> None:
        self._group: Any = None

    def __call__(self, flag: bool) -> bool:
        if not distributed.is_initialized():
            return flag
        if self._group is None:
            # The flag lies on the CPU: reading it from a GPU would synchronise every step.
            self._group = distributed.new_group(backend="gloo")
        count = torch.tensor(int(flag))
        distributed.all_reduce(count, distributed.ReduceOp.MAX, group=self._group)
        return bool(count)
