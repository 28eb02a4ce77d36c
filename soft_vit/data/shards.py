"""Labelled images in shards of WebDataset: TAR files whose members share a name for each sample."""

import json
import posixpath
from pathlib import Path
from typing import Any

from PIL import Image

from soft_vit.data.archives import StoredFile, TarStorage
from soft_vit.data.images import is_image, load_image, numbered_lines


class Shards:
    """The samples of `root/SPLIT*.tar`, with random access: image i, its label, and the number of samples.

    The members `0001.jpg` and `0001.cls` are a sample: an image and the index of its class as text. Instead of `.cls`,
    `.json` may hold an object with the key `label`. classes: names of all classes, the lines of `root/classes.txt`, or
    None. Members of other kinds are ignored. The shards are local files, so samples are read in any order, such as one
    that follows from a seed; the list of members of each shard is kept next to it.

    Raises FileNotFoundError without shards, and ValueError for a damaged shard and for an image without a label.
    """

    def __init__(self, root: str | Path, split: str = "train") -> None:
        root = Path(root).expanduser()
        if not (paths := sorted(root.glob(f"{split}*.tar"))):
            raise FileNotFoundError(f"{root} must hold shards {split}*.tar.")
        self.storages = [TarStorage(path) for path in paths]
        listed = root / "classes.txt"
        self.classes = list(numbered_lines(listed).values()) if listed.is_file() else None
        self.samples: list[tuple[int, StoredFile, StoredFile]] = []
        for shard, storage in enumerate(self.storages):
            members: dict[str, dict[str, StoredFile]] = {}
            for entry in storage.entries():
                folder, name = posixpath.split(entry.name)
                key, _, kind = name.partition(".")
                part = "image" if is_image(name) and "." not in kind else kind
                members.setdefault(posixpath.join(folder, key), {})[part] = entry
            for key, parts in members.items():
                if "image" not in parts:
                    continue
                if not {"cls", "json"} & parts.keys():
                    raise ValueError(f"Every image of {storage.path} must have a label {key}.cls or {key}.json.")
                self.samples.append((shard, parts["image"], parts.get("cls") or parts["json"]))
        if not self.samples:
            raise ValueError(f"{root} must hold images in shards {split}*.tar, whose names have one dot.")

    def __len__(self) -> int:
        return len(self.samples)

    def image(self, index: int, bits: int | None = None) -> Image.Image:
        """Return an image in RGB. Raises BadImage if it cannot be read or decoded. bits: see `to_rgb`."""
        shard, entry, _ = self.samples[index]
        return load_image(self.storages[shard], entry, bits=bits)

    def label(self, index: int) -> int:
        """Return the index of the class of an image. Raises ValueError for one outside of the classes."""
        shard, _, entry = self.samples[index]
        text = self.storages[shard].read(entry).decode()
        try:
            found: Any = json.loads(text)
            label = int(found["label"] if isinstance(found, dict) else found)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{entry.name} must hold the index of a class, got {text[:60]!r}.") from error
        if label < 0 or (self.classes is not None and label >= len(self.classes)):
            raise ValueError(f"The class in {entry.name} must be from 0 to the number of classes, got {label}.")
        return label
