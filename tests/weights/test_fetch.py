"""Downloads, and the index of recorded weights."""

import errno
import hashlib
import multiprocessing
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
from file_server import file_server

from soft_vit.models import FAMILY_MODELS, PYRAMID_MODELS
from soft_vit.weights import Entry, Metric, WeightsError, add_entry, load_index
from soft_vit.weights import fetch as fetch_module
from soft_vit.weights.fetch import download, download_folder, lookup_folders, recorded_digest, sha256_of
from soft_vit.weights.files import INDEX_FILE, RESOURCES
from soft_vit.weights.index import SUFFIXES, is_source

# Downloads: the whole file arrives, or one reason is given and nothing else changes.


BODY = bytes(range(256)) * 400
DIGEST = hashlib.sha256(BODY).hexdigest()


def fetch(source: str, folder: Path, *more_sources: str, **known) -> Path:
    """Download weights.pth; without a known digest, the check is for BODY."""

    def check(path: Path) -> None:
        if path.read_bytes() != BODY:
            raise ValueError("these are other bytes.")

    return download(Entry("soft_tiny", "test", "weights.pth", (source, *more_sources), **known), folder, check)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.mark.parametrize("known", [{"sha256": DIGEST, "size": len(BODY)}, {}], ids=["digest", "no digest"])
def test_whole(known, tmp_path):
    folder = tmp_path / "new"
    with file_server(body=BODY, redirect="/elsewhere") as server:
        path = fetch(f"{server.url}/weights.pth", folder, **known)
        assert fetch(f"{server.url}/weights.pth", folder, **known) == path
    assert path.read_bytes() == BODY
    assert server.requests == ["/weights.pth", "/elsewhere"]
    assert recorded_digest(path) == (None if known else DIGEST)
    assert left(folder) == ["weights.pth", *([] if known else ["weights.pth.sha256"])]


BROKEN = [(dict(status=[404]), {}, "HTTP Error 404"), (dict(status=[503]), {}, "HTTP Error 503")]
BROKEN += [(dict(body=b"<html>"), {}, "other bytes"), (dict(body=BODY[::-1]), {}, "other bytes")]
BROKEN += [(dict(cut=1000), {}, "other bytes"), (dict(redirect="ftp://127.0.0.1/x"), {}, "gives no file")]
BROKEN += [(dict(mute=True), {}, "timed out"), (dict(stall=1000), {}, "timed out")]
BROKEN += [({}, dict(sha256="0" * 64), DIGEST[:12]), ({}, dict(size=3), "102,400")]


@pytest.mark.parametrize(("behaviour", "known", "reason"), BROKEN, ids=str)
def test_what_is_not_the_file(behaviour, known, reason, tmp_path, monkeypatch):
    if reason == "timed out":
        monkeypatch.setattr(fetch_module, "IDLE_TIMEOUT", 0.2)
    with file_server(**{"body": BODY, **behaviour}) as server, pytest.raises(WeightsError, match=reason) as refused:
        fetch(f"{server.url}/x", tmp_path, **known)
    assert left(tmp_path) == []
    assert len(str(refused.value).splitlines()) == 1


def save_with_gdown(*, id, output, use_cookies) -> None:
    with open(output, "wb") as file:
        file.write(BODY if id == "abcdefghij" else b"")


def refuse_with_gdown(**kwargs) -> None:
    raise RuntimeError("Failed:\n\n\tToo many users have\n\tviewed this file. Please try again later.")


def save_with_the_hub(repo_id, filename, *, local_dir) -> None:
    (local_dir / filename).write_bytes(BODY if repo_id == "owner/name" else b"")


SOURCES = [
    ("gdrive:abcdefghij", "gdown", SimpleNamespace(download=save_with_gdown), None),
    ("gdrive:abcdefghij", "gdown", SimpleNamespace(download=refuse_with_gdown), "users have viewed this file$"),
    ("gdrive:abcdefghij", "gdown", None, "gdown"),
    ("hf-hub:owner/name", "huggingface_hub", SimpleNamespace(hf_hub_download=save_with_the_hub), None),
    ("http://127.0.0.1:1/x", "gdown", None, "Connection refused"),
    ("file:///etc/passwd", "gdown", None, "is not HTTPS"),
]


@pytest.mark.parametrize(("source", "module", "stub", "reason"), SOURCES)
def test_sources(source, module, stub, reason, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, stub)
    if reason is None:
        assert fetch(source, tmp_path).read_bytes() == BODY
    else:
        with pytest.raises(WeightsError, match=reason):
            fetch(source, tmp_path)


def test_full_disk(tmp_path, monkeypatch):
    def save(source, path):
        path.write_bytes(BODY[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch_module, "_fetch_address", save)
    with pytest.raises(WeightsError, match="No space left"):
        fetch("https://example.org/x", tmp_path)
    assert left(tmp_path) == []


def test_parts_of_killed_processes_are_removed(tmp_path):
    (tmp_path / ".weights.pth.part-x").mkdir()
    (tmp_path / ".weights.pth.part-x" / "weights.pth").write_bytes(b"half")
    with file_server(body=BODY) as server:
        fetch(f"{server.url}/x", tmp_path, sha256=DIGEST)
    assert left(tmp_path) == ["weights.pth"]


def test_processes_at_once(tmp_path):
    """One downloads, the others wait for its file."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def work(barrier) -> None:
        barrier.wait(10)
        results.put(fetch(f"{server.url}/x", tmp_path).name)

    with file_server(body=BODY, delay=0.5) as server:
        barrier = context.Barrier(3)
        processes = [context.Process(target=work, args=(barrier,)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(20)
    assert [process.exitcode for process in processes] == [0] * 3
    assert [results.get() for _ in processes] == ["weights.pth"] * 3
    assert len(server.requests) == 1


@pytest.mark.parametrize("text", [f"{DIGEST}  a.pth\n", f"{DIGEST.upper()} *a.pth\r\n", DIGEST, "", DIGEST[1:]])
def test_recorded_digest(text, tmp_path):
    assert recorded_digest(tmp_path / "a.pth") is None
    (tmp_path / "a.pth.sha256").write_text(text)
    with nullcontext() if len(text) >= 64 else pytest.raises(WeightsError, match=r"a\.pth\.sha256"):
        assert recorded_digest(tmp_path / "a.pth") == DIGEST


def test_folders(tmp_path, monkeypatch):
    """A named one comes first; without a name, downloads go into the cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", "~")
    assert download_folder() == lookup_folders()[0] == tmp_path
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", "")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert download_folder() == lookup_folders()[-1] == tmp_path / "hub" / "checkpoints"
    assert download_folder("elsewhere") == Path("elsewhere")


# The index of recorded weights: written, read, and true of the shipped files.


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


REFUSED = ["http://example.org/x.pth", "http://localhost.example.org/x.pth", "http://127.0.0.1@example.org/x.pth"]
REFUSED += ["file:///etc/passwd", "gdrive:../../x/y/z/w/", "hf-hub:owner/../name", "https://example.org/a b", "/x.pth"]


@pytest.mark.parametrize("source", REFUSED)
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
            # The recipes of the largest of Vision-RWKV and of EfficientViT are not public as a whole.
            without = ("vrwkv_large", "efficientvit_")
            assert entry.model.startswith(without) if entry.config is None else (ROOT / entry.config).is_file()
            # Most of the zoo's authors state no licence for their weights.
            assert entry.license or entry.model in FAMILY_MODELS
            # No figure is published for a network of these depths, nor on ImageNet-22k.
            assert entry.metrics or entry.name in ("soft_norm_base.fudan_in1k", "vrwkv_large.opengvlab_in22k")

    def test_shipped_files_are_small_and_whole(self):
        shipped = [entry for entry in self.entries if not entry.sources]
        assert [entry.tag for entry in shipped] == ["shapes", "tiles", "fashion"]
        for entry in shipped:
            path = INDEX_FILE.parent / entry.file
            assert path.suffix == ".safetensors"
            assert path.stat().st_size == entry.size < 8e6
            assert sha256_of(path) == entry.sha256
