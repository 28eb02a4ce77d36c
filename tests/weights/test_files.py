"""Files are written atomically."""

import os

import pytest

from soft_vit.weights.files import ensure_writable, write_atomically


@pytest.mark.parametrize(("step", "name"), [("fsync", "epoch_1.pth"), ("replace", f"{'猫' * 83}.pth")])
def test_failure_leaves_the_old_file(tmp_path, monkeypatch, step, name):
    path = tmp_path / name
    write_atomically(path, b"old")

    def fail(*arguments):
        raise OSError(28, "disk full")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [name]


def test_replaces_and_creates_folders_with_usual_permissions(tmp_path):
    path = tmp_path / "a" / "b.bin"
    for content in (b"old", b"new"):
        write_atomically(path, content)
    assert path.read_bytes() == b"new"
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("path", ["file/rows.csv", "/proc/rows.csv", "folder"])
def test_what_cannot_be_written(tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=path):
        ensure_writable(tmp_path / path)
    ensure_writable(tmp_path / "new" / "rows.csv")
    assert list((tmp_path / "new").iterdir()) == []
