"""The index of recorded weights, `checkpoints/index.json`: what timm's configurations, the metafile and tables say.

    {"version": 1, "entries": [{"model": "soft_tiny", "tag": "fudan_in1k", "file": "SOFT_Tiny.pth", ...}, ...]}

The fields of an entry are those of `Entry`, the fields of a metric those of `Metric`.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from soft_vit.weights.files import INDEX_FILE, write_atomically

__all__ = [
    "ENTRIES",
    "SUFFIXES",
    "Entry",
    "Metric",
    "add_entry",
    "address_of",
    "check_entry",
    "is_source",
    "load_index",
]

VERSION = 1

# Who says a number: a publication, or a run of this package.
ORIGINS = ("published", "measured")

# What an entry may say of timm's configuration of a model, apart from where the weights are.
CFG_KEYS = (
    "num_classes",
    "input_size",
    "pool_size",
    "mean",
    "std",
    "crop_pct",
    "crop_mode",
    "interpolation",
    "label_names",
)
SUFFIXES = (".pth", ".pth.tar", ".pt", ".bin", ".safetensors")
"""Endings of files of weights."""

# Fields of an entry: what they must match, and that in words.
PATTERNS = {
    "model": (r"[a-z0-9][a-z0-9_]*", "small letters, digits and _"),
    "tag": (r"[a-z0-9][a-z0-9_]*", "small letters, digits and _"),
    "file": (
        rf"[A-Za-z0-9][A-Za-z0-9._-]*({'|'.join(map(re.escape, SUFFIXES))})",
        f"a name of letters, digits and . _ - without a folder, ending in {', '.join(SUFFIXES)}",
    ),
    "sha256": (r"[0-9a-f]{64}", "64 hexadecimal digits"),
    "license": (r"[\w.+-]+", "a short name"),
    "config": (r"configs/(?:[\w-]+/)*[\w-]+\.py", "the path of a file below configs/"),
}

DRIVE = "https://drive.google.com"
# Plain HTTP serves files of this machine alone.
_LOCAL = r"http://(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?/\S*"
_SOURCE = re.compile(
    rf"https://[^\s/]+/\S*|{_LOCAL}|gdrive:[A-Za-z0-9_-]{{10,100}}|hf-hub:[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
)


@dataclass(frozen=True)
class Metric:
    """One figure: `value` (percent where `name` is an accuracy) on `dataset`, `published` or `measured`.

    source: the publication, or the command that measures it.
    """

    dataset: str
    name: str
    value: float
    origin: str
    source: str


@dataclass(frozen=True)
class Entry:
    """Weights of one model from one training.

    model, tag: timm's name is `model.tag`; the tag says who trained it, and on what. file: the name it is looked up
    and saved under, without a folder. sources: where it can be downloaded, in order of preference: `https://...`,
    `gdrive:ID` (a file on Google Drive) or `hf-hub:OWNER/NAME` (the file of this name in a Hugging Face repository);
    empty for a file that comes with the package. size: bytes. sha256: 64 hexadecimal digits; both None if unknown.
    license: as timm writes it. config: path of the training config, from the root of the repository. options: arguments
    of the model that the weights need in addition to its name. cfg: what timm's configuration of the model says in
    addition to its family's, see CFG_KEYS. notes: sentences about the file.
    """

    model: str
    tag: str
    file: str
    sources: tuple[str, ...] = ()
    size: int | None = None
    sha256: str | None = None
    license: str | None = None
    config: str | None = None
    metrics: tuple[Metric, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    cfg: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""

    @property
    def name(self) -> str:
        """Return the name for timm, such as soft_tiny.fudan_in1k."""
        return f"{self.model}.{self.tag}"

    @property
    def page(self) -> str:
        """Return the address at which a person downloads the file with a browser."""
        source = self.sources[0]
        return f"{DRIVE}/file/d/{source[7:]}/view" if source.startswith("gdrive:") else address_of(source, self.file)

    def timm_cfg(self) -> dict[str, Any]:
        """Return what timm's configuration of the model has of this entry."""
        source = {"url": address_of(self.sources[0], self.file)} if self.sources else {"file": self.file}
        return {**self.cfg, "license": self.license, **source}


def address_of(source: str, file: str) -> str:
    """Return the address at which a source of `Entry` serves a file."""
    scheme, _, rest = source.partition(":")
    if scheme == "gdrive":
        return f"{DRIVE}/uc?export=download&id={rest}"
    return f"https://huggingface.co/{rest}/resolve/main/{file}" if scheme == "hf-hub" else source


def is_source(text: Any) -> bool:
    """Return whether a text names a source that weights may come from: over HTTPS, or from this machine."""
    return isinstance(text, str) and _SOURCE.fullmatch(text) is not None


def check_entry(entry: Entry) -> None:
    """Raise ValueError for an entry that must not be written, such as one whose file leaves its folder."""
    for name, (pattern, meaning) in PATTERNS.items():
        value = getattr(entry, name)
        if value is not None and not (isinstance(value, str) and re.fullmatch(pattern, value)):
            raise ValueError(f"{name} must be {meaning}, got {value!r}.")
    for source in entry.sources:
        if not is_source(source):
            raise ValueError(f"source must be https://..., gdrive:ID or hf-hub:OWNER/NAME, got {source!r}.")
    for key in entry.cfg:
        if key not in CFG_KEYS:
            raise ValueError(f"cfg must consist of {', '.join(CFG_KEYS)}, got {key!r}.")
    for metric in entry.metrics:
        if not math.isfinite(metric.value) or metric.origin not in ORIGINS:
            raise ValueError(f"A metric must be finite, and of origin {' or '.join(ORIGINS)}, got {metric}.")


def load_index(path: str | Path = INDEX_FILE) -> tuple[Entry, ...]:
    """Return the entries of an index, the default of each model first among its own.

    Raises FileNotFoundError, or ValueError, in one sentence with the path, for a file that is not an index.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"The index of weights {path} does not exist.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise ValueError(f"its version is {content['version']!r} and not {VERSION}")
        return tuple(_entry(item) for item in content["entries"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"The index of weights {path} cannot be used: {error}.") from error


def add_entry(entry: Entry, path: str | Path = INDEX_FILE) -> None:
    """Put an entry into an index, instead of one with the same name or at the end; the file is created if missing.

    The file is replaced as a whole or stays as it was. Raises what `check_entry` raises, and `load_index` for the file.
    """
    check_entry(entry)
    path = Path(path)
    entries = {known.name: known for known in load_index(path)} if path.exists() else {}
    entries[entry.name] = entry
    # What an entry leaves at its default is left out.
    items = [
        {key: value for key, value in asdict(known).items() if value not in (None, (), {}, "")}
        for known in entries.values()
    ]
    text = json.dumps({"version": VERSION, "entries": items}, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode())


def _entry(item: dict[str, Any]) -> Entry:
    values = dict(item)
    values["sources"] = tuple(values.get("sources", ()))
    values["metrics"] = tuple(Metric(**metric) for metric in values.get("metrics", ()))
    for name in ("cfg", "options"):
        # timm's configurations hold tuples, which JSON does not know.
        given = values.get(name, {})
        values[name] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return Entry(**values)


ENTRIES: dict[str, Entry] = {entry.name: entry for entry in load_index()} if INDEX_FILE.is_file() else {}
"""The recorded weights by `model.tag`; empty in a package that was copied without its files."""
