"""The table of the gym's tasks, and a picture of the accuracy of each attention in each task."""

import re
from inspect import getdoc, signature

from docs.generate.svg import picture, text
from soft_vit.text_tables import markdown_table
from studies.gym import TASKS
from studies.gym.report import Cells, names, scores, single_token_ceilings

COLOURS = {"q": ("#54aeff", "#1f6feb")}
LEFT, TOP, WIDE, HIGH = 140, 62, 82, 21


def tasks_table() -> str:
    """Return a Markdown table with a row for each task, from its class."""
    rows = []
    for name, cls in TASKS.items():
        task, default = cls(), signature(cls).parameters["difficulty"].default
        # The first clause says what the number is, the rest of the docstring explains it.
        knob = re.split(r"[.;]", (getdoc(cls) or "").partition("difficulty: ")[2])[0]
        chance, ceiling = (f"{100 * share:.1f} %" for share in (1 / task.num_classes, task.ceiling()))
        cells = [f"`{name}`", task.asks, task.measures, task.num_tokens, f"{default}: {knob}", chance, ceiling]
        rows.append([*cells, task.source])
    header = ["task", "asks", "measures", "N", "difficulty", "chance", "ceiling", "published relatives"]
    return markdown_table(header, rows)


def scores_map(cells: Cells) -> str:
    """Plot a row for each attention: from the ceiling of single tokens, without colour, to all answers right."""
    found, ceilings = scores(cells), single_token_ceilings(cells)
    tasks, kinds = names(found)
    parts = [text(LEFT, 24, "Accuracy in percent; colour: what attention adds to the best of single tokens", "b")]
    parts += [text(LEFT + WIDE * (i + 0.5), TOP - 10, task, "s", "middle") for i, task in enumerate(tasks)]
    for row, kind in enumerate(kinds):
        top = TOP + HIGH * row
        parts.append(text(LEFT - 10, top + 15, kind, "", "end"))
        for column, task in enumerate(tasks):
            left = LEFT + WIDE * column
            box = f'x="{left}" y="{top}" width="{WIDE}" height="{HIGH}"/>'
            parts.append(f'<rect class="thin" {box}')
            if (task, kind) in found:
                mean, ceiling = found[task, kind].mean, ceilings[task].mean
                share = min(max((mean - ceiling) / (1 - ceiling), 0), 1)
                parts.append(f'<rect class="q" fill-opacity="{share:.2f}" {box}')
                parts.append(text(left + WIDE / 2, top + 15, f"{100 * mean:.0f}", "", "middle"))
    width, height = LEFT + WIDE * len(tasks) + 20, TOP + HIGH * len(kinds) + 20
    return picture("Accuracy of each attention type in each task", width, height, COLOURS, parts)
