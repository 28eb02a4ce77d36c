"""The gym: generated tasks that distinguish attentions, and small models to train on them."""

from studies.gym.pictures import Digits, FarPair, Pathfinder
from studies.gym.symbols import ListOps, Maze, Mirror, Rank, Recall
from studies.gym.task import NOT_ASKED, Batch, Task

__all__ = ["NOT_ASKED", "TASKS", "Batch", "Task"]

TASKS: dict[str, type[Task]] = {"recall": Recall, "far_pair": FarPair, "pathfinder": Pathfinder, "mirror": Mirror}
TASKS |= {"rank": Rank, "maze": Maze, "listops": ListOps, "digits": Digits}
"""The tasks by name."""
