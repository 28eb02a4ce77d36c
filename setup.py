"""Packaging of soft_vit; the dependency lists live in requirements/."""

import json
import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent

# Files next to the package in the repository; a wheel has them in the folder where OpenMMLab's installer looks.
RESOURCES = ("model-index.yml", "configs/**/*.py", "checkpoints/*", "tools/**/*.py", "tools/**/*.sh")


class BuildWithResources(build_py):
    """Puts configs, shipped weights and command lines into the wheel; an editable install reads those in place."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for path in self._resources():
            target = self._target(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        copies = [] if self.editable_mode else [self._target(path) for path in self._resources()]
        return [*super().get_outputs(include_bytecode), *map(str, copies)]

    def _target(self, path: Path) -> Path:
        return Path(self.build_lib, "soft_vit", ".mim", path)

    @staticmethod
    def _resources() -> list[Path]:
        """Files of RESOURCES, without what a user put into checkpoints/."""
        entries = json.loads((ROOT / "checkpoints" / "index.json").read_text())["entries"]
        shipped = {"index.json", "README.md", *(entry["file"] for entry in entries if not entry.get("sources"))}
        found = [path.relative_to(ROOT) for pattern in RESOURCES for path in sorted(ROOT.glob(pattern))]
        return [path for path in found if path.parts[0] != "checkpoints" or path.name in shipped]


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
    cmdclass={"build_py": BuildWithResources},
    name="soft_vit",
    version=read_version(),
    description="Softmax-free vision transformers: a model zoo and training framework for timm and MMEngine",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    keywords=["vision transformer", "linear attention", "softmax-free attention", "timm", "MMEngine"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=find_packages(include=["soft_vit", "soft_vit.*"]),
    package_data={
        "soft_vit": ["py.typed"],
        "soft_vit.data": ["*.csv"],
        "soft_vit.engine.hooks": ["*.md"],
        "soft_vit.layers": ["*.csv"],
        "soft_vit.linearise": ["*.md"],
        "soft_vit.predict": ["app*"],
        "soft_vit.weights": ["*.md"],
    },
    install_requires=extras.pop("runtime"),
    extras_require=extras,
)
