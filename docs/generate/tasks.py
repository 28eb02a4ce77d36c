"""The table of the gym's tasks."""

import re
from inspect import getdoc, signature

from soft_vit.text_tables import markdown_table
from studies.gym import TASKS, Task


def tasks_table() -> str:
    """Return a Markdown table with a row for each task, from its class."""
    header = ["task", "asks", "measures", "N", "difficulty", "chance", "ceiling", "published relatives"]
    return markdown_table(header, [_row(name, cls()) for name, cls in TASKS.items()])


def _row(name: str, task: Task) -> list[str]:
    options = signature(type(task)).parameters
    # The first clause says what the number is, the rest of the docstring explains it.
    knob = re.split(r"[.;]", (getdoc(type(task)) or "").partition("difficulty: ")[2])[0]
    chance, ceiling = (f"{100 * share:.1f} %" for share in (1 / task.num_classes, task.ceiling()))
    difficulty = f"{options['difficulty'].default}: {knob}"
    return [f"`{name}`", task.asks, task.measures, str(task.num_tokens), difficulty, chance, ceiling, task.source]
