"""The index of recorded weights: written, read, and true of the shipped files."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import timm

from soft_vit.models import FAMILY_MODELS, PYRAMID_MODELS
from soft_vit.weights import Entry, Metric, add_entry, load_index
from soft_vit.weights.fetch import sha256_of
from soft_vit.weights.files import INDEX_FILE, RESOURCES
from soft_vit.weights.index import SUFFIXES, is_source

ROOT = Path(__file__).parents[2]
GOOD = {"model": "soft_tiny", "tag": "ours_in1k", "file": "soft_tiny.pth"}
FULL = Entry(
    **GOOD,
    sources=("https://example.org/w.pth", "gdrive:1S04DCotIOkP0DaBb8WStQ513z82qT9de", "hf-hub:owner/name.v1"),
    size=3,
    sha256="0" * 64,
    license="mit",
    config="configs/soft_tiny.py",
    metrics=(Metric("ImageNet-1k", "top-1", 79.3, "measured", "python tools/test.py"),),
    options={"inverse": "cholesky", "img_size": (64, 96)},
    cfg={"num_classes": 10, "mean": (0.5, 0.5, 0.5)},
    notes="A note.",
)


def test_written_and_read_again(tmp_path):
    path = tmp_path / "new" / "index.json"
    add_entry(FULL, path)
    add_entry(Entry(**GOOD | {"tag": "b"}), path)
    add_entry(replace(FULL, size=4), path)
    assert load_index(path) == (replace(FULL, size=4), Entry(**GOOD | {"tag": "b"}))
    assert [file.name for file in path.parent.iterdir()] == ["index.json"]


def test_a_damaged_index_stays_as_it_is(tmp_path):
    path = tmp_path / "index.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="line 1"):
        add_entry(FULL, path)
    assert path.read_text() == "{"


@pytest.mark.parametrize(
    "source",
    [
        "http://example.org/x.pth",
        "http://localhost.example.org/x.pth",
        "http://127.0.0.1@example.org/x.pth",
        "file:///etc/passwd",
        "gdrive:../../x/y/z/w/",
        "hf-hub:owner/../name",
        "https://example.org/a b",
        "/x.pth",
    ],
)
def test_refused_sources(source):
    assert not is_source(source)


def test_addresses():
    drive, hub = (replace(FULL, sources=(source,)) for source in FULL.sources[1:])
    assert drive.page == "https://drive.google.com/file/d/1S04DCotIOkP0DaBb8WStQ513z82qT9de/view"
    assert hub.page == hub.timm_cfg()["url"] == "https://huggingface.co/owner/name.v1/resolve/main/soft_tiny.pth"
    assert FULL.page == FULL.timm_cfg()["url"] == "https://example.org/w.pth"
    assert Entry(**GOOD).timm_cfg()["file"] == "soft_tiny.pth"


class TestShippedIndex:
    entries = load_index()

    def test_names_models_and_configs_that_exist(self):
        assert RESOURCES == ROOT
        assert len({entry.name for entry in self.entries}) == len(self.entries)
        for entry in self.entries:
            assert re.fullmatch(r"\w[\w.-]*", entry.file)
            assert entry.file.endswith(SUFFIXES)
            assert all(map(is_source, entry.sources))
            assert entry.model in PYRAMID_MODELS or entry.model in FAMILY_MODELS
            assert entry.name in timm.list_pretrained()
            assert (ROOT / entry.config).is_file()
            # Most of the zoo's authors state no licence for their weights.
            assert entry.license or entry.model in FAMILY_MODELS
            # No figure is published for a network of these depths.
            assert entry.metrics or entry.model == "soft_norm_base"

    def test_shipped_files_are_small_and_whole(self):
        shipped = [entry for entry in self.entries if not entry.sources]
        assert [entry.name for entry in shipped] == ["soft_pico.shapes", "soft_plus_pico.tiles"]
        for entry in shipped:
            path = INDEX_FILE.parent / entry.file
            assert path.suffix == ".safetensors"
            assert path.stat().st_size == entry.size < 8e6
            assert sha256_of(path) == entry.sha256
