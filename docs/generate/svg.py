"""Draw SVG pictures with a background of their own that follow the reader's colour scheme, readable on any page."""

from collections.abc import Iterable, Mapping


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{words}</text>'


def dot(x: float, y: float, style: str, title: str = "") -> str:
    end = f"><title>{title}</title></circle>" if title else "/>"
    return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"{end}'


def picture(title: str, width: int, height: int, colours: Mapping[str, tuple[str, str]], parts: Iterable[str]) -> str:
    """Return a picture of parts on a card.

    colours: light and dark scheme's by class; `b` is bold text, `s` small and pale text, `thin` a line of a grid.
    """
    fills, dark = (
        " ".join(f".{name}{{fill:{both[scheme]}}} .{name}0{{stroke:{both[scheme]}}}" for name, both in colours.items())
        for scheme in (0, 1)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img">',
            f"<title>{title}</title>",
            "<style>",
            "text{font:13px system-ui,sans-serif;fill:#1f2328} .s{font-size:11.5px;fill:#59636e}",
            ".b{font-size:15px;font-weight:600} .card{fill:#fff;stroke:#d1d9e0} .thin{fill:none;stroke:#d1d9e0}",
            fills,
            "@media(prefers-color-scheme:dark){text{fill:#f0f6fc} .s{fill:#9198a1} .card{fill:#0d1117;stroke:#3d444d}",
            f".thin{{stroke:#3d444d}} {dark}}}",
            "</style>",
            f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )
