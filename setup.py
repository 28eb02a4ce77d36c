"""Packaging of soft_vit; the dependency lists live in requirements/."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def read_requirements(name: str) -> list[str]:
    """Requirement lines of requirements/<name>.txt, with `-r other.txt` lines followed."""
    lines: list[str] = []
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("-r "):
            lines += read_requirements(line[3:].strip().removesuffix(".txt"))
        elif line:
            lines.append(line)
    return lines


def read_version() -> str:
    return re.search(r'__version__ = "(.+)"', (ROOT / "soft_vit" / "version.py").read_text()).group(1)


extras = {path.stem: read_requirements(path.stem) for path in (ROOT / "requirements").glob("*.txt")}

setup(
    name="soft_vit",
    version=read_version(),
    description="Softmax-free vision transformers: a model zoo and training framework for timm and MMEngine",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    packages=find_packages(include=["soft_vit", "soft_vit.*"]),
    package_data={"soft_vit": ["py.typed"]},
    install_requires=extras.pop("runtime"),
    extras_require=extras,
)
