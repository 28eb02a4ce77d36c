"""The index of recorded weights: what it takes, what it refuses in one sentence, and what is written from it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import timm

from soft_vit.models import FAMILY_MODELS, PYRAMID_MODELS
from soft_vit.weights import Entry, Metric, add_entry, load_index
from soft_vit.weights.fetch import sha256_of
from soft_vit.weights.files import INDEX_FILE, RESOURCES
from soft_vit.weights.index import check_entry

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


FILES = ("../x.pth", "/etc/x.pth", "a/b.pth", "a\\b.pth", "..pth", ".x.pth", "x.pth\n", "x.py", "", 3)
SOURCES = (
    "http://example.org/x.pth",
    "http://localhost.example.org/x.pth",
    "http://127.0.0.1@example.org/x.pth",
    "file:///etc/passwd",
    "gdrive:../../x/y/z/w/",
    "hf-hub:owner/../name",
    "https://example.org/a b",
    "/x.pth",
    None,
)


@pytest.mark.parametrize(
    "changes",
    [
        *({"file": name} for name in FILES),
        *({"sources": (source,)} for source in SOURCES),
        {"model": "soft-tiny"},
        {"tag": "a.b"},
        {"sha256": "G" * 64},
        {"license": "a b"},
        {"config": "../configs/x.py"},
        {"config": "configs/../x.py"},
        {"cfg": {"file": "/etc/passwd"}},
        {"metrics": (Metric("d", "n", float("nan"), "measured", "s"),)},
        {"metrics": (Metric("d", "n", 1, "ours", "s"),)},
    ],
    ids=str,
)
def test_refused_entries(changes, tmp_path):
    (field,) = changes
    with pytest.raises(ValueError, match=f"(?i){field.removesuffix('s')}") as refused:
        add_entry(Entry(**GOOD | changes), tmp_path / "index.json")
    assert len(str(refused.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"version": 2, "entries": []}', '{"version": 1}', '{"version": 1, "entries": [1]}', "\xff"],
)
def test_refused_files(text, tmp_path):
    path = tmp_path / "index.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(ValueError, match=r"index\.json cannot be used"):
        add_entry(FULL, path)
    assert path.read_bytes() == text.encode("latin1")


def test_missing_index(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        load_index(tmp_path / "nowhere.json")


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
            check_entry(entry)
            assert entry.model in PYRAMID_MODELS or entry.model in FAMILY_MODELS
            assert entry.name in timm.list_pretrained()
            assert (ROOT / entry.config).is_file()
            # Most of the zoo's authors state none for their weights.
            assert entry.license or entry.model in FAMILY_MODELS
            # No figure is published for a network of these depths.
            assert entry.metrics or entry.model == "soft_norm_base"

    def test_released_files_have_published_figures_only(self):
        released = [entry for entry in self.entries if entry.tag.startswith("fudan")]
        assert len({source for entry in released for source in entry.sources}) == 6
        assert all(metric.origin == "published" for entry in released for metric in entry.metrics)
        # The released "small" is recorded for both depths that it may have.
        assert {e.model for e in released if e.file == "SOFT_Small_norm.pth"} == {"soft_norm_small", "soft_norm_base"}

    def test_shipped_files_are_small_and_whole(self):
        shipped = [entry for entry in self.entries if not entry.sources]
        assert [entry.name for entry in shipped] == ["soft_pico.shapes", "soft_plus_pico.tiles"]
        for entry in shipped:
            path = INDEX_FILE.parent / entry.file
            assert path.suffix == ".safetensors"
            assert path.stat().st_size == entry.size < 8e6
            assert sha256_of(path) == entry.sha256

    def test_the_log_ends_with_the_recorded_figure(self):
        for entry in self.entries[:2]:
            text = (INDEX_FILE.parent / f"{entry.name}.log.jsonl").read_text()
            assert "/" not in re.sub("(accuracy|newton_residual|attention_share)/", "", text)
            figures = [line["accuracy/top1"] for line in map(json.loads, text.splitlines()) if "accuracy/top1" in line]
            # The images are drawn otherwise since.
            assert entry.metrics[0].value == pytest.approx(max(figures[-2:]), abs=0.5)
