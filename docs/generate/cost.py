"""Plot the cost of a training step against the image size as SVG, from a measured table."""

import math
import re
from pathlib import Path

from docs.generate.svg import dot, picture, text

# `q`: with a bound on the bottleneck tokens, `l`: without.
COLOURS = {"q": ("#0969da", "#4493f8"), "l": ("#bc4c00", "#f0883e")}
# Sides of images in pixels, and the tokens of the first stage.
SIDES = {224: 3136, 448: 12544, 896: 50176, 1792: 200704}


def measured(table: Path) -> dict[str, list[tuple[int, float, float | None]]]:
    """Return tokens, MB and seconds of each image size, by the form of the model."""
    forms: dict[str, list[tuple[int, float, float | None]]] = {}
    for line in table.read_text().splitlines():
        columns = [column.strip() for column in line.split("|")[1:-1]]
        if len(columns) == 10 and re.fullmatch(r"\d+ x \d+", columns[1]):
            seconds = float(columns[6]) if re.fullmatch(r"[\d.]+", columns[6]) else None
            forms.setdefault(columns[0], []).append((int(columns[2]), float(columns[3]), seconds))
    return {form: sorted(points) for form, points in forms.items()}


def panel(left: float, title: str, unit: str, ends: tuple[float, float], curves: list[list[tuple[int, float]]]) -> str:
    """Draw cost against tokens with logarithmic axes; ends: of the axis of cost."""
    width, height, top = 270, 210, 62

    def place(tokens: float, cost: float) -> tuple[float, float]:
        across = math.log(tokens / SIDES[224]) / math.log(SIDES[1792] / SIDES[224])
        return left + width * across, top + height * math.log(ends[1] / cost) / math.log(ends[1] / ends[0])

    parts = [text(left, top - 18, title, "b")]
    for tick in (0.1, 1, 10):
        _, y = place(SIDES[224], tick)
        parts.append(f'<path class="thin" d="M{left:g} {y:.1f} H{left + width:g}"/>')
        parts.append(text(left - 8, y + 4, f"{tick:g} {unit}", "s", "end"))
    for side, tokens in SIDES.items():
        parts.append(text(place(tokens, 1)[0], top + height + 20, f"{side}²", "s", "middle"))
    for points, style in zip(curves, "ql", strict=True):
        places = [place(*point) for point in points]
        line = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path class="{style}0" fill="none" stroke-width="2.5" d="M{line}"/>')
        parts += [dot(x, y, style) for x, y in places]
    return "\n".join(parts)


def cost_curves(table: Path) -> str:
    """Plot seconds and GB of a training step of soft_tiny, with and without a bound on M."""
    forms = measured(table).values()
    seconds = [[(tokens, time) for tokens, _, time in points if time is not None] for points in forms]
    memory = [[(tokens, megabytes / 1024) for tokens, megabytes, _ in points] for points in forms]
    parts = [
        panel(64, "Time of a training step", "s", (0.1, 40), seconds),
        panel(412, "Memory of a training step", "GB", (0.05, 20), memory),
        dot(69, 326, "q") + text(80, 330, "max_bottleneck=(7, 7)"),
        dot(255, 326, "l") + text(266, 330, "as released: M grows with the image"),
        text(682, 330, "pixels of one image; soft_tiny", "s", "end"),
    ]
    return picture("Cost of a training step of soft_tiny against the image size", 720, 350, COLOURS, parts)
