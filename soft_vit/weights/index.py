"""The index of recorded weights, `checkpoints/index.json`: the source of timm's configurations, metafile and tables.

    {"version": 1, "entries": [{"model": "soft_tiny", "tag": "fudan_in1k", "file": "SOFT_Tiny.pth", ...}, ...]}

An entry has the fields of `Entry`, a metric those of `Metric`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from soft_vit.weights.files import INDEX_FILE, write_atomically

SUFFIXES = (".pth", ".pth.tar", ".pt", ".th", ".bin", ".safetensors")
"""Suffixes of files of weights."""

DRIVE = "https://drive.google.com"
# Plain HTTP is allowed from this machine only.
_LOCAL = r"http://(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?/\S*"
_SOURCE = re.compile(
    rf"https://[^\s/]+/\S*|{_LOCAL}|gdrive:[A-Za-z0-9_-]{{10,100}}|hf-hub:[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
)


@dataclass(frozen=True)
class Metric:
    """The value of one metric of one data set.

    value: in percent if `name` is an accuracy. origin: `published` or `measured`. source: the publication, or the
    command that measures it.
    """

    dataset: str
    name: str
    value: float
    origin: str
    source: str


@dataclass(frozen=True)
class Entry:
    """Weights of one model from one training.

    model, tag: timm's name is `model.tag`; the tag says who trained it and on which data. file: the file's name,
    without a folder. sources: where the file can be downloaded, in order of preference: `https://...`, `gdrive:ID` (a
    file on Google Drive) or `hf-hub:OWNER/NAME` (the file of this name in a Hugging Face repository); empty for a file
    that ships with the package. size: bytes. sha256: 64 hexadecimal digits; size and sha256 are None if unknown.
    license: as timm writes it. config: path of the training config, from the root of the repository. options: model
    arguments that the weights need. cfg: entries of timm's pretrained configuration that differ from the family's, such
    as mean and std. notes: sentences about the file.
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
        """Return the address for a download with a browser."""
        source = self.sources[0]
        return f"{DRIVE}/file/d/{source[7:]}/view" if source.startswith("gdrive:") else address_of(source, self.file)

    def timm_cfg(self) -> dict[str, Any]:
        """Return this entry as part of timm's pretrained configuration of the model."""
        source = {"url": address_of(self.sources[0], self.file)} if self.sources else {"file": self.file}
        return {**self.cfg, "license": self.license, **source}


def address_of(source: str, file: str) -> str:
    """Return the web address of a file at a source of `Entry`."""
    scheme, _, rest = source.partition(":")
    if scheme == "gdrive":
        return f"{DRIVE}/uc?export=download&id={rest}"
    return f"https://huggingface.co/{rest}/resolve/main/{file}" if scheme == "hf-hub" else source


def is_source(text: str) -> bool:
    """Return whether weights may be downloaded from an address: HTTPS, `gdrive:`, `hf-hub:` or this machine."""
    return _SOURCE.fullmatch(text) is not None


def load_index(path: str | Path = INDEX_FILE) -> tuple[Entry, ...]:
    """Return the entries of an index; the first entry of a model is its default."""
    return tuple(_entry(item) for item in json.loads(Path(path).read_text(encoding="utf-8"))["entries"])


def add_entry(entry: Entry, path: str | Path = INDEX_FILE) -> None:
    """Add an entry to an index, or replace the one with the same name; create the file if it does not exist.

    The file is written atomically.
    """
    path = Path(path)
    entries = {known.name: known for known in load_index(path)} if path.exists() else {}
    entries[entry.name] = entry
    # Fields at their default are left out.
    known = map(asdict, entries.values())
    items = [{key: value for key, value in one.items() if value not in (None, (), {}, "")} for one in known]
    write_atomically(path, (json.dumps({"version": 1, "entries": items}, indent=2, ensure_ascii=False) + "\n").encode())


def _entry(item: dict[str, Any]) -> Entry:
    values = dict(item)
    values["sources"] = tuple(values.get("sources", ()))
    values["metrics"] = tuple(Metric(**metric) for metric in values.get("metrics", ()))
    for name in ("cfg", "options"):
        # timm's configurations hold tuples, JSON holds lists.
        items = values.get(name, {})
        values[name] = {key: tuple(value) if isinstance(value, list) else value for key, value in items.items()}
    return Entry(**values)


RECORDED_WEIGHTS: dict[str, Entry] = {entry.name: entry for entry in load_index()} if INDEX_FILE.is_file() else {}
"""The recorded weights by `model.tag`; empty if the package was copied without its checkpoints folder."""
