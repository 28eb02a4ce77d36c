"""Draw the cost of a training step against the image's size, as SVG, from a measured table.

The picture brings its own background and follows the reader's colour scheme, so it is readable on any page.
"""

import math
import re
from pathlib import Path

STYLE = """
text{font:13px system-ui,sans-serif;fill:#1f2328} .s{font-size:11.5px;fill:#59636e} .b{font-size:15px;font-weight:600}
.card{fill:#fff;stroke:#d1d9e0} .line{fill:none;stroke:#59636e;stroke-width:1.2} .thin{fill:none;stroke:#d1d9e0}
.grid{stroke:#fff;stroke-width:.8;opacity:.8}
.q{fill:#0969da} .l{fill:#bc4c00} .v{fill:#8250df} .q0{stroke:#0969da} .l0{stroke:#bc4c00}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc} .s{fill:#9198a1} .card{fill:#0d1117;stroke:#3d444d}
.line{stroke:#9198a1} .thin{stroke:#3d444d} .q{fill:#4493f8} .l{fill:#f0883e} .v{fill:#ab7df8}
.q0{stroke:#4493f8} .l0{stroke:#f0883e}}
"""


def page(width: int, height: int, title: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    card = f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    return "\n".join(
        [f'{head} role="img">', f"<title>{title}</title>", f"<style>{STYLE}</style>", card, *parts, "</svg>\n"]
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def path(points: list[tuple[float, float]], kind: str, extra: str = "") -> str:
    return f'<path class="{kind}" {extra} d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def measured(table: Path) -> dict[str, list[tuple[int, float, float | None]]]:
    """Return tokens, MB and seconds of each image size, by the form of the model."""
    forms: dict[str, list[tuple[int, float, float | None]]] = {}
    for line in table.read_text().splitlines():
        columns = [column.strip() for column in line.split("|")[1:-1]]
        if len(columns) == 10 and re.fullmatch(r"\d+ x \d+", columns[1]):
            seconds = float(columns[6]) if re.fullmatch(r"[\d.]+", columns[6]) else None
            forms.setdefault(columns[0], []).append((int(columns[2]), float(columns[3]), seconds))
    return {form: sorted(points) for form, points in forms.items()}


def cost_panel(
    x: float, title: str, unit: str, ends: tuple[float, float], curves: dict[str, list[tuple[int, float]]]
) -> list[str]:
    """Draw one panel with logarithmic axes: cost against tokens."""
    width, height, top = 270, 210, 62
    low, high = math.log(ends[0]), math.log(ends[1])
    tokens = [(224, 3136), (448, 12544), (896, 50176), (1792, 200704)]

    def place(count: float, value: float) -> tuple[float, float]:
        across = math.log(count / tokens[0][1]) / math.log(tokens[-1][1] / tokens[0][1])
        return x + width * across, top + height * (high - math.log(value)) / (high - low)

    parts = [text(x, top - 18, title, "b", "start")]
    for tick in (0.1, 1, 10):
        _, y = place(tokens[0][1], tick)
        parts += [path([(x, y), (x + width, y)], "thin"), text(x - 8, y + 4, f"{tick:g} {unit}", "s", "end")]
    for side, count in tokens:
        parts.append(text(place(count, ends[0])[0], top + height + 20, f"{side}²", "s"))
    for points, kind in zip(curves.values(), ("q", "l"), strict=True):
        parts.append(path([place(*point) for point in points], f"{kind}0", 'fill="none" stroke-width="2.5"'))
        for point in points:
            cx, cy = place(*point)
            parts.append(f'<circle class="{kind}" cx="{cx:.1f}" cy="{cy:.1f}" r="4"/>')
    return parts


def cost_curves(table: Path) -> str:
    """Draw seconds and MB of a training step of soft_tiny against the image, with and without a bound on M."""
    forms = measured(table)
    seconds = {form: [(n, s) for n, _, s in points if s is not None] for form, points in forms.items()}
    memory = {form: [(n, mb / 1024) for n, mb, _ in points] for form, points in forms.items()}
    parts = cost_panel(64, "Time of a training step", "s", (0.1, 40), seconds)
    parts += cost_panel(412, "Memory of a training step", "GB", (0.05, 20), memory)
    for x, kind, words in ((64, "q", "max_bottleneck=(7, 7)"), (250, "l", "as released: M grows with the image")):
        parts += [f'<circle class="{kind}" cx="{x + 5}" cy="326" r="4"/>', text(x + 16, 330, words, "", "start")]
    parts.append(text(682, 330, "pixels of one image; soft_tiny", "s", "end"))
    return page(720, 350, "Cost of a training step of soft_tiny against the image's size", parts)
