"""Plot published accuracy against measured speed as SVG, and tabulate speeds, from tables of benchmarks."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from benchmarks.atlas.table import steadiness
from benchmarks.published import Published
from benchmarks.timer import Spread
from docs.generate.svg import dot, picture, text
from soft_vit.text_tables import markdown_table, read_csv

COLOURS = {"ours": ("#0969da", "#4493f8"), "softmax-free": ("#1a7f37", "#3fb950")}
COLOURS |= {"softmax": ("#bc4c00", "#f0883e"), "convolutions": ("#818b98", "#9198a1")}
"""Of each kind of model, in light and dark schemes."""
WIDTH, HEIGHT, LEFT, TOP = 900, 580, 60, 50
"""Of a panel, and its margins."""
LETTER, LINE = 7, 12
"""Width and height of a label's letters, in pixels."""

Point = tuple[float, float]


def read_rates(path: Path) -> dict[str, Spread]:
    """Return the images per second of inference by model, of a CSV file of `python -m benchmarks models`."""
    rows = [row for row in read_csv(path) if row["mode"] == "inference" and row["median"]]
    return {row["model"].removesuffix("+capped"): Spread(*(float(row[x]) for x in Spread._fields)) for row in rows}


def rate_cell(rate: Spread | None) -> str:
    """Return a rate to three digits, with a star if it is unstable; nothing for None."""
    return f"{rate.median:.3g}{'*' * bool(steadiness(rate))}" if rate else ""


def short(name: str) -> str:
    """Return a model's name without patch, window and image size."""
    return name.partition("_patch")[0].removesuffix("_p16_224")


def label_places(points: Sequence[tuple[float, float, str]], others: Sequence[Point]) -> list[Point]:
    """Return where the label of each point (x, y, words) begins: near it, and on little of the others (x, y)."""
    dots, highest = [(x - 7, y - 7, x + 7, y + 7) for x, y in others], min(y for _, y in others)
    found: dict[int, tuple[float, float, tuple[float, ...]]] = {}
    # Each label is placed again once the others have their places.
    for i, (x, y, words) in 4 * [*enumerate(points)]:
        wide, places = LETTER * len(words), []
        taken = dots + [box for j, (_, _, box) in found.items() if j != i]
        for across, up in product((7, -wide - 7, -wide / 2, 16, -wide - 16), (4, -9, 18, -21, 30, -33, 42, -45, 54)):
            left, base = x + across, y + up
            box = left, base - LINE + 2, left + wide, base + 2
            overlap = sum(
                max(0, min(box[2], other[2]) - max(box[0], other[0]))
                * max(0, min(box[3], other[3]) - max(box[1], other[1]))
                for other in taken
            )
            # The title is above the highest point.
            is_outside = left < LEFT or left + wide > WIDTH or base < highest - LINE / 2
            places.append((overlap + 1e4 * is_outside + abs(up - 4) / 2, left, base, box))
        found[i] = min(places, key=lambda place: place[0])[1:]
    return [found[i][:2] for i in range(len(points))]


def _panel(top: float, title: str, spreads: Mapping[str, Spread], models: Mapping[str, Published]) -> str:
    """Draw accuracy against the logarithm of images per second, with names where no other of a kind wins in both."""
    rates = {name: spread.median for name, spread in spreads.items() if name in models}
    names = list(rates)
    slowest, fastest = (math.log10(pick(rates[name] for name in names)) for pick in (min, max))
    lowest, highest = (pick(models[name].top1 for name in names) for pick in (min, max))
    floor = top + HEIGHT - 40

    def across(rate: float) -> float:
        return LEFT + 25 + (WIDTH - LEFT - 80) * (math.log10(rate) - slowest) / (fastest - slowest)

    def up(top1: float) -> float:
        return floor - 15 - (HEIGHT - 40 - TOP - 25) * (top1 - lowest) / (highest - lowest)

    parts = [text(LEFT, top + 26, f"{title} pixels: published top-1 against images per second", "b")]
    for top1 in range(math.ceil(lowest / 2) * 2, math.floor(highest) + 1, 2):
        parts.append(f'<path class="thin" d="M{LEFT} {up(top1):.1f} H{WIDTH}"/>')
        parts.append(text(LEFT - 8, up(top1) + 4, f"{top1} %", "s", "end"))
    ticks = [n * 10**power for power in range(math.floor(slowest), math.ceil(fastest) + 1) for n in (1, 2, 5)]
    shown = (rate for rate in ticks if slowest <= math.log10(rate) <= fastest)
    parts += [text(across(rate), floor + 18, f"{rate:g}", "s", "middle") for rate in shown]
    places = {name: (across(rates[name]), up(models[name].top1)) for name in names}
    parts += [dot(*places[name], models[name].kind, short(name)) for name in names]

    def is_best(name: str) -> bool:
        rivals = (other for other in names if models[other].kind == models[name].kind)
        return not any(rates[other] > rates[name] and models[other].top1 > models[name].top1 for other in rivals)

    points = [(*places[name], short(name)) for name in names if is_best(name)]
    for (x, y, words), (left, base) in zip(points, label_places(points, list(places.values())), strict=True):
        if abs(base - y) > 2 * LINE:
            # A line leads to a label that is not next to its point.
            near = min(max(x, left), left + LETTER * len(words))
            parts.append(f'<path class="thin" d="M{x:.1f} {y:.1f} L{near:.1f} {base - LINE / 3:.1f}"/>')
        parts.append(text(round(left, 1), round(base, 1), words, "s"))
    return "\n".join(parts)


def scatter(panels: Mapping[str, Path], models: Mapping[str, Published]) -> str:
    """Plot the models that are in all CSV files of rates, in a panel for each, by its title."""
    rates = {title: read_rates(path) for title, path in panels.items()}
    models = {name: model for name, model in models.items() if all(name in found for found in rates.values())}
    height = HEIGHT * len(panels) + 40
    parts = [_panel(HEIGHT * i, title, found, models) for i, (title, found) in enumerate(rates.items())]
    for i, kind in enumerate(COLOURS):
        words = "this package" if kind == "ours" else f"{kind}, of timm"
        parts += [dot(LEFT + 5 + 200 * i, height - 22, kind), text(LEFT + 15 + 200 * i, height - 18, words)]
    title = "Published accuracy on ImageNet-1k against measured images per second"
    return picture(title, WIDTH + 20, height, COLOURS, parts)


def speed_table(names: Sequence[str], files: Mapping[str, Path], models: Mapping[str, Published]) -> str:
    """Return a Markdown table of images per second, with a column for each file by its header."""
    rates = [read_rates(path) for path in files.values()]
    cells = {name: [rate_cell(rate.get(name)) for rate in rates] for name in names}
    rows = [[f"`{short(name)}`", f"{models[name].top1:.1f}", *cells[name]] for name in names]
    return markdown_table(["model", "published top-1 %", *files], rows)
