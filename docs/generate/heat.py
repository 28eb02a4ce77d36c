"""Draw the accuracy of each attention in each task of the gym as SVG."""

from docs.generate.svg import picture, text
from studies.gym.report import Cells, names, scores, single_token_ceilings

COLOURS = {"q": ("#54aeff", "#1f6feb")}
LEFT, TOP, WIDE, HIGH = 140, 62, 82, 21


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
