"""Mistakes end a tool in one sentence: those of this package, and paths that the operating system refuses."""

import errno
import os
from pathlib import Path

import pytest

from soft_vit.engine.errors import UserError, plain_errors
from soft_vit.weights.files import write_atomically


@pytest.fixture
def tree(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()


def raised(number, name="x"):
    raise OSError(number, os.strerror(number), name)


def forbidden(*args, **kwargs):
    raise PermissionError(13, "Permission denied", kwargs.get("dir"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: write_atomically("file/a.pth", b""), "file cannot be used (File exists)"),
        (lambda: write_atomically("file/b/a.pth", b""), "file/b cannot be used (Not a directory)"),
        (lambda: write_atomically("folder", b""), "folder cannot be used (Is a directory)"),
        (lambda: Path("folder").read_bytes(), "folder cannot be used (Is a directory)"),
        (lambda: os.rename("none", "folder/a"), "folder/a cannot be used (No such file or directory)"),
        (lambda: forbidden(dir="x"), "x cannot be used (Permission denied)"),
        (lambda: raised(errno.EROFS), "x cannot be used (Read-only file system)"),
        (lambda: raised(errno.EDQUOT), "x cannot be used (Disk quota exceeded)"),
        (lambda: Path("x" * 300).read_bytes(), f"{'x' * 300} cannot be used (File name too long)"),
    ],
)
def test_path_that_cannot_be_used(tree, given, said):
    with pytest.raises(SystemExit) as ended, plain_errors():
        given()
    assert ended.value.code == f"error: {said}; give another path."


def test_folder_without_permission_names_the_file(tree, monkeypatch):
    monkeypatch.setattr("tempfile.mkstemp", forbidden)
    with pytest.raises(SystemExit, match=r"error: folder/a\.pth cannot be used"), plain_errors():
        write_atomically("folder/a.pth", b"")


def test_full_disk_names_the_file(tree, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: raised(errno.ENOSPC, None))
    with pytest.raises(SystemExit, match=r"error: folder/a\.pth cannot be used \(No space left"), plain_errors():
        write_atomically("folder/a.pth", b"")
    assert not list(Path("folder").iterdir())


@pytest.mark.parametrize("error", [UserError("Give less."), FileNotFoundError("There is no config x.")])
def test_sentence_of_this_package(error):
    with pytest.raises(SystemExit) as ended, plain_errors():
        raise error
    assert ended.value.code == f"error: {error}"


@pytest.mark.parametrize("error", [ValueError("shape"), OSError(errno.EIO, "Input/output error", "x"), KeyError("x")])
def test_other_errors_keep_their_traceback(error):
    with pytest.raises(type(error)), plain_errors():
        raise error
