"""Files are written atomically; folders of weights are looked up in order."""

import os
from pathlib import Path

import pytest

from soft_vit.weights import WeightsError
from soft_vit.weights.files import download_folder, lookup_folders, require_place, write_atomically


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


def test_a_folder_is_made_and_nothing_in_it(tmp_path):
    require_place(tmp_path / "new" / "folder" / "rows.csv")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [("file/rows.csv", "cannot be written"), ("/proc/rows.csv", "cannot be written"), ("folder", "is a folder")],
)
def test_what_cannot_be_written(tmp_path, path, message):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=f"{path} {message}"):
        require_place(tmp_path / path)


@pytest.mark.parametrize("function", [download_folder, lookup_folders])
@pytest.mark.parametrize("named", ["{}/typo", "{}/file", "~nobody-of-that-name/x", "{}/typo\nmore"])
def test_a_named_folder_that_is_none(function, named, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", named.format(tmp_path))
    with pytest.raises(WeightsError, match=r"SOFT_VIT_CHECKPOINTS is .*, which is not a folder; ") as refused:
        function()
    assert len(str(refused.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_named_folder_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", "~")
    assert download_folder() == lookup_folders()[0] == tmp_path


def test_without_a_name_downloads_go_into_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", "")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert download_folder() == lookup_folders()[-1] == tmp_path / "hub" / "checkpoints"
    assert download_folder("elsewhere") == Path("elsewhere")
