"""A file is whole or not there."""

import os

import pytest
from mmengine.fileio import get_file_backend
from mmengine.runner import save_checkpoint

from soft_vit.engine.checkpoints.atomic_storage import AtomicBackend, remove_leftovers
from soft_vit.weights.files import write_atomically


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failure_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "epoch_1.pth"
    write_atomically(path, b"old")

    def fail(*arguments):
        raise OSError(28, "disk full")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["epoch_1.pth"]


def test_replaces_and_creates_folders_with_usual_permissions(tmp_path):
    path = tmp_path / "a" / "b.bin"
    for content in (b"old", b"new"):
        write_atomically(path, content)
    assert path.read_bytes() == b"new"
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert path.stat().st_mode == plain.stat().st_mode


def test_mmengine_writes_through_it(tmp_path, monkeypatch):
    backend = {"backend": "soft_vit.atomic"}
    assert isinstance(get_file_backend(str(tmp_path), backend_args=backend), AtomicBackend)
    replaced = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (replaced.append(os.path.basename(b)), replace(a, b)))
    save_checkpoint({"state_dict": {}}, str(tmp_path / "x.pth"), backend_args=backend)
    AtomicBackend().put_text("ü", tmp_path / "note")
    assert replaced == ["x.pth", "note"]
    assert (tmp_path / "note").read_text(encoding="utf-8") == "ü"


def test_leftovers_of_checkpoints_alone_are_removed(tmp_path):
    kept = ["epoch_1.pth", ".hidden", ".notes.txt.ab12.tmp", "x.pth.tmp"]
    for name in [*kept, ".epoch_2.pth.ab12.tmp", ".best_top1_epoch_3.pth.x_.tmp"]:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)
