"""The index of recorded weights, `checkpoints/index.json`: what timm's configurations, the metafile and tables say.

    {"version": 1, "entries": [{"model": "soft_tiny", "tag": "fudan_in1k", "file": "SOFT_Tiny.pth", ...}, ...]}

The fields of an entry are those of `Entry`, those of a metric those of `Metric`; `sources` to `cfg` may be left out.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from soft_vit.weights.files import write_atomically
from soft_vit.weights.folders import INDEX_FILE

__all__ = ["ORIGINS", "Entry", "Metric", "add_entry", "load_index"]

VERSION = 1

# Who says a number: a publication, or a run of this package.
ORIGINS = ("published", "measured")

# What an entry may say of timm's configuration of a model, beside where the weights are.
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

_LOCAL = r"(?:127\.0\.0\.1|localhost|\[::1\])"
_SOURCES = (
    re.compile(r"https://[^\s/]+/\S*"),
    re.compile(rf"http://{_LOCAL}(?::\d+)?/\S*"),
    re.compile(r"gdrive:[A-Za-z0-9_-]{10,100}"),
    re.compile(r"hf-hub:[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"),
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

    def __post_init__(self) -> None:
        for name in ("dataset", "name", "source"):
            _require(isinstance(getattr(self, name), str) and getattr(self, name), name, getattr(self, name), "a text")
        number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        _require(number and math.isfinite(self.value), "value", self.value, "a finite number")
        _require(self.origin in ORIGINS, "origin", self.origin, f"one of {', '.join(ORIGINS)}")


@dataclass(frozen=True)
class Entry:
    """Weights of one model from one training.

    model, tag: timm's name is `model.tag`; the tag says who trained it, and on what. file: the name it is looked up
    and saved under, without a folder. sources: where it is downloaded from, the first first: `https://...`,
    `gdrive:ID` (a file on Google Drive) or `hf-hub:OWNER/NAME` (the file of this name in a Hugging Face repository);
    none for a file that is only shipped. size: bytes. sha256: 64 hexadecimal digits; both None where unknown.
    license: as timm writes it. config: path of the training config, from the root of the repository. cfg: what
    timm's configuration of the model says beside its family's, see CFG_KEYS. notes: sentences about the file.

    Raises ValueError for a value that is none of these, such as a file name that leaves its folder.
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
    cfg: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""

    @property
    def name(self) -> str:
        """The name for timm, such as soft_tiny.fudan_in1k."""
        return f"{self.model}.{self.tag}"

    def __post_init__(self) -> None:
        for name, value in (("model", self.model), ("tag", self.tag)):
            _require(_matches(r"[a-z0-9][a-z0-9_]*", value), name, value, "small letters, digits and _")
        _require(
            _matches(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.file) and self.file.endswith(SUFFIXES),
            "file",
            self.file,
            f"a name of letters, digits and . _ - without a folder, ending in {', '.join(SUFFIXES)}",
        )
        for source in self.sources:
            known = isinstance(source, str) and any(pattern.fullmatch(source) for pattern in _SOURCES)
            _require(known, "source", source, "https://..., gdrive:ID or hf-hub:OWNER/NAME")
        size = isinstance(self.size, int) and not isinstance(self.size, bool) and self.size > 0
        _require(self.size is None or size, "size", self.size, "a number of bytes")
        _require(self.sha256 is None or _matches(r"[0-9a-f]{64}", self.sha256), "sha256", self.sha256, "64 hex digits")
        _require(self.license is None or _matches(r"[\w.+-]+", self.license), "license", self.license, "a short name")
        inside = self.config is None or _matches(r"configs/(?:[\w-]+/)*[\w-]+\.py", self.config)
        _require(inside, "config", self.config, "the path of a file below configs/")
        unknown = [key for key in self.cfg if key not in CFG_KEYS]
        _require(not unknown, "cfg", unknown, f"some of {', '.join(CFG_KEYS)}")
        _require(isinstance(self.notes, str), "notes", self.notes, "a text")


def load_index(path: str | Path = INDEX_FILE) -> tuple[Entry, ...]:
    """The entries of an index, the default of each model first among its own.

    Raises FileNotFoundError, or ValueError, in one sentence with the path, for what is no index.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no index of weights {path}; give the path of a file that exists.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        _require(isinstance(content, dict), "index", type(content).__name__, "an object")
        _require(content.get("version") == VERSION, "version", content.get("version"), str(VERSION))
        _require(isinstance(content.get("entries"), list), "entries", content.get("entries"), "a list")
        entries = tuple(_entry(item) for item in content["entries"])
        names = [entry.name for entry in entries]
        _require(len(set(names)) == len(names), "entries", names, "names that differ")
    except ValueError as error:
        raise ValueError(f"The index of weights {path} cannot be used: {error}") from error
    return entries


def add_entry(entry: Entry, path: str | Path = INDEX_FILE) -> None:
    """Put an entry into an index, in the place of one of the same name or at the end; the file is made if missing.

    The file is replaced as a whole or stays as it was. Raises what `load_index` raises for an index that is there.
    """
    path = Path(path)
    entries = list(load_index(path)) if path.exists() else []
    places = [i for i, known in enumerate(entries) if known.name == entry.name]
    if places:
        entries[places[0]] = entry
    else:
        entries.append(entry)
    write_atomically(path, index_text(entries).encode())


def index_text(entries: Sequence[Entry]) -> str:
    """The JSON text of an index; what an entry leaves at its default is left out."""
    items = [
        {key: value for key, value in asdict(entry).items() if value not in (None, (), {}, "")} for entry in entries
    ]
    return json.dumps({"version": VERSION, "entries": items}, indent=2, ensure_ascii=False) + "\n"


def _entry(item: Any) -> Entry:
    item = _checked_keys(item, Entry)
    for name in ("sources", "metrics"):
        _require(isinstance(item.get(name, []), list), name, item.get(name), "a list")
    _require(isinstance(item.get("cfg", {}), dict), "cfg", item.get("cfg"), "an object")
    metrics = tuple(Metric(**_checked_keys(metric, Metric)) for metric in item.get("metrics", []))
    # timm's configurations hold tuples, which JSON does not know.
    cfg = {key: tuple(value) if isinstance(value, list) else value for key, value in item.get("cfg", {}).items()}
    return Entry(**{**item, "sources": tuple(item.get("sources", [])), "metrics": metrics, "cfg": cfg})


def _checked_keys(item: Any, cls: type) -> dict[str, Any]:
    _require(isinstance(item, dict), cls.__name__.lower(), item, "an object")
    known = {f.name for f in fields(cls)}
    required = {"model", "tag", "file"} if cls is Entry else known
    _require(required <= item.keys() <= known, cls.__name__.lower(), sorted(item), f"{', '.join(sorted(known))}")
    return item


def _matches(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _require(condition: bool, name: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{name} is {value!r}; give {allowed}.")
