"""Draw three pictures as SVG: the factors of softmax-free attention, the pyramid, and its cost against resolution.

    python docs/make_diagram.py

Each picture brings its own background and follows the reader's colour scheme, so it is readable on any page. The cost
is read from `benchmarks/results/resolution_cpu.md`; the matrices are those of 36 tokens on a 6 x 6 map.
"""

import argparse
import math
import re
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from soft_vit.models import SIZES
from soft_vit.ops import eigh_inverse, gaussian_kernel, self_gaussian_kernel

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
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


def cells(x: float, y: float, matrix: Tensor, side: int, kind: str, levels: int = 6) -> list[str]:
    """A matrix as squares whose opacity grows with the entry's size."""
    height, width = matrix.shape
    level = (matrix.abs() / matrix.abs().max() * levels).ceil().long().clamp(1, levels)
    parts = []
    for shade in range(1, levels + 1):
        squares = "".join(
            f"M{x + j * side:g} {y + i * side:g}h{side}v{side}h-{side}z" for i, j in (level == shade).nonzero().tolist()
        )
        if squares:
            parts.append(
                f'<path class="{kind}" opacity="{0.08 + 0.92 * (shade - 1) / (levels - 1):.2f}" d="{squares}"/>'
            )
    return [*parts, f'<rect class="thin" x="{x}" y="{y}" width="{width * side}" height="{height * side}"/>']


def attention_diagram() -> str:
    """Softmax attention makes an N x N matrix; softmax-free attention makes N x M and M x M factors of one."""
    generator = torch.Generator().manual_seed(2)
    grid = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0))
    q = 0.75 * grid + 0.35 * torch.randn(36, 2, generator=generator)
    bottleneck = q.unflatten(0, (3, 2, 3, 2)).mean((1, 3)).flatten(0, 1)
    softmax = (0.25 * (q - q.mean(0)) @ (q - q.mean(0)).T).softmax(-1)
    k1, inverse = gaussian_kernel(q, bottleneck), eigh_inverse(self_gaussian_kernel(bottleneck))
    side, cell = 4, 20
    n, m, d = 36 * side, 9 * side, 36

    # The map of tokens, its windows, and the bottleneck tokens.
    x, y, middle = 62, 96, 122
    parts = [text(middle, 34, "Tokens of an image", "b"), text(middle, 58, "N tokens q, queries and keys at once", "s")]
    for i, j in product(range(6), repeat=2):
        parts.append(f'<circle class="q" cx="{x + 10 + cell * j}" cy="{y + 10 + cell * i}" r="5"/>')
    for i, j in product(range(3), repeat=2):
        window = f'x="{x + 40 * j + 1}" y="{y + 40 * i + 1}" width="38" height="38" rx="5"'
        parts.append(f'<rect class="l0" fill="none" {window}/>')
        parts.append(f'<circle class="l" cx="{x + 20 + 40 * j}" cy="{y + 222 + 40 * i}" r="7"/>')
    parts.append(path([(middle, y + 128), (middle, y + 160)], "line"))
    parts.append(path([(middle - 5, y + 154), (middle, y + 161), (middle + 5, y + 154)], "line"))
    parts.append(text(middle, y + 184, "M bottleneck tokens l, one a window", "s"))
    parts.append(path([(244, 24), (244, 448)], "thin"))

    def factor(x: float, y: float, name: str, size: str) -> list[str]:
        return [text(x, y + 17, name), text(x, y + 33, size, "s")]

    def solid(x: float, y: float, name: str) -> list[str]:
        body = f'<rect class="v" opacity=".75" x="{x}" y="{y}" width="{d}" height="{n}"/>'
        return [body, *factor(x + d / 2, y + n, name, "N × D")]

    x, y = 274, 44
    places = (x, x + 84, x + 150, x + 330, x + 412)
    parts += [text(x, y - 10, "Softmax attention", "b", "start"), *cells(places[2], y, softmax, side, "q")]
    parts += factor(places[2] + n / 2, y + n, "softmax(Q Kᵀ / √D)", "N × N")
    parts += [text(x, y + 66, "cost grows with", "s", "start"), text(x, y + 88, "N²", "b", "start")]
    parts += [*solid(places[3], y, "V"), *solid(places[4], y, "X")]
    parts += [text(places[3] - 18, y + n / 2, "·", "b"), text(places[4] - 23, y + n / 2, "=", "b")]

    y = 262
    parts += [text(x, y - 10, "Softmax-free attention", "b", "start")]
    parts += [*cells(places[0], y, k1, side, "q"), *factor(places[0] + m / 2, y + n, "K", "N × M")]
    parts += [*cells(places[1], y, inverse, side, "l"), *factor(places[1] + m / 2, y + m, "A⁺", "M × M")]
    parts += [*cells(places[2], y, k1.T, side, "q"), *factor(places[2] + n / 2, y + m, "Kᵀ", "M × N")]
    parts += [*solid(places[3], y, "V"), *solid(places[4], y, "X")]
    for place, sign in zip((places[1] - 24, places[2] - 15, places[3] - 18, places[4] - 23), "···=", strict=True):
        parts.append(text(place, y + 24, sign, "b"))
    parts.append(text(places[1], y + 98, "K = exp(−‖q − l‖² / 2)", "", "start"))
    parts.append(text(places[1], y + 118, "A = exp(−‖l − l‖² / 2)", "", "start"))
    parts += [
        text(places[1], y + n + 6, "cost grows with", "s", "start"),
        text(places[1], y + n + 28, "N · M", "b", "start"),
    ]
    return page(744, 472, "Softmax attention and softmax-free attention as products of matrices", parts)


def pyramid_diagram() -> str:
    """The maps of soft_tiny's four stages, each deeper by its channels, and the windows of the bottleneck tokens."""
    size, side, windows = SIZES["tiny"], 224, 7
    x, floor = 40, 190
    parts = [text(x, 34, "The pyramid of soft_tiny", "b", "start")]
    parts += [f'<rect class="v" opacity=".35" x="{x}" y="{floor - 84}" width="84" height="84"/>']
    parts += [text(x + 42, floor + 34, "image"), text(x + 42, floor + 54, f"{side} × {side} × 3", "s")]
    places, edges = (172, 334, 472, 598), (108, 84, 64, 48)
    for stage, (place, edge) in enumerate(zip(places, edges, strict=True)):
        channels, ratio = size["embed_dims"][stage], 2 ** (3 - stage)
        side = 56 >> stage
        last = stage == 3
        kind = "q" if not last else "l"
        layers = round(channels**0.5 / 3)
        for layer in range(layers, -1, -1):
            x, y = place + 3 * layer, floor - edge - 3 * layer
            shade = 0.85 if layer == 0 else 0.3
            parts.append(f'<rect class="card" x="{x}" y="{y}" width="{edge}" height="{edge}"/>')
            parts.append(f'<rect class="{kind}" opacity="{shade}" x="{x}" y="{y}" width="{edge}" height="{edge}"/>')
        if not last:
            lines = [place + edge * i / windows for i in range(1, windows)]
            parts += [path([(x, floor - edge), (x, floor)], "grid") for x in lines]
            parts += [path([(place, floor - x + place), (place + edge, floor - x + place)], "grid") for x in lines]
        center = place + edge / 2
        depth = size["depths"][stage]
        parts += [
            path([(place - 34, floor - 24), (place - 10, floor - 24)], "line"),
            path([(place - 15, floor - 29), (place - 9, floor - 24), (place - 15, floor - 19)], "line"),
            text(place - 22, floor - 34, f"÷ {2 if stage else 4}", "s"),
            text(center, floor + 34, f"stage {stage + 1}"),
            text(center, floor + 54, f"{side} × {side} tokens", "s"),
            text(center, floor + 74, f"{channels} channels", "s"),
            text(center, floor + 94, f"{depth} block{'s' * (depth > 1)}", "s"),
            text(center, floor + 118, "softmax" if last else "SOFT", "b"),
            text(center, floor + 138, "all tokens" if last else f"windows of {ratio} × {ratio}", "s"),
        ]
    words = "Each window of a map gives one bottleneck token, so that there are 7 × 7 of them at 224 pixels."
    return page(720, 352, "The pyramid of soft_tiny", [*parts, text(40, 60, words, "s", "start")])


def measured() -> dict[str, list[tuple[int, float, float | None]]]:
    """Tokens, MB and seconds of each image size, by the form of the model."""
    forms: dict[str, list[tuple[int, float, float | None]]] = {}
    for line in (ROOT / "benchmarks" / "results" / "resolution_cpu.md").read_text().splitlines():
        columns = [column.strip() for column in line.split("|")[1:-1]]
        if len(columns) == 10 and re.fullmatch(r"\d+ x \d+", columns[1]):
            seconds = float(columns[6]) if re.fullmatch(r"[\d.]+", columns[6]) else None
            forms.setdefault(columns[0], []).append((int(columns[2]), float(columns[3]), seconds))
    return {form: sorted(points) for form, points in forms.items()}


def cost_panel(
    x: float, title: str, unit: str, ends: tuple[float, float], curves: dict[str, list[tuple[int, float]]]
) -> list[str]:
    """One panel with logarithmic axes: cost against tokens."""
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


def cost_curves() -> str:
    """Seconds and MB of a training step of soft_tiny against the image, with and without a bound on M."""
    forms = measured()
    seconds = {form: [(n, s) for n, _, s in points if s is not None] for form, points in forms.items()}
    memory = {form: [(n, mb / 1024) for n, mb, _ in points] for form, points in forms.items()}
    parts = cost_panel(64, "Time of a training step", "s", (0.1, 40), seconds)
    parts += cost_panel(412, "Memory of a training step", "GB", (0.05, 20), memory)
    for x, kind, words in ((64, "q", "max_bottleneck=(7, 7)"), (250, "l", "as released: M grows with the image")):
        parts += [f'<circle class="{kind}" cx="{x + 5}" cy="326" r="4"/>', text(x + 16, 330, words, "", "start")]
    parts.append(text(682, 330, "pixels of one image; soft_tiny", "s", "end"))
    return page(720, 350, "Cost of a training step of soft_tiny against the image's size", parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the pictures of attention, pyramid and cost.")
    parser.add_argument("--out", type=Path, default=IMAGES, metavar="FOLDER", help="(default: %(default)s)")
    args = parser.parse_args()
    for name, svg in (
        ("attention.svg", attention_diagram()),
        ("pyramid.svg", pyramid_diagram()),
        ("resolution.svg", cost_curves()),
    ):
        (args.out / name).write_text(svg, encoding="utf-8")
        print(f"Written: {args.out / name}")


if __name__ == "__main__":
    main()
