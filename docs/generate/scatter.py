"""Plot published accuracy against measured speed as SVG, and tabulate speeds, from tables of benchmarks.

The picture has its own background and follows the reader's colour scheme, so it is readable on any page.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.published import Published
from docs.generate.cost import text
from soft_vit.text_tables import markdown_table

COLOURS = {
    "ours": ("this package", "#0969da", "#4493f8"),
    "softmax-free": ("softmax-free, of timm", "#1a7f37", "#3fb950"),
    "softmax": ("softmax, of timm", "#bc4c00", "#f0883e"),
    "convolutions": ("convolutions, of timm", "#818b98", "#9198a1"),
}
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328} .s{font-size:11px;fill:#59636e} "
    ".b{font-size:15px;font-weight:600} .card{fill:#fff;stroke:#d1d9e0} .thin{fill:none;stroke:#d1d9e0}"
    + "".join(f".{kind}{{fill:{light}}}" for kind, (_, light, _) in COLOURS.items())
    + "@media(prefers-color-scheme:dark){text{fill:#f0f6fc} .s{fill:#9198a1} .card{fill:#0d1117;stroke:#3d444d}"
    ".thin{stroke:#3d444d}" + "".join(f".{kind}{{fill:{dark}}}" for kind, (*_, dark) in COLOURS.items()) + "}"
)
WIDTH, HEIGHT, LEFT, TOP = 900, 540, 60, 50
"""Of a panel, and its margins."""
LETTER, LINE = 6.2, 12
"""Width and height of a label's letters, in pixels."""


def read_rates(path: Path) -> dict[str, float]:
    """Return the images per second of inference by model, of a CSV file of `python -m benchmarks models`."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["mode"] == "inference" and row["median"]]
    return {row["model"].removesuffix("+capped"): float(row["median"]) for row in rows}


def short(name: str) -> str:
    """Return a model's name without patch, window and image size."""
    return name.partition("_patch")[0].removesuffix("_p16_224")


def _places(points: Sequence[tuple[float, float, str]]) -> list[tuple[float, float]]:
    """Return where the label of each point (x, y, words) begins: the first of eight places around it that is free."""
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y, _ in points]
    found = []
    for x, y, words in points:
        wide = LETTER * len(words)
        beside = ((x + 7, y + 4), (x - wide - 7, y + 4), (x - wide / 2, y - 8), (x - wide / 2, y + 17))
        corners = ((x + 5, y - 7), (x + 5, y + 15), (x - wide - 5, y - 7), (x - wide - 5, y + 15))
        free = []
        for left, base in (*beside, *corners):
            box = left, base - LINE + 2, left + wide, base + 2
            overlaps = sum(
                max(0, min(box[2], other[2]) - max(box[0], other[0]))
                * max(0, min(box[3], other[3]) - max(box[1], other[1]))
                for other in taken
            )
            outside = box[0] < LEFT or box[2] > WIDTH
            free.append((overlaps + 1e3 * outside, left, base, box))
        _, left, base, box = min(free, key=lambda place: place[0])
        taken.append(box)
        found.append((left, base))
    return found


def _panel(top: float, title: str, rates: Mapping[str, float], models: Mapping[str, Published]) -> str:
    """Draw accuracy against the logarithm of images per second."""
    names = [name for name in rates if name in models]
    slowest, fastest = (math.log10(pick(rates[name] for name in names)) for pick in (min, max))
    lowest, highest = (pick(models[name].top1 for name in names) for pick in (min, max))
    floor = top + HEIGHT - 40

    def across(rate: float) -> float:
        return LEFT + 25 + (WIDTH - LEFT - 80) * (math.log10(rate) - slowest) / (fastest - slowest)

    def up(top1: float) -> float:
        return floor - 15 - (HEIGHT - 40 - TOP - 25) * (top1 - lowest) / (highest - lowest)

    parts = [text(LEFT, top + 26, title, "b")]
    for top1 in range(math.ceil(lowest / 2) * 2, math.floor(highest) + 1, 2):
        parts.append(f'<path class="thin" d="M{LEFT} {up(top1):.1f} H{WIDTH}"/>')
        parts.append(text(LEFT - 8, up(top1) + 4, f"{top1} %", "s", "end"))
    for power in range(math.floor(slowest), math.ceil(fastest) + 1):
        for rate in (10**power, 2 * 10**power, 5 * 10**power):
            if slowest <= math.log10(rate) <= fastest:
                parts.append(text(across(rate), floor + 18, f"{rate:g}", "s", "middle"))
    points = [(across(rates[name]), up(models[name].top1), short(name)) for name in names]
    for name, (x, y, words), (left, base) in zip(names, points, _places(points), strict=True):
        parts.append(f'<circle class="{models[name].kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
        parts.append(text(round(left, 1), round(base, 1), words, "s"))
    return "\n".join(parts)


def scatter(panels: Mapping[str, Path], models: Mapping[str, Published]) -> str:
    """Plot the models that are in all CSV files of rates, in a panel for each, by its title."""
    rates = {title: read_rates(path) for title, path in panels.items()}
    models = {name: model for name, model in models.items() if all(name in found for found in rates.values())}
    height = HEIGHT * len(panels) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 20} {height}" width="{WIDTH + 20}" '
        f'height="{height}" role="img">',
        "<title>Published accuracy on ImageNet-1k against measured images per second</title>",
        f'<style>{STYLE}</style>\n<rect class="card" x=".5" y=".5" width="{WIDTH + 19}" height="{height - 1}" rx="8"/>',
        *(_panel(HEIGHT * i, title, found, models) for i, (title, found) in enumerate(rates.items())),
    ]
    for i, (kind, (words, *_)) in enumerate(COLOURS.items()):
        x = LEFT + 200 * i
        parts.append(
            f'<circle class="{kind}" cx="{x + 5}" cy="{height - 22}" r="4.5"/>{text(x + 15, height - 18, words)}'
        )
    return "\n".join([*parts, "</svg>\n"])


def speed_table(names: Sequence[str], files: Mapping[str, Path], models: Mapping[str, Published]) -> str:
    """Return a Markdown table of images per second, with a column for each file by its header."""
    rates = [read_rates(path) for path in files.values()]
    rows = [
        [
            f"`{short(name)}`",
            f"{models[name].top1:.1f}",
            *(f"{rate[name]:.3g}" if name in rate else "" for rate in rates),
        ]
        for name in names
    ]
    return markdown_table(["model", "published top-1 %", *files], rows)
